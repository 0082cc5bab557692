//! An answer whose head is here, over either protocol. Owns the limits on how long and how large its body may be;
//! refuses to know what it says.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Answer, Headers, MAX_ANSWER_BYTES, MOST_ON_TRUST, TOO_MUCH, WireError, header, http1, http2};
use crate::crowd::Breath;

/// How long is waited for the next piece of a body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Patience {
    /// So long for each.
    Each(Duration),
    /// Until then for all.
    Until(Instant),
}

impl Patience {
    /// What `future` says, unless it takes too long.
    ///
    /// # Errors
    /// [`WireError::Timeout`], and those of `future`.
    ///
    /// # Cancel safety
    /// That of `future`.
    pub async fn over<T>(self, future: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
        let mut future = pin!(future);
        // A timer costs more than reading what is already there.
        if let Some(ready) = futures_util::future::poll_immediate(future.as_mut()).await {
            return ready;
        }
        let waited = match self {
            Patience::Each(limit) => timeout(limit, future).await,
            Patience::Until(deadline) => timeout_at(deadline, future).await,
        };
        waited.unwrap_or(Err(WireError::Timeout))
    }
}

/// An answer under way. Dropping it gives it up.
pub(super) struct Incoming {
    pub status: u16,
    pub headers: Headers,
    pub body: Body,
}

/// Where a body comes from.
pub(super) enum Body {
    /// A connection.
    Http1(http1::Body),
    /// A stream of one.
    Http2(Box<http2::Body>),
}

impl Body {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The answer broke off.
    ///
    /// # Cancel safety
    /// Safe: a piece is handed out or still to come.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        match self {
            Body::Http1(body) => body.next().await,
            Body::Http2(body) => body.next().await,
        }
    }
}

impl Incoming {
    /// The whole answer; `breath` is drawn while a large one is read.
    ///
    /// # Errors
    /// It did not come in time, broke off, or is larger than [`MAX_ANSWER_BYTES`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the answer up.
    pub async fn whole(self, patience: Patience, mut breath: Breath) -> Result<Answer, WireError> {
        let Incoming { status, headers, body } = self;
        let length = if let Body::Http1(body) = &body { body.length() } else { None };
        let body = match (body, length) {
            (Body::Http1(body), Some(length)) => body.exactly(length, patience, &mut breath).await?,
            (body, _) => {
                let stated = header(&headers, "content-length").and_then(|length| length.parse::<usize>().ok());
                collect(body, stated.unwrap_or(0).min(MOST_ON_TRUST), patience, breath).await?
            }
        };
        Ok(Answer { status, headers, body })
    }
}

/// A body that comes in pieces, for which there is `room` at first.
async fn collect(mut from: Body, room: usize, patience: Patience, mut breath: Breath) -> Result<Bytes, WireError> {
    let mut body = BytesMut::with_capacity(room);
    while let Some(piece) = patience.over(from.next()).await? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(TOO_MUCH);
        }
        body.extend_from_slice(&piece);
        breath.moved(piece.len()).await;
    }
    // Grown without knowing its length it may have much more room than it needs, and its vectors may be kept for long.
    let roomy = body.capacity() > body.len() + body.len() / 8;
    Ok(if roomy { Bytes::copy_from_slice(&body) } else { body.freeze() })
}
