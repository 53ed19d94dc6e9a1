//! What proves the senders of each source, read when the process starts and again when its secrets are.

use crate::secrets::Secrets;
use clinch_core::signature::{self, Secret, has_stray_space};
use clinch_core::source::Source;

/// What a source's requests are checked with.
pub struct Credentials {
    pub secrets: signature::Secrets,
    pub verify_token: Option<String>,
}

/// The secrets of every source, in the order of the workspace; or which of them cannot be used, and never their value.
pub fn credentials(sources: &[Source], secrets: &Secrets) -> Result<Vec<Option<Credentials>>, String> {
    sources.iter().map(|source| of_source(source, secrets)).collect()
}

/// Those of one source; none where anybody may send.
pub fn of_source(source: &Source, env: &Secrets) -> Result<Option<Credentials>, String> {
    let Some(proof) = source.signature() else { return Ok(None) };
    let bad = |variable: &str, why: String| format!("source `{}`: {variable}: {why}", source.name);
    let get = |variable: &str| env.current(variable).map_err(|why| bad(variable, why.to_string()));
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
    Ok(Some(Credentials {
        secrets: signature::Secrets::new(secrets).map_err(|why| bad("secrets", why.to_string()))?,
        verify_token: proof.verify_token.as_deref().map(get).transpose()?,
    }))
}
