//! TLS from files. They are looked at again when they change and on SIGHUP; a certificate that cannot be used never takes
//! the place of one that can.

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// The name of HTTP/2 in the handshake.
pub const H2: &[u8] = b"h2";
/// How often files are looked at that nobody announced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A certificate with its chain, and its key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// What a listener shows to whoever knocks.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
}

#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().expect("nobody panics while holding the certificate").clone())
    }
}

/// Why files are no certificate. Names files, never what is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTls(String);

impl fmt::Display for BadTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Tls {
    pub fn open(files: &TlsFiles) -> Result<Tls, BadTls> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let shown = Arc::new(Shown(RwLock::new(Arc::new(read(files, &provider)?))));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| BadTls(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), shown })
    }

    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.clone()).accept(stream).await
    }

    /// Looks after the files until `stop`.
    pub async fn keep_fresh(self, files: TlsFiles, stop: CancellationToken) {
        let mut hangup = signal(SignalKind::hangup()).expect("signals can be listened for");
        let mut known = state(&files);
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let now = state(&files);
            if asked || now != known {
                known = now;
                self.reload(&files);
            }
        }
    }

    fn reload(&self, files: &TlsFiles) {
        match read(files, self.config.crypto_provider()) {
            Ok(key) => {
                *self.shown.0.write().expect("nobody panics while holding the certificate") = Arc::new(key);
                tracing::info!("the certificate of {} is shown from now on", files.cert.display());
            }
            Err(error) => tracing::error!("the certificate was not changed, the old one is shown on: {error}"),
        }
    }
}

/// What changes when a file is written, replaced, or linked to another.
fn state(files: &TlsFiles) -> [Option<(u64, i64, i64, u64)>; 2] {
    let of = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
    };
    [of(&files.cert), of(&files.key)]
}

fn read(files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, BadTls> {
    let bad = |path: &Path, said: String| BadTls(format!("{}: {said}", path.display()));
    let cert = std::fs::read(&files.cert).map_err(|error| bad(&files.cert, error.to_string()))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&cert)
        .collect::<Result<_, _>>()
        .map_err(|_| bad(&files.cert, "it is not a certificate in PEM".into()))?;
    if chain.is_empty() {
        return Err(bad(
            &files.cert,
            "there is no certificate in it; it begins with -----BEGIN CERTIFICATE-----".into(),
        ));
    }
    let mode = std::fs::metadata(&files.key).map_err(|error| bad(&files.key, error.to_string()))?.mode();
    if mode & 0o007 != 0 {
        let said = format!("others may read the private key; run `chmod o= {}`", files.key.display());
        return Err(bad(&files.key, said));
    }
    let key = std::fs::read(&files.key).map_err(|error| bad(&files.key, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| bad(&files.key, "it is not a private key in PEM, without a password".into()))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            bad(&files.key, format!("it is not the key of the certificate in {}", files.cert.display()))
        }
        _ => bad(&files.cert, "certificate and key cannot be used together; make them again".into()),
    })
}
