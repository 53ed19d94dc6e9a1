//! Runbook names: `dlq_tail`, `replay_msg`, `latency_histogram` are this binary under another name, so that an old
//! runbook works word for word.

use super::exit::{Exit, Failure};
use super::render;
use clap::Subcommand;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Each name and the command that it stands for.
const ALIASES: [(&str, &[&str]); 3] =
    [("dlq_tail", &["dlq", "tail"]), ("replay_msg", &["replay"]), ("latency_histogram", &["latency"])];

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch aliases install                 then: dlq_tail, replay_msg --id ID --reason TEXT
  clinch aliases install --dir /usr/local/bin
  eval \"$(clinch aliases print)\"         only for this shell")]
pub enum Aliases {
    /// Make symbolic links to this binary
    Install {
        /// Where they go (default ~/.local/bin)
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Print shell functions instead
    Print,
}

impl Aliases {
    pub fn run(&self) -> Result<Exit, Failure> {
        match self {
            Aliases::Print => render::data(&functions())?,
            Aliases::Install { dir } => {
                let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin"));
                let dir = dir.clone().or_else(home).ok_or_else(|| failed("there is no HOME; say where with --dir"))?;
                let binary = std::env::current_exe().map_err(|error| failed(&error.to_string()))?;
                install(&dir, &binary)?;
                for (name, _) in ALIASES {
                    render::data(&dir.join(name).display().to_string())?;
                }
                render::note("each runs clinch; if a shell does not find them, add the directory to PATH");
            }
        }
        Ok(Exit::Done)
    }
}

fn failed(said: &str) -> Failure {
    Failure::new(Exit::Failed, "CL0529", format!("The aliases cannot be installed: {said}"))
}

/// All or none: what is not ours is not replaced.
fn install(dir: &Path, binary: &Path) -> Result<(), Failure> {
    let named = |path: &Path, error: std::io::Error| failed(&format!("{}: {error}", path.display()));
    std::fs::create_dir_all(dir).map_err(|error| named(dir, error))?;
    for (name, _) in ALIASES {
        let path = dir.join(name);
        let is_link = path.symlink_metadata().map(|found| found.is_symlink());
        if is_link.is_ok_and(|is_link| !is_link) {
            let said = failed(&format!("{} is there already and is no link", path.display()));
            return Err(said.fix("remove it, or choose another directory with --dir"));
        }
    }
    for (name, _) in ALIASES {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(named(&path, error)),
            _ => std::os::unix::fs::symlink(binary, &path).map_err(|error| named(&path, error))?,
        }
    }
    Ok(())
}

fn functions() -> String {
    ALIASES.iter().map(|(name, command)| format!("{name}() {{ clinch {} \"$@\"; }}\n", command.join(" "))).collect()
}

/// The arguments as `clinch` takes them, and a line that says so if it was called by another name.
pub fn expand(args: Vec<OsString>) -> (Vec<OsString>, Option<String>) {
    let called = args.first().and_then(|name| Path::new(name).file_name()).and_then(OsStr::to_str);
    let Some((_, command)) = ALIASES.iter().find(|(name, _)| Some(*name) == called) else {
        return (args, None);
    };
    let words = command.iter().map(OsString::from).chain(args.into_iter().skip(1));
    let args: Vec<OsString> = [OsString::from("clinch")].into_iter().chain(words).collect();
    let said = args.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    (args, Some(format!("= {said}")))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &[&str], expanded: &[&str], said: Option<&str>) {
        let (args, alias) = expand(line.iter().map(OsString::from).collect());
        assert_eq!(args, expanded.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(alias.as_deref(), said);
    }

    #[test]
    fn i2_an_old_runbook_works_word_for_word() {
        check(&["dlq_tail"], &["clinch", "dlq", "tail"], Some("= clinch dlq tail"));
        check(
            &["/usr/bin/replay_msg", "--id", "job_1", "--reason", "it's fixed"],
            &["clinch", "replay", "--id", "job_1", "--reason", "it's fixed"],
            Some(r"= clinch replay --id job_1 --reason 'it'\''s fixed'"),
        );
        check(
            &["latency_histogram", "--window", "15m", "--percentile", "95"],
            &["clinch", "latency", "--window", "15m", "--percentile", "95"],
            Some("= clinch latency --window 15m --percentile 95"),
        );
        check(&["./clinch", "dlq", "tail"], &["./clinch", "dlq", "tail"], None);
    }

    #[test]
    fn links_replace_links_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let binary = Path::new("/bin/true");
        install(dir.path(), binary).expect("installed");
        install(dir.path(), binary).expect("installed again");
        assert_eq!(std::fs::read_link(dir.path().join("dlq_tail")).expect("a link"), binary);

        std::fs::remove_file(dir.path().join("replay_msg")).expect("there");
        std::fs::write(dir.path().join("replay_msg"), "theirs").expect("written");
        assert!(install(dir.path(), binary).is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("replay_msg")).expect("kept"), "theirs");
    }

    #[test]
    fn a_shell_can_have_functions_instead() {
        assert!(functions().contains("dlq_tail() { clinch dlq tail \"$@\"; }\n"));
    }
}
