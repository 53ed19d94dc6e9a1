//! `clinch verify-signature`: the signature doctor. Reads a request from files and flags; a server is asked only about the
//! last request that it refused.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::presets::unknown;
use super::render::{self, BOLD};
use crate::api::shapes::RejectionList;
use anstyle::{AnsiColor, Style};
use clap::{ArgGroup, Args};
use clinch_core::signature::doctor::{Diagnosis, Verdict, diagnose};
use clinch_core::signature::presets::{self, Preset};
use clinch_core::signature::{Request, SECRETS_MAX, Scheme, Window, settings};
use clinch_core::time::Timestamp;
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(
    group(ArgGroup::new("given").args(["secrets", "secrets_env", "secrets_file"]).multiple(true)),
    after_help = "\
Examples:
  clinch verify-signature --preset stripe --secret-env STRIPE_WEBHOOK_SECRET --body event.json \\
      --header 'Stripe-Signature: t=1700000000,v1=...' --at 1700000000
  clinch verify-signature --preset square --secret-file key.txt --body - --url https://hooks.example.com/square \\
      --header 'x-square-hmacsha256-signature: ...' < event.json
  clinch verify-signature --preset hmac --set header=X-Sig --set encoding=base64 --set 'signed={timestamp}.{body}' \\
      --set timestamp=header:X-Time --secret s3cret --body event.json --header 'X-Sig: ...' --header 'X-Time: ...'
  clinch verify-signature --last-rejected --source shop     why the running server refused the last request

Exits with 0 if the signature is accepted and with 1 if it is refused. Save the body as it came, byte for byte:
editors add line breaks."
)]
pub struct VerifySignature {
    /// The provider; see `clinch presets ls`
    #[arg(long, value_name = "NAME", required_unless_present = "last_rejected", requires = "given")]
    preset: Option<String>,
    /// A secret; other users of this machine can see it, so better one of the next two
    #[arg(long = "secret", value_name = "SECRET", allow_hyphen_values = true)]
    secrets: Vec<String>,
    /// An environment variable with a secret
    #[arg(long = "secret-env", value_name = "VAR")]
    secrets_env: Vec<String>,
    /// A file with a secret; a line break at its end does not count
    #[arg(long = "secret-file", value_name = "FILE")]
    secrets_file: Vec<PathBuf>,
    /// The body as it came: a file, or - for standard input
    #[arg(long, value_name = "FILE", required_unless_present = "last_rejected")]
    body: Option<PathBuf>,
    /// A header as it came; again for each
    #[arg(short = 'H', long = "header", value_parser = header, value_name = "NAME: VALUE")]
    headers: Vec<(String, String)>,
    /// The moment at which it came, in seconds since 1970; now if not given
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..=253_402_300_799), value_name = "UNIX")]
    at: Option<i64>,
    /// The address that the sender called, where it is signed
    #[arg(long, default_value = "", hide_default_value = true, value_name = "URL")]
    url: String,
    #[arg(long, default_value = "POST", value_name = "METHOD")]
    method: String,
    /// A setting of the hmac preset, such as header=X-Signature; again for each
    #[arg(long = "set", value_parser = setting, value_name = "KEY=VALUE")]
    settings: Vec<(String, String)>,
    /// Ask the running server why a source refused its last request
    #[arg(long, requires = "source", conflicts_with_all = ["preset", "body", "given"])]
    last_rejected: bool,
    /// The source, for --last-rejected
    #[arg(long, requires = "last_rejected", value_name = "NAME")]
    source: Option<String>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_string()))
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_string(), value.to_string()))
}

impl VerifySignature {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        if let Some(source) = self.source.as_deref().filter(|_| self.last_rejected) {
            return last_rejected(globals, source).await;
        }
        let preset = presets::find(self.preset.as_deref().unwrap_or_default()).map_err(unknown)?;
        let scheme = self.scheme(preset)?;
        let secrets = self.secrets()?;
        let body = self.body()?;
        let headers: Vec<(&str, &[u8])> =
            self.headers.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
        let request = Request { method: &self.method, url: &self.url, headers: &headers, body: &body };
        let now = self.at.map_or_else(render::now, |seconds| Timestamp::from_micros(seconds * 1_000_000));
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let told = diagnose(preset, &scheme, &request, &secrets, Window::at(now));
        let word = if matches!(told.verdict, Verdict::Accepted(_)) { "accepted" } else { "refused" };
        render::show(globals.output(), &document(preset, &told), word, || text(preset, &scheme, body.len(), &told))?;
        match failure(&told) {
            None => Ok(Exit::Done),
            Some(failure) => Err(failure),
        }
    }

    fn scheme(&self, preset: &Preset) -> Result<Scheme, Failure> {
        if self.settings.is_empty() {
            return Ok((preset.scheme)());
        }
        if preset.name != "hmac" {
            let said = format!("The preset `{}` has no settings; only `hmac` has", preset.name);
            return Err(usage(said));
        }
        let settings: Vec<(&str, &str)> = self.settings.iter().map(|(key, value)| (&**key, &**value)).collect();
        settings::read(&settings).map(Scheme::from).map_err(|error| usage(error.to_string()))
    }

    fn secrets(&self) -> Result<Vec<String>, Failure> {
        let mut secrets = self.secrets.clone();
        for name in &self.secrets_env {
            let value = std::env::var(name).map_err(|_| usage(format!("The environment has no readable {name}")))?;
            secrets.push(value);
        }
        for path in &self.secrets_file {
            let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
            let text = text.strip_suffix('\n').unwrap_or(&text);
            secrets.push(text.strip_suffix('\r').unwrap_or(text).to_string());
        }
        match secrets.len() {
            0..=SECRETS_MAX => Ok(secrets),
            count => Err(usage(format!("{count} secrets are given; a source has at most {SECRETS_MAX}"))),
        }
    }

    fn body(&self) -> Result<Vec<u8>, Failure> {
        let path = self.body.as_deref().unwrap_or(Path::new("-"));
        let read = match path.as_os_str() == "-" {
            true => {
                let mut body = Vec::new();
                std::io::stdin().read_to_end(&mut body).map(|_| body)
            }
            false => std::fs::read(path),
        };
        read.map_err(|error| unreadable(path, &error))
    }
}

/// What the server remembers of the last request that a source refused: the cause, not the request.
async fn last_rejected(globals: &Globals, source: &str) -> Result<Exit, Failure> {
    // This command's own `--url`, which is the sender's, stands in the place of the server's.
    let url = globals.url.clone().filter(|url| !url.is_empty());
    let globals = &Globals { url, ..globals.clone() };
    let answer = Client::open(globals)?.get::<RejectionList>(&["sources", source, "rejections"], &[]).await?;
    let Some(last) = answer.told.rejections.first() else {
        let text = || format!("source {source} has refused nothing since the server started\n");
        render::show(globals.output(), &answer.document, "none", text)?;
        return Ok(Exit::Done);
    };
    render::show(globals.output(), &answer.document, &last.reason, || {
        let names = last.headers.iter().map(|name| render::clean(name)).collect::<Vec<_>>().join(", ");
        format!("{BOLD}{source}{BOLD:#}  refused at {}\n  headers     {names}\n", last.at.0)
    })?;
    Err(Failure::new(Exit::Failed, "CL0301", format!("Refused: {}", last.message))
        .fact(format!("reason: {}; {} refusals are remembered", last.reason, answer.told.rejections.len()))
        .fix(last.advice.clone()))
}

fn usage(said: String) -> Failure {
    Failure::new(Exit::Usage, "CL0536", said)
}

fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Failure {
    usage(format!("{} cannot be read: {error}", path.display()))
}

/// Why it was refused, what nearly matched, and what to look at.
fn failure(told: &Diagnosis) -> Option<Failure> {
    let (said, fix) = match &told.verdict {
        Verdict::Accepted(_) => return None,
        Verdict::Refused(refusal) => (format!("Refused: {refusal}"), refusal.advice().to_string()),
        Verdict::BadSecret(place, bad) => (format!("Secret {place} is none of this provider"), bad.to_string()),
    };
    let failure = Failure::new(Exit::Failed, "CL0301", said);
    Some(told.hints.iter().fold(failure, |failure, hint| failure.fact(hint.clone())).fix(fix))
}

fn document(preset: &Preset, told: &Diagnosis) -> Value {
    let (accepted, secret, reason, said) = match &told.verdict {
        Verdict::Accepted(verified) => (true, Some(verified.secret_id.clone()), None, None),
        Verdict::Refused(refusal) => (false, None, Some(refusal.word()), Some(refusal.to_string())),
        Verdict::BadSecret(_, bad) => (false, None, Some("secret_unusable"), Some(bad.to_string())),
    };
    let checks: Vec<Value> = told
        .checks
        .iter()
        .map(|check| json!({ "check": check.what, "passed": check.passed, "found": check.found }))
        .collect();
    json!({
        "schema": "clinch.verify-signature/v1",
        "preset": preset.name,
        "accepted": accepted,
        "secret": secret,
        "reason": reason,
        "message": said,
        "checks": checks,
        "hints": told.hints,
    })
}

fn text(preset: &Preset, scheme: &Scheme, body_bytes: usize, told: &Diagnosis) -> String {
    let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", preset.name, scheme.told());
    let _ = writeln!(text, "  body        {} bytes, as given", render::thousands(body_bytes as u64));
    for check in &told.checks {
        let (style, word) = if check.passed { (green, "ok") } else { (red, "FAIL") };
        let _ = writeln!(text, "  {style}{word:<4}{style:#}  {}: {}", render::clean(&check.what), check.found);
    }
    match &told.verdict {
        Verdict::Accepted(verified) => text + &format!("{green}accepted{green:#} with secret {}\n", verified.secret_id),
        _ => text + &format!("{red}refused{red:#}\n"),
    }
}
