//! Room for large things while they are in memory: answers that are put together, requests to upstreams. A bound on what
//! all of a kind take at once, first come, first served. Small ones pass freely, so no search query ever waits here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::{ApiError, Code};

/// What is not larger is not counted, bytes.
const FREE: u64 = 1 << 20;

/// The unit of counting, bytes.
const UNIT: u64 = 4096;

/// The room.
#[derive(Debug)]
pub struct Room {
    units: Arc<Semaphore>,
    total: u32,
}

/// A place in the room; left when dropped. Nothing for what is small.
#[derive(Debug, Default)]
pub struct Seat(Option<OwnedSemaphorePermit>);

impl Seat {
    /// Whether it takes anything.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

impl Room {
    /// A room of `bytes`.
    pub fn new(bytes: u64) -> Room {
        let total = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Room { units: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits for room for about `bytes`, at most for `patience`. What is larger than the room is let in alone.
    ///
    /// # Errors
    /// 503 after `patience`.
    ///
    /// # Cancel safety
    /// Safe: the place in the queue is given up.
    pub async fn enter(&self, bytes: u64, patience: Duration) -> Result<Seat, ApiError> {
        if bytes <= FREE {
            return Ok(Seat(None));
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.total);
        match timeout(patience, Arc::clone(&self.units).acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(Seat(Some(permit))),
            Ok(Err(_)) | Err(_) => Err(ApiError::new(
                Code::Overloaded,
                "other large requests take all the memory there is for them (server.max_buffered_bytes)",
            )
            .retry_after(Some(Duration::from_secs(1)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_answers_wait_for_each_other_and_small_ones_do_not() {
        let room = Room::new(10 << 20);
        let patience = Duration::from_millis(5);
        let first = room.enter(6 << 20, patience).await.expect("room");
        assert!(first.is_counted());
        room.enter(6 << 20, patience).await.expect_err("no room in time");
        assert!(!room.enter(FREE, Duration::ZERO).await.expect("free").is_counted());
        drop(first);
        let huge = room.enter(1 << 40, patience).await.expect("alone");
        room.enter(FREE + 1, patience).await.expect_err("nothing beside it");
        drop(huge);
        room.enter(6 << 20, patience).await.expect("room");
    }
}
