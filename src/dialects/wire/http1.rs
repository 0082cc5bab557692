//! One call over a connection of HTTP/1.1. Owns the order of writing and reading; leaves to [`framing`](super::framing)
//! where an answer ends, and to the [`pool`](super::pool) what becomes of the connection.

use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::framing::{self, Chunks, Framing, Head};
use super::pool::Lease;
use super::{CUT, MAX_ANSWER_BYTES, MOST_ON_TRUST, Patience, TOO_MUCH, UNANSWERED, WireError};
use crate::crowd::Breath;

/// Bytes that are read at once while an answer's length is not known yet. Small, because what comes with the head is
/// copied to the body's own place; all of a head in most cases.
const HEAD_PIECE: usize = 4 << 10;

/// Bytes that are read at once of a body whose length nobody states.
const BODY_PIECE: usize = 32 << 10;

/// A body up to this length travels in the head's buffer: one copy is cheaper than a second piece for the kernel.
pub(super) const TOGETHER: usize = 16 << 10;

/// Interim answers that are read over before the final one.
const MOST_INTERIM: usize = 16;

/// How sending ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// All of it is on its way.
    Whole,
    /// The far end answered, or closed, before it had all of it.
    Partly,
    /// The connection took not a byte: it had been closed.
    Nothing,
}

/// Sends `head` and then `body`. What the far end says meanwhile goes to `answer`: it may refuse a large body and stop
/// reading, and both sides would wait for each other.
///
/// # Cancel safety
/// The connection is of no use afterwards.
pub(super) async fn send<S>(io: &mut S, mut head: Bytes, mut body: Bytes, answer: &mut BytesMut) -> Sent
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let whole = head.len() + body.len();
    std::future::poll_fn(|cx| {
        while head.has_remaining() || body.has_remaining() {
            let written = match (head.is_empty(), body.is_empty()) {
                (false, false) => {
                    let parts = [IoSlice::new(&head), IoSlice::new(&body)];
                    Pin::new(&mut *io).poll_write_vectored(cx, &parts)
                }
                (false, true) => Pin::new(&mut *io).poll_write(cx, &head),
                (true, _) => Pin::new(&mut *io).poll_write(cx, &body),
            };
            match written {
                Poll::Ready(Ok(written @ 1..)) => {
                    let of_head = written.min(head.len());
                    head.advance(of_head);
                    body.advance((written - of_head).min(body.len()));
                }
                Poll::Ready(_) if head.len() + body.len() == whole => return Poll::Ready(Sent::Nothing),
                Poll::Ready(_) => return Poll::Ready(Sent::Partly),
                Poll::Pending => return heard(io, cx, answer).map(|()| Sent::Partly),
            }
        }
        match Pin::new(&mut *io).poll_flush(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Sent::Whole),
            Poll::Ready(Err(_)) => Poll::Ready(Sent::Partly),
            Poll::Pending => heard(io, cx, answer).map(|()| Sent::Partly),
        }
    })
    .await
}

/// Ready when there is no use in sending on: the final answer has begun, or the connection has ended.
fn heard<S: AsyncRead + Unpin>(io: &mut S, cx: &mut Context<'_>, answer: &mut BytesMut) -> Poll<()> {
    const INTERIM: &[u8] = b"HTTP/1.1 1";
    loop {
        answer.reserve(HEAD_PIECE);
        match pin!(io.read_buf(answer)).poll(cx) {
            Poll::Pending => return Poll::Pending,
            // Who sends those wants the rest.
            Poll::Ready(Ok(1..)) if answer.len() < INTERIM.len() || answer.starts_with(INTERIM) => {}
            Poll::Ready(_) => return Poll::Ready(()),
        }
    }
}

/// Reads on to the end of the final answer's head.
///
/// # Errors
/// The connection broke, or it is not HTTP.
///
/// # Cancel safety
/// The connection is of no use afterwards.
pub(super) async fn head<S: AsyncRead + Unpin>(io: &mut S, buf: &mut BytesMut) -> Result<Head, WireError> {
    let (mut seen, mut interim) = (0, 0);
    loop {
        while !buf.is_empty()
            && let Some(head) = framing::head(buf, &mut seen).map_err(|_| NOT_HTTP)?
        {
            match head.status {
                101 => return Err(WireError::NotHttp("answered with an interim status")),
                100..=199 if interim < MOST_INTERIM => (seen, interim) = (0, interim + 1),
                100..=199 => return Err(NOT_HTTP),
                _ => return Ok(head),
            }
        }
        buf.reserve(HEAD_PIECE);
        if !matches!(io.read_buf(buf).await, Ok(1..)) {
            return Err(UNANSWERED);
        }
    }
}

const NOT_HTTP: WireError = WireError::NotHttp("answered with something that is not HTTP");

/// The next piece of a body; `None` at its end.
///
/// # Errors
/// The connection broke, or the framing is not what the head announced.
///
/// # Cancel safety
/// Safe: a piece is handed out or still to come.
pub(super) async fn piece<S: AsyncRead + Unpin>(
    io: &mut S,
    buf: &mut BytesMut,
    framing: &mut Framing,
) -> Result<Option<Bytes>, WireError> {
    loop {
        if let Some(piece) = framing.take(buf).map_err(|_| CUT)? {
            return Ok(Some(piece));
        }
        if framing.is_done() {
            return Ok(None);
        }
        if buf.capacity() - buf.len() < HEAD_PIECE {
            buf.reserve(BODY_PIECE);
        }
        match (io.read_buf(buf).await, &framing) {
            (Ok(1..), _) => {}
            (Ok(0), Framing::UntilClose) => {
                *framing = Framing::Chunked(Chunks::Done);
                return Ok(None);
            }
            _ => return Err(CUT),
        }
    }
}

/// Reads a body of `length` bytes into one place of that size. What comes beyond it stays in `buf`.
///
/// # Errors
/// It is larger than [`MAX_ANSWER_BYTES`], does not come in time, or is cut.
///
/// # Cancel safety
/// The connection is of no use afterwards.
pub(super) async fn exactly<S: AsyncRead + Unpin>(
    io: &mut S,
    buf: &mut BytesMut,
    length: u64,
    patience: Patience,
    breath: &mut Breath,
) -> Result<Bytes, WireError> {
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_ANSWER_BYTES).ok_or(TOO_MUCH)?;
    // One byte more than will come: a read that could have brought more than it did tells the runtime that nothing more
    // is there, so that the look at the idle connection before its next use needs no system call.
    let mut body = BytesMut::with_capacity(length.min(MOST_ON_TRUST) + 1);
    body.extend_from_slice(&buf.split_to(length.min(buf.len())));
    breath.moved(body.len()).await;
    while body.len() < length {
        let room = length + 1 - body.len();
        let mut rest = (&mut body).limit(room);
        let read = patience.over(async { io.read_buf(&mut rest).await.map_err(|_| CUT) }).await?;
        if read == 0 {
            return Err(CUT);
        }
        breath.moved(read).await;
    }
    if body.len() > length {
        buf.extend_from_slice(&body.split_off(length));
    }
    Ok(body.freeze())
}

/// The body of an answer, and the connection on which it comes. Dropping it before its end closes the connection.
pub(super) struct Body {
    lease: Option<Lease>,
    buf: BytesMut,
    framing: Framing,
    reusable: bool,
}

impl Body {
    /// Follows `head`; a connection on which nothing more comes, or that did not get the whole request, is not
    /// `reusable`.
    pub fn new(lease: Lease, buf: BytesMut, framing: Framing, reusable: bool) -> Body {
        let mut body = Body { lease: Some(lease), buf, framing, reusable };
        body.settle();
        body
    }

    /// As [`piece`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        let Some(lease) = &mut self.lease else { return Ok(self.framing.take(&mut self.buf).unwrap_or(None)) };
        let piece = piece(lease.io(), &mut self.buf, &mut self.framing).await?;
        self.settle();
        Ok(piece)
    }

    /// Its length, if that is known beforehand.
    pub fn length(&self) -> Option<u64> {
        if let Framing::Length(length) = self.framing { Some(length) } else { None }
    }

    /// As [`exactly`].
    pub async fn exactly(mut self, length: u64, patience: Patience, breath: &mut Breath) -> Result<Bytes, WireError> {
        let Some(lease) = &mut self.lease else { return Ok(Bytes::new()) };
        let body = exactly(lease.io(), &mut self.buf, length, patience, breath).await?;
        self.framing = Framing::Length(0);
        self.settle();
        Ok(body)
    }

    /// At the end of the body the connection is free for the next call, unless more came than belongs to this one.
    fn settle(&mut self) {
        if self.framing.is_done()
            && let Some(lease) = self.lease.take()
            && self.reusable
            && self.buf.is_empty()
        {
            lease.give_back();
        }
    }
}

#[cfg(test)]
mod tests;
