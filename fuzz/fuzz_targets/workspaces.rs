//! A workspace of any text in any of its files: read, or refused with places that are in the text.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::config::{Files, load, position};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Written {
    texts: [Option<String>; 5],
}

const PATHS: [&str; 5] = ["clinch.yml", "flows/a.yml", "queues.yml", "schemas/a.json", "workers/a.yml"];

fuzz_target!(|written: Written| {
    let files = PATHS.into_iter().zip(written.texts).filter_map(|(path, text)| Some((path.to_string(), text?)));
    let files = Files(files.collect());
    assert_eq!(Files::from_json(&files.to_json()).expect("it reads back"), files);
    let problems = match load(&files) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    for problem in problems {
        let text = files.0.iter().find(|(path, _)| *path == problem.file).map_or("", |(_, text)| text);
        assert!(problem.span.end <= text.len() && text.is_char_boundary(problem.span.start), "{problem:?}");
        position(text, problem.span.start);
    }
});
