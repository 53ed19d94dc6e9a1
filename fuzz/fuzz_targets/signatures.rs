//! A stranger's request at the door of each preset: nothing panics, nothing unsigned is accepted, and the doctor agrees.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::signature::doctor::{Verdict, diagnose};
use clinch_core::signature::presets::ALL;
use clinch_core::signature::{Request, Scheme, Secret, SecretFormat, Secrets, Window, settings, verify};
use clinch_core::time::Timestamp;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Sent<'a> {
    preset: u8,
    /// By their place among the headers that the scheme reads; later ones are headers of the same name again.
    values: Vec<(u8, &'a [u8])>,
    other: Vec<(&'a str, &'a [u8])>,
    get: bool,
    url: &'a str,
    body: &'a [u8],
    now: i64,
    /// What the generic preset is told.
    signed: &'a str,
}

fuzz_target!(|sent: Sent<'_>| {
    let preset = ALL[usize::from(sent.preset) % ALL.len()];
    let scheme = match settings::read(&[("header", "x-sig"), ("signed", sent.signed), ("timestamp", "pair:t")]) {
        Ok(signed) if preset.name == "hmac" => Scheme::from(signed),
        _ => (preset.scheme)(),
    };
    let names = scheme.headers();
    let named = sent
        .values
        .iter()
        .filter_map(|(place, value)| Some((names.get(usize::from(*place) % names.len().max(1))?.as_str(), *value)));
    let headers: Vec<(&str, &[u8])> = named.chain(sent.other.iter().copied()).collect();
    let method = if sent.get { "GET" } else { "POST" };
    let request = Request { method, url: sent.url, headers: &headers, body: sent.body };
    let text = match scheme.secret_format() {
        SecretFormat::StandardWebhooks => "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        SecretFormat::P256Public => {
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
        }
        SecretFormat::Labelled => "hmac-sha256:C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        SecretFormat::Text { .. } | SecretFormat::WordPress => "a secret that nobody can guess",
    };
    let key = scheme.secret_format().read(text).expect("a secret of this format");
    let secrets = Secrets::new(vec![Secret::new("one", key)]).expect("one secret");
    let window = Window::at(Timestamp::from_micros(sent.now));
    let answer = verify(&scheme, &request, &secrets, window);
    // The static key of a lead form can be guessed by this program, which has read it; a MAC cannot.
    assert!(answer.is_err() || matches!(scheme, Scheme::Token(_)), "{} was forged", preset.name);
    let told = diagnose(preset, &scheme, &request, &[text, ""], window);
    assert_eq!(answer.is_ok(), matches!(told.verdict, Verdict::Accepted(_)), "{}", preset.name);
    let _ = preset.events(&request);
    if let Some(handshake) = preset.handshake {
        let _ = handshake.answer_unsigned(&request, Some("word"));
    }
});
