//! Reading a request body: within its size and time limits, undone of its coding and scanned while it arrives, counted
//! against one budget for the whole process.

pub mod budget;
pub mod coding;
mod store;

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use actix_web::web::Payload;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::crowd::Breath;
use crate::dialects::client;
use crate::error::{ApiError, Code};
use crate::lifecycle;

use super::scan::{Scan, ScanError, ScanLimits, Scanner};
use coding::{Coding, Decoder};
use store::Store;

pub use budget::{BodyBudget, BodyShare};
pub use store::Overflow;

/// After a body was found too large, this much more of it is read and thrown away, so that a client which sends
/// everything before it reads still gets its answer instead of a reset connection.
const DRAIN_BYTES: u64 = 1 << 30;

/// And for no longer than this.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// A body must bring this many bytes, or its end, within each [`BodyLimits::idle`]: a slow line passes, a client that
/// sends a byte now and then to keep its place does not.
const PROGRESS: u64 = 16 * 1024;

/// Decoded bytes handed on at a time.
const DECODED_PIECE: usize = 64 * 1024;

/// A body, scanned.
#[derive(Debug)]
pub struct ScannedBody {
    /// The whole body; with an empty list in the place of inputs that lie on disk.
    pub bytes: Bytes,
    /// Where its members are, and where its inputs are.
    pub scan: Scan,
    /// Its share of the process's budget, held as long as the body is.
    pub share: BodyShare,
}

impl ScannedBody {
    /// The same request with another body, or with other members to look into; the share stays that of what was read.
    ///
    /// # Errors
    /// As of a body that is read.
    pub fn again(
        self,
        bytes: Bytes,
        fields: &'static [&'static str],
        limits: ScanLimits,
    ) -> Result<ScannedBody, ApiError> {
        let mut scanner = Scanner::new(fields, limits);
        scanner.feed(&bytes).map_err(client::scan_error)?;
        let scan = scanner.finish().map_err(client::scan_error)?;
        Ok(ScannedBody { bytes, scan, share: self.share })
    }
}

/// Limits of one body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body, bytes, as sent and as decoded.
    pub max_bytes: u64,
    /// Longest time in which [`PROGRESS`] bytes, or the end, must come.
    pub idle: Duration,
}

/// Reads and scans the whole body. `fields` are the top-level members that carry inputs. With [`Overflow::Spool`], a body
/// for which the budget has no room goes to disk, and its inputs are read back when they are needed.
///
/// # Errors
/// 413 above `max_bytes` (also when only announced), 408 without progress, 415 for a media type or coding that is not
/// understood, 503 when the budget of all bodies is used up and the disk is not allowed or has no room either, 400 for
/// what is not acceptable JSON or not in the coding that it claims.
///
/// # Cancel safety
/// Dropping the future gives the share of the budget back; the connection is closed by the server.
pub async fn read(
    request: &HttpRequest,
    payload: &mut Payload,
    (fields, scan_limits): (&'static [&'static str], ScanLimits),
    limits: BodyLimits,
    budget: &Arc<BodyBudget>,
    overflow: Overflow,
) -> Result<ScannedBody, ApiError> {
    check_media_type(request)?;
    let coding = coding_of(request)?;
    let announced = announced_length(request);
    if let Some(length) = announced.filter(|length| *length > limits.max_bytes) {
        if !request.headers().contains_key(EXPECT) {
            drain(payload, length).await;
        }
        return Err(too_large(limits.max_bytes));
    }
    let worker = super::worker(request)?;
    let reading = async {
        let kept = announced.filter(|_| coding.is_none());
        let store = Store::new(kept, budget.share(), overflow).await?;
        let intake =
            Intake { scanner: Box::new(Scanner::new(fields, scan_limits)), store, length: 0, failed: None, limits };
        let breath = Breath::new(&worker.crowd);
        let end = if offers_websocket(request) { announced.unwrap_or(0) } else { u64::MAX };
        let pieces = Pieces::new(payload, limits.idle, end, &worker.cut);
        match coding {
            None => plain(pieces, intake, breath).await,
            // Boxed: few bodies are coded, and the room for it would be part of every request.
            Some(coding) => Box::pin(coded(pieces, intake, breath, coding)).await,
        }
    };
    let read = reading.await;
    if read.as_ref().is_err_and(|error| matches!(error.code, Code::BodyTooLarge | Code::Overloaded)) {
        drain(payload, announced.unwrap_or(DRAIN_BYTES)).await;
    }
    read
}

/// What becomes of the decoded bytes.
struct Intake {
    /// Boxed, since it holds a kilobyte and a half that would be moved each time a future is passed on.
    scanner: Box<Scanner>,
    store: Store,
    length: u64,
    failed: Option<ScanError>,
    limits: BodyLimits,
}

impl Intake {
    /// Takes the next decoded bytes. After a scanner's error the rest is counted and dropped, so that the client can
    /// read why.
    async fn take(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.length += piece.len() as u64;
        if self.length > self.limits.max_bytes {
            return Err(too_large(self.limits.max_bytes));
        }
        if self.failed.is_some() {
            return Ok(());
        }
        if let Err(error) = self.scanner.feed(piece) {
            self.failed = Some(error);
            return Ok(());
        }
        self.store.push(piece, self.length).await
    }

    async fn finish(self) -> Result<ScannedBody, ApiError> {
        let scan = self.failed.map_or_else(|| self.scanner.finish(), Err).map_err(client::scan_error)?;
        let stored = self.store.finish(scan).await?;
        Ok(ScannedBody { bytes: stored.bytes, scan: stored.scan, share: stored.share })
    }
}

/// The pieces of a body as they come, held to their time.
struct Pieces<'a> {
    payload: &'a mut Payload,
    idle: Duration,
    deadline: Instant,
    since: u64,
    /// Bytes until the body ends, whatever the payload says.
    left: u64,
    cut: &'a CancellationToken,
}

impl<'a> Pieces<'a> {
    fn new(payload: &'a mut Payload, idle: Duration, end: u64, cut: &'a CancellationToken) -> Pieces<'a> {
        Pieces { payload, idle, deadline: Instant::now() + idle, since: 0, left: end, cut }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.left == 0 {
            return Ok(None);
        }
        let piece = tokio::select! {
            biased;
            piece = timeout_at(self.deadline, self.payload.next()) => piece,
            () = self.cut.cancelled() => return Err(lifecycle::cut_error()),
        };
        match piece {
            Err(_elapsed) => Err(body_timeout(self.idle)),
            Ok(None) => Ok(None),
            Ok(Some(Err(error))) => {
                Err(ApiError::new(Code::InvalidJson, format!("the request body could not be read: {error}")))
            }
            Ok(Some(Ok(mut piece))) => {
                piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= piece.len() as u64;
                self.since += piece.len() as u64;
                if self.since >= PROGRESS {
                    self.since = 0;
                    self.deadline = Instant::now() + self.idle;
                }
                Ok(Some(piece))
            }
        }
    }
}

async fn plain(mut pieces: Pieces<'_>, mut intake: Intake, mut breath: Breath) -> Result<ScannedBody, ApiError> {
    while let Some(piece) = pieces.next().await? {
        intake.take(&piece).await?;
        breath.moved(piece.len()).await;
    }
    intake.finish().await
}

async fn coded(
    mut pieces: Pieces<'_>,
    mut intake: Intake,
    mut breath: Breath,
    coding: Coding,
) -> Result<ScannedBody, ApiError> {
    let damaged = || ApiError::new(Code::InvalidJson, format!("the request body is not sound {}", coding.name()));
    let mut decoder = Decoder::new(coding).map_err(|_| over_budget())?;
    let mut output = vec![0; DECODED_PIECE];
    let mut sent = 0;
    while let Some(piece) = pieces.next().await? {
        sent += piece.len() as u64;
        if sent > intake.limits.max_bytes {
            return Err(too_large(intake.limits.max_bytes));
        }
        let mut rest = &piece[..];
        loop {
            let step = decoder.step(rest, &mut output).map_err(|_| damaged())?;
            rest = rest.get(step.read..).unwrap_or_default();
            intake.take(output.get(..step.written).unwrap_or_default()).await?;
            if step.read == 0 && step.written == 0 {
                break;
            }
            breath.moved(step.written).await;
        }
    }
    if !decoder.is_complete() {
        return Err(damaged());
    }
    intake.finish().await
}

/// Whether the server library gives a body without an end because the client offers to go on as a WebSocket. Nobody takes
/// the offer here, so the body ends as announced.
fn offers_websocket(request: &HttpRequest) -> bool {
    let headers = request.headers();
    let offered = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    offered.is_some_and(|word| word.eq_ignore_ascii_case("websocket")) && !headers.contains_key(TRANSFER_ENCODING)
}

fn announced_length(request: &HttpRequest) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON, or nothing said (some SDKs send none); anything else is a mistake that is better told than guessed at.
fn check_media_type(request: &HttpRequest) -> Result<(), ApiError> {
    let Some(media_type) = request.headers().get(CONTENT_TYPE) else { return Ok(()) };
    if media_type == "application/json" {
        return Ok(());
    }
    let media_type = media_type.to_str().unwrap_or("?");
    let essence = media_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence.is_empty() || essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let message = format!("content-type {essence:?} is not supported: send application/json");
    Err(ApiError::new(Code::UnsupportedMediaType, message))
}

fn coding_of(request: &HttpRequest) -> Result<Option<Coding>, ApiError> {
    let mut headers = request.headers().get_all(CONTENT_ENCODING);
    let Some(first) = headers.next() else { return Ok(None) };
    let text = first.to_str().unwrap_or("?");
    match Coding::read(text) {
        Ok(coding) if headers.next().is_none() => Ok(coding),
        _ => {
            let message = format!(
                "content-encoding {text:?} is not supported: send one of {}, or the body as it is (identity)",
                coding::ACCEPTED
            );
            Err(ApiError::new(Code::UnsupportedMediaType, message))
        }
    }
}

async fn drain(payload: &mut Payload, at_most: u64) {
    let mut seen = 0;
    let draining = async {
        while let Some(Ok(piece)) = payload.next().await {
            seen += piece.len() as u64;
            if seen >= at_most.min(DRAIN_BYTES) {
                break;
            }
        }
    };
    // Running out of time is fine: the connection is closed then.
    let _out_of_time = timeout(DRAIN_TIME, draining).await;
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(Code::BodyTooLarge, format!("the request body is larger than {limit} bytes (server.max_body_bytes)"))
}

fn over_budget() -> ApiError {
    ApiError::new(Code::Overloaded, "the gateway holds as many request bodies as it may (server.max_buffered_bytes)")
        .retry_after(Some(Duration::from_secs(1)))
}

fn body_timeout(idle: Duration) -> ApiError {
    let message = format!(
        "the request body came too slowly: {PROGRESS} bytes or its end must come within {} s (server.body_timeout_s)",
        idle.as_secs_f64()
    );
    ApiError::new(Code::BodyTimeout, message)
}
