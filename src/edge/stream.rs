//! An answer on its way out. A request counts as under way until its answer has been handed to the socket, so that a
//! shutdown cuts nobody who is still reading; a large answer is written while it is sent, as fast as the client reads.
//!
//! The head of an answer waits for its settlement: cost, remaining budget and cache result stand in it, and the record
//! must be in the journal before it leaves. The body behind it is made while it is sent, so that a client that reads
//! slowly holds the vectors it has not read yet, and no text of them. A client that does not read at all is ended by the
//! listener's write time-out.

use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use tokio::time::Sleep;

use crate::crowd::{self, Breath, Present};
use crate::dialects::client::EmbedChunks;
use crate::lifecycle::InFlight;
use crate::room::Seat;

/// Bytes of a whole answer that are handed out at a time: so much that the answer to one text leaves with its head in one
/// write. The server takes the next piece only once less than half of this waits for the socket.
const PIECE: usize = 64 << 10;

/// What a request holds until its answer is out.
#[derive(Debug)]
pub struct Held {
    /// Its place among the requests of its worker.
    pub present: Present,
    /// Its place among the requests that a shutdown waits for.
    pub in_flight: InFlight,
}

/// What is still to be sent.
#[derive(Debug)]
pub enum Pieces {
    /// The rest of a text that is there.
    Whole(Bytes),
    /// Vectors that are written as they are sent.
    Vectors(EmbedChunks),
}

/// The body of an answer.
pub struct AnswerBody {
    pieces: Pieces,
    size: BodySize,
    breath: Breath,
    pause: Option<Pin<Box<Sleep>>>,
    _held: Held,
    _seat: Seat,
}

impl AnswerBody {
    /// A body of `pieces`; what is held is let go when it is sent or given up.
    pub fn new(pieces: Pieces, held: Held, seat: Seat) -> AnswerBody {
        let length = match &pieces {
            Pieces::Whole(text) => Some(text.len()),
            Pieces::Vectors(vectors) => vectors.exact_len(),
        };
        let size = length.map_or(BodySize::Stream, |length| BodySize::Sized(length as u64));
        AnswerBody { breath: Breath::new(&held.present.crowd()), pieces, size, pause: None, _held: held, _seat: seat }
    }
}

impl Pieces {
    fn next(&mut self) -> Option<Bytes> {
        match self {
            Pieces::Whole(rest) => {
                let length = rest.len().min(PIECE);
                (length > 0).then(|| rest.split_to(length))
            }
            Pieces::Vectors(vectors) => vectors.next(),
        }
    }
}

impl MessageBody for AnswerBody {
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

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::crowd::Crowd;
    use crate::dialects::client::{AnswerForm, RenderEmbed, render_embed};
    use crate::dialects::{ClientDialect, Dtype, Encoding};
    use crate::lifecycle::Lifecycle;
    use crate::vector::Vector;

    /// Takes `pieces` as a body; what came, and what was said of its size.
    async fn sent(pieces: Pieces) -> (Vec<u8>, BodySize) {
        let lifecycle = Arc::new(Lifecycle::default());
        let held = Held { present: Rc::new(Crowd::default()).enter(), in_flight: lifecycle.enter().expect("open") };
        let mut body = AnswerBody::new(pieces, held, Seat::default());
        let size = body.size();
        let mut taken = Vec::new();
        while let Some(piece) = std::future::poll_fn(|context| Pin::new(&mut body).poll_next(context)).await {
            taken.extend_from_slice(&piece.expect("infallible"));
            assert_eq!(lifecycle.in_flight(), 1);
        }
        drop(body);
        assert_eq!(lifecycle.in_flight(), 0);
        (taken, size)
    }

    #[actix_web::test]
    async fn a_request_is_under_way_until_the_last_byte_of_its_answer_is_taken() {
        for length in [0, 1, PIECE, PIECE * 2 + 7] {
            let text: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let (taken, size) = sent(Pieces::Whole(Bytes::from(text.clone()))).await;
            assert_eq!((taken, size), (text, BodySize::Sized(length as u64)));
        }
    }

    #[actix_web::test]
    async fn written_while_sent_it_has_the_bytes_and_the_length_of_the_whole() {
        let text = |n: usize| format!("[{n},{}]", vec!["0.25"; 2_000].join(","));
        let texts: Vec<Vector> =
            (0..40).map(|n| Vector::from_text(Bytes::from(text(n)), None).expect("valid")).collect();
        let floats: Vec<Vector> =
            (0..40).map(|n| Vector::from_floats(&[n as f32 / 7.0; 2_001]).expect("finite")).collect();
        for (vectors, encoding, sized) in [
            (texts.clone(), Encoding::Float, true),
            (texts, Encoding::Base64, true),
            (floats.clone(), Encoding::Base64, true),
            (floats, Encoding::Float, false),
        ] {
            for dialect in [ClientDialect::OpenAi, ClientDialect::Tei, ClientDialect::Ollama] {
                let form = AnswerForm { encodings: vec![encoding], dtype: Dtype::Float, by_type: false };
                let answer = || {
                    let answer = RenderEmbed {
                        model: "m",
                        id: "i",
                        vectors: vectors.clone(),
                        inputs: &[],
                        form: &form,
                        tokens: 7,
                        estimated: false,
                    };
                    render_embed(dialect, answer)
                };
                let whole = answer().into_bytes();
                serde_json::from_slice::<serde_json::Value>(&whole).expect("JSON");
                let (taken, size) = sent(Pieces::Vectors(answer())).await;
                assert!(taken == whole, "{dialect:?} {encoding:?}");
                let expected = if sized { BodySize::Sized(whole.len() as u64) } else { BodySize::Stream };
                assert_eq!(size, expected, "{dialect:?} {encoding:?}");
            }
        }
    }
}
