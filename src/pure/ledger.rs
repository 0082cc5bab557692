//! One tenant's money: what it may spend, what is held for calls under way, what was spent. Owns every rule by which a
//! balance moves; refuses to know prices, tokens, clocks, files, and who waits for a hold.
//!
//! Invariants, checked by [`Account::audit`] after every step of every test:
//! - **I1** granted + excess = available + held + lent + spent. *Excess* is zero unless a reload lowered the budget below what
//!   was already committed; then nothing is available until settlements have made up for it.
//! - **I2** No amount is ever negative.
//! - **I3** held is the sum of the open holds, each between its lower and its upper bound.
//! - **I4** Within a period spent grows by exactly what [`Settled::charged`] reports, and never falls.
//! - **I5** charged + shortfall is the charge that was asked for: nothing is lost without being named.

mod loan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use super::budget_period::BudgetPeriod;
use super::money::Money;
use super::time::{Mono, Wall};
use super::utc;
use crate::ids::HoldId;

pub use loan::Loan;

/// What an unlimited tenant may spend: so much that every rule for limited tenants holds for it too.
const UNLIMITED: Money = Money::from_units(i128::MAX);

/// Lapsed holds that are remembered so that a charge which comes after all is still taken, once.
const LAPSED_KEPT: usize = 1024;

/// Settlements that are remembered to judge by what share of a hold calls really cost.
const SETTLEMENTS_KEPT: usize = 16;

/// Sum that stops at the largest amount.
pub(crate) fn plus(a: Money, b: Money) -> Money {
    a.checked_add(b).unwrap_or(UNLIMITED)
}

/// Difference that stops at zero.
pub(crate) fn minus(a: Money, b: Money) -> Money {
    a.checked_sub(b).unwrap_or(Money::ZERO).max(Money::ZERO)
}

/// How much of `credits` was used up in a period that ended with `spent`: the budget goes first, so a credit is
/// touched only by what exceeds it, and what is left of it outlives the period.
pub(crate) fn credits_used(budget: Option<Money>, credits: Money, spent: Money) -> Money {
    budget.map_or(Money::ZERO, |budget| minus(spent, budget).min(credits))
}

/// What the configuration says of a tenant's money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The budget of one period; `None`: unlimited, still metered.
    pub budget: Option<Money>,
    /// How often it is refilled.
    pub period: BudgetPeriod,
}

/// What an account must remember over a restart; open holds are not among it, since none survives one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Start of the current period; the epoch before the first.
    pub period_start: Wall,
    /// Charged in the current period.
    pub spent: Money,
    /// Charges of the current period that no balance covered.
    pub written_off: Money,
    /// Credits on top of the budget, as far as earlier periods left them.
    pub credits: Money,
    /// Amount of each credit by its idempotency key.
    pub credit_keys: BTreeMap<String, Money>,
}

/// A request for money to be held before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldAsk {
    /// Names the hold; never used twice.
    pub id: HoldId,
    /// The most that the call can cost; this is what is held.
    pub amount_upper: Money,
    /// What it will probably cost; between the two bounds.
    pub amount_likely: Money,
    /// The least that it can cost; equal to the upper bound where the tokens were counted exactly.
    pub amount_lower: Money,
    /// Now.
    pub now: Mono,
    /// When a hold that nobody resolved lapses.
    pub expires_at: Mono,
}

/// The answer to a [`HoldAsk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The money is held.
    Held,
    /// Not enough now, but settlements of open holds may free enough: ask again after each, oldest ask first.
    Wait,
    /// Not enough even for the least that it can cost, and even if every open hold settles at its lower bound.
    Refused,
}

/// What a settlement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What the tenant paid: this is the cost in the usage record.
    pub charged: Money,
    /// What the hold had kept back beyond the charge, available again.
    pub freed: Money,
    /// How far the charge exceeded the hold.
    pub overrun: Money,
    /// The part of the overrun that no balance covered: written off, never a debt.
    pub shortfall: Money,
    /// The hold had lapsed before, so all of the charge counts as overrun.
    pub late: bool,
    /// The period that the charge counts in.
    pub period_start: Wall,
}

/// What became of a credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditOutcome {
    /// Added.
    Applied,
    /// This key was applied before with the same amount; nothing changed.
    Repeated,
    /// This key was applied before with another amount; nothing changed.
    Conflict,
    /// Not above zero, or beyond the largest balance; nothing changed.
    Refused,
}

/// A period began; the store keeps this so that a restart neither loses nor repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodStarted {
    /// Its first instant.
    pub start: Wall,
    /// The budget that the period before ended with.
    pub budget_before: Option<Money>,
}

/// A balance as admin page, metrics and tests read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AccountSnapshot {
    /// The budget of one period; null: unlimited.
    pub budget: Option<Money>,
    /// What new holds may take; null: unlimited.
    pub remaining: Option<Money>,
    /// Held for calls under way.
    pub held: Money,
    /// Charged in this period.
    pub spent: Money,
    /// How often the budget is refilled.
    pub period: BudgetPeriod,
    /// When it was refilled last; null without periods.
    #[serde(serialize_with = "utc::optional_stamp::serialize")]
    pub period_start: Option<Wall>,
    /// When it is refilled next; null without periods.
    #[serde(serialize_with = "utc::optional_stamp::serialize")]
    pub resets_at: Option<Wall>,
    /// Credits on top of the budget.
    pub credits: Money,
    /// Calls under way that hold money.
    pub open_holds: usize,
    /// Charges of this period that no balance covered.
    pub written_off: Money,
}

#[derive(Debug, Clone, Copy)]
struct OpenHold {
    /// What is held.
    upper: Money,
    /// What was asked for; more than is held under the last-call rule.
    asked: Money,
    lower: Money,
    expires_at: Mono,
}

/// One tenant's account.
#[derive(Debug, Clone)]
pub struct Account {
    terms: Terms,
    standing: Standing,
    holds: BTreeMap<HoldId, OpenHold>,
    held: Money,
    held_lower: Money,
    /// What loans have that was not charged yet: left, or held for their calls.
    lent: Money,
    /// The newest settlements: what was asked to be held, and what it cost.
    settlements: VecDeque<(Money, Money)>,
    lapsed: BTreeSet<HoldId>,
    lapsed_untold: Vec<HoldId>,
}

impl Account {
    /// An account that stands where `standing` left it; [`Standing::default`] for a new tenant.
    pub fn restore(terms: Terms, standing: Standing) -> Account {
        Account {
            terms,
            standing,
            holds: BTreeMap::new(),
            held: Money::ZERO,
            held_lower: Money::ZERO,
            lent: Money::ZERO,
            settlements: VecDeque::new(),
            lapsed: BTreeSet::new(),
            lapsed_untold: Vec::new(),
        }
    }

    fn granted(&self) -> Money {
        self.terms.budget.map_or(UNLIMITED, |budget| plus(budget.max(Money::ZERO), self.standing.credits))
    }

    /// What new holds may take; the largest amount for an unlimited tenant.
    fn available(&self) -> Money {
        minus(self.granted(), plus(plus(self.held, self.lent), self.standing.spent))
    }

    /// What new holds may take; `None` for an unlimited tenant. Never negative.
    pub fn remaining(&self) -> Option<Money> {
        self.terms.budget.map(|_| self.available())
    }

    /// Whether nothing is left that a call with a price could take, and no open hold can leave anything.
    pub fn is_exhausted(&self) -> bool {
        let least = Money::from_units(1);
        self.terms.budget.is_some() && self.is_hopeless(least, least)
    }

    /// The standing to restore from.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Whether anything is held for calls under way.
    pub fn has_open_holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// What an open hold holds.
    pub fn held_by(&self, id: HoldId) -> Option<Money> {
        self.holds.get(&id).map(|hold| hold.upper)
    }

    /// Holds money for a call: its upper bound. The same id again gets the same answer and holds nothing more.
    ///
    /// **The last-call rule.** An upper bound may be many times the real cost (a byte a token, where the tokenizer is
    /// not known), so what it does not fit into is not yet nothing. When nothing is held for any other call, so that no
    /// settlement can free more, and the call will probably fit, all that is left is held for it. If it costs more
    /// after all, the overrun rule writes off the rest; since no other call is under way, that is one call at most.
    ///
    /// Holds past their time lapse here if their money is needed, so no timer is needed for a correct answer.
    pub fn place(&mut self, ask: HoldAsk) -> Place {
        if self.holds.contains_key(&ask.id) {
            return Place::Held;
        }
        let asked = ask.amount_upper.max(Money::ZERO);
        let lower = ask.amount_lower.max(Money::ZERO).min(asked);
        let likely = ask.amount_likely.max(lower).min(asked);
        if self.available() < asked {
            self.lapse(ask.now);
        }
        let available = self.available();
        let upper = if available >= asked {
            asked
        } else if self.held > Money::ZERO {
            return if self.is_hopeless(ask.amount_upper, ask.amount_lower) { Place::Refused } else { Place::Wait };
        } else if available > Money::ZERO && available >= lower && self.probably_covers(available, asked, likely) {
            available
        } else {
            return Place::Refused;
        };
        self.insert(ask.id, OpenHold { upper, asked, lower, expires_at: ask.expires_at });
        Place::Held
    }

    fn insert(&mut self, id: HoldId, hold: OpenHold) {
        self.held = plus(self.held, hold.upper);
        self.held_lower = plus(self.held_lower, hold.lower);
        self.holds.insert(id, hold);
    }

    /// Whether a call of these bounds cannot be paid even if every open hold settles at its lower bound.
    pub fn is_hopeless(&self, amount_upper: Money, amount_lower: Money) -> bool {
        let asked = amount_upper.max(Money::ZERO);
        let least = amount_lower.max(Money::from_units(1)).min(asked);
        minus(self.granted(), plus(self.held_lower, self.standing.spent)) < least
    }

    /// Whether a call whose upper bound is beyond `available` will probably fit into it: by its own estimate, or because
    /// none of the last settlements took a larger share of what it had asked for.
    fn probably_covers(&self, available: Money, asked: Money, likely: Money) -> bool {
        let fits = |(before, cost): &(Money, Money)| {
            // asked × cost ÷ before ≤ available, without a rounding. Products beyond the largest number prove nothing.
            let need = asked.units().checked_mul(cost.units());
            let have = available.units().checked_mul(before.units());
            need.zip(have).is_some_and(|(need, have)| need <= have)
        };
        available >= likely || (!self.settlements.is_empty() && self.settlements.iter().all(fits))
    }

    /// Charges a call's real cost and frees the rest of its hold. `None` if the hold is not open: this settlement or a
    /// release came before, and nothing changes.
    ///
    /// **The overrun rule.** A charge above the hold takes the excess from what is available to everybody; what even
    /// that does not cover would make the balance negative, so it is written off and reported as the shortfall. A hold
    /// that had lapsed is charged in the same way, all of it as overrun: the provider's bill does not lapse. Money held
    /// for other calls is never touched.
    ///
    /// A hold that is open when a period starts is charged to the period in which it settles.
    pub fn settle(&mut self, id: HoldId, charge: Money) -> Option<Settled> {
        let charge = charge.max(Money::ZERO);
        let (held, late) = match self.take_hold(id) {
            Some(hold) => {
                self.remember(hold.asked, charge);
                (hold.upper, false)
            }
            None if self.lapsed.remove(&id) => (Money::ZERO, true),
            None => return None,
        };
        // Within a lowered budget the hold itself may be uncovered; it was granted, so it is honoured.
        let within = charge.min(held);
        self.standing.spent = plus(self.standing.spent, within);
        let overrun = minus(charge, held);
        let covered = overrun.min(self.available());
        self.standing.spent = plus(self.standing.spent, covered);
        let shortfall = minus(overrun, covered);
        self.standing.written_off = plus(self.standing.written_off, shortfall);
        Some(Settled {
            charged: plus(within, covered),
            freed: minus(held, within),
            overrun,
            shortfall,
            late,
            period_start: self.standing.period_start,
        })
    }

    /// Frees a hold without a charge and returns what it held. `None` if it is not open: nothing changes.
    pub fn release(&mut self, id: HoldId) -> Option<Money> {
        self.lapsed.remove(&id);
        self.take_hold(id).map(|hold| hold.upper)
    }

    /// Frees every hold whose time is over and names those that lapsed since the last call, each once, oldest first.
    pub fn expire(&mut self, now: Mono) -> Vec<HoldId> {
        self.lapse(now);
        std::mem::take(&mut self.lapsed_untold)
    }

    /// Adds `amount` on top of the budget, once per `idempotency_key`.
    ///
    /// Credits are spent after the budget and outlive periods. An unlimited tenant's credits count from the day it gets
    /// a budget.
    pub fn credit(&mut self, amount: Money, idempotency_key: &str) -> CreditOutcome {
        if let Some(before) = self.standing.credit_keys.get(idempotency_key) {
            return if *before == amount { CreditOutcome::Repeated } else { CreditOutcome::Conflict };
        }
        if amount <= Money::ZERO {
            return CreditOutcome::Refused;
        }
        let Some(credits) = self.standing.credits.checked_add(amount) else { return CreditOutcome::Refused };
        self.standing.credits = credits;
        self.standing.credit_keys.insert(idempotency_key.to_owned(), amount);
        CreditOutcome::Applied
    }

    /// Starts the period that holds `wall` if it is a later one than the current; call before any other verb.
    ///
    /// The budget is whole again, what is left of credits stays, open holds stay held. A clock that steps back starts
    /// nothing, so a period cannot be refilled twice. A tenant's first period, and a change to a shorter rhythm, start at
    /// once.
    pub fn roll_period(&mut self, wall: Wall) -> Option<PeriodStarted> {
        let start = self.terms.period.start_of(wall)?;
        if start <= self.standing.period_start {
            return None;
        }
        let used = credits_used(self.terms.budget, self.standing.credits, self.standing.spent);
        self.standing.credits = minus(self.standing.credits, used);
        self.standing.spent = Money::ZERO;
        self.standing.written_off = Money::ZERO;
        self.standing.period_start = start;
        Some(PeriodStarted { start, budget_before: self.terms.budget })
    }

    /// When the budget is refilled next; `None` without periods.
    pub fn resets_at(&self) -> Option<Wall> {
        self.terms.period.next_start(self.standing.period_start)
    }

    /// Applies what a reload says. What was spent and held stays: a budget below it leaves nothing available.
    pub fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// The balance as others read it.
    pub fn snapshot(&self) -> AccountSnapshot {
        let periodic = self.terms.period != BudgetPeriod::None;
        AccountSnapshot {
            budget: self.terms.budget,
            remaining: self.remaining(),
            held: self.held,
            spent: self.standing.spent,
            period: self.terms.period,
            period_start: periodic.then_some(self.standing.period_start),
            resets_at: self.resets_at(),
            credits: self.standing.credits,
            open_holds: self.holds.len(),
            written_off: self.standing.written_off,
        }
    }

    /// Checks I1 to I3 and names the first that does not hold.
    ///
    /// # Errors
    /// The invariant's number.
    pub fn audit(&self) -> Result<(), &'static str> {
        let reserved = self.held.checked_add(self.lent).ok_or("I1")?;
        let committed = reserved.checked_add(self.standing.spent).ok_or("I1")?;
        let excess = minus(committed, self.granted());
        if self.granted().checked_add(excess) != self.available().checked_add(committed) {
            return Err("I1");
        }
        let parts = [
            self.held,
            self.held_lower,
            self.lent,
            self.standing.spent,
            self.standing.credits,
            self.standing.written_off,
        ];
        if parts.into_iter().any(Money::is_negative) {
            return Err("I2");
        }
        let sum = |of: fn(&OpenHold) -> Money| self.holds.values().map(of).fold(Money::ZERO, plus);
        let bounded = self.holds.values().all(|hold| hold.lower <= hold.upper);
        if sum(|hold| hold.upper) != self.held || sum(|hold| hold.lower) != self.held_lower || !bounded {
            return Err("I3");
        }
        Ok(())
    }

    fn remember(&mut self, asked: Money, cost: Money) {
        if asked > Money::ZERO {
            self.settlements.push_back((asked, cost));
            while self.settlements.len() > SETTLEMENTS_KEPT {
                self.settlements.pop_front();
            }
        }
    }

    fn take_hold(&mut self, id: HoldId) -> Option<OpenHold> {
        let hold = self.holds.remove(&id)?;
        self.held = minus(self.held, hold.upper);
        self.held_lower = minus(self.held_lower, hold.lower);
        Some(hold)
    }

    fn lapse(&mut self, now: Mono) {
        let over: Vec<HoldId> =
            self.holds.iter().filter(|(_, hold)| hold.expires_at <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.take_hold(id);
            self.lapsed.insert(id);
            self.lapsed_untold.push(id);
        }
        while self.lapsed.len() > LAPSED_KEPT {
            self.lapsed.pop_first();
        }
    }
}

#[cfg(test)]
mod tests;
