//! Whom we believe when we call over TLS.

use rustls_platform_verifier::BuilderVerifierExt;
use std::sync::Arc;

/// The machine's certificates; where it has none, the roots that clinch brings along.
pub fn tls_config() -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = || {
        rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))
    };
    Ok(match builder()?.with_platform_verifier() {
        Ok(builder) => builder.with_no_client_auth(),
        Err(_) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
            builder()?.with_root_certificates(roots).with_no_client_auth()
        }
    })
}
