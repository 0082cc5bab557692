//! The cost report, the same as the command line's, as a stream: a year of records is never in memory at once.

use std::io::{self, Write};

use actix_web::http::header::CONTENT_TYPE;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

use super::{gate, parameters, shown};
use crate::cli::usage::{Format, UsageArgs, UsageTexts, run};
use crate::error::{ApiError, Code};

/// Pieces that are written ahead of the reader.
const PIECES_AHEAD: usize = 4;

/// `GET /admin/usage?tenant=&since=&until=&by=&format=`.
pub(super) async fn report(request: HttpRequest) -> HttpResponse {
    let answer = async {
        gate::authorize(&request)?;
        let running = crate::edge::worker(&request)?.gateway.running.load_full();
        let [tenant, since, until, by, format] = parameters(&request, ["tenant", "since", "until", "by", "format"])?;
        let texts = UsageTexts {
            tenant: tenant.as_deref(),
            since: since.as_deref(),
            until: until.as_deref(),
            by: by.as_deref(),
            format: format.as_deref().or(Some("jsonl")),
        };
        let arguments = UsageArgs::parse(running.plan.store.path.clone(), &running.plan.currency, texts)
            .map_err(|error| ApiError::new(Code::InvalidInput, error.to_string()))?;
        let content_type = match arguments.format {
            Format::Table => "text/plain; charset=utf-8",
            Format::Csv => "text/csv; charset=utf-8",
            Format::Jsonl => "application/x-ndjson",
        };
        let (sender, mut pieces) = channel(PIECES_AHEAD);
        spawn_blocking(move || {
            let failed = run(&arguments, &mut Pipe(sender.clone())).err();
            if let Some(error) = failed {
                // Nobody left to tell: the reader has gone.
                let _ = sender.blocking_send(Err(error.to_string()));
            }
        });
        // The first piece decides the status: an error before it is an answer of its own.
        match pieces.recv().await {
            Some(Err(message)) => Err(ApiError::new(Code::StoreUnavailable, message)),
            first => Ok(HttpResponse::Ok().insert_header((CONTENT_TYPE, content_type)).streaming(body(first, pieces))),
        }
    };
    shown(&request, answer.await)
}

type Piece = Result<Bytes, String>;

fn body(first: Option<Piece>, pieces: Receiver<Piece>) -> impl stream::Stream<Item = io::Result<Bytes>> {
    stream::unfold((first, pieces), |(first, mut pieces)| async move {
        let piece = match first {
            Some(piece) => piece,
            None => pieces.recv().await?,
        };
        // An error in the middle breaks the answer off, so that nobody takes a part for the whole.
        Some((piece.map_err(io::Error::other), (None, pieces)))
    })
}

/// Writes into the channel; a reader that has gone ends the report as a closed pipe does.
struct Pipe(Sender<Piece>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
