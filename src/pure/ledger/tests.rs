//! Tables for every verb, and random histories against a model that keeps lists instead of running sums.

use super::*;
use proptest::prelude::*;

fn money(units: i128) -> Money {
    Money::from_units(units)
}

fn limited(budget: i128) -> Account {
    account(Some(budget), BudgetPeriod::None)
}

fn account(budget: Option<i128>, period: BudgetPeriod) -> Account {
    Account::restore(Terms { budget: budget.map(money), period }, Standing::default())
}

fn ask(id: u64, upper: i128, lower: i128) -> HoldAsk {
    let (now, expires_at) = (Mono::ZERO, Mono::from_millis(1_000));
    let (amount_upper, amount_likely, amount_lower) = (money(upper), money(upper), money(lower));
    HoldAsk { id: HoldId(id), amount_upper, amount_likely, amount_lower, now, expires_at }
}

/// An ask whose bounds are far apart.
fn vague(id: u64, upper: i128, likely: i128) -> HoldAsk {
    HoldAsk { amount_likely: money(likely), ..ask(id, upper, 1) }
}

fn at(text: &str) -> Wall {
    utc::parse_stamp(text).expect("stamp")
}

/// Asserts (remaining, held, spent) and the invariants.
#[track_caller]
fn check(account: &Account, remaining: i128, held: i128, spent: i128) {
    let snapshot = account.snapshot();
    assert_eq!(
        (snapshot.remaining, snapshot.held, snapshot.spent),
        (Some(money(remaining)), money(held), money(spent)),
        "remaining, held, spent"
    );
    assert_eq!(account.audit(), Ok(()));
}

#[test]
fn a_hold_is_placed_settled_and_the_rest_is_free_again() {
    let mut account = limited(100);
    assert_eq!(account.place(ask(1, 60, 10)), Place::Held);
    check(&account, 40, 60, 0);
    let settled = account.settle(HoldId(1), money(25)).expect("open");
    assert_eq!(
        (settled.charged, settled.freed, settled.overrun, settled.late),
        (money(25), money(35), money(0), false)
    );
    check(&account, 75, 0, 25);
}

#[test]
fn an_ask_waits_only_while_settlements_can_still_help() {
    let mut account = limited(100);
    assert_eq!(account.place(ask(1, 60, 20)), Place::Held);
    assert_eq!(account.place(ask(2, 41, 41)), Place::Wait, "fits if the first costs its least");
    assert_eq!(account.place(ask(3, 80, 80)), Place::Wait, "exactly");
    assert_eq!(account.place(ask(4, 81, 81)), Place::Refused);
    check(&account, 40, 60, 0);
    account.settle(HoldId(1), money(59)).expect("open");
    assert_eq!(account.place(ask(2, 41, 41)), Place::Held);
    check(&account, 0, 41, 59);
    assert!(account.is_exhausted(), "all that is held will be charged");
}

#[test]
fn exact_holds_of_a_budget_for_a_hundred_calls_grant_a_hundred() {
    let mut account = limited(100 * 7);
    let answers: Vec<Place> = (0..200).map(|id| account.place(ask(id, 7, 7))).collect();
    assert_eq!(answers.iter().filter(|place| **place == Place::Held).count(), 100);
    assert_eq!(answers.iter().filter(|place| **place == Place::Refused).count(), 100);
    for id in 0..100 {
        account.settle(HoldId(id), money(7)).expect("open");
    }
    check(&account, 0, 0, 700);
}

/// Lets `asks` equal asks come at once, serves the oldest as often as anything settles, and returns how many were held.
fn serve_all(account: &mut Account, asks: u64, upper: i128, likely: i128, cost: i128) -> u64 {
    let mut waiting: VecDeque<HoldAsk> = (1..=asks).map(|id| vague(id, upper, likely)).collect();
    let (mut open, mut served) = (VecDeque::new(), 0);
    while let Some(front) = waiting.pop_front() {
        match account.place(front) {
            Place::Held => {
                open.push_back(front.id);
                served += 1;
            }
            Place::Wait => {
                waiting.push_front(front);
                let id = open.pop_front().expect("only open holds are waited for");
                account.settle(id, money(cost)).expect("open");
            }
            Place::Refused => {}
        }
        assert_eq!(account.audit(), Ok(()));
    }
    for id in open {
        account.settle(id, money(cost)).expect("open");
    }
    served
}

#[test]
fn holds_of_many_times_the_cost_still_grant_a_hundred() {
    for (upper, likely) in [(7, 7), (20, 7), (300, 7), (300, 60), (5_000, 1), (5_000, 700)] {
        let mut account = limited(700);
        assert_eq!(serve_all(&mut account, 200, upper, likely, 7), 100, "upper {upper}, likely {likely}");
        check(&account, 0, 0, 700);
        assert_eq!(account.snapshot().written_off, money(0));
    }
}

#[test]
fn the_last_call_takes_what_is_left_only_if_nothing_else_is_under_way_and_it_will_probably_do() {
    let mut account = limited(100);
    assert_eq!(account.place(vague(1, 400, 101)), Place::Refused, "will probably not do");
    assert_eq!(account.place(vague(2, 400, 100)), Place::Held);
    assert_eq!(account.held_by(HoldId(2)), Some(money(100)));
    check(&account, 0, 100, 0);
    assert!(!account.is_exhausted(), "the hold may leave something");
    assert_eq!(account.place(vague(3, 400, 10)), Place::Wait);
    account.settle(HoldId(2), money(40)).expect("open");
    assert_eq!(account.place(vague(4, 601, 61)), Place::Refused, "a tenth of 601 is more than 60");
    assert_eq!(account.place(vague(5, 600, 61)), Place::Held, "by what calls cost so far");
    let settled = account.settle(HoldId(5), money(90)).expect("open");
    assert_eq!((settled.charged, settled.shortfall), (money(60), money(30)));
    check(&account, 0, 0, 100);
    assert_eq!(account.place(vague(6, 1, 1)), Place::Refused);
}

#[test]
fn an_overrun_takes_what_is_available_and_the_rest_is_written_off() {
    let mut account = limited(100);
    account.place(ask(1, 10, 10));
    account.place(ask(2, 50, 50));
    let settled = account.settle(HoldId(1), money(75)).expect("open");
    assert_eq!((settled.charged, settled.overrun, settled.shortfall), (money(50), money(65), money(25)));
    check(&account, 0, 50, 50);
    assert_eq!(account.snapshot().written_off, money(25));
    account.settle(HoldId(2), money(50)).expect("the other hold was not touched");
    check(&account, 0, 0, 100);
}

#[test]
fn facts_that_come_twice_change_nothing() {
    let mut account = limited(100);
    assert_eq!(account.place(ask(1, 30, 0)), Place::Held);
    assert_eq!(account.place(ask(1, 30, 0)), Place::Held);
    check(&account, 70, 30, 0);
    assert!(account.settle(HoldId(1), money(30)).is_some());
    assert_eq!(account.settle(HoldId(1), money(30)), None);
    assert_eq!(account.release(HoldId(1)), None);
    check(&account, 70, 0, 30);
    account.place(ask(2, 30, 0));
    assert_eq!(account.release(HoldId(2)), Some(money(30)));
    assert_eq!(account.release(HoldId(2)), None);
    assert_eq!(account.settle(HoldId(2), money(30)), None);
    check(&account, 70, 0, 30);
}

#[test]
fn a_lapsed_hold_is_told_once_and_a_late_charge_is_still_taken_once() {
    let mut account = limited(100);
    account.place(ask(1, 60, 60));
    assert_eq!(account.expire(Mono::from_millis(999)), []);
    assert_eq!(account.expire(Mono::from_millis(1_000)), [HoldId(1)]);
    assert_eq!(account.expire(Mono::from_millis(1_000)), []);
    check(&account, 100, 0, 0);
    let settled = account.settle(HoldId(1), money(40)).expect("remembered");
    assert_eq!((settled.charged, settled.overrun, settled.late), (money(40), money(40), true));
    assert_eq!(account.settle(HoldId(1), money(40)), None);
    check(&account, 60, 0, 40);
}

#[test]
fn an_ask_finds_the_money_of_overdue_holds_without_a_tick() {
    let mut account = limited(100);
    account.place(ask(1, 60, 60));
    let late = HoldAsk { now: Mono::from_millis(1_000), expires_at: Mono::from_millis(2_000), ..ask(2, 100, 100) };
    assert_eq!(account.place(late), Place::Held);
    check(&account, 0, 100, 0);
    assert_eq!(account.expire(Mono::from_millis(1_000)), [HoldId(1)], "told although it lapsed earlier");
}

#[test]
fn no_quantity_below_zero_pays_money_back() {
    let mut account = limited(100);
    assert_eq!(account.place(ask(1, -50, -60)), Place::Held);
    check(&account, 100, 0, 0);
    assert_eq!(account.settle(HoldId(1), money(-50)).expect("open").charged, money(0));
    check(&account, 100, 0, 0);
    assert_eq!(account.credit(money(-1), "k"), CreditOutcome::Refused);
    assert_eq!(account.credit(money(0), "k"), CreditOutcome::Refused);
    check(&account, 100, 0, 0);
    check(&limited(-5), 0, 0, 0);
}

#[test]
fn absurd_amounts_overflow_nothing() {
    let mut account = account(None, BudgetPeriod::None);
    assert_eq!(account.place(ask(1, i128::MAX, 0)), Place::Held);
    assert_eq!(account.place(ask(2, 1, 0)), Place::Wait);
    let settled = account.settle(HoldId(1), money(i128::MAX)).expect("open");
    assert_eq!(settled.charged, money(i128::MAX));
    assert_eq!(account.audit(), Ok(()));
    assert_eq!(account.place(ask(3, 1, 0)), Place::Refused);
    assert_eq!(account.credit(money(i128::MAX), "a"), CreditOutcome::Applied);
    assert_eq!(account.credit(money(1), "b"), CreditOutcome::Refused);
}

#[test]
fn an_unlimited_tenant_is_metered() {
    let mut account = account(None, BudgetPeriod::None);
    account.place(ask(1, 60, 60));
    account.settle(HoldId(1), money(70)).expect("open");
    let snapshot = account.snapshot();
    assert_eq!((snapshot.budget, snapshot.remaining, snapshot.spent), (None, None, money(70)));
    assert!(!account.is_exhausted());
}

#[test]
fn a_credit_counts_once_per_key() {
    let mut account = limited(10);
    assert_eq!(account.credit(money(5), "one"), CreditOutcome::Applied);
    assert_eq!(account.credit(money(5), "one"), CreditOutcome::Repeated);
    assert_eq!(account.credit(money(6), "one"), CreditOutcome::Conflict);
    assert_eq!(account.credit(money(5), "two"), CreditOutcome::Applied);
    check(&account, 20, 0, 0);
    let restored = Account::restore(account.terms, account.standing().clone());
    let mut restored = restored;
    assert_eq!(restored.credit(money(5), "one"), CreditOutcome::Repeated, "over a restart too");
}

#[test]
fn a_period_refills_at_its_first_instant_and_never_twice() {
    let mut account = account(Some(100), BudgetPeriod::Day);
    assert!(account.roll_period(at("2026-11-30T10:00:00Z")).is_some(), "its first");
    account.place(ask(1, 100, 100));
    account.settle(HoldId(1), money(100)).expect("open");
    assert_eq!(account.roll_period(at("2026-11-30T23:59:59.999Z")), None);
    check(&account, 0, 0, 100);
    assert_eq!(account.resets_at(), Some(at("2026-12-01T00:00:00Z")));
    let rolled = account.roll_period(at("2026-12-01T00:00:00.000Z")).expect("a new day");
    assert_eq!((rolled.start, rolled.budget_before), (at("2026-12-01T00:00:00Z"), Some(money(100))));
    check(&account, 100, 0, 0);
    account.place(ask(2, 30, 30));
    account.settle(HoldId(2), money(30)).expect("open");
    assert_eq!(account.roll_period(at("2026-11-30T23:59:00Z")), None, "a clock that steps back");
    assert_eq!(account.roll_period(at("2026-12-01T00:00:00.001Z")), None);
    check(&account, 70, 0, 30);
    let mut restored = Account::restore(account.terms, account.standing().clone());
    assert_eq!(restored.roll_period(at("2026-12-01T12:00:00Z")), None, "a restart repeats no start");
    check(&restored, 70, 0, 30);
    assert!(restored.roll_period(at("2026-12-09T12:00:00Z")).is_some(), "nor loses one");
    check(&restored, 100, 0, 0);
}

#[test]
fn a_hold_over_the_edge_is_charged_to_the_period_it_settles_in() {
    let mut account = account(Some(100), BudgetPeriod::Month);
    account.roll_period(at("2026-11-30T23:59:00Z"));
    account.place(ask(1, 40, 40));
    account.roll_period(at("2026-12-01T00:00:00Z")).expect("rolled");
    check(&account, 60, 40, 0);
    let settled = account.settle(HoldId(1), money(40)).expect("open");
    assert_eq!(settled.period_start, at("2026-12-01T00:00:00Z"));
    check(&account, 60, 0, 40);
}

#[test]
fn the_budget_is_spent_before_credits_and_what_is_left_of_them_stays() {
    let mut account = account(Some(100), BudgetPeriod::Day);
    account.roll_period(at("2026-11-30T10:00:00Z"));
    account.credit(money(50), "top-up");
    account.place(ask(1, 120, 0));
    account.settle(HoldId(1), money(120)).expect("open");
    check(&account, 30, 0, 120);
    account.roll_period(at("2026-12-01T00:00:00Z"));
    check(&account, 130, 0, 0);
    account.roll_period(at("2026-12-02T00:00:00Z"));
    check(&account, 130, 0, 0);
}

#[test]
fn a_lowered_budget_leaves_nothing_but_honours_what_is_held() {
    let mut account = limited(100);
    account.place(ask(1, 40, 40));
    account.place(ask(2, 30, 30));
    account.settle(HoldId(2), money(30)).expect("open");
    account.set_terms(Terms { budget: Some(money(50)), period: BudgetPeriod::None });
    check(&account, 0, 40, 30);
    assert_eq!(account.place(ask(3, 1, 1)), Place::Refused);
    assert_eq!(account.settle(HoldId(1), money(40)).expect("open").shortfall, money(0));
    check(&account, 0, 0, 70);
    account.set_terms(Terms { budget: Some(money(90)), period: BudgetPeriod::None });
    check(&account, 20, 0, 70);
}

#[derive(Debug, Clone)]
enum Op {
    Place { upper: i128, likely: i128, lower: i128, life: u64 },
    Settle { nth: usize, charge: i128 },
    Release { nth: usize },
    Expire,
    Credit { amount: i128, key: u8 },
    Roll,
    Budget { budget: Option<i128> },
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (-5..60_i128, -5..60_i128, -5..60_i128, 0..6_u64)
            .prop_map(|(upper, likely, lower, life)| Op::Place { upper, likely, lower, life }),
        4 => (0..12_usize, -5..90_i128).prop_map(|(nth, charge)| Op::Settle { nth, charge }),
        1 => (0..12_usize).prop_map(|nth| Op::Release { nth }),
        1 => Just(Op::Expire),
        1 => (-5..40_i128, 0..4_u8).prop_map(|(amount, key)| Op::Credit { amount, key }),
        1 => Just(Op::Roll),
        1 => prop::option::of(0..200_i128).prop_map(|budget| Op::Budget { budget }),
    ]
}

/// The same rules told the long way: lists of facts, every figure summed anew.
#[derive(Default)]
struct Model {
    budget: Option<i128>,
    credits: i128,
    keys: BTreeMap<u8, i128>,
    /// Id, held, least, end, asked.
    holds: Vec<(u64, i128, i128, u64, i128)>,
    settlements: Vec<(i128, i128)>,
    lapsed: Vec<u64>,
    charges: Vec<i128>,
    written_off: i128,
}

impl Model {
    fn spent(&self) -> i128 {
        self.charges.iter().sum()
    }

    fn free(&self, per_hold: impl Fn(&(u64, i128, i128, u64, i128)) -> i128) -> i128 {
        let Some(budget) = self.budget else { return i128::MAX / 2 };
        (budget + self.credits - self.spent() - self.holds.iter().map(per_hold).sum::<i128>()).max(0)
    }

    fn lapse(&mut self, now: u64) {
        let over: Vec<u64> = self.holds.iter().filter(|hold| hold.3 <= now).map(|hold| hold.0).collect();
        self.holds.retain(|hold| hold.3 > now);
        self.lapsed.extend(over);
    }

    fn place(&mut self, id: u64, (upper, likely, lower): (i128, i128, i128), now: u64, life: u64) -> Place {
        let upper = upper.max(0);
        let lower = lower.max(0).min(upper);
        let likely = likely.max(lower).min(upper);
        if self.free(|hold| hold.1) < upper {
            self.lapse(now);
        }
        let free = self.free(|hold| hold.1);
        let others_hold = self.holds.iter().any(|hold| hold.1 > 0);
        let newest = &self.settlements[self.settlements.len().saturating_sub(SETTLEMENTS_KEPT)..];
        let as_before = || !newest.is_empty() && newest.iter().all(|(asked, cost)| upper * cost <= free * asked);
        if free >= upper {
            self.holds.push((id, upper, lower, now + life, upper));
            Place::Held
        } else if others_hold {
            if self.free(|hold| hold.2) >= lower.max(1) { Place::Wait } else { Place::Refused }
        } else if free >= lower.max(1) && (free >= likely || as_before()) {
            self.holds.push((id, free, lower, now + life, upper));
            Place::Held
        } else {
            Place::Refused
        }
    }

    fn settle(&mut self, id: u64, charge: i128) -> Option<(i128, i128)> {
        let charge = charge.max(0);
        let held = if let Some(at) = self.holds.iter().position(|hold| hold.0 == id) {
            let (_, held, _, _, asked) = self.holds.remove(at);
            if asked > 0 {
                self.settlements.push((asked, charge));
            }
            held
        } else {
            let at = self.lapsed.iter().position(|lapsed| *lapsed == id)?;
            self.lapsed.remove(at);
            0
        };
        let within = charge.min(held);
        self.charges.push(within);
        let covered = (charge - within).min(self.free(|hold| hold.1));
        self.charges.push(covered);
        self.written_off += charge - within - covered;
        Some((within + covered, charge - within - covered))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_history_agrees_with_the_long_way_and_keeps_the_invariants(
        budget in prop::option::of(0..200_i128),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let day = |n: i64| Wall(n * utc::DAY_MS);
        let mut account = account(budget, BudgetPeriod::Day);
        account.roll_period(day(1));
        let mut model = Model { budget, ..Model::default() };
        let (mut next_id, mut today) = (0_u64, 1_i64);
        for (now, op) in (0_u64..).zip(ops) {
            let spent_before = account.snapshot().spent;
            match op {
                Op::Place { upper, likely, lower, life } => {
                    next_id += 1;
                    let (now_at, expires_at) = (Mono(now), Mono(now + life));
                    let amount_likely = money(likely);
                    let ask = HoldAsk { amount_likely, now: now_at, expires_at, ..ask(next_id, upper, lower) };
                    let expected = model.place(next_id, (upper, likely, lower), now, life);
                    prop_assert_eq!(account.place(ask), expected);
                }
                Op::Settle { nth, charge } => {
                    let id = next_id.saturating_sub(nth as u64);
                    let settled = account.settle(HoldId(id), money(charge));
                    let pair = settled.map(|settled| (settled.charged.units(), settled.shortfall.units()));
                    prop_assert_eq!(pair, model.settle(id, charge));
                    if let Some(settled) = settled {
                        let grown = account.snapshot().spent.checked_sub(spent_before);
                        prop_assert_eq!(grown, Some(settled.charged), "I4");
                        let whole = settled.charged.checked_add(settled.shortfall);
                        prop_assert_eq!(whole, Some(money(charge.max(0))), "I5");
                    }
                }
                Op::Release { nth } => {
                    let id = next_id.saturating_sub(nth as u64);
                    let open = model.holds.iter().position(|hold| hold.0 == id);
                    let freed = open.map(|at| money(model.holds.remove(at).1));
                    model.lapsed.retain(|lapsed| *lapsed != id);
                    prop_assert_eq!(account.release(HoldId(id)), freed);
                }
                Op::Expire => {
                    account.expire(Mono(now));
                    model.lapse(now);
                }
                Op::Credit { amount, key } => {
                    let outcome = account.credit(money(amount), &key.to_string());
                    if amount > 0 && !model.keys.contains_key(&key) {
                        model.keys.insert(key, amount);
                        model.credits += amount;
                        prop_assert_eq!(outcome, CreditOutcome::Applied);
                    } else {
                        prop_assert_ne!(outcome, CreditOutcome::Applied);
                    }
                }
                Op::Roll => {
                    today += 1;
                    prop_assert!(account.roll_period(day(today)).is_some());
                    let beyond = model.budget.map_or(0, |budget| (model.spent() - budget).max(0));
                    model.credits = (model.credits - beyond).max(0);
                    model.charges.clear();
                    model.written_off = 0;
                }
                Op::Budget { budget } => {
                    model.budget = budget;
                    account.set_terms(Terms { budget: budget.map(money), period: BudgetPeriod::Day });
                }
            }
            prop_assert_eq!(account.audit(), Ok(()));
            let snapshot = account.snapshot();
            prop_assert_eq!(snapshot.spent.units(), model.spent());
            prop_assert_eq!(snapshot.written_off.units(), model.written_off);
            prop_assert_eq!(snapshot.held.units(), model.holds.iter().map(|hold| hold.1).sum::<i128>());
            prop_assert_eq!(snapshot.credits.units(), model.credits);
            let remaining = model.budget.map(|_| model.free(|hold| hold.1));
            prop_assert_eq!(snapshot.remaining.map(Money::units), remaining);
        }
    }
}
