//! An answer on its way out. A request counts as under way until its answer has been handed to the socket, so that a
//! shutdown cuts nobody who is still reading.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;

use crate::lifecycle::InFlight;

/// Bytes handed out at a time: as much as the server buffers before it waits for the socket.
const PIECE: usize = 32 << 10;

/// Ties an answer to its place among the requests under way.
pub fn tie(response: HttpResponse, in_flight: InFlight) -> HttpResponse {
    response.map_body(|_, body| match body.try_into_bytes() {
        Ok(rest) => BoxBody::new(Tied { rest, _in_flight: in_flight }),
        // Only bodies that come in pieces of their own; there are none on the client side yet.
        Err(body) => body,
    })
}

struct Tied {
    rest: Bytes,
    _in_flight: InFlight,
}

impl MessageBody for Tied {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.rest.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready((length > 0).then_some(Ok(piece)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lifecycle::Lifecycle;

    #[actix_web::test]
    async fn a_request_is_under_way_until_the_last_byte_of_its_answer_is_taken() {
        let lifecycle = Arc::new(Lifecycle::default());
        let in_flight = lifecycle.enter().expect("open");
        let text: Vec<u8> = (0..PIECE * 2 + 7).map(|n| n as u8).collect();
        let mut body = tie(HttpResponse::Ok().body(text.clone()), in_flight).into_body();
        assert_eq!(body.size(), BodySize::Sized(text.len() as u64));
        let mut taken = Vec::new();
        while let Some(piece) = std::future::poll_fn(|context| Pin::new(&mut body).poll_next(context)).await {
            taken.extend_from_slice(&piece.expect("infallible"));
            assert_eq!(lifecycle.in_flight(), 1);
        }
        assert_eq!(taken, text);
        drop(body);
        assert_eq!(lifecycle.in_flight(), 0);
    }
}
