//! An answer whose head is here and whose body comes piece by piece. Owns its time limits; refuses to know what it says.

use std::time::Duration;

use actix_web::http::header::{HeaderName, HeaderValue};
use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};

use super::incoming::{Body, Incoming, Patience};
use super::{Answer, Headers, Wire, WireError, header};
use crate::crowd::Breath;
use crate::dialects::WireRequest;

/// An answer that is under way. Dropping it gives it up, and the upstream may stop working.
pub struct Opened {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Headers,
    body: Body,
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
    /// Dropping the future gives the call up; the upstream may or may not have done the work.
    pub async fn open(&self, request: WireRequest, extra: &[(HeaderName, HeaderValue)]) -> Result<Opened, WireError> {
        let deadline = Instant::now() + self.limit;
        let sending = timeout_at(deadline, self.send(request, extra));
        let Incoming { status, headers, body } = sending.await.unwrap_or(Err(WireError::Timeout))?;
        Ok(Opened { status, headers, body, idle: self.limit, deadline })
    }
}

impl Opened {
    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The next piece of the body; `None` at its end. No pause between two pieces may be longer than `timeout_s`.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long.
    ///
    /// # Cancel safety
    /// Safe: a piece is handed out or still to come.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        Patience::Each(self.idle).over(self.body.next()).await
    }

    /// The whole answer, all of it within the upstream's `timeout_s`; `breath` is drawn while a large one is read.
    ///
    /// # Errors
    /// The answer did not end in time, was cut, or is larger than [`MAX_ANSWER_BYTES`](super::MAX_ANSWER_BYTES).
    ///
    /// # Cancel safety
    /// Dropping the future gives the call up.
    pub async fn whole(self, breath: Breath) -> Result<Answer, WireError> {
        let Opened { status, headers, body, deadline, .. } = self;
        Incoming { status, headers, body }.whole(Patience::Until(deadline), breath).await
    }

    /// Reads on to the end of the body if it is near, so that the connection can be used again; else gives it up.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn finish(mut self) {
        const NEAR: Duration = Duration::from_millis(500);
        let reading = async { while matches!(self.body.next().await, Ok(Some(_))) {} };
        // Giving it up is what follows anyway.
        let _not_near = timeout(NEAR, reading).await;
    }
}
