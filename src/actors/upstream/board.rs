//! What an upstream's actor publishes, for those who choose between upstreams and those who look. Read without asking, so a
//! moment old; owns no decision.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};

use super::{Bell, Report};
use crate::pure::adaptive_batch::Limits;
use crate::pure::admission::{Allowance, CallLoan, UpstreamSnapshot};
use crate::pure::call_stats::CallView;
use crate::pure::class::TrafficClass;
use crate::pure::tenant_limits::Allowances;
use crate::pure::time::Mono;

/// What the actor publishes after each event.
#[derive(Debug)]
pub struct Board {
    /// Rung for calls that ended.
    pub(super) bell: Arc<Bell>,
    pub(super) pulse: Pulse,
    pub(super) sizes: Mutex<Sizes>,
    pub(super) allowances: Mutex<[Option<Allowances>; 2]>,
    pub(super) shown: ArcSwapOption<Shown>,
    /// What may be called without asking.
    loan: Mutex<CallLoan<Report>>,
}

/// What workers look at for each choice, all of it in one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Pulse {
    pub(super) usable: AtomicBool,
    pub(super) probing: AtomicBool,
    pub(super) down: AtomicBool,
    /// Calls that the actor has granted.
    pub(super) asked: AtomicUsize,
    /// Calls out of the loan; written behind its lock.
    pub(super) lent: AtomicUsize,
    pub(super) latency_ns: AtomicU64,
    pub(super) p95_ns: AtomicU64,
}

/// What people look at, as it was at a moment of the last second.
#[derive(Debug)]
pub struct Shown {
    /// When.
    pub at: Mono,
    /// The actor's state.
    pub state: UpstreamSnapshot,
    /// Its calls lately.
    pub calls: CallView,
}

/// A locked loan.
pub(super) struct Loan<'a> {
    loan: MutexGuard<'a, CallLoan<Report>>,
    lent: &'a AtomicUsize,
}

impl Deref for Loan<'_> {
    type Target = CallLoan<Report>;

    fn deref(&self) -> &CallLoan<Report> {
        &self.loan
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut CallLoan<Report> {
        &mut self.loan
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.lent.store(self.loan.in_flight(), Ordering::Relaxed);
    }
}

/// How large the next calls may be.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sizes {
    /// What refusals of calls for vectors have taught.
    pub(super) learned: Limits,
    /// What refusals of rerank calls have taught.
    pub(super) ranking: Limits,
    /// What the quota leaves to a batch call.
    pub(super) batch: Limits,
}

/// Counts what upstreams publish that changes how they stand: usable, half-open, down, or a limit learned.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A number that grows with each change of how any upstream stands. What was summed up after it was read is true as long as it
/// stays.
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// How an upstream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) usable: bool,
    pub(super) probing: bool,
    pub(super) down: bool,
}

/// For the actor.
impl Board {
    /// A board on which nothing was published yet.
    pub(super) fn new(bell: Arc<Bell>) -> Board {
        Board {
            bell,
            pulse: Pulse::default(),
            sizes: Mutex::default(),
            allowances: Mutex::default(),
            shown: ArcSwapOption::empty(),
            loan: Mutex::default(),
        }
    }

    /// Publishes how the upstream stands and how large its calls may be.
    pub(super) fn stand(&self, stands: Stands, sizes: Sizes) {
        let before = std::mem::replace(&mut *self.sizes.lock(), sizes);
        let stood = Stands { usable: self.usable(), probing: self.probing(), down: self.down() };
        if stood == stands && before.learned == sizes.learned && before.ranking == sizes.ranking {
            return;
        }
        self.pulse.usable.store(stands.usable, Ordering::Relaxed);
        self.pulse.probing.store(stands.probing, Ordering::Relaxed);
        self.pulse.down.store(stands.down, Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

impl Board {
    /// The loan, for whoever begins or ends calls in it; what is under way in it is published with the end of the lock.
    pub(super) fn loan(&self) -> Loan<'_> {
        Loan { loan: self.loan.lock(), lent: &self.pulse.lent }
    }

    /// Whether calls are let through at all: breaker not open, not parked, not draining, not quarantined.
    pub fn usable(&self) -> bool {
        self.pulse.usable.load(Ordering::Relaxed)
    }

    /// Whether its breaker is half-open.
    pub fn probing(&self) -> bool {
        self.pulse.probing.load(Ordering::Relaxed)
    }

    /// Whether it is out of the traffic because it does not answer, and its breaker has yet to learn what that costs.
    pub fn down(&self) -> bool {
        self.pulse.down.load(Ordering::Relaxed)
    }

    /// What people look at; `None` in the first second.
    pub fn shown(&self) -> Option<Arc<Shown>> {
        self.shown.load_full()
    }

    /// 95 of 100 recent interactive calls were answered within this; `None` while too few are known, or while the breaker
    /// lets only probes through.
    pub fn p95(&self) -> Option<Duration> {
        Some(self.pulse.p95_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0).map(Duration::from_nanos)
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.pulse.asked.load(Ordering::Relaxed) + self.pulse.lent.load(Ordering::Relaxed)
    }

    /// Smoothed peak latency, nanoseconds; 0 before the first answer.
    pub fn latency_ns(&self) -> u64 {
        self.pulse.latency_ns.load(Ordering::Relaxed)
    }

    /// What a class may still take here; `None` before the first event.
    pub fn allowances(&self, class: TrafficClass) -> Option<Allowances> {
        let published = self.allowances.lock()[usize::from(!class.is_interactive())]?;
        let [tokens, requests] = self.loan.lock().spent();
        let less = |allowance: Allowance, spent: u64| Allowance {
            remaining: allowance.remaining.map(|remaining| remaining.saturating_sub(spent)),
            ..allowance
        };
        Some(Allowances { tokens: less(published.tokens, tokens), requests: less(published.requests, requests) })
    }

    /// What this upstream's refusals have taught about the size of a rerank call.
    pub fn rerank_limits(&self) -> Limits {
        self.sizes.lock().ranking
    }

    /// What this upstream's refusals have taught about the size of a call for vectors, and for a batch call also what
    /// its quota leaves now.
    pub fn call_limits(&self, batch: bool) -> Limits {
        let sizes = *self.sizes.lock();
        if batch { sizes.learned.tighter(sizes.batch) } else { sizes.learned }
    }
}
