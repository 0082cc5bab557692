//! Calls over connections of HTTP/2. Owns which connection carries the next call and when one is left; what is sent on it
//! is the `h2` crate's.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::sync::OwnedSemaphorePermit;

use super::connect::Io;
use super::framing::LONGEST_HEAD;
use super::pool::is_old;
use super::{CUT, Headers, UNANSWERED, WireError};
use crate::clock;
use crate::pure::time::Mono;

/// What a far end may send ahead, of one answer and of all of a connection, bytes.
const AHEAD: u32 = 1 << 20;
const AHEAD_OF_ALL: u32 = 8 << 20;

/// Largest piece of an answer: fewer pieces for large ones than with the least that the protocol allows.
const PIECE: u32 = 64 << 10;

/// Streams before the far end has said how many it takes; so many are meant by most that limit them.
const MOST_AT_FIRST: usize = 100;

/// A connection from which nothing came for so long while an answer was given up is taken for dead. One of HTTP/1.1
/// would be closed with the call; this one would go on swallowing calls.
const SILENCE: Duration = Duration::from_secs(1);

/// The connections to one place.
pub(super) struct Lines {
    all: RefCell<Vec<Rc<Line>>>,
    /// How many calls at once one of them takes, as the far end said last.
    most: Rc<Cell<usize>>,
}

/// A connection.
pub(super) struct Line {
    sender: SendRequest<Bytes>,
    created: Mono,
    used: Cell<Mono>,
    heard: Cell<Mono>,
    streams: Cell<usize>,
    most: Rc<Cell<usize>>,
    left: Cell<bool>,
}

/// Leave to make one call on a connection. Dropped before its answer has ended, it takes the call back.
pub(super) struct Stream {
    line: Rc<Line>,
    began: Mono,
    ended: bool,
    _turn: OwnedSemaphorePermit,
}

/// Why a call was not answered.
pub(super) enum Failed {
    /// The far end has certainly not begun with it: it can be made on another connection.
    Untouched,
    /// It may have.
    Perhaps(WireError),
}

/// An answer whose head is here.
pub(super) struct Answered {
    pub status: u16,
    pub headers: Headers,
    pub body: Body,
}

/// The body of an answer.
pub(super) struct Body {
    from: RecvStream,
    stream: Stream,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { all: RefCell::default(), most: Rc::new(Cell::new(MOST_AT_FIRST)) }
    }
}

impl Lines {
    /// A connection that can carry one more call now.
    pub fn free(&self, now: Mono) -> Option<Rc<Line>> {
        self.tidy(now);
        self.all.borrow().iter().find(|line| line.streams.get() < self.most.get().max(1)).cloned()
    }

    /// Makes `io` one of them.
    ///
    /// # Errors
    /// The far end speaks something else after all.
    pub async fn open(&self, io: Io, now: Mono) -> Result<Rc<Line>, WireError> {
        let (sender, mut connection) = Builder::new()
            .initial_window_size(AHEAD)
            .initial_connection_window_size(AHEAD_OF_ALL)
            .max_frame_size(PIECE)
            .max_header_list_size(LONGEST_HEAD as u32)
            .initial_max_send_streams(self.most.get())
            .enable_push(false)
            .handshake(io)
            .await
            .map_err(|_| WireError::Connect("could not be connected to"))?;
        let line = Rc::new(Line {
            sender,
            created: now,
            used: Cell::new(now),
            heard: Cell::new(now),
            streams: Cell::new(0),
            most: Rc::clone(&self.most),
            left: Cell::new(false),
        });
        let known = Rc::downgrade(&line);
        // Ends by itself when nobody has the sender any more and no call is under way.
        actix_web::rt::spawn(std::future::poll_fn(move |cx| {
            let polled = Pin::new(&mut connection).poll(cx);
            if let Some(line) = known.upgrade() {
                line.most.set(connection.max_concurrent_send_streams());
                line.left.set(line.left.get() || polled.is_ready());
            }
            polled.map(|_ended| ())
        }));
        self.all.borrow_mut().push(Rc::clone(&line));
        Ok(line)
    }

    /// Leaves those that are old or of no use; calls under way on them go on.
    pub fn tidy(&self, now: Mono) {
        self.all.borrow_mut().retain(|line| {
            let used = if line.streams.get() > 0 { now } else { line.used.get() };
            !line.left.get() && !is_old(line.created, used, now)
        });
    }
}

impl Line {
    /// Counts a call as one of its own, until that ends.
    pub fn stream(self: Rc<Line>, turn: OwnedSemaphorePermit) -> Stream {
        self.streams.set(self.streams.get() + 1);
        Stream { line: self, began: clock::mono(), ended: false, _turn: turn }
    }
}

impl Stream {
    /// Sends `request` and waits for the head of its answer. The library sends the body as fast as the far end takes it.
    ///
    /// # Errors
    /// [`Failed`].
    ///
    /// # Cancel safety
    /// Dropping the future takes the call back; the far end may have done the work.
    pub async fn call(mut self, request: Request<()>, body: Bytes) -> Result<Answered, Failed> {
        // An error of the connection before anything was sent on it.
        let gone = |_error: h2::Error| Failed::Untouched;
        let ready = self.line.sender.clone().ready().await;
        let mut sender = ready.map_err(gone).inspect_err(|_| self.line.left.set(true))?;
        let (answer, mut sending) = sender.send_request(request, body.is_empty()).map_err(gone)?;
        drop(sender);
        if !body.is_empty() {
            // A stream that is closed already says why by its answer.
            let _sent = sending.send_data(body, true);
        }
        let answer = answer.await.map_err(|error| self.judge(&error))?;
        self.heard();
        let (head, from) = answer.into_parts();
        let mut headers = Headers::with_capacity(head.headers.len());
        headers.extend(head.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(Answered { status: head.status.as_u16(), headers, body: Body { from, stream: self } })
    }

    fn judge(&mut self, error: &h2::Error) -> Failed {
        self.ended = true;
        let left = error.is_go_away() || error.is_io();
        self.line.left.set(self.line.left.get() || left);
        let untouched = match error.reason() {
            // The far end closes, and had not got as far as this call.
            Some(Reason::NO_ERROR) => error.is_go_away() && error.is_remote(),
            reason => error.is_remote() && error.is_reset() && reason == Some(Reason::REFUSED_STREAM),
        };
        match untouched {
            true => Failed::Untouched,
            false if error.is_library() => {
                Failed::Perhaps(WireError::NotHttp("answered with something that is not HTTP"))
            }
            false => Failed::Perhaps(UNANSWERED),
        }
    }

    fn heard(&self) {
        self.line.heard.set(clock::mono());
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let line = &self.line;
        let now = clock::mono();
        line.streams.set(line.streams.get().saturating_sub(1));
        line.used.set(now);
        if !self.ended && now.since(line.heard.get().max(self.began)) > SILENCE {
            line.left.set(true);
        }
    }
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
        loop {
            let Some(piece) = self.from.data().await else {
                self.stream.ended = true;
                return Ok(None);
            };
            let piece = piece.map_err(|error| {
                self.stream.judge(&error);
                CUT
            })?;
            self.stream.heard();
            // Fails for a stream that is gone, of which the next piece tells.
            let _room = self.from.flow_control().release_capacity(piece.len());
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}
