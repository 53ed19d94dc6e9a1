//! What proves the senders of each source, read from the environment when the process starts.

use crate::secrets::Secrets;
use clinch_core::signature::{self, Secret, has_stray_space};
use clinch_core::source::{SignatureRule, Source};

/// What a source's requests are checked with.
pub struct Credentials {
    pub secrets: signature::Secrets,
    pub verify_token: Option<String>,
}

/// The secrets of every source, in the order of the workspace; or which of them cannot be used, and never their value.
pub fn credentials(sources: &[Source], env: &Secrets) -> Result<Vec<Option<Credentials>>, String> {
    sources.iter().map(|source| source.signature().map(|rule| of_source(source, rule, env)).transpose()).collect()
}

fn of_source(source: &Source, proof: &SignatureRule, env: &Secrets) -> Result<Credentials, String> {
    let bad = |variable: &str, why: String| format!("source `{}`: {variable}: {why}", source.name);
    let get = |variable: &str| env.get(variable).ok_or_else(|| bad(variable, "it is not set".into()));
    let mut secrets = Vec::new();
    for rule in &proof.secrets {
        let text = get(&rule.variable)?;
        if has_stray_space(&text) {
            tracing::warn!("source `{}`: {} has white space around it, which counts", source.name, rule.variable);
        }
        let key = proof.scheme.secret_format().read(&text).map_err(|why| bad(&rule.variable, why.to_string()))?;
        secrets.push(Secret {
            not_before: rule.not_before,
            not_after: rule.not_after,
            ..Secret::new(rule.id.clone(), key)
        });
    }
    Ok(Credentials {
        secrets: signature::Secrets::new(secrets).map_err(|why| bad("secrets", why.to_string()))?,
        verify_token: proof.verify_token.as_deref().map(get).transpose()?,
    })
}
