//! A part of a balance that is lent out, so that those who spend it need not ask each time.
//!
//! A loan is money of the account that only its holder can take: holds and charges within it cannot make the account's
//! balance wrong, because what is lent is available to nobody else. The account lends only while its balance covers many
//! calls, [books](Account::book) what was charged whenever it is looked at, and [calls the loan in](Account::call_in)
//! before it refuses anybody. Until then it stays out, used or not: nobody else may spend this account's money, so nothing is
//! gained by taking it back from a tenant that asks seldom. A loan ends with the budget period that it was given in.

use std::collections::{HashMap, VecDeque};

use super::{Account, HoldAsk, Money, OpenHold, SETTLEMENTS_KEPT, minus, plus};
use crate::ids::HoldId;
use crate::pure::time::{Mono, Wall};

/// This part of what is left is lent.
const PART: i128 = 8;

/// A loan must cover so many of the largest calls seen of late, or it would be asked for anew all the time. Before the first
/// settlement, calls under way tell how large they are; before the first call nothing does, and a loan does no harm.
const CALLS: i128 = 64;

/// Money lent by an account, and what was made of it.
#[derive(Debug, Default)]
pub struct Loan {
    left: Money,
    holds: HashMap<HoldId, OpenHold>,
    held: Money,
    /// Charged and not booked yet.
    charged: Money,
    /// The newest settlements: what was held, and what it cost.
    settlements: VecDeque<(Money, Money)>,
    period_start: Wall,
    /// When the budget is refilled: from then on the account itself settles.
    ends: Option<Wall>,
}

impl Loan {
    /// What new holds may take of it.
    pub fn left(&self) -> Money {
        self.left
    }

    /// Held for calls under way.
    pub fn held(&self) -> Money {
        self.held
    }

    /// Charged since the account last booked it.
    pub fn charged(&self) -> Money {
        self.charged
    }

    /// Calls under way that hold some of it.
    pub fn open_holds(&self) -> usize {
        self.holds.len()
    }

    /// Start of the period that its charges count in.
    pub fn period_start(&self) -> Wall {
        self.period_start
    }

    /// Whether it has anything that the account must have back one day.
    pub fn is_out(&self) -> bool {
        self.left > Money::ZERO || !self.holds.is_empty() || self.charged > Money::ZERO
    }

    /// Whether a hold is past its time.
    pub fn has_lapsed(&self, now: Mono) -> bool {
        self.holds.values().any(|hold| hold.expires_at <= now)
    }

    fn is_in_time(&self, wall: Wall) -> bool {
        self.ends.is_none_or(|ends| wall < ends)
    }

    /// Holds the upper bound of an ask, if it is above zero and there.
    pub fn hold(&mut self, ask: &HoldAsk, wall: Wall) -> bool {
        let upper = ask.amount_upper;
        if upper <= Money::ZERO || upper > self.left || !self.is_in_time(wall) || self.holds.contains_key(&ask.id) {
            return false;
        }
        let lower = ask.amount_lower.max(Money::ZERO).min(upper);
        self.left = minus(self.left, upper);
        self.held = plus(self.held, upper);
        self.holds.insert(ask.id, OpenHold { upper, asked: upper, lower, expires_at: ask.expires_at });
        true
    }

    /// Charges a call and frees the rest of its hold; false where the account must do it, and nothing has changed then: the
    /// hold is not here, costs more than it holds, or the period is over.
    pub fn settle(&mut self, id: HoldId, charge: Money, wall: Wall) -> bool {
        let charge = charge.max(Money::ZERO);
        let covers = self.holds.get(&id).is_some_and(|hold| charge <= hold.upper);
        if !covers || !self.is_in_time(wall) {
            return false;
        }
        let Some(hold) = self.take(id) else { return false };
        self.left = plus(self.left, minus(hold.upper, charge));
        self.charge(hold.asked, charge);
        true
    }

    /// Frees a hold without a charge; false if it is not here.
    pub fn release(&mut self, id: HoldId) -> bool {
        let Some(hold) = self.take(id) else { return false };
        self.left = plus(self.left, hold.upper);
        true
    }

    /// Charges what was spent without a hold; false where the account must do it.
    pub fn meter(&mut self, charge: Money, wall: Wall) -> bool {
        if charge <= Money::ZERO || charge > self.left || !self.is_in_time(wall) {
            return false;
        }
        self.left = minus(self.left, charge);
        self.charge(charge, charge);
        true
    }

    fn charge(&mut self, asked: Money, charge: Money) {
        self.charged = plus(self.charged, charge);
        if self.settlements.len() == SETTLEMENTS_KEPT {
            self.settlements.pop_front();
        }
        self.settlements.push_back((asked, charge));
    }

    fn take(&mut self, id: HoldId) -> Option<OpenHold> {
        let hold = self.holds.remove(&id)?;
        self.held = minus(self.held, hold.upper);
        Some(hold)
    }
}

impl Account {
    /// Books what a loan was charged. What new holds may take does not change by it.
    pub fn book(&mut self, loan: &mut Loan) {
        let charged = std::mem::take(&mut loan.charged);
        self.lent = minus(self.lent, charged);
        self.standing.spent = plus(self.standing.spent, charged);
        for (asked, cost) in loan.settlements.drain(..) {
            self.remember(asked, cost);
        }
    }

    /// Takes a hold of a loan over; nothing if it has none of that name.
    pub fn adopt(&mut self, loan: &mut Loan, id: HoldId) {
        if let Some(hold) = loan.take(id) {
            self.lent = minus(self.lent, hold.upper);
            self.insert(id, hold);
        }
    }

    /// Takes everything of a loan back: what is left, the open holds, the charges.
    pub fn call_in(&mut self, loan: &mut Loan) {
        self.book(loan);
        let open: Vec<HoldId> = loan.holds.keys().copied().collect();
        for id in open {
            self.adopt(loan, id);
        }
        self.lent = minus(self.lent, std::mem::take(&mut loan.left));
    }

    /// Makes a loan as large as is good: nothing where the balance covers few calls.
    pub fn lend(&mut self, loan: &mut Loan) {
        let within = plus(self.available(), loan.left);
        let target = Money::from_units(within.units() / PART);
        let settled = self.settlements.iter().map(|(asked, _)| asked.units()).max();
        let largest = settled.or_else(|| self.holds.values().map(|hold| hold.asked.units()).max());
        let least = largest.map_or(Some(0), |asked| asked.checked_mul(CALLS));
        if least.is_none_or(|least| target.units() < least) {
            self.lent = minus(self.lent, std::mem::take(&mut loan.left));
            return;
        }
        loan.period_start = self.standing.period_start;
        loan.ends = self.resets_at();
        if loan.left.units() < target.units() / 2 || loan.left > target {
            self.lent = plus(minus(self.lent, loan.left), target);
            loan.left = target;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Place, Standing, Terms};
    use super::*;
    use crate::pure::budget_period::BudgetPeriod;

    fn money(units: i128) -> Money {
        Money::from_units(units)
    }

    fn account(budget: Option<i128>) -> Account {
        let terms = Terms { budget: budget.map(money), period: BudgetPeriod::None };
        Account::restore(terms, Standing::default())
    }

    fn ask(id: u64, upper: i128) -> HoldAsk {
        let (amount_likely, amount_lower) = (money(upper), money(1));
        let expires_at = Mono::from_millis(60_000);
        HoldAsk { id: HoldId(id), amount_upper: money(upper), amount_likely, amount_lower, now: Mono::ZERO, expires_at }
    }

    /// An account of which calls are known to hold `asked`.
    fn known(budget: Option<i128>, asked: i128) -> Account {
        let mut account = account(budget);
        assert_eq!(account.place(ask(0, asked)), Place::Held);
        account.settle(HoldId(0), Money::ZERO).expect("open");
        account
    }

    #[test]
    fn near_its_limit_an_account_lends_nothing() {
        let lent = |budget, asked| {
            let (mut account, mut loan) = (known(Some(budget), asked), Loan::default());
            account.lend(&mut loan);
            assert_eq!(account.audit(), Ok(()));
            loan.left().units()
        };
        assert_eq!(lent(512 * 10, 10), 640);
        assert_eq!(lent(512 * 10 - 1, 10), 0);
        let (mut account, mut loan) = (account(Some(1_000_000)), Loan::default());
        account.lend(&mut loan);
        assert_eq!(loan.left().units(), 125_000, "no call was seen yet");
        account.place(ask(2, 1_000_000 / 512 + 1));
        account.lend(&mut loan);
        assert_eq!(loan.left(), Money::ZERO, "a call under way tells how large calls are");
        account.release(HoldId(2));
        account.place(ask(1, 100));
        account.lend(&mut loan);
        assert_eq!(loan.left().units(), (1_000_000 - 100) / 8);
    }

    #[test]
    fn what_is_lent_is_nobody_elses_and_comes_back_to_the_unit() {
        let (mut account, mut loan) = (known(Some(80_000), 100), Loan::default());
        account.lend(&mut loan);
        assert_eq!((loan.left(), account.remaining()), (money(10_000), Some(money(70_000))));
        assert!(loan.hold(&ask(1, 100), Wall(0)) && loan.hold(&ask(2, 100), Wall(0)));
        assert!(!loan.hold(&ask(2, 100), Wall(0)), "never twice");
        assert!(!loan.settle(HoldId(1), money(101), Wall(0)), "more than was held is the account's to judge");
        assert!(loan.settle(HoldId(1), money(30), Wall(0)) && !loan.settle(HoldId(1), money(30), Wall(0)));
        account.book(&mut loan);
        assert_eq!((account.snapshot().spent, account.remaining()), (money(30), Some(money(70_000))));
        account.call_in(&mut loan);
        assert!(!loan.is_out());
        assert_eq!((account.snapshot().held, account.remaining()), (money(100), Some(money(80_000 - 30 - 100))));
        account.settle(HoldId(2), money(100)).expect("taken over");
        assert_eq!((account.snapshot().spent, account.audit()), (money(130), Ok(())));
    }

    #[test]
    fn after_the_period_the_account_itself_settles() {
        let mut account =
            Account::restore(Terms { budget: Some(money(1_000_000)), period: BudgetPeriod::Day }, Standing::default());
        account.roll_period(Wall(0));
        account.place(ask(0, 10));
        account.settle(HoldId(0), Money::ZERO);
        let mut loan = Loan::default();
        account.lend(&mut loan);
        let midnight = account.resets_at().expect("a period");
        assert!(loan.hold(&ask(1, 10), Wall(midnight.0 - 1)));
        assert!(!loan.hold(&ask(2, 10), midnight) && !loan.settle(HoldId(1), money(5), midnight));
        account.call_in(&mut loan);
        account.roll_period(midnight);
        let settled = account.settle(HoldId(1), money(5)).expect("open");
        assert_eq!((settled.period_start, account.audit()), (midnight, Ok(())));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Hold(u64, i128),
        Settle(u64, i128),
        Release(u64),
        Meter(i128),
        Book,
        Lend,
        CallIn,
        Place(u64, i128),
        Credit(i128),
        Reload(i128),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (id, amount) = (0_u64..12, 0_i128..400);
        prop_oneof![
            4 => (id.clone(), amount.clone()).prop_map(|(id, upper)| Step::Hold(id, upper)),
            4 => (id.clone(), amount.clone()).prop_map(|(id, charge)| Step::Settle(id, charge)),
            1 => id.clone().prop_map(Step::Release),
            1 => amount.clone().prop_map(Step::Meter),
            2 => Just(Step::Book),
            2 => Just(Step::Lend),
            1 => Just(Step::CallIn),
            2 => (id, amount.clone()).prop_map(|(id, upper)| Step::Place(id, upper)),
            1 => amount.prop_map(Step::Credit),
            1 => (0_i128..200_000).prop_map(Step::Reload),
        ]
    }

    proptest! {
        /// The invariants of the account hold at every step, and everything charged is spent in the end: no more, no less.
        #[test]
        fn money_is_neither_made_nor_lost_by_lending(budget in 0_i128..200_000, steps in prop::collection::vec(step(), 1..80)) {
            let (mut account, mut loan, mut spent) = (account(Some(budget)), Loan::default(), 0_i128);
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    // Hold ids are never used twice, be it by the loan or by the account.
                    Step::Hold(id, upper) if account.held_by(HoldId(id)).is_none() => {
                        loan.hold(&ask(id, upper), Wall(0));
                    }
                    Step::Place(id, upper) if !loan.holds.contains_key(&HoldId(id)) => {
                        if account.place(ask(id, upper)) != Place::Held {
                            account.call_in(&mut loan);
                            let there = account.remaining().unwrap_or_default() >= money(upper);
                            let held = account.place(ask(id, upper)) == Place::Held;
                            prop_assert!(held || !there, "whoever is refused cannot be paid by anything that is there");
                        }
                    }
                    Step::Credit(amount) => {
                        account.credit(money(amount), &at.to_string());
                    }
                    // Settings that are read again, also of a tenant that was taken out with its loan and put back.
                    Step::Reload(budget) => {
                        account.call_in(&mut loan);
                        account.set_terms(Terms { budget: Some(money(budget)), period: BudgetPeriod::None });
                    }
                    Step::Hold(..) | Step::Place(..) => {}
                    Step::Settle(id, charge) => {
                        if loan.settle(HoldId(id), money(charge), Wall(0)) {
                            spent += charge;
                        } else {
                            account.adopt(&mut loan, HoldId(id));
                            let settled = account.settle(HoldId(id), money(charge));
                            spent += settled.map_or(0, |settled| settled.charged.units());
                        }
                    }
                    Step::Release(id) => {
                        if !loan.release(HoldId(id)) {
                            account.release(HoldId(id));
                        }
                    }
                    Step::Meter(charge) => spent += if loan.meter(money(charge), Wall(0)) { charge } else { 0 },
                    Step::Book => account.book(&mut loan),
                    Step::Lend => account.lend(&mut loan),
                    Step::CallIn => account.call_in(&mut loan),
                }
                prop_assert_eq!(account.audit(), Ok(()));
                let own = account.snapshot();
                let lent = loan.left().units() + loan.held().units() + loan.charged().units();
                let committed = own.spent.units() + own.held.units() + lent;
                let granted = own.budget.unwrap_or_default().units() + own.credits.units();
                // A budget below what was committed leaves nothing, and nothing is lent beyond it.
                prop_assert_eq!(committed + own.remaining.unwrap_or_default().units(), granted.max(committed));
                prop_assert!(loan.left() == Money::ZERO || committed <= granted);
            }
            account.call_in(&mut loan);
            prop_assert_eq!(account.snapshot().spent.units(), spent);
        }
    }
}
