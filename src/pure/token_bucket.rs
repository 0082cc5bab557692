//! Owns how much of a per-minute limit is left, for interactive and for batch traffic. Refuses to know what the units are
//! (tokens or calls), who takes them, and how fast batch should go within its share.
//!
//! # Why a log of takes and not the textbook bucket
//! A bucket of size L that refills at L a minute lets 2 L pass within one minute (L at once, L as it refills), and a
//! counter that resets each minute does so within a second. Providers that count over a sliding minute answer both with
//! 429. So takes are logged in slots of [`SLOT`], and each is given back only [`WINDOW`] + [`MARGIN`] after its slot ended.
//!
//! *Bound:* over any 60 s at most L is taken, and calls may even arrive at the provider up to [`MARGIN`] apart from how they
//! left without exceeding L there. A provider with a real token bucket of size L is never offended either: within any
//! span of T it allows at least L + L × T / 60 s, and this log never more than L in each 60 s begun.
//! *Cost:* a full limit is used every 60.75 to 61 s instead of every 60, so 98.4 % of it is usable.
//! *Overshoot:* only [`TokenBucket::correct`] can exceed L, by how much estimates were too low; the debt blocks later takes.
//!
//! # Shares
//! Each tier has a guaranteed share that the other cannot take. What the other has already used of its own guarantee
//! is not kept free a second time, so a tier's cap over any minute is the limit less the other's guarantee, exactly.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::class::TrafficClass;
use super::quota_lease::QuotaLease;
use super::time::Mono;

/// The span that limits are stated for.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Granularity of the log.
pub const SLOT: Duration = Duration::from_millis(250);
/// How much longer than the window a take is remembered: calls do not arrive as evenly as they leave.
pub const MARGIN: Duration = Duration::from_millis(750);

const SLOT_NS: u64 = SLOT.as_nanos() as u64;

/// Who takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// A person waits.
    Interactive,
    /// Nobody waits.
    Batch,
}

impl Tier {
    /// The tier of a class.
    pub const fn of(class: TrafficClass) -> Tier {
        if class.is_interactive() { Tier::Interactive } else { Tier::Batch }
    }

    const fn index(self) -> usize {
        match self {
            Tier::Interactive => 0,
            Tier::Batch => 1,
        }
    }

    const fn other(self) -> Tier {
        match self {
            Tier::Interactive => Tier::Batch,
            Tier::Batch => Tier::Interactive,
        }
    }
}

/// What each tier is guaranteed, as shares of the limit, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Never taken by batch.
    pub interactive_reserve: f64,
    /// Never taken by interactive.
    pub batch_floor: f64,
}

impl Shares {
    /// Nobody is guaranteed anything: first come, first served.
    pub const NONE: Shares = Shares { interactive_reserve: 0.0, batch_floor: 0.0 };

    /// What `tier` is guaranteed of `limit`. The reserve rounds up, because batch must never touch it, and the floor
    /// down; but a share below 1 leaves the other tier at least one unit, or a limit of 1 would shut batch out.
    pub fn guaranteed(self, tier: Tier, limit: u64) -> u64 {
        let (share, rounded) = match tier {
            Tier::Interactive => {
                (self.interactive_reserve, (self.interactive_reserve.clamp(0.0, 1.0) * limit as f64).ceil())
            }
            Tier::Batch => (self.batch_floor, (self.batch_floor.clamp(0.0, 1.0) * limit as f64).floor()),
        };
        let most = if share >= 1.0 { limit } else { limit.saturating_sub(1) };
        (rounded as u64).min(most)
    }
}

/// When a take could succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Then, if nothing else is taken in the meantime.
    At(Mono),
    /// Never: it is more than the tier may take in a whole minute.
    Never,
}

/// What a provider said about one limit in an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Word {
    /// Units left.
    pub remaining: Option<u64>,
    /// Units a minute.
    pub limit: Option<u64>,
    /// Time until the limit is whole again.
    pub reset: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    index: u64,
    taken: [u64; 2],
}

/// The provider's last word.
///
/// Kept as the sum of what it said is left and what we had taken, which is the limit less what strangers took. So it
/// counts down with our takes, and as our own old takes age out, room comes back by itself: a reset is the time until
/// *everything* is there again, and to wait for that after a minute of our own making would waste half of the quota.
#[derive(Debug, Clone, Copy)]
struct Heard {
    ceiling: u64,
    at: Mono,
    until: Mono,
}

impl Heard {
    fn left(self, used: &[u64; 2]) -> u64 {
        self.ceiling.saturating_sub(used[0].saturating_add(used[1]))
    }
}

/// A per-minute limit shared by two tiers.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    configured: Option<u64>,
    shares: Shares,
    headroom_percent: u64,
    slots: VecDeque<Slot>,
    used: [u64; 2],
    heard: Option<Heard>,
    stated: Option<(u64, Mono)>,
    /// What this replica may take of a limit that it shares with others; `None`: the limit is its own.
    lease: Option<QuotaLease>,
}

/// Where units are wanting that other replicas may have, asking again makes sense this soon.
const LEASE_PAUSE: Duration = Duration::from_millis(20);

impl TokenBucket {
    /// A full bucket of `limit` units a minute (`None`: unknown, so only the provider's word limits). A take of n needs
    /// n × `headroom_percent` / 100 left by the provider's own count: 110 for tokens, whose estimates err, 100 for calls.
    pub fn new(limit: Option<u64>, shares: Shares, headroom_percent: u64) -> TokenBucket {
        TokenBucket {
            configured: limit,
            shares,
            headroom_percent: headroom_percent.max(100),
            slots: VecDeque::new(),
            used: [0; 2],
            heard: None,
            stated: None,
            lease: None,
        }
    }

    /// Shares the limit with other replicas from now on: nothing passes but what was leased. A limit that is not known
    /// cannot be shared.
    pub fn share(&mut self) {
        if self.lease.is_none() && self.configured.is_some() {
            self.lease = Some(QuotaLease::default());
        }
    }

    /// The limit is this replica's own again.
    pub fn unshare(&mut self) {
        self.lease = None;
    }

    /// What was leased, if the limit is shared.
    pub fn lease(&mut self) -> Option<&mut QuotaLease> {
        self.lease.as_mut()
    }

    /// The limit as configured, and what each tier is guaranteed of it; `None`: not known.
    pub fn shared_limit(&self) -> Option<(u64, [u64; 2])> {
        let limit = self.configured?;
        Some((limit, [Tier::Interactive, Tier::Batch].map(|tier| self.shares.guaranteed(tier, limit))))
    }

    /// What `tier` could take now if the lease were renewed: for what is told to others.
    pub fn reach(&mut self, tier: Tier, now: Mono) -> u64 {
        self.expire(now);
        let local = self.available_of(&self.used, tier, now).min(self.heard_allows(&self.used, now));
        local.min(self.lease.as_ref().map_or(u64::MAX, |lease| lease.reach(tier)))
    }

    fn leased(&self, tier: Tier) -> u64 {
        self.lease.as_ref().map_or(u64::MAX, |lease| lease.available(tier))
    }

    /// Takes over a new limit and new shares; what was taken stays taken.
    pub fn reconfigure(&mut self, limit: Option<u64>, shares: Shares) {
        self.configured = limit;
        self.shares = shares;
    }

    /// The limit in force: the configured one, or a lower one that the provider stated; `None`: unknown.
    pub fn limit(&self, now: Mono) -> Option<u64> {
        let stated = self.stated.filter(|(_, until)| now < *until).map(|(limit, _)| limit);
        match (self.configured, stated) {
            (Some(configured), Some(stated)) => Some(configured.min(stated)),
            (limit, other) => limit.or(other),
        }
    }

    /// The most that `tier` may take within a minute; `None`: no limit.
    pub fn cap(&self, tier: Tier, now: Mono) -> Option<u64> {
        self.limit(now).map(|limit| limit - self.shares.guaranteed(tier.other(), limit))
    }

    /// What `tier` could take now in one piece; `u64::MAX` without any limit.
    pub fn available(&mut self, tier: Tier, now: Mono) -> u64 {
        self.expire(now);
        self.available_of(&self.used, tier, now).min(self.heard_allows(&self.used, now)).min(self.leased(tier))
    }

    /// What batch could take now out of its own guarantee, while interactive traffic is waiting for the rest.
    pub fn available_floor(&mut self, now: Mono) -> u64 {
        let guaranteed = self.limit(now).map_or(u64::MAX, |limit| self.shares.guaranteed(Tier::Batch, limit));
        let left = guaranteed.saturating_sub(self.used[Tier::Batch.index()]);
        self.available(Tier::Batch, now).min(left)
    }

    /// Takes `n` units if they are there; otherwise nothing changes.
    pub fn take(&mut self, n: u64, tier: Tier, now: Mono) -> bool {
        if self.available(tier, now) < n {
            return false;
        }
        self.add(n, tier, now);
        if let Some(lease) = &mut self.lease {
            lease.take(n, tier, now);
        }
        true
    }

    /// Notes `n` units that were taken at `at`, whether they are there or not: others have seen to that.
    pub fn note(&mut self, n: u64, tier: Tier, at: Mono, now: Mono) {
        self.expire(now);
        if now < expiry(at.0 / SLOT_NS) {
            self.add(n, tier, at);
        }
    }

    /// Whether the limit is shared with other replicas.
    pub fn is_shared(&self) -> bool {
        self.lease.is_some()
    }

    /// Gives back `n` units that were taken at `at` and did not count at the provider.
    pub fn give_back(&mut self, n: u64, tier: Tier, at: Mono) {
        let index = at.0 / SLOT_NS;
        let slot = self.slots.iter_mut().find(|slot| slot.index == index && slot.taken[tier.index()] >= n);
        if let Some(slot) = slot {
            slot.taken[tier.index()] -= n;
            self.used[tier.index()] -= n;
            if let Some(lease) = &mut self.lease {
                lease.give_back(n, tier);
            }
        }
    }

    /// Replaces the `estimate` taken at `at` by what the provider counted. The difference may be a debt: nothing more
    /// passes until it has aged out.
    pub fn correct(&mut self, estimate: u64, actual: u64, tier: Tier, at: Mono, now: Mono) {
        self.expire(now);
        if actual <= estimate {
            self.give_back(estimate - actual, tier, at);
        } else if now < expiry(at.0 / SLOT_NS) {
            self.add(actual - estimate, tier, at);
            if let Some(lease) = &mut self.lease {
                lease.owe(actual - estimate, tier);
            }
        }
    }

    /// Believes the provider: its count lowers what may be taken until its reset, and its limit the limit for at least
    /// a minute. `begun` is when the call began whose answer says so.
    ///
    /// Answers overtake each other. The word of a call begun after the last word was heard is newer and believed either
    /// way; one that overlaps may only lower.
    pub fn observe(&mut self, word: Word, begun: Mono, now: Mono) {
        if let Some(limit) = word.limit {
            self.stated = Some((limit, now.plus(word.reset.unwrap_or(WINDOW).max(WINDOW))));
        }
        let Some(remaining) = word.remaining else { return };
        let since: u64 =
            self.slots.iter().filter(|slot| slot.index > begun.0 / SLOT_NS).map(|s| s.taken[0] + s.taken[1]).sum();
        let ceiling = remaining.saturating_add(self.used[0] + self.used[1]).saturating_sub(since);
        let until = now.plus(word.reset.unwrap_or(WINDOW));
        match &mut self.heard {
            Some(heard) if begun < heard.at && now < heard.until => {
                if ceiling < heard.ceiling {
                    heard.ceiling = ceiling;
                    heard.until = heard.until.max(until);
                }
            }
            heard => *heard = Some(Heard { ceiling, at: now, until }),
        }
    }

    /// What the provider said is left, less what was taken since; `None` when it said nothing or its reset has passed.
    pub fn provider_remaining(&self, now: Mono) -> Option<u64> {
        self.heard.filter(|heard| now < heard.until).map(|heard| heard.left(&self.used))
    }

    /// The earliest time at which `n` could be taken if nothing else is.
    pub fn when(&mut self, n: u64, tier: Tier, now: Mono) -> When {
        let own = self.when_alone(n, tier, now);
        match own {
            When::At(at) if at <= now && self.leased(tier) < n => {
                if let Some(lease) = &mut self.lease {
                    lease.miss(n, tier);
                }
                When::At(now.plus(LEASE_PAUSE))
            }
            own => own,
        }
    }

    fn when_alone(&mut self, n: u64, tier: Tier, now: Mono) -> When {
        self.expire(now);
        let most = self.configured.map_or(u64::MAX, |limit| limit - self.shares.guaranteed(tier.other(), limit));
        if n > most {
            return When::Never;
        }
        let lapse = self.heard.map_or(now, |heard| heard.until);
        if self.cap(tier, now).is_some_and(|cap| n > cap) {
            let raised = self.stated.map_or(now, |(_, until)| until);
            return When::At(if self.heard_allows(&self.used, now) < n { raised.max(lapse) } else { raised });
        }
        let mut used = self.used;
        let mut at = now;
        let mut local = None;
        for slot in &self.slots {
            if self.available_of(&used, tier, now) >= n {
                local.get_or_insert(at);
                if self.heard_allows(&used, now) >= n {
                    return When::At(at);
                }
            }
            used[0] -= slot.taken[0];
            used[1] -= slot.taken[1];
            at = expiry(slot.index);
        }
        let by_word = if self.heard_allows(&used, now) >= n { at } else { Mono(u64::MAX) };
        When::At(by_word.min(local.unwrap_or(at).max(lapse)))
    }

    /// The share of the limit that is left for anybody, by the log and by the provider's count, 0 to 1; 1 without a limit.
    pub fn left_share(&mut self, now: Mono) -> f64 {
        self.expire(now);
        let Some(limit) = self.limit(now).filter(|limit| *limit > 0) else { return 1.0 };
        let left = limit.saturating_sub(self.used[0].saturating_add(self.used[1]));
        left.min(self.provider_remaining(now).unwrap_or(u64::MAX)) as f64 / limit as f64
    }

    /// When everything will be there again if nothing more is taken.
    pub fn full_at(&mut self, now: Mono) -> Mono {
        self.expire(now);
        let local = self.slots.iter().rev().find(|slot| slot.taken != [0; 2]).map_or(now, |slot| expiry(slot.index));
        self.heard.map_or(local, |heard| local.max(heard.until))
    }

    /// What `tier` has taken within the last minute (and [`MARGIN`]).
    pub fn used(&mut self, tier: Tier, now: Mono) -> u64 {
        self.expire(now);
        self.used[tier.index()]
    }

    fn available_of(&self, used: &[u64; 2], tier: Tier, now: Mono) -> u64 {
        let Some(limit) = self.limit(now) else { return u64::MAX };
        let owed = self.shares.guaranteed(tier.other(), limit).saturating_sub(used[tier.other().index()]);
        limit.saturating_sub(used[0].saturating_add(used[1])).saturating_sub(owed)
    }

    /// The largest take that the provider's last word allows when that much is used.
    fn heard_allows(&self, used: &[u64; 2], now: Mono) -> u64 {
        self.heard.filter(|heard| now < heard.until).map_or(u64::MAX, |heard| {
            let allowed = u128::from(heard.left(used)) * 100 / u128::from(self.headroom_percent);
            u64::try_from(allowed).unwrap_or(u64::MAX)
        })
    }

    fn add(&mut self, n: u64, tier: Tier, at: Mono) {
        let index = at.0 / SLOT_NS;
        let position = self.slots.partition_point(|slot| slot.index < index);
        match self.slots.get_mut(position) {
            Some(slot) if slot.index == index => slot.taken[tier.index()] = slot.taken[tier.index()].saturating_add(n),
            Some(_) | None => {
                let mut taken = [0; 2];
                taken[tier.index()] = n;
                self.slots.insert(position, Slot { index, taken });
            }
        }
        self.used[tier.index()] = self.used[tier.index()].saturating_add(n);
    }

    fn expire(&mut self, now: Mono) {
        while let Some(slot) = self.slots.front().filter(|slot| expiry(slot.index) <= now) {
            self.used[0] -= slot.taken[0];
            self.used[1] -= slot.taken[1];
            self.slots.pop_front();
        }
        if self.heard.is_some_and(|heard| heard.until <= now) {
            self.heard = None;
        }
    }
}

fn expiry(index: u64) -> Mono {
    Mono(index.saturating_add(1).saturating_mul(SLOT_NS)).plus(WINDOW).plus(MARGIN)
}

#[cfg(test)]
mod tests;
