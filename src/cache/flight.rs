//! Equal inputs in flight at once are called once: the first to ask leads, the others wait for what it gets.
//!
//! Owns who leads. Refuses to call anybody, to store anything and to decide how often to try again.
//!
//! A flight ends when its leader lands or fails it, or is dropped, be it by a panic or because its client left. A leader
//! that fails says why, so that those who wait can tell what is worth another try from what is not. The leader has four
//! rules to follow. Two keep a vector from being paid for twice: look into the cache once more after
//! becoming leader (the flight before may have landed between the look-up and the joining), and store before landing.
//! Two keep requests from waiting for each other in a circle: join once for equal inputs of one request, and end every
//! flight one leads before waiting as a follower.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Cached;
use crate::error::ApiError;
use crate::pure::cache_key::CacheKey;

/// Parts of the table, each with its own lock. A power of two.
const SHARDS: usize = 64;

type Landing = Result<Cached, FlightFailed>;
type Shard = Mutex<HashMap<CacheKey, Arc<Flight>>>;

/// One call for one input.
#[derive(Default)]
struct Flight {
    /// How it ended; empty while it is under way.
    landing: OnceLock<Landing>,
    landed: Notify,
}

impl Flight {
    /// Only the first end counts.
    fn end(&self, landing: Landing) {
        if self.landing.set(landing).is_ok() {
            self.landed.notify_waiters();
        }
    }
}

/// The flight ended without a vector.
#[derive(Debug, Clone, PartialEq)]
pub enum FlightFailed {
    /// Its leader went away and told nothing. Whoever still wants the vector may join again and lead the next.
    Abandoned,
    /// Its leader got an error.
    Told(Arc<Told>),
}

/// What a leader tells those who wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// What its own client reads.
    pub error: ApiError,
    /// Where the input stands among those of the leader's client: the error may name it.
    pub position: usize,
    /// Whether whoever asks again would hear the same, or wait as long in vain.
    pub hopeless: bool,
}

impl fmt::Display for FlightFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlightFailed::Abandoned => f.write_str("the call that was waited for brought no vector"),
            FlightFailed::Told(told) => told.error.fmt(f),
        }
    }
}

impl std::error::Error for FlightFailed {}

/// What joining made of the caller.
#[derive(Debug)]
pub enum Joined {
    /// It must get the vector.
    Leader(LeaderGuard),
    /// Somebody else is getting it.
    Follower(Follower),
}

/// All flights of the process. Cloning shares them; threads and runtimes may be mixed freely.
#[derive(Clone)]
pub struct Flights {
    shards: Arc<[Shard]>,
}

impl Default for Flights {
    fn default() -> Self {
        Flights { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.len()).finish()
    }
}

impl Flights {
    /// Joins the flight for `key`, or begins it.
    pub fn join(&self, key: CacheKey) -> Joined {
        let mut shard = self.shard(&key).lock();
        if let Some(flight) = shard.get(&key) {
            return Joined::Follower(Follower { flight: Arc::clone(flight) });
        }
        let flight = Arc::<Flight>::default();
        shard.insert(key, Arc::clone(&flight));
        Joined::Leader(LeaderGuard { flights: self.clone(), key, flight, listed: true })
    }

    /// Flights under way.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    fn shard(&self, key: &CacheKey) -> &Shard {
        // The keys are hashes: any byte of them is as good as another, but the table inside uses the first ones.
        &self.shards[usize::from(key.0[31]) % SHARDS]
    }
}

/// The duty to get a vector. Dropped without landing, it fails the flight.
#[must_use = "dropping it fails everybody who waits"]
pub struct LeaderGuard {
    flights: Flights,
    key: CacheKey,
    flight: Arc<Flight>,
    /// Whether the flight is still in the table.
    listed: bool,
}

impl fmt::Debug for LeaderGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaderGuard").field(&self.key).finish()
    }
}

impl LeaderGuard {
    /// The key it leads for.
    pub fn key(&self) -> CacheKey {
        self.key
    }

    /// Hands the vector to everybody who waits. It must be stored first, or the next to ask pays for it again.
    pub fn land(self, vector: Cached) {
        self.flight.end(Ok(vector));
    }

    /// Ends the flight without a vector and tells everybody who waits why.
    pub fn fail(mut self, told: Told) {
        self.unlist();
        self.flight.end(Err(FlightFailed::Told(Arc::new(told))));
    }
}

impl LeaderGuard {
    /// Takes the flight out of the table, before anybody hears that it failed: whoever does can begin the next, and
    /// would else join this one again. Only once, or it would be the next flight that is taken out.
    fn unlist(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.flights.shard(&self.key).lock().remove(&self.key);
        }
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.unlist();
        self.flight.end(Err(FlightFailed::Abandoned));
    }
}

/// Waits for somebody else's call.
#[must_use = "waiting begins when it is awaited"]
pub struct Follower {
    flight: Arc<Flight>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follower")
    }
}

impl Follower {
    /// The vector, once the flight has landed.
    ///
    /// # Errors
    /// If it ended without one.
    ///
    /// # Cancel safety
    /// Dropping it at any time changes nothing for the leader and the other followers.
    pub async fn wait(self) -> Result<Cached, FlightFailed> {
        loop {
            // Made before the look, so that it hears of an end in between.
            let landed = self.flight.landed.notified();
            if let Some(landing) = self.flight.landing.get() {
                return landing.clone();
            }
            landed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, OnceLock};

    use futures_util::FutureExt;

    use super::*;
    use crate::cache::Value;
    use crate::error::Code;
    use crate::pure::cache_key::text_digest;
    use crate::vector::Vector;

    fn key(name: &str) -> CacheKey {
        CacheKey(text_digest(name))
    }

    fn vector() -> Cached {
        Cached { value: Value::Vector(Vector::from_floats(&[1.0, 2.0]).expect("finite")), tokens: 1, estimated: false }
    }

    #[track_caller]
    fn leader(flights: &Flights, name: &str) -> LeaderGuard {
        match flights.join(key(name)) {
            Joined::Leader(guard) => guard,
            Joined::Follower(_) => panic!("expected to lead {name}"),
        }
    }

    #[track_caller]
    fn follower(flights: &Flights, name: &str) -> Follower {
        match flights.join(key(name)) {
            Joined::Leader(_) => panic!("expected to follow {name}"),
            Joined::Follower(follower) => follower,
        }
    }

    #[test]
    fn followers_get_what_the_leader_lands() {
        let flights = Flights::default();
        let guard = leader(&flights, "a");
        let early = follower(&flights, "a");
        let gone = follower(&flights, "a");
        let other = leader(&flights, "b");
        let mut waiting = Box::pin(follower(&flights, "a").wait());
        assert_eq!(waiting.as_mut().now_or_never(), None, "not before it lands");
        drop(gone);
        guard.land(vector());
        assert_eq!(waiting.now_or_never(), Some(Ok(vector())));
        assert_eq!(early.wait().now_or_never(), Some(Ok(vector())), "even if it begins to wait afterwards");
        assert_eq!(flights.len(), 1);
        drop(other);
        assert!(flights.is_empty());
    }

    #[test]
    fn followers_hear_why_a_flight_failed() {
        let flights = Flights::default();
        let guard = leader(&flights, "a");
        let waiting = follower(&flights, "a");
        let told = Told { error: ApiError::new(Code::InvalidInput, "no"), position: 3, hopeless: true };
        guard.fail(told.clone());
        assert_eq!(waiting.wait().now_or_never(), Some(Err(FlightFailed::Told(Arc::new(told)))));
        assert!(flights.is_empty(), "the next one leads again");
    }

    /// Looks, in the moment in which a follower is woken, whether the flight could be joined again.
    struct AtWaking {
        flights: Flights,
        listed: AtomicUsize,
    }

    impl std::task::Wake for AtWaking {
        fn wake(self: Arc<Self>) {
            self.listed.store(self.flights.len(), Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_hears_of_a_failure_does_not_find_the_flight_again() {
        let flights = Flights::default();
        let told = Told { error: ApiError::new(Code::UpstreamError, "failed"), position: 0, hopeless: false };
        let endings: [fn(LeaderGuard, Told); 2] = [LeaderGuard::fail, |guard, _| drop(guard)];
        for end in endings {
            let guard = leader(&flights, "a");
            let at_waking = Arc::new(AtWaking { flights: flights.clone(), listed: AtomicUsize::new(usize::MAX) });
            let waker = std::task::Waker::from(Arc::clone(&at_waking));
            let mut waiting = Box::pin(follower(&flights, "a").wait());
            assert!(waiting.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
            end(guard, told.clone());
            assert_eq!(at_waking.listed.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_failed_flight_can_be_led_again() {
        let flights = Flights::default();
        let guard = leader(&flights, "a");
        let (first, second) = (follower(&flights, "a"), follower(&flights, "a"));
        drop(guard);
        assert_eq!(first.wait().now_or_never(), Some(Err(FlightFailed::Abandoned)));
        assert_eq!(second.wait().now_or_never(), Some(Err(FlightFailed::Abandoned)));
        let next = leader(&flights, "a");
        let again = follower(&flights, "a");
        next.land(vector());
        assert_eq!(again.wait().now_or_never(), Some(Ok(vector())));
    }

    #[test]
    fn a_panicking_leader_fails_its_flight() {
        let flights = Flights::default();
        let guard = leader(&flights, "a");
        let waiting = follower(&flights, "a");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("a panic"));
        }));
        assert!(panicked.is_err());
        assert_eq!(waiting.wait().now_or_never(), Some(Err(FlightFailed::Abandoned)));
    }

    /// Threads with a runtime each race for the same key, round after round; in each round the first leaders fail or
    /// leave. Everybody must end with the vector, and it may be made only once: a lost wake-up would hang the test.
    #[test]
    fn nobody_waits_for_ever_and_nothing_is_made_twice() {
        const THREADS: usize = 4;
        const ROUNDS: usize = 400;
        let flights = Flights::default();
        let barrier = Barrier::new(THREADS);
        let stored: Vec<OnceLock<Cached>> = (0..ROUNDS).map(|_| OnceLock::new()).collect();
        let attempts: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    for round in 0..ROUNDS {
                        barrier.wait();
                        runtime.block_on(async {
                            let one = want(&flights, round, &stored[round], &attempts[round], &made);
                            let two = want(&flights, round, &stored[round], &attempts[round], &made);
                            assert_eq!(futures_util::join!(one, two), (vector(), vector()));
                        });
                    }
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), ROUNDS);
        assert!(flights.is_empty());
    }

    async fn want(
        flights: &Flights,
        round: usize,
        stored: &OnceLock<Cached>,
        attempts: &AtomicUsize,
        made: &AtomicUsize,
    ) -> Cached {
        loop {
            if let Some(vector) = stored.get() {
                return vector.clone();
            }
            match flights.join(key(&round.to_string())) {
                Joined::Follower(follower) => {
                    if let Ok(vector) = follower.wait().await {
                        return vector;
                    }
                }
                Joined::Leader(guard) => {
                    if let Some(vector) = stored.get() {
                        guard.land(vector.clone());
                        continue;
                    }
                    tokio::task::yield_now().await;
                    if attempts.fetch_add(1, Ordering::Relaxed) < round % 4 {
                        continue;
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                    assert!(stored.set(vector()).is_ok(), "made twice");
                    guard.land(vector());
                }
            }
        }
    }
}
