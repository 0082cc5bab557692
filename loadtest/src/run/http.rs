//! Single calls outside the load: admin routes, and documents before the first phase.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// A header's text; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as JSON; `null` where it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Makes a call on a connection of its own.
///
/// # Errors
/// There is no whole answer; with the address and why.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> Result<Answer, String> {
    let explain = |error: &dyn std::fmt::Display| format!("{method} http://{address}{path}: {error}");
    let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|error| explain(&error))?;
    *request.uri_mut() = path.parse().map_err(|error| explain(&error))?;
    let host = HeaderValue::from_str(&address.to_string()).map_err(|error| explain(&error))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| explain(&error))?;
        request.headers_mut().insert(name, HeaderValue::from_str(value).map_err(|error| explain(&error))?);
    }
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(|error| explain(&error))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| explain(&error))?;
        let driving = tokio::spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(|error| explain(&error))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| explain(&error))?.to_bytes();
        driving.abort();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    };
    tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| explain(&"no answer in time"))?
}
