//! The certificate that the client listener shows, and whose word counts on who an upstream is. The certificate can be
//! exchanged while the listener runs: connections that were made before go on with the old one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

/// A certificate chain and its key, read and matched.
#[derive(Clone)]
pub struct Certificate(Arc<CertifiedKey>);

/// Says nothing of the key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} certificates and their key]", self.0.cert.len())
    }
}

/// Which file is at fault, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// The certificate's.
    Certificate(String),
    /// The key's.
    Key(String),
}

/// Reads a certificate chain and its private key, both PEM.
///
/// # Errors
/// Which of the two cannot be used: it cannot be read, holds nothing of the kind, or the two do not belong together.
pub fn read(cert: &Path, key: &Path) -> Result<Certificate, Unusable> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| Unusable::Certificate(format!("cannot be read: {error}")))?;
    if chain.is_empty() {
        return Err(Unusable::Certificate("holds no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| Unusable::Key(format!("cannot be read: {error}")))?;
    CertifiedKey::from_der(chain, key, &default_provider())
        .map(|certified| Certificate(Arc::new(certified)))
        .map_err(|error| Unusable::Key(format!("does not fit the certificate: {error}")))
}

/// Authorities whose word counts on who a host is.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} authorities]", self.0.len())
    }
}

impl Authorities {
    /// Reads their certificates, PEM.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(file: &Path) -> Result<Authorities, String> {
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = read.map_err(|error| format!("cannot be read: {error}"))?;
        let authorities = Authorities(certificates);
        if authorities.0.is_empty() {
            return Err("holds no certificate".to_owned());
        }
        authorities.roots().map(|_| authorities).map_err(|error| format!("holds no authority: {error}"))
    }

    /// What a client needs of them.
    ///
    /// # Errors
    /// One of them is no certificate.
    pub fn roots(&self) -> Result<RootCertStore, rustls::Error> {
        let mut roots = RootCertStore::empty();
        self.0.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
        Ok(roots)
    }
}

/// The certificate in force.
#[derive(Debug)]
pub struct Shown(ArcSwap<CertifiedKey>);

impl Shown {
    /// Begins with `certificate`.
    pub fn new(certificate: &Certificate) -> Arc<Shown> {
        Arc::new(Shown(ArcSwap::new(Arc::clone(&certificate.0))))
    }

    /// Shows another one from the next connection on.
    pub fn exchange(&self, certificate: &Certificate) {
        self.0.store(Arc::clone(&certificate.0));
    }

    /// What a listener needs.
    ///
    /// # Errors
    /// The TLS library refuses its own defaults.
    pub fn server_config(self: &Arc<Shown>) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        Ok(builder.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>))
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
