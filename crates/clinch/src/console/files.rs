//! The style and the script of the console: in the binary, and in the browser for as long as this binary serves.

use axum::extract::Path;
use axum::http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::sync::LazyLock;

const STYLE: &str = include_str!("static/console.css");
const SCRIPT: &str = include_str!("static/console.js");
const MARK: &str = include_str!("static/mark.svg");

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
    packed: Vec<u8>,
}

static FILES: LazyLock<[File; 3]> = LazyLock::new(|| {
    let file = |name, kind, text: &'static str| File { name, kind, text, packed: pack(text) };
    [
        file("console.css", "text/css; charset=utf-8", STYLE),
        file("console.js", "text/javascript; charset=utf-8", SCRIPT),
        file("mark.svg", "image/svg+xml", MARK),
    ]
});

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, [STYLE, SCRIPT, MARK].concat().as_bytes());
    HEXLOWER.encode(&sum.as_ref()[..6])
});

/// In the address of every file, so that a browser asks once per release.
pub fn version() -> &'static str {
    &VERSION
}

fn pack(text: &str) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes()).and_then(|()| packer.finish()).expect("memory takes what is written")
}

pub async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return (StatusCode::NOT_FOUND, "There is no such file.\n").into_response();
    };
    let said =
        [(CONTENT_TYPE, file.kind), (CACHE_CONTROL, "public, max-age=31536000, immutable"), (VARY, "accept-encoding")];
    let takes = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match takes.split(',').any(|one| one.trim() == "gzip") {
        true => (said, [(CONTENT_ENCODING, "gzip")], file.packed.clone()).into_response(),
        false => (said, file.text).into_response(),
    }
}
