//! An event as its sender would send it: to which address, with which headers, and signed. For trials and for `clinch send`.

use clinch_core::config::Workspace;
use clinch_core::key::{KeyPart, KeyRule};
use clinch_core::signature::presets::Place;
use clinch_core::signature::sign::sign;
use clinch_core::signature::{Key, Request};
use clinch_core::source::{Proof, Source};
use clinch_core::time::Timestamp;
use clinch_core::trial::{Letter, LetterBody, Signature, set_field};
use serde_json::Value;
use std::path::Path;

/// Ready to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Where a letter is taken in.
pub struct Door<'a> {
    pub method: &'static str,
    pub path: &'a str,
    /// What recognises an event.
    key: KeyPlace,
    source: Option<&'a Source>,
}

enum KeyPlace {
    Header(String),
    /// A pointer into the body.
    Body(String),
    Several,
    Nowhere,
}

/// The door of a flow, of a source, or at a path; or what is wrong with the name.
pub fn door<'a>(workspace: &'a Workspace, to: &str) -> Result<Door<'a>, String> {
    let is_path = to.starts_with('/');
    let routes = workspace.flows.iter().flat_map(|flow| flow.routes.iter().map(move |route| (flow, route)));
    let mut doors: Vec<Door<'a>> = routes
        .filter(|(flow, route)| if is_path { route.path == to } else { flow.name == to })
        .map(|(_, route)| Door {
            method: route.method.word(),
            path: &route.path,
            key: route.dedup.as_ref().map_or(KeyPlace::Nowhere, |dedup| KeyPlace::of(&dedup.key)),
            source: None,
        })
        .collect();
    // A flow is also named for the source that it takes events from.
    let of_flow: Vec<&str> = (workspace.flow(to).into_iter())
        .flat_map(|flow| flow.subscriptions.iter().map(|taken| taken.source.as_str()))
        .collect();
    let is_meant = |source: &&Source| match is_path {
        true => source.path == to,
        false => source.name == to || of_flow.contains(&source.name.as_str()),
    };
    doors.extend(workspace.sources.iter().filter(is_meant).map(|source| Door {
        method: source.method.word(),
        path: &source.path,
        key: KeyPlace::of_source(source),
        source: Some(source),
    }));
    let paths: Vec<&str> = doors.iter().map(|door| door.path).collect();
    match paths.len() {
        1 => Ok(doors.remove(0)),
        0 => {
            let mut known: Vec<&str> = workspace.entrances().map(|way| way.to.1).collect();
            known.sort_unstable();
            known.dedup();
            Err(format!("there is no flow, source or path `{to}`; there are: {}", known.join(", ")))
        }
        _ => Err(format!("`{to}` has several ways in: {}; name one of these paths", paths.join(", "))),
    }
}

impl KeyPlace {
    fn of(rule: &KeyRule) -> KeyPlace {
        match rule {
            KeyRule::One(KeyPart::Header(name)) => KeyPlace::Header(name.clone()),
            KeyRule::One(KeyPart::Body(pointer)) => KeyPlace::Body(pointer.clone()),
            KeyRule::One(KeyPart::Computed(_)) | KeyRule::Tuple(_) => KeyPlace::Several,
        }
    }

    fn of_source(source: &Source) -> KeyPlace {
        if let Some(rule) = &source.keys.rule {
            return KeyPlace::of(rule);
        }
        match source.preset.id.first() {
            Some([Place::Header(name)]) => KeyPlace::Header((*name).into()),
            Some([Place::Event(pointer)]) => KeyPlace::Body((*pointer).into()),
            Some(_) => KeyPlace::Several,
            None => KeyPlace::Nowhere,
        }
    }
}

/// The letter as it is posted. `secret` are those of the server that it is for.
pub fn post(
    workspace: &Workspace,
    directory: &Path,
    letter: &Letter,
    secret: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Result<Post, String> {
    let door = door(workspace, &letter.to)?;
    let mut headers = vec![("content-type".to_string(), "application/json".to_string())];
    let mut body = match &letter.body {
        LetterBody::Value(value) => Body::Tree(value.clone()),
        LetterBody::Raw(bytes) => Body::Raw(bytes.clone()),
        LetterBody::Fixture(name) => {
            add(&mut headers, fixture_headers(directory, name)?);
            Body::Tree(fixture(directory, name)?)
        }
    };
    add(&mut headers, letter.headers.clone());
    for (path, value) in &letter.set {
        if !set_field(body.tree()?, path, value.clone()) {
            return Err(format!("`{path}` cannot be set: there is a list or a plain value in its way"));
        }
    }
    if let Some(key) = &letter.key {
        match &door.key {
            KeyPlace::Header(name) => add(&mut headers, [(name.clone(), key.clone())]),
            KeyPlace::Body(pointer) => {
                let path = pointer.trim_start_matches('/').replace('/', ".");
                if !set_field(body.tree()?, &path, key.clone().into()) {
                    return Err(format!("the key cannot be put at `{pointer}` of this body"));
                }
            }
            KeyPlace::Several => {
                return Err(format!(
                    "the key of `{}` is made of several values; change them instead of `key`",
                    letter.to
                ));
            }
            KeyPlace::Nowhere => add(&mut headers, [("idempotency-key".into(), key.clone())]),
        }
    }
    let body = match body {
        Body::Tree(Value::Null) => Vec::new(),
        Body::Tree(value) => value.to_string().into_bytes(),
        Body::Raw(bytes) => bytes,
    };
    let mut post = Post { method: door.method, path: door.path.to_string(), headers, body };
    if let Some(source) = door.source.filter(|_| letter.signature != Signature::None) {
        let signed = signed(source, &post, letter.signature, secret, now)?;
        add(&mut post.headers, signed);
    }
    Ok(post)
}

/// Bytes stay as they are for as long as nobody changes a field.
enum Body {
    Tree(Value),
    Raw(Vec<u8>),
}

impl Body {
    fn tree(&mut self) -> Result<&mut Value, String> {
        if let Body::Raw(bytes) = self {
            let value = serde_json::from_slice(bytes).map_err(|_| "a field can only be set in a body that is JSON")?;
            *self = Body::Tree(value);
        }
        match self {
            Body::Tree(value) => Ok(value),
            Body::Raw(_) => unreachable!("it became a tree"),
        }
    }
}

/// Later ones win.
fn add(headers: &mut Vec<(String, String)>, more: impl IntoIterator<Item = (String, String)>) {
    for (name, value) in more {
        headers.retain(|(there, _)| *there != name);
        headers.push((name, value));
    }
}

fn signed(
    source: &Source,
    post: &Post,
    signature: Signature,
    secret: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Result<Vec<(String, String)>, String> {
    let said = |why: &dyn std::fmt::Display| format!("a letter to source `{}` cannot be signed: {why}", source.name);
    let rule = match &source.proof {
        None => return Ok(Vec::new()),
        Some(Proof::Sender) => return Err(said(&"it takes tokens of `clinch token new`; give one as a header")),
        Some(Proof::Signature(rule)) => rule,
    };
    let variable = &rule.secrets.first().ok_or_else(|| said(&"it has no secret"))?.variable;
    let text = secret(variable).ok_or_else(|| said(&format!("{variable} is not set")))?;
    let key = match signature {
        Signature::Wrong => Key::Shared(b"a secret that the sender does not have".to_vec()),
        Signature::Right | Signature::None => rule.scheme.secret_format().read(&text).map_err(|why| said(&why))?,
    };
    let headers: Vec<(&str, &[u8])> =
        post.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let url = rule.public_url.as_deref().unwrap_or_default();
    let request = Request { method: post.method, url, headers: &headers, body: &post.body };
    sign(&rule.scheme, &request, &key, now).map_err(|why| said(&why))
}

/// The body of `fixtures/NAME.json`.
pub fn fixture(directory: &Path, name: &str) -> Result<Value, String> {
    let path = directory.join("fixtures").join(format!("{name}.json"));
    let text = std::fs::read(&path).map_err(|error| {
        let there = fixtures(directory);
        format!("the fixture {} cannot be read: {error}; there are: {}", path.display(), there.join(", "))
    })?;
    serde_json::from_slice(&text).map_err(|error| format!("{} is not JSON: {error}", path.display()))
}

fn fixtures(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("fixtures")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_string)).collect();
    names.sort();
    names
}

/// `Name: value`, one in a line, of `fixtures/NAME.headers`.
fn fixture_headers(directory: &Path, name: &str) -> Result<Vec<(String, String)>, String> {
    let path = directory.join("fixtures").join(format!("{name}.headers"));
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let (name, value) = line.split_once(':').ok_or_else(|| format!("{}: `{line}` is no header", path.display()))?;
        Ok((name.trim().to_ascii_lowercase(), value.trim().to_string()))
    };
    lines.map(read).collect()
}
