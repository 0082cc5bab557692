//! The HTTP client side: requests and answers, time limits and byte caps. Knows no provider's words.
//!
//! Each worker has one [`Wire`] an upstream, and connections of its own: nothing is locked. Upstreams at one place share
//! them, but for how many calls each makes at once: who has a call under way has that for itself, so a slow one takes nobody
//! else's. [`pool`] keeps the connections, [`connect`] makes them, [`http1`] and [`http2`] carry a call over one.

mod connect;
pub mod framing;
mod http1;
mod http2;
mod incoming;
mod pool;
mod stream;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use actix_web::http::Uri;
use actix_web::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT,
};
use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use crate::config::plan::Upstream;
use crate::crowd::Breath;

use super::{AuthStyle, WireRequest, auth_style};
use connect::Place;
use http1::Sent;
use http2::{Answered, Failed, Stream};
use incoming::{Body, Incoming, Patience};
use pool::{Lease, Pool, Turns, Way};

pub use pool::Places;
pub use stream::Opened;

/// Largest answer that is read, bytes: four times what 2,048 vectors of 3,072 numbers take as JSON text, so that it
/// strikes only at an upstream that never stops sending.
pub const MAX_ANSWER_BYTES: usize = 512 << 20;

/// Most room, bytes, that is made on the word of a `Content-Length`.
const MOST_ON_TRUST: usize = 64 << 20;

/// Longest pause between two pieces of an answer's body.
const BODY_IDLE: Duration = Duration::from_secs(10);

/// Idle connections are closed by us after this long: shorter than the keep-alive of common servers (nginx 75 s; one of
/// Node, 5 s, is looked at before it is used), so that a request rarely meets a connection that its peer is closing.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Connections are renewed after this long, so that a changed DNS entry takes effect.
const LIFETIME: Duration = Duration::from_secs(300);

/// Paths of one upstream that are remembered.
const KNOWN_TARGETS: usize = 16;

/// Calls that a connection of HTTP/2 has not begun with are made on another one, so many times in all.
const MOST_TRIES: usize = 3;

/// What requests are, and what is wanted for them, unless they say so themselves.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Who asks.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("vectorgate/", env!("CARGO_PKG_VERSION")));

/// What the ways in which an answer breaks off are called.
const CUT: WireError = WireError::Broken("closed the connection in the middle of its answer");
const UNANSWERED: WireError = WireError::Broken("closed the connection before its answer");
const CLOSED: WireError = WireError::Broken("closed the connection");
const BROKEN: WireError = WireError::Broken("broke the connection");
const TOO_MUCH: WireError = WireError::NotHttp("sent more than 512 MiB in one answer");

/// Headers of an answer, in the order in which they came.
pub type Headers = Vec<(HeaderName, HeaderValue)>;

/// An upstream's answer, whole.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Headers,
    /// Body, as sent.
    pub body: Bytes,
}

impl Answer {
    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// The value of the first header called `name`, in lower case, if it is text.
fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.to_str().ok())
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
    /// Or why there can be none.
    pool: Result<Rc<Pool>, WireError>,
    turns: Turns,
    authority: String,
    base_url: String,
    known: RefCell<Vec<(String, Rc<Target>)>>,
    credential: Option<(HeaderName, HeaderValue)>,
    limit: Duration,
}

/// What all requests for one path begin with: taking an address apart costs more than finding it again.
struct Target {
    /// For HTTP/1.1: the request's line and the headers that are always the same.
    opening: Bytes,
    /// For HTTP/2.
    address: Uri,
}

impl Wire {
    /// Prepares a client that calls over the connections of `places`; connects to nothing yet.
    pub fn new(upstream: &Upstream, places: &Places) -> Wire {
        let place = Place::of(upstream).ok_or(WireError::Connect("could not be connected to"));
        Wire {
            authority: place.as_ref().map(Place::authority).unwrap_or_default(),
            pool: place.and_then(|place| places.pool(place)),
            turns: Turns::new(upstream.max_concurrency),
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
    /// Dropping the future gives the call up; the upstream may or may not have done the work.
    pub async fn call(
        &self,
        request: WireRequest,
        extra: &[(HeaderName, HeaderValue)],
        breath: Breath,
    ) -> Result<Answer, WireError> {
        let exchange = async { self.send(request, extra).await?.whole(Patience::Each(BODY_IDLE), breath).await };
        timeout(self.limit, exchange).await.unwrap_or(Err(WireError::Timeout))
    }

    /// Sends `request` over whatever connection there is, and waits for the head of its answer.
    ///
    /// A request of which not a byte was taken, or which the far end says it has not begun with, is sent again. All
    /// others may have been worked on, and cost money: who asked decides about another try.
    async fn send(&self, request: WireRequest, extra: &[(HeaderName, HeaderValue)]) -> Result<Incoming, WireError> {
        let pool = self.pool.as_ref().map_err(Clone::clone)?;
        let target = self.target(&request.path)?;
        let mut head = None;
        let mut tries = 0;
        loop {
            match pool.way(&self.turns).await? {
                Way::Http1(lease) => {
                    let (head, body) = match &mut head {
                        Some(sent) => sent,
                        None => head.insert(self.http1(&target, &request, extra)?),
                    };
                    if let Some(incoming) = over_http1(lease, head.clone(), body.clone()).await? {
                        return Ok(incoming);
                    }
                }
                Way::Http2(stream) => match Box::pin(self.over_http2(stream, &target, &request, extra)).await {
                    Ok(Answered { status, headers, body }) => {
                        return Ok(Incoming { status, headers, body: Body::Http2(Box::new(body)) });
                    }
                    Err(Failed::Perhaps(error)) => return Err(error),
                    Err(Failed::Untouched) => {
                        tries += 1;
                        if tries == MOST_TRIES {
                            return Err(UNANSWERED);
                        }
                    }
                },
            }
        }
    }

    fn target(&self, path: &str) -> Result<Rc<Target>, WireError> {
        let mut known = self.known.borrow_mut();
        if let Some((_, target)) = known.iter().find(|(known, _)| known == path) {
            return Ok(Rc::clone(target));
        }
        let address = Uri::try_from(format!("{}{path}", self.base_url)).map_err(|_| BROKEN)?;
        let mut opening = BytesMut::with_capacity(512);
        let line = address.path_and_query().ok_or(BROKEN)?;
        write!(opening, "POST {line} HTTP/1.1\r\nhost: {}\r\n", self.authority).map_err(|_| BROKEN)?;
        for (name, value) in [&(USER_AGENT, AGENT)].into_iter().chain(&self.credential) {
            put(&mut opening, name.as_str(), value.as_bytes());
        }
        let target = Rc::new(Target { opening: opening.freeze(), address });
        if known.len() < KNOWN_TARGETS {
            known.push((path.to_owned(), Rc::clone(&target)));
        }
        Ok(target)
    }

    /// A request as HTTP/1.1 writes it: in one piece, or a large body behind it.
    fn http1(
        &self,
        target: &Target,
        request: &WireRequest,
        extra: &[(HeaderName, HeaderValue)],
    ) -> Result<(Bytes, Bytes), WireError> {
        let WireRequest { headers, body, .. } = request;
        let together = body.len() <= http1::TOGETHER;
        let mut head = BytesMut::with_capacity(target.opening.len() + 512 + if together { body.len() } else { 0 });
        head.extend_from_slice(&target.opening);
        for name in defaults(request) {
            put(&mut head, name.as_str(), JSON.as_bytes());
        }
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| BROKEN)?;
            put(&mut head, name, value.as_bytes());
        }
        for (name, value) in extra {
            put(&mut head, name.as_str(), value.as_bytes());
        }
        write!(head, "content-length: {}\r\n\r\n", body.len()).map_err(|_| BROKEN)?;
        if together {
            head.extend_from_slice(body);
        }
        Ok((head.freeze(), if together { Bytes::new() } else { body.clone() }))
    }

    async fn over_http2(
        &self,
        stream: Stream,
        target: &Target,
        request: &WireRequest,
        extra: &[(HeaderName, HeaderValue)],
    ) -> Result<Answered, Failed> {
        let broken = |_error: http::Error| Failed::Perhaps(BROKEN);
        let mut sending = http::Request::post(target.address.clone()).version(http::Version::HTTP_2);
        sending = sending.header(USER_AGENT, AGENT).header(CONTENT_LENGTH, request.body.len());
        for name in defaults(request) {
            sending = sending.header(name, JSON);
        }
        for (name, value) in &request.headers {
            sending = sending.header(*name, value.as_str());
        }
        for (name, value) in self.credential.iter().chain(extra) {
            sending = sending.header(name, value);
        }
        stream.call(sending.body(()).map_err(broken)?, request.body.clone()).await
    }
}

/// Sends a request over `lease`; `None` if the connection had been closed before a byte of it could be sent.
async fn over_http1(mut lease: Lease, head: Bytes, body: Bytes) -> Result<Option<Incoming>, WireError> {
    let mut buf = BytesMut::new();
    let sent = http1::send(lease.io(), head, body, &mut buf).await;
    if sent == Sent::Nothing {
        return if lease.is_new() { Err(CLOSED) } else { Ok(None) };
    }
    let read = http1::head(lease.io(), &mut buf).await;
    let head = read.map_err(|error| if sent == Sent::Partly && error == UNANSWERED { CLOSED } else { error })?;
    let reusable = head.reusable && sent == Sent::Whole;
    let body = http1::Body::new(lease, buf, head.framing, reusable);
    Ok(Some(Incoming { status: head.status, headers: head.headers, body: Body::Http1(body) }))
}

fn put(head: &mut BytesMut, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// The headers that a request of JSON for JSON needs and does not state.
fn defaults(request: &WireRequest) -> impl Iterator<Item = HeaderName> {
    let stated = |name: &HeaderName| request.headers.iter().any(|(stated, _)| name == stated);
    [CONTENT_TYPE, ACCEPT].into_iter().filter(move |name| !stated(name))
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
