//! The HTTP client side: connections, time limits and byte caps. Knows no provider's words.
//!
//! Each worker has one [`Wire`] an upstream, because awc's connection limit is one semaphore for all hosts of a
//! client: a shared client would let one slow upstream starve the others.

mod stream;

use std::cell::RefCell;
use std::time::Duration;

use actix_tls::connect::{
    ConnectError as TcpConnectError, ConnectInfo, Connection, Connector as TcpConnector, Resolver,
};
use actix_web::dev::Service as _;
use actix_web::dev::fn_service;
use actix_web::error::ParseError;
use actix_web::http::Uri;
use actix_web::rt::net::TcpStream;
use awc::error::{ConnectError, SendRequestError};
use awc::http::StatusCode;
use awc::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::config::plan::Upstream;
use crate::crowd::Breath;

use super::{AuthStyle, WireRequest, auth_style};

pub use stream::Opened;

/// Largest answer that is read, bytes: four times what 2,048 vectors of 3,072 numbers take as JSON text, so that it
/// strikes only at an upstream that never stops sending.
pub const MAX_ANSWER_BYTES: usize = 512 << 20;

/// Longest pause between two pieces of an answer's body.
const BODY_IDLE: Duration = Duration::from_secs(10);

/// Idle connections are closed by us after this long: shorter than the keep-alive of common servers (nginx 75 s, Node
/// 5 s is probed by awc before reuse), so that a request rarely meets a connection that its peer is closing.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Connections are renewed after this long, so that a changed DNS entry takes effect.
const LIFETIME: Duration = Duration::from_secs(300);

/// Addresses of one upstream that are remembered.
const KNOWN_ADDRESSES: usize = 16;

/// What requests are, and what is wanted for them.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Who asks.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("vectorgate/", env!("CARGO_PKG_VERSION")));

/// An upstream's answer, whole.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body, as sent.
    pub body: Bytes,
}

impl Answer {
    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// No connection: name not found, refused, unreachable, TLS.
    Connect(&'static str),
    /// The time for the whole call ran out, or the body stalled.
    Timeout,
    /// The connection broke before the whole answer was here.
    Broken(&'static str),
    /// What came is not HTTP, or larger than [`MAX_ANSWER_BYTES`].
    NotHttp(&'static str),
}

impl WireError {
    /// What a client may read: says the kind, reveals no address.
    pub fn describe(&self) -> &'static str {
        match self {
            WireError::Connect(kind) | WireError::Broken(kind) | WireError::NotHttp(kind) => kind,
            WireError::Timeout => "did not answer in time",
        }
    }
}

/// One worker's way to one upstream.
pub struct Wire {
    client: awc::Client,
    base_url: String,
    /// Addresses that were called, by their path.
    known: RefCell<Vec<(String, Uri)>>,
    credential: Option<(HeaderName, HeaderValue)>,
    limit: Duration,
}

impl Wire {
    /// Prepares a client; connects to nothing yet.
    pub fn new(upstream: &Upstream) -> Wire {
        let tcp = TcpConnector::new(Resolver::default()).service();
        // awc never sets TCP_NODELAY; without it a body sent in several writes waits 40 ms for a delayed ACK.
        let nodelay = fn_service(move |request: ConnectInfo<Uri>| {
            let connecting = tcp.call(request);
            async move {
                let connection: Connection<Uri, TcpStream> = connecting.await?;
                connection.io_ref().set_nodelay(true).map_err(TcpConnectError::Io)?;
                Ok::<_, TcpConnectError>(connection)
            }
        });
        let connector = awc::Connector::new()
            .connector(nodelay)
            .timeout(upstream.connect_timeout)
            .handshake_timeout(upstream.connect_timeout)
            .conn_keep_alive(KEEP_ALIVE)
            .conn_lifetime(LIFETIME)
            .limit(upstream.max_concurrency);
        let client = awc::Client::builder()
            .connector(connector)
            .no_default_headers()
            .disable_redirects()
            .disable_timeout()
            .finish();
        Wire {
            client,
            base_url: upstream.base_url.clone(),
            known: RefCell::default(),
            credential: credential(upstream),
            limit: upstream.timeout,
        }
    }

    /// Sends `request` and reads the whole answer within the upstream's `timeout_s`; `breath` is drawn while a large
    /// one is read.
    ///
    /// # Errors
    /// Every way in which no whole HTTP answer came back. An answer of any status is `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the upstream may or may not have done the work.
    pub async fn call(
        &self,
        request: WireRequest,
        extra: &[(HeaderName, HeaderValue)],
        breath: Breath,
    ) -> Result<Answer, WireError> {
        match timeout(self.limit, self.exchange(request, extra, breath)).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(WireError::Timeout),
        }
    }

    /// The address of a path; an upstream has few, and taking one apart costs more than finding it again.
    fn address(&self, path: &str) -> Option<Uri> {
        let mut known = self.known.borrow_mut();
        if let Some((_, address)) = known.iter().find(|(known, _)| known == path) {
            return Some(address.clone());
        }
        let address = Uri::try_from(format!("{}{path}", self.base_url)).ok()?;
        if known.len() < KNOWN_ADDRESSES {
            known.push((path.to_owned(), address.clone()));
        }
        Some(address)
    }

    async fn exchange(
        &self,
        request: WireRequest,
        extra: &[(HeaderName, HeaderValue)],
        mut breath: Breath,
    ) -> Result<Answer, WireError> {
        let mut sending = match self.address(&request.path) {
            Some(address) => self.client.post(address),
            // The client says what is wrong with it.
            None => self.client.post(format!("{}{}", self.base_url, request.path)),
        };
        sending = sending
            .insert_header((CONTENT_TYPE, JSON))
            .insert_header((ACCEPT, JSON))
            .insert_header((USER_AGENT, AGENT));
        for (name, value) in &request.headers {
            sending = sending.insert_header((*name, value.as_str()));
        }
        for (name, value) in self.credential.iter().chain(extra) {
            sending = sending.insert_header((name.clone(), value.clone()));
        }
        let mut response = sending.send_body(request.body).await.map_err(|error| classify(&error))?;
        let status = response.status();
        let headers = response.headers().clone();
        let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<usize>().ok());
        let mut body = BytesMut::new();
        while let Some(piece) = timeout(BODY_IDLE, response.next()).await.map_err(|_elapsed| WireError::Timeout)? {
            let piece = piece.map_err(|_| WireError::Broken("closed the connection in the middle of its answer"))?;
            if body.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(WireError::NotHttp("sent more than 512 MiB in one answer"));
            }
            if body.is_empty() {
                // One allocation of the right size; a lying length is bounded by what a sane answer may have.
                body.reserve(declared.unwrap_or(0).clamp(piece.len(), 64 << 20));
            }
            body.extend_from_slice(&piece);
            breath.moved(piece.len()).await;
        }
        if declared.is_some_and(|declared| declared != body.len()) {
            return Err(WireError::Broken("closed the connection in the middle of its answer"));
        }
        if status == StatusCode::SWITCHING_PROTOCOLS || status.is_informational() {
            return Err(WireError::NotHttp("answered with an interim status"));
        }
        // Grown without knowing its length it may have much more room than it needs, and its vectors may be kept for long.
        let body =
            if body.capacity() > body.len() + body.len() / 8 { Bytes::copy_from_slice(&body) } else { body.freeze() };
        Ok(Answer { status: status.as_u16(), headers, body })
    }
}

fn credential(upstream: &Upstream) -> Option<(HeaderName, HeaderValue)> {
    let secret = upstream.api_key.as_ref()?;
    let (name, text) = match auth_style(upstream.provider) {
        AuthStyle::Bearer => (AUTHORIZATION, format!("Bearer {}", secret.expose())),
        AuthStyle::ApiKey => (HeaderName::from_static("api-key"), secret.expose().to_owned()),
        AuthStyle::XApiKey => (HeaderName::from_static("x-api-key"), secret.expose().to_owned()),
    };
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn classify(error: &SendRequestError) -> WireError {
    match error {
        SendRequestError::Connect(connect) => match connect {
            ConnectError::Resolver(_) | ConnectError::NoRecords | ConnectError::Unresolved => {
                WireError::Connect("has a host name that cannot be resolved")
            }
            ConnectError::Timeout => WireError::Connect("did not accept the connection in time"),
            ConnectError::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                WireError::Connect("refused the connection")
            }
            // The client library says so of any connection that was closed while an answer was awaited: the request
            // had been sent, and the upstream may well be up.
            ConnectError::Disconnected => WireError::Broken("closed the connection before its answer"),
            ConnectError::SslIsNotSupported => WireError::Connect("failed the TLS handshake"),
            _ => WireError::Connect("could not be connected to"),
        },
        SendRequestError::Timeout => WireError::Timeout,
        SendRequestError::Send(_) | SendRequestError::H2(_) => WireError::Broken("closed the connection"),
        SendRequestError::Response(parse) => match parse {
            ParseError::Incomplete | ParseError::Io(_) => WireError::Broken("closed the connection before its answer"),
            _ => WireError::NotHttp("answered with something that is not HTTP"),
        },
        _ => WireError::Broken("broke the connection"),
    }
}
