//! This replica's part of a limit that replicas share: units set aside for it at the server, spent here without asking.
//!
//! Decides how much to ask for and what to hand back. Knows no server, no keys and no clock. The server counts units from
//! when it sets them aside; so units are spent within [`LIFE`] or handed back, and the server's window is that much longer.
//!
//! *Size:* what was spent since the last exchange, once more and as much again, plus what is wanted right now. So a steady
//! load finds its units there, and a burst waits for one exchange.

use std::time::Duration;

use super::time::Mono;
use super::token_bucket::Tier;

/// Exchanges are this far apart while units are spent.
pub const EXCHANGE_EVERY: Duration = Duration::from_millis(100);

/// An exchange because units are wanting comes no sooner after the last one.
pub const EXCHANGE_SOONEST: Duration = Duration::from_millis(15);

/// Units that were not spent for this long are handed back, and set aside anew if they are still wanted.
pub const LIFE: Duration = Duration::from_millis(500);

/// A stock is kept for this long after the last use, so that a lonely request does not wait for an exchange.
const STOCK: Duration = Duration::from_secs(30);

/// What is asked of the server, for each tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseAsk {
    /// Units that were not spent, or did not count at the provider.
    pub back: [u64; 2],
    /// Units that would be welcome.
    pub want: [u64; 2],
    /// Fewer than this are of no use.
    pub least: [u64; 2],
}

/// Units set aside for this replica.
#[derive(Debug, Clone, Default)]
pub struct QuotaLease {
    /// Below zero: more was spent than was set aside, because an estimate was too low.
    left: [i64; 2],
    spent: [u64; 2],
    missing: [u64; 2],
    returned: [u64; 2],
    /// The largest take of the last exchange that had one.
    typical: [u64; 2],
    used_at: [Option<Mono>; 2],
    renewed: Mono,
    /// What the server could still set aside after the last exchange.
    free: [u64; 2],
}

fn at(tier: Tier) -> usize {
    match tier {
        Tier::Interactive => 0,
        Tier::Batch => 1,
    }
}

impl QuotaLease {
    /// What may be spent now.
    pub fn available(&self, tier: Tier) -> u64 {
        u64::try_from(self.left[at(tier)]).unwrap_or(0)
    }

    /// What could be spent after an exchange, as far as is known.
    pub fn reach(&self, tier: Tier) -> u64 {
        self.available(tier).saturating_add(self.free[at(tier)])
    }

    /// Spends units; the caller has looked whether they are there.
    pub fn take(&mut self, n: u64, tier: Tier, now: Mono) {
        let tier = at(tier);
        if self.spent[tier] == 0 {
            self.typical[tier] = 0;
        }
        self.left[tier] = self.left[tier].saturating_sub_unsigned(n);
        self.spent[tier] = self.spent[tier].saturating_add(n);
        self.typical[tier] = self.typical[tier].max(n);
        self.used_at[tier] = Some(now);
    }

    /// More was billed than was taken.
    pub fn owe(&mut self, n: u64, tier: Tier) {
        self.left[at(tier)] = self.left[at(tier)].saturating_sub_unsigned(n);
    }

    /// Units that were taken did not count at the provider. They go back to the server, which knows their age.
    pub fn give_back(&mut self, n: u64, tier: Tier) {
        self.returned[at(tier)] = self.returned[at(tier)].saturating_add(n);
    }

    /// Units were wanted that were not there.
    pub fn miss(&mut self, n: u64, tier: Tier) {
        self.missing[at(tier)] = self.missing[at(tier)].max(n);
    }

    /// Whether somebody waits for an exchange.
    pub fn is_short(&self) -> bool {
        self.missing != [0; 2]
    }

    /// What to exchange now; `None`: nothing. Units handed back are no longer here, so an ask must be sent.
    pub fn ask(&mut self, now: Mono) -> Option<LeaseAsk> {
        let old = now.since(self.renewed) >= LIFE;
        let mut ask = LeaseAsk { back: std::mem::take(&mut self.returned), ..LeaseAsk::default() };
        for tier in 0..2 {
            let alive = self.used_at[tier].is_some_and(|used| now.since(used) < STOCK);
            let stock = if alive { self.typical[tier].max(1) } else { 0 };
            let target = self.spent[tier].saturating_mul(2).max(stock).saturating_add(self.missing[tier]);
            let unspent = u64::try_from(self.left[tier]).unwrap_or(0);
            let keeps = if old || unspent > target.saturating_mul(2) { 0 } else { unspent };
            ask.back[tier] = ask.back[tier].saturating_add(unspent - keeps);
            self.left[tier] = self.left[tier].saturating_sub_unsigned(unspent - keeps);
            let debt = u64::try_from(self.left[tier].saturating_neg()).unwrap_or(0);
            ask.want[tier] = target.saturating_sub(keeps).saturating_add(debt);
            ask.least[tier] = self.missing[tier].saturating_sub(keeps).saturating_add(debt).min(ask.want[tier]);
            self.spent[tier] = 0;
            self.missing[tier] = 0;
        }
        if old {
            self.renewed = now;
        }
        (ask != LeaseAsk::default()).then_some(ask)
    }

    /// Units were set aside; `free` could still be.
    pub fn granted(&mut self, units: [u64; 2], free: [u64; 2]) {
        for (left, units) in self.left.iter_mut().zip(units) {
            *left = left.saturating_add_unsigned(units);
        }
        self.free = free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Mono {
        Mono::from_millis(1_000 + ms)
    }

    #[test]
    fn a_burst_is_asked_for_and_a_stock_is_kept() {
        let mut lease = QuotaLease::default();
        lease.miss(40, Tier::Interactive);
        assert!(lease.is_short());
        let ask = lease.ask(ms(0)).expect("wanted");
        assert_eq!((ask.want, ask.least, ask.back), ([40, 0], [40, 0], [0, 0]));
        lease.granted([40, 0], [100, 0]);
        assert_eq!((lease.available(Tier::Interactive), lease.reach(Tier::Interactive)), (40, 140));
        lease.take(40, Tier::Interactive, ms(10));
        let ask = lease.ask(ms(100)).expect("a stock");
        assert_eq!((ask.want, ask.least), ([80, 0], [0, 0]));
        lease.granted([80, 0], [0, 0]);
        let ask = lease.ask(ms(700)).expect("renewed");
        assert_eq!((ask.back, ask.want), ([80, 0], [40, 0]), "what was not spent goes back, one typical take is kept");
        lease.granted([40, 0], [0, 0]);
        let ask = lease.ask(ms(60_000)).expect("handed back");
        assert_eq!((ask.back, ask.want), ([40, 0], [0, 0]));
        assert_eq!(lease.ask(ms(61_000)), None, "and then all is quiet");
    }

    #[test]
    fn a_debt_is_asked_for() {
        let mut lease = QuotaLease::default();
        lease.granted([0, 10], [0, 0]);
        lease.take(10, Tier::Batch, ms(0));
        lease.owe(5, Tier::Batch);
        let ask = lease.ask(ms(1)).expect("owed");
        assert_eq!((ask.want[1], ask.least[1]), (25, 5));
    }

    proptest! {
        /// Whatever happens, units here and handed back never exceed what was set aside, less what was spent.
        #[test]
        fn units_are_neither_made_nor_lost(
            steps in prop::collection::vec((0_u64..50, 0_u64..1_000, any::<bool>()), 1..100),
        ) {
            let (mut lease, mut aside, mut spent, mut now) = (QuotaLease::default(), 0_i64, 0_i64, 0);
            for (n, wait, batch) in steps {
                let tier = if batch { Tier::Batch } else { Tier::Interactive };
                now += wait;
                if lease.available(tier) >= n {
                    lease.take(n, tier, ms(now));
                    spent += n as i64;
                } else {
                    lease.miss(n, tier);
                }
                if let Some(ask) = lease.ask(ms(now)) {
                    prop_assert!(ask.least[0] <= ask.want[0] && ask.least[1] <= ask.want[1]);
                    aside -= (ask.back[0] + ask.back[1]) as i64;
                    let units = [ask.want[0] / 2, ask.want[1]];
                    lease.granted(units, [0, 0]);
                    aside += (units[0] + units[1]) as i64;
                }
                let here = lease.available(Tier::Interactive) + lease.available(Tier::Batch);
                prop_assert_eq!(here as i64, aside - spent);
            }
        }
    }
}
