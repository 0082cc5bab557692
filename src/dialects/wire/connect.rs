//! Connections to one host: name, TCP, TLS, and which protocol its far end chose. Owns the ways in which that fails;
//! knows nothing of requests.

use std::hash::{Hash, Hasher};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::http::Uri;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::WireError;
use crate::config::plan::Upstream;
use crate::tls::Authorities;

/// What both sides call the two protocols.
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// Where a connection leads and how it is made: what has to be the same for two upstreams to share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    host: String,
    port: u16,
    secure: bool,
    /// The authorities whose word counts on who it is; `None`: those that browsers trust.
    trusted: Option<Authorities>,
    /// How long each of the two steps to it, TCP and TLS, may last.
    patience: Duration,
}

/// A host that is called, and how.
pub(super) struct Origin {
    place: Place,
    tls: Option<Tls>,
}

struct Tls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

/// A connection, encrypted or not.
pub(super) enum Io {
    /// It is not.
    Plain(TcpStream),
    /// It is.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Place {
    /// Where `upstream` is; `None`: its address cannot be called.
    pub fn of(upstream: &Upstream) -> Option<Place> {
        let base = Uri::try_from(upstream.base_url.as_str()).ok()?;
        let host = base.host()?;
        let secure = base.scheme_str() == Some("https");
        let port = base.port_u16().unwrap_or(implied_port(secure));
        // Without TLS it does not matter whose word would count.
        let trusted = upstream.ca.clone().filter(|_| secure);
        Some(Place { host: host.to_owned(), port, secure, trusted, patience: upstream.connect_timeout })
    }

    /// Host and port as `Host` and `:authority` state them: without the port that the scheme implies.
    pub fn authority(&self) -> String {
        let Place { host, port, secure, .. } = self;
        if *port == implied_port(*secure) { host.clone() } else { format!("{host}:{port}") }
    }

    fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// By what tells most places apart.
impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.host, self.port, self.secure).hash(state);
    }
}

fn implied_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

impl Origin {
    /// The host at `place`.
    ///
    /// # Errors
    /// Its name is none that TLS knows, or its authorities are of no use.
    pub fn new(place: Place) -> Result<Origin, WireError> {
        let unusable = WireError::Connect("could not be connected to");
        let tls = match place.secure {
            true => Some(Tls {
                name: ServerName::try_from(place.bare_host().to_owned()).map_err(|_| unusable.clone())?,
                config: config(place.trusted.as_ref()).ok_or(unusable)?,
            }),
            false => None,
        };
        Ok(Origin { place, tls })
    }

    /// Whether its far end has a choice of protocols.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// How long each step may last.
    pub fn patience(&self) -> Duration {
        self.place.patience
    }

    /// A new connection, and whether its far end chose HTTP/2.
    ///
    /// # Errors
    /// [`WireError::Connect`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up.
    pub async fn connect(&self) -> Result<(Io, bool), WireError> {
        let late = |_elapsed| WireError::Connect("did not accept the connection in time");
        let tcp = timeout(self.patience(), self.tcp()).await.map_err(late)??;
        let Some(tls) = &self.tls else { return Ok((Io::Plain(tcp), false)) };
        let shaking = TlsConnector::from(Arc::clone(&tls.config)).connect(tls.name.clone(), tcp);
        let stream = timeout(self.patience(), shaking)
            .await
            .map_err(late)?
            .map_err(|_| WireError::Connect("failed the TLS handshake"))?;
        let two = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        Ok((Io::Tls(Box::new(stream)), two))
    }

    async fn tcp(&self) -> Result<TcpStream, WireError> {
        let unknown = WireError::Connect("has a host name that cannot be resolved");
        let addresses = lookup_host((self.place.bare_host(), self.place.port)).await.map_err(|_| unknown.clone())?;
        let mut failure = unknown;
        for address in addresses {
            match TcpStream::connect(address).await {
                // Without it the last part of a body sent in several writes waits 40 ms for a delayed ACK.
                Ok(stream) => match stream.set_nodelay(true) {
                    Ok(()) => return Ok(stream),
                    Err(_) => failure = WireError::Connect("could not be connected to"),
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    failure = WireError::Connect("refused the connection");
                }
                Err(_) => failure = WireError::Connect("could not be connected to"),
            }
        }
        Err(failure)
    }
}

/// One for all connections to publicly known hosts, so that a worker resumes the session that another one began.
fn config(trusted: Option<&Authorities>) -> Option<Arc<ClientConfig>> {
    static PUBLIC: OnceLock<Option<Arc<ClientConfig>>> = OnceLock::new();
    match trusted {
        Some(authorities) => config_with(authorities.roots().ok()?),
        None => PUBLIC.get_or_init(|| config_with(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect())).clone(),
    }
}

fn config_with(roots: RootCertStore) -> Option<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
    Some(Arc::new(config))
}

impl Io {
    /// Whether nothing has come since the last answer, not even the end: what was idle can be used again. Waits for
    /// nothing.
    pub fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut room = ReadBuf::new(&mut byte);
        Pin::new(self).poll_read(&mut Context::from_waker(std::task::Waker::noop()), &mut room).is_pending()
    }

    /// Says goodbye as far as that needs no waiting, and closes the connection.
    pub fn close(mut self) {
        if let Io::Tls(_) = self {
            // Who has no room for the farewell learns of it by the end of the connection.
            let _said = Pin::new(&mut self).poll_shutdown(&mut Context::from_waker(std::task::Waker::noop()));
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
