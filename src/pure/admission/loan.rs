//! A part of an upstream's capacity that is lent out, so that calls within it need not ask each time.
//!
//! Every event of the owner begins by [taking the loan back](UpstreamState::gather) and ends by [lending
//! anew](UpstreamState::lend), so that each decision is made on what is true then: calls under way keep their slots, the
//! tokens that they took count from the moment at which they took them, and what was not used is nobody's. Only
//! interactive calls are made on a loan, and only while nobody waits, the breaker is closed and no other replica shares
//! the limits.

use std::collections::HashMap;
use std::time::Duration;

use super::{Attempt, CountBy, Lent, REPORT_GRACE, UpstreamState, slot_of};
use crate::ids::AttemptId;
use crate::pure::breaker::{Admit, Phase, Ticket};
use crate::pure::class::TrafficClass;
use crate::pure::time::Mono;
use crate::pure::token_bucket::{Tier, TokenBucket};

/// This part of the tokens and requests that are left is lent; of the slots it is half.
const PART: u64 = 8;

/// A loan that nobody took back ends after this long: tokens must not be spent long after they were taken.
const LIFE: Duration = Duration::from_secs(2);

/// The class that calls are made for.
const TIER: Tier = Tier::Interactive;

/// A call that was made on a loan.
#[derive(Debug, Clone, Copy)]
struct Begun {
    tokens: u64,
    units: usize,
    at: Mono,
    ticket: Ticket,
    /// Whether its tokens are in the owner's books.
    booked: bool,
}

/// When the owner has to look at what ended in a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// When it is its turn: calls ended as all do, and what they add up to is the same a moment later.
    InTurn,
    /// Soon: something ended that it does not expect, or somebody may wait for the room.
    Soon,
}

/// What the one who reports the end of a call has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending<R> {
    /// Nothing.
    Noted,
    /// See that the owner looks.
    See(Look),
    /// Report to the owner: the call was not made on this loan, or is no longer in it.
    NotHere(R),
}

/// Calls that may be made without asking. `R` is what is reported of each.
#[derive(Debug)]
pub struct CallLoan<R> {
    is_open: bool,
    slots: usize,
    count: CountBy,
    tokens: u64,
    requests: u64,
    until: Mono,
    ticket: Ticket,
    /// Tokens and requests that were taken for it, and when; nothing where there is no limit.
    taken: [u64; 2],
    taken_at: Mono,
    begun: HashMap<AttemptId, Begun>,
    ended: Vec<(AttemptId, Begun, R)>,
    /// Tokens and requests that were taken of it since it was given.
    spent: [u64; 2],
    /// What look of the owner's has been asked for.
    due: Option<Look>,
}

impl<R> Default for CallLoan<R> {
    fn default() -> CallLoan<R> {
        CallLoan {
            is_open: false,
            slots: 0,
            count: CountBy::Calls,
            tokens: 0,
            requests: 0,
            until: Mono::ZERO,
            ticket: Ticket::VOID,
            taken: [0; 2],
            taken_at: Mono::ZERO,
            begun: HashMap::new(),
            ended: Vec::new(),
            spent: [0; 2],
            due: None,
        }
    }
}

impl<R> CallLoan<R> {
    /// Begins a call of `tokens` and `items`, each at least 1; false where the owner must be asked.
    pub fn begin(&mut self, id: AttemptId, tokens: u64, items: usize, now: Mono) -> bool {
        let tokens = tokens.max(1);
        let units = match self.count {
            CountBy::Calls => 1,
            CountBy::Texts => items.max(1),
        };
        let fits = units <= self.slots && tokens <= self.tokens && self.requests > 0 && now < self.until;
        if !fits || self.begun.contains_key(&id) {
            return false;
        }
        self.slots -= units;
        self.take(tokens, 1);
        self.begun.insert(id, Begun { tokens, units, at: now, ticket: self.ticket, booked: false });
        true
    }

    fn take(&mut self, tokens: u64, requests: u64) {
        for (left, n) in [(&mut self.tokens, tokens), (&mut self.requests, requests)] {
            // Without a limit there is nothing to count down.
            *left = if *left == u64::MAX { u64::MAX } else { left.saturating_sub(n) };
        }
        self.spent = [self.spent[0].saturating_add(tokens), self.spent[1].saturating_add(requests)];
    }

    /// Notes the end of a call; if it was begun here, its slot can be used again. `left` is what the provider says of the
    /// tokens and requests that are left: the rest of the loan is no more than what would be lent of that. `look` is when its
    /// owner has to know of it, unless it is sooner: when the provider's word is less than was thought, or the loan is closed, so
    /// that somebody may wait for what has become free.
    pub fn end(&mut self, id: AttemptId, report: R, left: [Option<u64>; 2], mut look: Look) -> Ending<R> {
        // Whoever made the call: until the owner has read of the provider's word, others would go on as if it were not known.
        for (lent, left) in [&mut self.tokens, &mut self.requests].into_iter().zip(left) {
            if let Some(left) = left.map(|left| left / PART).filter(|left| left < lent) {
                (*lent, look) = (left, Look::Soon);
            }
        }
        let Some(begun) = self.begun.remove(&id) else { return Ending::NotHere(report) };
        if self.is_open {
            self.slots += begun.units;
        } else {
            look = Look::Soon;
        }
        self.ended.push((id, begun, report));
        if self.due >= Some(look) {
            return Ending::Noted;
        }
        self.due = Some(look);
        Ending::See(look)
    }

    /// Something happened that the owner must judge before the next call.
    pub fn close(&mut self) {
        (self.is_open, self.slots) = (false, 0);
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.begun.len()
    }

    /// Tokens and requests taken since it was given, which the owner does not know of yet.
    pub fn spent(&self) -> [u64; 2] {
        self.spent
    }
}

impl UpstreamState {
    /// Takes a loan back. Calls that ended are in flight here from now on, until they are reported as
    /// [`UpstreamState::finished`], in the order returned; those under way stay with the loan.
    pub fn gather<R>(&mut self, loan: &mut CallLoan<R>, now: Mono) -> Vec<(AttemptId, R)> {
        let [tokens, requests] = std::mem::take(&mut loan.taken);
        self.tokens.give_back(tokens, TIER, loan.taken_at);
        self.requests.give_back(requests, TIER, loan.taken_at);
        loan.close();
        loan.due = None;
        loan.spent = [0; 2];
        self.in_use[slot_of(TIER)] -= self.lent.units;
        self.lent = Lent::default();
        let mut ended = Vec::with_capacity(loan.ended.len());
        for (id, mut begun, report) in loan.ended.drain(..) {
            self.book(&mut begun, now);
            // It has ended, so it cannot be lost any more.
            self.take_over(id, &begun, now.plus(REPORT_GRACE));
            ended.push((id, report));
        }
        let longest = self.policy.call_timeout.saturating_add(REPORT_GRACE);
        loan.begun.retain(|id, begun| {
            self.book(begun, now);
            let lost = begun.at.plus(longest) <= now;
            if lost {
                self.take_over(*id, begun, now);
            } else {
                self.lent.units += begun.units;
                self.lent.calls += 1;
            }
            !lost
        });
        self.in_use[slot_of(TIER)] += self.lent.units;
        ended
    }

    /// Takes one call that is under way over from a loan, after [`UpstreamState::gather`]; nothing if it was not made on it.
    pub fn adopt<R>(&mut self, loan: &mut CallLoan<R>, id: AttemptId) {
        let Some(begun) = loan.begun.remove(&id) else { return };
        self.in_use[slot_of(TIER)] -= begun.units;
        self.lent.units -= begun.units;
        self.lent.calls -= 1;
        let longest = self.policy.call_timeout.saturating_add(REPORT_GRACE);
        self.take_over(id, &begun, begun.at.plus(longest));
    }

    fn book(&mut self, begun: &mut Begun, now: Mono) {
        if !std::mem::replace(&mut begun.booked, true) {
            self.tokens.note(begun.tokens, TIER, begun.at, now);
            self.requests.note(1, TIER, begun.at, now);
            self.counters.granted += 1;
        }
    }

    fn take_over(&mut self, id: AttemptId, begun: &Begun, expires: Mono) {
        let Begun { tokens, units, at, ticket, .. } = *begun;
        self.attempts.insert(id, Attempt { tier: TIER, tokens, units, begun: at, expires, ticket, heard: false });
        self.expiries.insert((expires, id));
        self.in_use[slot_of(TIER)] += units;
    }

    /// Lends a part of what is left, after [`UpstreamState::gather`]; nothing where any rule could have a say in the next
    /// call.
    pub fn lend<R>(&mut self, loan: &mut CallLoan<R>, now: Mono) {
        let waiting = !self.interactive.is_empty() || !self.batch.is_empty();
        let flows = self.closed().is_none() && self.breaker.phase() == Phase::Closed && now >= self.cool_until;
        let shared = self.tokens.is_shared() || self.requests.is_shared();
        if waiting || !flows || shared || self.shutting_down {
            return;
        }
        let limit = self.concurrency_limit();
        let taken = self.in_use.iter().sum::<usize>() + self.batch_floor_slots(limit);
        let slots = limit.saturating_sub(taken) / 2;
        let Some(tokens) = part(&mut self.tokens, now) else { return };
        let Some(requests) = part(&mut self.requests, now) else { return };
        let (Admit::Pass(ticket), None) = self.breaker.admit(TrafficClass::InteractiveSearch, 1.0, now) else { return };
        if slots == 0 {
            return;
        }
        let take = |bucket: &mut TokenBucket, n: u64| if n == u64::MAX || !bucket.take(n, TIER, now) { 0 } else { n };
        loan.taken = [take(&mut self.tokens, tokens), take(&mut self.requests, requests)];
        loan.taken_at = now;
        (loan.is_open, loan.slots, loan.tokens, loan.requests) = (true, slots, tokens, requests);
        (loan.count, loan.ticket, loan.until) = (self.policy.count, ticket, now.plus(LIFE));
        self.lent.units += slots;
        self.in_use[slot_of(TIER)] += slots;
    }
}

/// What is lent of a limit; `None`: nothing, `u64::MAX`: there is no limit.
fn part(bucket: &mut TokenBucket, now: Mono) -> Option<u64> {
    match bucket.available(TIER, now) {
        u64::MAX => Some(u64::MAX),
        left => Some(left / PART).filter(|part| *part > 0),
    }
}

#[cfg(test)]
mod tests;
