//! Large answers as bodies that are written piece by piece, as fast as the client reads them.
//!
//! The head of an answer waits for its settlement: cost, remaining budget and cache result stand in it, and the record
//! must be in the journal before it leaves. The body behind it is made while it is sent, so that a client that reads
//! slowly holds the vectors it has not read yet, and no text of them. A client that does not read at all is ended by the
//! listener's write time-out.

use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use tokio::time::Sleep;

use crate::crowd::{self, Breath, Crowd, Present};
use crate::dialects::client::EmbedChunks;
use crate::lifecycle::InFlight;
use crate::room::Seat;

/// What a request holds until its answer is out.
#[derive(Debug)]
pub struct Held {
    /// Its place among the requests of its worker.
    pub present: Present,
    /// Its place among the requests that a shutdown waits for.
    pub in_flight: InFlight,
}

/// The body of an embedding answer.
pub struct EmbedBody {
    pieces: EmbedChunks,
    size: BodySize,
    breath: Breath,
    pause: Option<Pin<Box<Sleep>>>,
    _held: Held,
    _seat: Seat,
}

impl EmbedBody {
    /// A body of `pieces`; what is held is let go when it is sent or given up.
    pub fn new(pieces: EmbedChunks, crowd: &Rc<Crowd>, held: Held, seat: Seat) -> EmbedBody {
        let size = pieces.exact_len().map_or(BodySize::Stream, |length| BodySize::Sized(length as u64));
        EmbedBody { pieces, size, breath: Breath::new(crowd), pause: None, _held: held, _seat: seat }
    }
}

impl MessageBody for EmbedBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        let Some(piece) = self.pieces.next() else { return Poll::Ready(None) };
        if self.breath.is_due(piece.len()) {
            self.pause = Some(Box::pin(crowd::pause()));
        }
        Poll::Ready(Some(Ok(piece)))
    }
}
