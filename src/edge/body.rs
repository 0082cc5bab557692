//! Reading a request body: within its size and time limits, scanned while it arrives, counted against one budget for
//! the whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use actix_web::web::Payload;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::dialects::client;
use crate::error::{ApiError, Code};
use crate::lifecycle;

use super::scan::{Scan, ScanLimits, Scanner};

/// After a body was found too large, this much more of it is read and thrown away, so that a client which sends
/// everything before it reads still gets its answer instead of a reset connection.
const DRAIN_BYTES: u64 = 1 << 30;

/// And for no longer than this.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Bytes of request bodies in memory, all requests together.
#[derive(Debug)]
pub struct BodyBudget {
    limit: AtomicU64,
    used: AtomicU64,
}

/// A share of the budget; given back when dropped.
#[derive(Debug)]
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BodyBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<BodyBudget> {
        Arc::new(BodyBudget { limit: AtomicU64::new(limit), used: AtomicU64::new(0) })
    }

    /// Another limit; what is taken stays taken.
    pub fn resize(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Option<BodyShare> {
        let limit = self.limit.load(Ordering::Relaxed);
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .ok()?;
        Some(BodyShare { budget: Arc::clone(self), bytes })
    }
}

impl BodyShare {
    fn grow_to(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return true };
        match self.budget.take(more) {
            Some(mut extra) => {
                // The extra share is merged into this one, so it must not be given back on its own.
                extra.bytes = 0;
                self.bytes = bytes;
                true
            }
            None => false,
        }
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A body, scanned.
#[derive(Debug)]
pub struct ScannedBody {
    /// The whole body.
    pub bytes: Bytes,
    /// Where its members are.
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
    /// Largest body, bytes.
    pub max_bytes: u64,
    /// Longest wait without progress.
    pub idle: Duration,
}

/// Reads and scans the whole body. `fields` are the top-level members that carry inputs.
///
/// # Errors
/// 413 above `max_bytes` (also when only announced), 408 without progress, 415 for a media type or coding that is not
/// understood, 503 when the budget of all bodies is used up, 400 for what is not acceptable JSON.
///
/// # Cancel safety
/// Dropping the future gives the share of the budget back; the connection is closed by the server.
pub async fn read(
    request: &HttpRequest,
    payload: &mut Payload,
    fields: &'static [&'static str],
    scan_limits: ScanLimits,
    limits: BodyLimits,
    budget: &Arc<BodyBudget>,
) -> Result<ScannedBody, ApiError> {
    check_media_type(request)?;
    let lifecycle = std::sync::Arc::clone(&super::worker(request)?.gateway.lifecycle);
    let announced = announced_length(request);
    if let Some(length) = announced.filter(|length| *length > limits.max_bytes) {
        if !request.headers().contains_key(EXPECT) {
            drain(payload, length).await;
        }
        return Err(too_large(limits.max_bytes));
    }
    let expected = announced.unwrap_or(0);
    let Some(mut share) = budget.take(expected) else {
        drain(payload, expected).await;
        return Err(over_budget());
    };
    let mut scanner = Scanner::new(fields, scan_limits);
    let mut bytes = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
    let mut failed = None;
    let mut seen = 0;
    let end = if offers_websocket(request) { expected } else { u64::MAX };
    while seen < end {
        let piece = tokio::select! {
            biased;
            piece = timeout(limits.idle, payload.next()) => piece,
            () = lifecycle.cut_off() => return Err(lifecycle::cut_error()),
        };
        let piece = match piece {
            Err(_elapsed) => return Err(body_timeout(limits.idle)),
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                return Err(ApiError::new(Code::InvalidJson, format!("the request body could not be read: {error}")));
            }
            Ok(Some(Ok(mut piece))) => {
                piece.truncate(usize::try_from(end - seen).unwrap_or(usize::MAX));
                piece
            }
        };
        seen += piece.len() as u64;
        if seen > limits.max_bytes {
            drain(payload, DRAIN_BYTES).await;
            return Err(too_large(limits.max_bytes));
        }
        if failed.is_some() {
            continue;
        }
        if !share.grow_to(seen) {
            drain(payload, DRAIN_BYTES).await;
            return Err(over_budget());
        }
        if let Err(error) = scanner.feed(&piece) {
            // The rest is read and dropped, so that the client can read why.
            failed = Some(error);
            bytes = BytesMut::new();
            continue;
        }
        bytes.extend_from_slice(&piece);
    }
    let scan = failed.map_or_else(|| scanner.finish(), Err).map_err(client::scan_error)?;
    Ok(ScannedBody { bytes: bytes.freeze(), scan, share })
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
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(media_type) = text(CONTENT_TYPE) {
        let essence = media_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let json = essence.is_empty() || essence == "application/json" || essence.ends_with("+json");
        if !json {
            let message = format!("content-type {essence:?} is not supported: send application/json");
            return Err(ApiError::new(Code::UnsupportedMediaType, message));
        }
    }
    match text(CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding) if coding.trim().eq_ignore_ascii_case("identity") || coding.trim().is_empty() => Ok(()),
        Some(coding) => Err(ApiError::new(
            Code::UnsupportedMediaType,
            format!("content-encoding {coding:?} is not supported: send the body uncompressed (identity)"),
        )),
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
    ApiError::new(
        Code::BodyTimeout,
        format!("no byte of the request body came for {} s (server.body_timeout_s)", idle.as_secs_f64()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_come_back() {
        let budget = BodyBudget::new(100);
        let mut a = budget.take(40).expect("fits");
        let b = budget.take(60).expect("fits exactly");
        assert!(budget.take(1).is_none());
        assert!(!a.grow_to(41));
        drop(b);
        assert!(a.grow_to(41));
        assert!(a.grow_to(41), "growing to the same size needs nothing");
        assert_eq!(budget.used(), 41);
        drop(a);
        assert_eq!(budget.used(), 0);
    }
}
