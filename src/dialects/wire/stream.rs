//! An answer whose head is here and whose body comes piece by piece. Owns its time limits; refuses to know what it says.

use std::time::Duration;

use awc::error::PayloadError;
use awc::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::LocalBoxStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::{AGENT, Answer, MAX_ANSWER_BYTES, Wire, WireError, classify};
use crate::crowd::Breath;
use crate::dialects::WireRequest;

/// What a cut answer is called.
const CUT: WireError = WireError::Broken("closed the connection in the middle of its answer");

/// An answer that is under way. Dropping it closes the connection, and the upstream may stop working.
pub struct Opened {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    body: LocalBoxStream<'static, Result<Bytes, PayloadError>>,
    declared: Option<usize>,
    idle: Duration,
    deadline: Instant,
}

impl Wire {
    /// Sends `request` and waits for the head of its answer, within the upstream's `timeout_s`.
    ///
    /// # Errors
    /// Every way in which no head came back. A head of any status is `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the upstream may or may not have done the work.
    pub async fn open(&self, request: WireRequest, extra: &[(HeaderName, HeaderValue)]) -> Result<Opened, WireError> {
        let deadline = Instant::now() + self.limit;
        let mut sending =
            self.client.post(format!("{}{}", self.base_url, request.path)).insert_header((USER_AGENT, AGENT));
        for (name, value) in &request.headers {
            sending = sending.insert_header((*name, value.as_str()));
        }
        for (name, value) in self.credential.iter().chain(extra) {
            sending = sending.insert_header((name.clone(), value.clone()));
        }
        let response = match timeout_at(deadline, sending.send_body(request.body)).await {
            Ok(response) => response.map_err(|error| classify(&error))?,
            Err(_elapsed) => return Err(WireError::Timeout),
        };
        let status = response.status();
        if status.is_informational() {
            return Err(WireError::NotHttp("answered with an interim status"));
        }
        let headers = response.headers().clone();
        let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Opened {
            status: status.as_u16(),
            headers,
            body: response.boxed_local(),
            declared,
            idle: self.limit,
            deadline,
        })
    }
}

impl Opened {
    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The next piece of the body; `None` at its end. No pause between two pieces may be longer than `timeout_s`.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long.
    ///
    /// # Cancel safety
    /// Safe: a piece is handed out or still to come.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        match timeout(self.idle, self.body.next()).await {
            Err(_elapsed) => Err(WireError::Timeout),
            Ok(None) => Ok(None),
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(Some(Err(_))) => Err(CUT),
        }
    }

    /// The whole answer, all of it within the upstream's `timeout_s`; `breath` is drawn while a large one is read.
    ///
    /// # Errors
    /// The answer did not end in time, was cut, or is larger than [`MAX_ANSWER_BYTES`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn whole(mut self, mut breath: Breath) -> Result<Answer, WireError> {
        let mut body = BytesMut::new();
        loop {
            let piece = match timeout_at(self.deadline, self.body.next()).await {
                Err(_elapsed) => return Err(WireError::Timeout),
                Ok(None) => break,
                Ok(Some(piece)) => piece.map_err(|_| CUT)?,
            };
            if body.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(WireError::NotHttp("sent more than 512 MiB in one answer"));
            }
            body.extend_from_slice(&piece);
            breath.moved(piece.len()).await;
        }
        if self.declared.is_some_and(|declared| declared != body.len()) {
            return Err(CUT);
        }
        Ok(Answer { status: self.status, headers: self.headers, body: body.freeze() })
    }

    /// Reads on to the end of the body if it is near, so that the connection can be used again; else gives it up.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn finish(mut self) {
        const NEAR: Duration = Duration::from_millis(500);
        let reading = async { while matches!(self.body.next().await, Some(Ok(_))) {} };
        // Giving it up is what follows anyway.
        let _not_near = timeout(NEAR, reading).await;
    }
}
