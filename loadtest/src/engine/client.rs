//! Connections to one target: at most so many, kept alive, each with one request at a time.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::Shot;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    address: SocketAddr,
    host: String,
    path: String,
}

impl Target {
    /// Reads `http://host:port/path`; the path is put before every request's own.
    ///
    /// # Errors
    /// What is wrong with the URL, or that its host has no address.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url}: only http:// is supported"))?;
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let named = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let mut addresses = named.to_socket_addrs().map_err(|error| format!("{url}: {error}"))?;
        let address = addresses.next().ok_or_else(|| format!("{url}: no address"))?;
        Ok(Self { address, host: host.to_owned(), path: path.trim_end_matches('/').to_owned() })
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, empty unless bodies are kept.
    pub body: Bytes,
    /// Length of its body, kept or not.
    pub body_bytes: u64,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// The connection broke before the answer's head.
    NoAnswer,
    /// The connection broke inside the answer.
    CutAnswer,
    /// The time allowed for the request ran out.
    TimedOut,
    /// The request itself cannot be built.
    BadRequest,
}

impl Failure {
    /// A word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::NoAnswer => "no answer",
            Self::CutAnswer => "cut answer",
            Self::TimedOut => "timed out",
            Self::BadRequest => "bad request",
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// Connections to one target.
pub(super) struct Pool {
    target: Target,
    idle: Mutex<Vec<Sender>>,
    free: Semaphore,
}

impl Pool {
    pub fn new(target: Target, connections: usize) -> Self {
        Self { target, idle: Mutex::default(), free: Semaphore::new(connections.max(1)) }
    }

    /// Opens up to `count` connections ahead of time. Those that cannot be opened are left to the first request.
    ///
    /// # Cancel safety
    /// Connections opened so far stay.
    pub async fn warm(&self, count: usize) {
        for _ in 0..count.min(self.free.available_permits()) {
            let Ok(sender) = self.open().await else { return };
            self.idle.lock().push(sender);
        }
    }

    /// Whether a request would have to wait for a connection now.
    pub fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Sends a request as soon as a connection is free and reads the whole answer within `timeout`.
    ///
    /// # Errors
    /// Why there is no whole answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection in use.
    pub async fn call(&self, shot: &Shot, keep_body: bool, timeout: Duration) -> Result<Reply, Failure> {
        tokio::time::timeout(timeout, self.exchange(shot, keep_body)).await.unwrap_or(Err(Failure::TimedOut))
    }

    async fn exchange(&self, shot: &Shot, keep_body: bool) -> Result<Reply, Failure> {
        let _permit = self.free.acquire().await.map_err(|_| Failure::Connect)?;
        let mut request = self.request(shot)?;
        loop {
            let kept = self.idle.lock().pop();
            let fresh = kept.is_none();
            let mut sender = match kept {
                Some(sender) if sender.is_closed() => continue,
                Some(sender) => sender,
                None => self.open().await?,
            };
            // A kept connection that the peer has just closed gives the request back unsent; a fresh one has no excuse.
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let reply = read(response, keep_body).await?;
                    if sender.ready().await.is_ok() {
                        self.idle.lock().push(sender);
                    }
                    return Ok(reply);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(Failure::NoAnswer),
                },
            }
        }
    }

    fn request(&self, shot: &Shot) -> Result<Request<Full<Bytes>>, Failure> {
        let method = if shot.body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(Full::new(shot.body.clone().unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{}", self.target.path, shot.path).parse().map_err(|_| Failure::BadRequest)?;
        *request.headers_mut() = shot.headers.clone();
        let host = HeaderValue::from_str(&self.target.host).map_err(|_| Failure::BadRequest)?;
        request.headers_mut().insert(HOST, host);
        Ok(request)
    }

    async fn open(&self) -> Result<Sender, Failure> {
        let stream = TcpStream::connect(self.target.address).await.map_err(|_| Failure::Connect)?;
        stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Connect)?;
        // How a connection ends is seen by the request on it, if there is one.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

async fn read(response: Response<hyper::body::Incoming>, keep_body: bool) -> Result<Reply, Failure> {
    let (head, mut body) = response.into_parts();
    let mut kept = BytesMut::new();
    let mut body_bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::CutAnswer)?;
        if let Some(data) = frame.data_ref() {
            body_bytes += data.len() as u64;
            if keep_body {
                kept.extend_from_slice(data);
            }
        }
    }
    Ok(Reply { status: head.status.as_u16(), headers: head.headers, body: kept.freeze(), body_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(&str, u16, &str), &str>) {
        let seen = Target::parse(url);
        match (&seen, expected) {
            (Ok(target), Ok((host, port, path))) => {
                assert_eq!((target.host.as_str(), target.address.port(), target.path.as_str()), (host, port, path));
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            _ => panic!("{seen:?}"),
        }
    }

    #[test]
    fn urls_are_read() {
        check("http://127.0.0.1:9100/v1/", Ok(("127.0.0.1:9100", 9100, "/v1")));
        check("http://127.0.0.1", Ok(("127.0.0.1", 80, "")));
        check("https://127.0.0.1", Err("only http://"));
        check("http://127.0.0.1:nine/", Err("127.0.0.1:nine"));
    }
}
