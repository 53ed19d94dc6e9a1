//! Secrets that are made up: of the right shape, the same at every start, and worth nothing.

use aws_lc_rs::digest::{SHA256, digest};
use clinch_core::config::{Encryption, Workspace};
use clinch_core::expr::Template;
use clinch_core::message::Channel;
use clinch_core::signature::SecretFormat;
use data_encoding::{BASE64, HEXLOWER};
use std::collections::BTreeMap;

/// One for every secret that the workspace names.
pub fn made_up(workspace: &Workspace) -> BTreeMap<String, String> {
    let mut secrets: BTreeMap<String, String> = BTreeMap::new();
    for name in &workspace.secrets {
        secrets.insert(name.clone(), plain(name));
    }
    for source in &workspace.sources {
        let format = source.signature().map_or(SecretFormat::Text { chars_min: 1 }, |rule| rule.scheme.secret_format());
        for name in source.variables() {
            secrets.insert(name.to_string(), of_format(name, format));
        }
    }
    for name in workspace.settings.encryption.iter().flat_map(Encryption::secrets) {
        secrets.insert(name.to_string(), HEXLOWER.encode(&bytes(name)));
    }
    if let Some(slack) = &workspace.settings.approvals {
        secrets.insert(slack.signing_secret.clone(), plain(&slack.signing_secret));
    }
    for partner in &workspace.integrations {
        let mut host = |template: &Template, scheme: &str| {
            let (Template::Plain(text) | Template::Mixed(text)) = template;
            let is_all = text.trim().starts_with("{{") && text.trim().ends_with("}}");
            for name in template.secrets() {
                let whole = format!("{scheme}://{}.stand-in.invalid", partner.name.replace(['_', '.'], "-"));
                secrets.insert(name, if is_all { whole } else { "stand-in".into() });
            }
        };
        if let Some(base) = &partner.base_url {
            host(base, "https");
        }
        if let Some(Channel::Mail(server)) = &partner.channel {
            host(&server.address, "smtp");
        }
    }
    secrets
}

fn bytes(name: &str) -> Vec<u8> {
    digest(&SHA256, format!("clinch stand-in {name}").as_bytes()).as_ref().to_vec()
}

fn plain(name: &str) -> String {
    format!("stand-in-{}", &HEXLOWER.encode(&bytes(name))[..32])
}

fn of_format(name: &str, format: SecretFormat) -> String {
    match format {
        SecretFormat::StandardWebhooks => format!("whsec_{}", BASE64.encode(&bytes(name))),
        SecretFormat::Labelled => format!("hmac-sha256:{}", BASE64.encode(&bytes(name))),
        SecretFormat::Text { .. } | SecretFormat::WordPress | SecretFormat::P256Public => plain(name),
    }
}
