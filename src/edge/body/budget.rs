//! How many bytes of request bodies may lie in memory, all requests together. Owns counting; refuses to know what happens
//! to a body that gets no share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A body of at most this many bytes is small: it may use the share that larger ones cannot take.
pub const SMALL: u64 = 64 * 1024;

/// The part of the budget that only small bodies may take is one in this many.
const KEPT_FOR_SMALL: u64 = 8;

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

    /// A share without bytes, to be grown.
    pub fn share(self: &Arc<Self>) -> BodyShare {
        BodyShare { budget: Arc::clone(self), bytes: 0 }
    }

    /// What a body of `bytes` may bring the whole to.
    fn limit_for(&self, bytes: u64) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        if bytes <= SMALL { limit } else { limit - limit / KEPT_FOR_SMALL }
    }
}

impl BodyShare {
    /// Makes the share at least `bytes` large; false, and nothing changed, if the budget has no room.
    pub fn grow_to(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return true };
        let limit = self.budget.limit_for(bytes);
        let within = |used: u64| used.checked_add(more).filter(|sum| *sum <= limit);
        let granted = self.budget.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok();
        if granted {
            self.bytes = bytes;
        }
        granted
    }

    /// Gives all but `bytes` back.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.used.fetch_sub(less, Ordering::AcqRel);
        self.bytes -= less;
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_come_back() {
        let budget = BodyBudget::new(100);
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.grow_to(40) && b.grow_to(60), "fits exactly");
        assert!(!budget.share().grow_to(1));
        assert!(!a.grow_to(41));
        assert_eq!(budget.used(), 100, "a refusal takes nothing");
        b.shrink_to(10);
        assert!(a.grow_to(41));
        assert!(a.grow_to(41) && a.grow_to(3), "growing to the same size or less needs nothing");
        assert_eq!(budget.used(), 51);
        drop(b);
        drop(a);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        let budget = BodyBudget::new(800_000);
        let (mut large, mut small) = (budget.share(), budget.share());
        assert!(!large.grow_to(700_001));
        assert!(large.grow_to(700_000));
        assert!(!budget.share().grow_to(SMALL + 1));
        assert!(small.grow_to(SMALL));
    }
}
