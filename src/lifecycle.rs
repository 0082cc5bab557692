//! Whether the gateway takes work, and how much it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, Code};

/// Most client requests in the process at once. It bounds every queue behind it; a request costs some kilobytes
/// besides its body, which has a budget of its own.
pub const MAX_IN_FLIGHT: usize = 20_000;

/// Counts requests, and turns work away while shutting down.
#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    refusing: AtomicBool,
    in_flight: AtomicUsize,
    /// Requests that were turned away because the process ends.
    turned_away: AtomicU64,
    idle: Notify,
    cut: CancellationToken,
}

/// A request that is in the process; leaves when dropped.
#[derive(Debug)]
pub struct InFlight {
    lifecycle: Arc<Lifecycle>,
    place: Option<Arc<Place>>,
}

/// How many requests of one tenant are inside, of those that came while it had a limit.
#[derive(Debug, Default)]
pub struct AtOnce(AtomicUsize);

/// A place among a tenant's requests; free again when dropped.
#[derive(Debug)]
pub struct Place(Arc<AtOnce>);

impl AtOnce {
    /// A place, unless `limit` are taken.
    pub fn take(self: &Arc<Self>, limit: usize) -> Option<Place> {
        let place = Place(Arc::clone(self));
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        (before < limit).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lifecycle {
    /// Lets a request in.
    ///
    /// # Errors
    /// `shutting_down`, or `overloaded` with [`MAX_IN_FLIGHT`] requests inside.
    pub fn enter(self: &Arc<Self>) -> Result<InFlight, ApiError> {
        if self.refusing.load(Ordering::Acquire) {
            self.turned_away.fetch_add(1, Ordering::AcqRel);
            return Err(ApiError::new(Code::ShuttingDown, "the gateway is shutting down; try another replica")
                .retry_after(Some(Duration::from_secs(1))));
        }
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let inside = InFlight { lifecycle: Arc::clone(self), place: None };
        if before >= MAX_IN_FLIGHT {
            return Err(ApiError::new(Code::Overloaded, "the gateway has as many requests as it may")
                .retry_after(Some(Duration::from_secs(1))));
        }
        Ok(inside)
    }

    /// Requests inside.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Whether readiness has fallen.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Lets readiness fall; work is still taken.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Turns new work away.
    pub fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    /// Ends the patience with what is under way: it is answered with an error at once.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Cancelled when patience has ended. One a thread: each request waits on it, and a common one would be a lock that all
    /// threads take all the time.
    pub fn cut_off(&self) -> CancellationToken {
        self.cut.child_token()
    }

    /// Waits until no request is inside.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Waits until no request is inside and none has come during a whole `pause`.
    ///
    /// # Cancel safety
    /// Safe, if `pause` is.
    pub async fn quiet(&self, mut pause: impl AsyncFnMut()) {
        let turned_away = || self.turned_away.load(Ordering::Acquire);
        loop {
            let before = turned_away();
            self.idle().await;
            pause().await;
            if self.in_flight() == 0 && turned_away() == before {
                return;
            }
        }
    }
}

/// What a client reads whose request had begun and could not finish in the time that a shutdown has.
pub fn cut_error() -> ApiError {
    ApiError::new(Code::ShuttingDown, "the gateway is shutting down and the request did not finish in time")
        .retry_after(Some(Duration::from_secs(1)))
}

impl InFlight {
    /// Keeps its tenant's place as long as it is inside.
    #[must_use]
    pub fn holding(mut self, place: Option<Place>) -> InFlight {
        self.place = place.map(Arc::new);
        self
    }

    /// The same request once more: it stays inside until both are dropped.
    pub fn again(&self) -> InFlight {
        self.lifecycle.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight { lifecycle: Arc::clone(&self.lifecycle), place: self.place.clone() }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.lifecycle.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.lifecycle.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_the_last_that_holds_it_is_gone() {
        let (lifecycle, at_once) = (Arc::new(Lifecycle::default()), Arc::new(AtOnce::default()));
        let inside = lifecycle.enter().expect("room").holding(at_once.take(1));
        assert!(at_once.take(1).is_none(), "and a refused one takes none");
        let again = inside.again();
        drop(inside);
        assert!(at_once.take(1).is_none());
        drop(again);
        assert!(at_once.take(1).is_some());
        assert_eq!(lifecycle.in_flight(), 0);
    }

    #[tokio::test]
    async fn it_is_quiet_once_nobody_has_come_during_a_pause() {
        let lifecycle = Arc::new(Lifecycle::default());
        let inside = lifecycle.enter().expect("room");
        lifecycle.refuse();
        let (mut insists, mut pauses) = (3, 0);
        let quiet = lifecycle.quiet(async || {
            assert_eq!(lifecycle.in_flight(), 0);
            pauses += 1;
            // Whoever was answered last comes again, and again.
            if insists > 0 {
                insists -= 1;
                lifecycle.enter().expect_err("refused");
            }
        });
        let leaves = async { drop(inside) };
        tokio::join!(quiet, leaves);
        assert_eq!(pauses, 4);
    }
}
