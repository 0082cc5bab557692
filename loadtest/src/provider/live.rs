//! A script in force: the script itself and everything that moves while it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::canned::Canned;
use super::delay::Delay;
use super::quota::{Counters, Exhausted, Levels};
use super::rules::{Effect, Facts, Moment, RuleBook};
use super::script::Script;
use crate::clock;

/// A script in force.
pub(super) struct Live {
    pub script: Script,
    pub canned: Option<Canned>,
    since: Instant,
    rules: Mutex<RuleBook>,
    no_rules: bool,
    quota: Option<Mutex<Counters>>,
    rng: Mutex<SmallRng>,
    texts_at_work: AtomicUsize,
}

impl Live {
    pub fn new(script: Script) -> Self {
        let rules = RuleBook::new(script.rules.clone());
        Self {
            canned: script.canned.then(|| Canned::new(&script)),
            since: clock::now(),
            no_rules: rules.is_empty(),
            rules: Mutex::new(rules),
            quota: script.quota.as_ref().map(|quota| Mutex::new(Counters::new(quota))),
            rng: Mutex::new(SmallRng::seed_from_u64(script.seed)),
            texts_at_work: AtomicUsize::new(0),
            script,
        }
    }

    fn elapsed_s(&self) -> f64 {
        clock::now().duration_since(self.since).as_secs_f64()
    }

    /// The exception for a call at this moment of its life.
    pub fn choose(&self, moment: Moment, facts: Facts<'_>) -> Option<Effect> {
        if self.no_rules {
            return None;
        }
        let elapsed_s = self.elapsed_s();
        self.rules.lock().choose(moment, facts, elapsed_s, || self.rng.lock().random())
    }

    /// Whether the listener is closed now, and how long until that may change.
    pub fn refusing(&self) -> (bool, Option<Duration>) {
        if self.no_rules {
            return (false, None);
        }
        let elapsed_s = self.elapsed_s();
        let (refusing, edge) = self.rules.lock().refusing(elapsed_s);
        let wait = edge.map(|edge| Duration::try_from_secs_f64(edge - elapsed_s).unwrap_or(Duration::from_secs(3600)));
        (refusing, wait)
    }

    /// The wait before an answer to a call of `items` items.
    pub fn draw(&self, delay: Delay, items: usize) -> Duration {
        if delay.is_none() && self.script.delay_per_item_ms == 0.0 {
            return Duration::ZERO;
        }
        delay.draw(&mut self.rng.lock(), items, self.script.delay_per_item_ms)
    }

    /// Takes a call's share of the quota. The levels are those after it; both absent where there is no quota.
    pub fn take_quota(&self, tokens: u64) -> (Levels, Option<Exhausted>) {
        let Some(quota) = &self.quota else { return (Levels::default(), None) };
        let now_ns = u64::try_from(clock::now().duration_since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let mut quota = quota.lock();
        let refusal = quota.take(tokens, now_ns).err();
        (quota.levels(now_ns), refusal)
    }

    /// Occupies places for `texts` texts, all or none. `None`: there are too few.
    pub fn occupy(&self, texts: usize) -> Option<Places<'_>> {
        let limit = self.script.max_concurrent_texts;
        let fits = |taken: usize| {
            let after = taken.saturating_add(texts);
            (limit == 0 || after <= limit).then_some(after)
        };
        // No other memory hangs on this counter.
        self.texts_at_work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Places { live: self, texts })
    }
}

/// Occupied places; dropping frees them.
pub(super) struct Places<'a> {
    live: &'a Live,
    texts: usize,
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.live.texts_at_work.fetch_sub(self.texts, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_all_or_none_and_freed() {
        let live = Live::new(Script { max_concurrent_texts: 4, ..Script::default() });
        let three = live.occupy(3).expect("free");
        assert!(live.occupy(2).is_none());
        let one = live.occupy(1).expect("the refused call took none");
        drop((three, one));
        assert!(live.occupy(4).is_some());
        assert!(live.occupy(5).is_none(), "more than there are");
    }
}
