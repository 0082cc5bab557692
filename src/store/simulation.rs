//! Crashes at every step between hold, call, settlement and record, replayable by seed.
//!
//! The gateway's part of the work is modelled in the order in which it happens: the account or its loan holds, the hold is
//! recorded, the provider bills, the hold is settled where it is, the usage record is written, the answer leaves. Loans lie
//! idle, are called in when the balance runs out, at a period's end and by a reload, and are still out when the process dies.
//! After each crash the world is rebuilt from the journal alone and compared with what provider and clients saw.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::book::{Book, Page};
use super::disk::Disk;
use super::record::{CreditRecord, PeriodRecord, Record, ReleaseReason, ReleaseRecord};
use super::testing::{MemoryDisk, TENANT, at, hold, usage};
use super::writer::{Limits, Writer};
use crate::ids::HoldId;
use crate::pure::budget_period::BudgetPeriod;
use crate::pure::ledger::{Account, HoldAsk, Loan, Place, Settled, Standing, Terms};
use crate::pure::money::Money;
use crate::pure::time::{Mono, Wall};
use crate::pure::utc;

/// Budgets of which nothing is ever lent, of which something is lent until a few calls were made, and for long.
const BUDGETS: [i128; 3] = [100, 3_000, 21_000];

fn budget_of(seed: u64) -> i128 {
    BUDGETS[usize::try_from(seed % 3).expect("small")]
}

fn terms_of(seed: u64) -> Terms {
    Terms { budget: Some(Money::from_units(budget_of(seed))), period: BudgetPeriod::Day }
}

/// Where one request stands; each step is a moment at which the process may die.
#[derive(Debug, Clone, Copy)]
enum Step {
    Held,
    HoldRecorded,
    Billed { bill: i128 },
    Settled { settled: Settled },
    Recorded { cost: i128 },
}

/// Where records go: a list, for speed, or a journal on a disk that may tear.
trait Sink {
    /// Whether the record is kept; `false`: the process dies here.
    fn write(&mut self, record: &Record) -> bool;
    /// The book as a new process finds it, and how many holds it had to release.
    fn restart(&mut self) -> (Book, usize);
    /// Every record kept, in order.
    fn records(&self) -> Cow<'_, [Record]>;
}

struct List(Vec<Record>);

impl Sink for List {
    fn write(&mut self, record: &Record) -> bool {
        self.0.push(record.clone());
        true
    }

    fn restart(&mut self) -> (Book, usize) {
        let mut book = Book::default();
        self.0.iter().for_each(|record| book.apply(record));
        let open: Vec<Record> = book.open_holds().map(|open| release(open.hold, ReleaseReason::Crash)).collect();
        open.iter().for_each(|record| book.apply(record));
        self.0.extend(open.iter().cloned());
        (book, open.len())
    }

    fn records(&self) -> Cow<'_, [Record]> {
        Cow::Borrowed(&self.0)
    }
}

struct Disked {
    disk: MemoryDisk,
    writer: Writer,
}

const SMALL: Limits = Limits { segment_bytes: 3_000, backlog_bytes: 1 << 20 };

impl Sink for Disked {
    fn write(&mut self, record: &Record) -> bool {
        self.writer.append_all(std::slice::from_ref(record)).is_ok()
    }

    fn restart(&mut self) -> (Book, usize) {
        self.disk = self.disk.after_reboot();
        let (writer, recovery) = Writer::open(Arc::new(self.disk.clone()), SMALL, at(0)).expect("recovers");
        self.writer = writer;
        (recovery.book, recovery.released.len())
    }

    fn records(&self) -> Cow<'_, [Record]> {
        let mut records = Vec::new();
        for segment in self.disk.segments().expect("listed") {
            let text = self.disk.bytes(segment);
            let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            records.extend(lines.map(|line| Record::from_json(&line[9..]).expect("sound")));
        }
        Cow::Owned(records)
    }
}

fn release(hold: HoldId, reason: ReleaseReason) -> Record {
    Record::Release(ReleaseRecord { time: at(0), hold, tenant: TENANT.into(), reason })
}

/// What the world outside saw, over all processes.
#[derive(Default)]
struct World {
    /// Cost of each answer that a client received.
    answered: BTreeMap<u64, i128>,
    /// What the provider billed for each call, crashed ones included.
    billed: BTreeMap<u64, i128>,
    next_id: u64,
    today: i64,
    /// Calls that were held and settled out of a loan.
    on_loan: u64,
    /// Asks that were held only because the loan was called in.
    recalled: u64,
}

/// One process from its start to its crash.
struct Process<'a, S: Sink> {
    sink: &'a mut S,
    world: &'a mut World,
    account: Account,
    loan: Loan,
    open: BTreeMap<u64, Step>,
    rng: &'a mut SmallRng,
}

impl<S: Sink> Process<'_, S> {
    /// Does one random thing; `false` when it was the last.
    fn act(&mut self) -> bool {
        let alive = match self.rng.random_range(0..21) {
            0 => self.event(Self::credit),
            1 => self.next_day(),
            2 => self.event(Self::give_up),
            3..7 => self.ask(),
            7 => self.event(Self::reload),
            _ => self.advance(),
        };
        self.check();
        alive
    }

    /// Asserts that no money is made or lost, wherever it lies.
    fn check(&self) {
        assert_eq!(self.account.audit(), Ok(()));
        let own = self.account.snapshot();
        let granted = own.budget.expect("limited").units() + own.credits.units();
        let parts = [own.spent, own.held, own.remaining.expect("limited")].map(Money::units);
        let lent = [self.loan.left(), self.loan.held(), self.loan.charged()].map(Money::units);
        assert_eq!(parts.iter().chain(&lent).sum::<i128>(), granted);
    }

    /// What the account's owner does before and after each event.
    fn event<R>(&mut self, event: impl FnOnce(&mut Self) -> R) -> R {
        self.account.book(&mut self.loan);
        let result = event(self);
        self.account.lend(&mut self.loan);
        result
    }

    fn ask(&mut self) -> bool {
        self.world.next_id += 1;
        let id = self.world.next_id;
        let upper = if self.rng.random_bool(0.05) { 22_000 } else { 40 };
        let upper = self.rng.random_range(0..upper);
        let (amount_upper, amount_lower) = (Money::from_units(upper), Money::ZERO);
        let amount_likely = Money::from_units(self.rng.random_range(0..=upper));
        let ask =
            HoldAsk { id: HoldId(id), amount_upper, amount_likely, amount_lower, now: Mono::ZERO, expires_at: Mono(1) };
        if !self.loan.hold(&ask, self.wall()) {
            if !self.roll() {
                return false;
            }
            if !self.event(|this| this.place(ask)) {
                return true;
            }
        }
        self.open.insert(id, Step::Held);
        true
    }

    fn wall(&self) -> Wall {
        Wall(self.world.today * utc::DAY_MS + 1)
    }

    fn place(&mut self, ask: HoldAsk) -> bool {
        let short = self.account.remaining() < Some(ask.amount_upper);
        let lends = self.loan.is_out();
        if short {
            self.account.call_in(&mut self.loan);
        }
        let held = self.account.place(ask) == Place::Held;
        self.world.recalled += u64::from(held && short && lends);
        assert!(held || self.account.remaining() < Some(ask.amount_upper), "nobody is refused what is there");
        held
    }

    /// Settles a call where its hold is; `None` if the process dies before.
    fn settle(&mut self, id: HoldId, bill: Money) -> Option<Settled> {
        if self.loan.settle(id, bill, self.wall()) {
            self.world.on_loan += 1;
            let (freed, nothing) = (Money::ZERO, Money::ZERO);
            let period_start = self.loan.period_start();
            return Some(Settled {
                charged: bill,
                freed,
                overrun: nothing,
                shortfall: nothing,
                late: false,
                period_start,
            });
        }
        if !self.roll() {
            return None;
        }
        let settled = self.event(|this| {
            this.account.adopt(&mut this.loan, id);
            let held = this.account.held_by(id).unwrap_or_default();
            if this.account.remaining().is_some_and(|left| bill.units() - held.units() > left.units()) {
                this.account.call_in(&mut this.loan);
            }
            this.account.settle(id, bill)
        });
        Some(settled.expect("open"))
    }

    /// The tenant's settings are read again, or it is taken out and put back.
    fn reload(&mut self) -> bool {
        self.account.call_in(&mut self.loan);
        let (budget, period) = (self.account.snapshot().budget, BudgetPeriod::Day);
        self.account.set_terms(Terms { budget, period });
        true
    }

    fn advance(&mut self) -> bool {
        let Some((&id, &step)) = self.open.iter().nth(self.rng.random_range(0..self.open.len().max(1))) else {
            return true;
        };
        let next = match step {
            Step::Held => {
                if !self.sink.write(&hold(id, 0)) {
                    return false;
                }
                Step::HoldRecorded
            }
            Step::HoldRecorded => {
                let bill = if self.rng.random_bool(0.1) { 3_000 } else { 50 };
                let bill = self.rng.random_range(0..bill);
                self.world.billed.insert(id, bill);
                Step::Billed { bill }
            }
            Step::Billed { bill } => {
                let Some(settled) = self.settle(HoldId(id), Money::from_units(bill)) else { return false };
                Step::Settled { settled }
            }
            Step::Settled { settled } => {
                let mut record = usage(id, settled.charged.units());
                record.shortfall = settled.shortfall;
                record.period_start = settled.period_start;
                if !self.sink.write(&Record::Usage(Box::new(record))) {
                    return false;
                }
                Step::Recorded { cost: settled.charged.units() }
            }
            Step::Recorded { cost } => {
                self.world.answered.insert(id, cost);
                self.open.remove(&id);
                return true;
            }
        };
        self.open.insert(id, next);
        true
    }

    fn give_up(&mut self) -> bool {
        let Some((&id, Step::HoldRecorded)) = self.open.iter().next() else { return true };
        self.open.remove(&id);
        if !self.loan.release(HoldId(id)) {
            self.account.release(HoldId(id));
        }
        self.sink.write(&release(HoldId(id), ReleaseReason::Unused))
    }

    fn credit(&mut self) -> bool {
        let amount = self.rng.random_range(1..20_i128);
        let key = format!("c{}", self.world.next_id);
        self.world.next_id += 1;
        self.account.credit(Money::from_units(amount), &key);
        let (amount, tenant) = (Money::from_units(amount), TENANT.into());
        self.sink.write(&Record::Credit(CreditRecord { time: at(0), tenant, amount, idempotency_key: key }))
    }

    /// A record may be written after its period ended, but not a whole period late: that is the book's one assumption.
    fn next_day(&mut self) -> bool {
        let current = self.account.standing().period_start;
        let lags = |step: &Step| matches!(step, Step::Settled { settled } if settled.period_start < current);
        if self.open.values().any(lags) {
            return true;
        }
        self.world.today += 1;
        // The owner may not have looked at the clock yet when the next ask comes to the loan.
        self.rng.random_bool(0.5) || self.event(Self::roll)
    }

    fn roll(&mut self) -> bool {
        let now = self.wall();
        if self.account.resets_at().is_some_and(|at| at <= now) {
            self.account.call_in(&mut self.loan);
        }
        let Some(rolled) = self.account.roll_period(now) else { return true };
        self.sink.write(&Record::PeriodStart(PeriodRecord {
            time: at(0),
            tenant: TENANT.into(),
            start: rolled.start,
            budget_before: rolled.budget_before,
        }))
    }
}

/// What the records say, worked out period by period instead of line by line.
#[derive(Debug, Default)]
struct Audit {
    /// Cost by hold.
    costs: BTreeMap<u64, i128>,
    spent_by_period: BTreeMap<i64, i128>,
    credits: i128,
}

impl Audit {
    fn of(records: &[Record], seed: u64) -> Audit {
        let mut audit = Audit::default();
        for record in records {
            if let Record::Usage(usage) = record {
                let id = usage.hold.expect("a hold").0;
                let cost = usage.cost.units();
                assert_eq!(audit.costs.insert(id, cost), None, "seed {seed}: {id} is listed twice");
                *audit.spent_by_period.entry(usage.period_start.0).or_default() += cost;
            }
        }
        let mut period = 0;
        for record in records {
            match record {
                Record::Credit(credit) => audit.credits += credit.amount.units(),
                Record::PeriodStart(next) => {
                    audit.credits -= (audit.spent(period) - budget_of(seed)).max(0);
                    period = next.start.0;
                }
                _ => {}
            }
        }
        audit
    }

    fn spent(&self, period: i64) -> i128 {
        self.spent_by_period.get(&period).copied().unwrap_or(0)
    }
}

/// Asserts that what a new process finds is right by what the world outside saw and by what the records say.
#[track_caller]
fn check_world(page: &Page, world: &World, audit: &Audit, seed: u64) {
    let account = Account::restore(terms_of(seed), page.standing());
    assert_eq!(account.audit(), Ok(()), "seed {seed}");
    for (id, cost) in &world.answered {
        assert_eq!(audit.costs.get(id), Some(cost), "seed {seed}: answer {id} is in the ledger, once");
    }
    for (id, cost) in &audit.costs {
        assert!(cost <= world.billed.get(id).expect("called"), "seed {seed}: {id} paid more than was billed");
    }
    assert!(page.holds.is_empty(), "seed {seed}: no hold survives a restart");
    // Conservation: what was ever granted is spent in its period, still there, or was left of a budget at its end.
    let got = (page.spent.units(), page.credits.units(), page.lifetime_cost.units());
    let expected = (audit.spent(page.period_start.0), audit.credits, audit.costs.values().sum::<i128>());
    assert_eq!(got, expected, "seed {seed}: spent, credits, lifetime");
    assert!(
        audit.credits >= 0 && page.spent.units() <= budget_of(seed) + audit.credits,
        "seed {seed}: never below zero"
    );
}

/// Runs a few processes that crash one after another, and checks after each; what the world has seen of it.
fn run<S: Sink>(seed: u64, sink: &mut S, mut before_process: impl FnMut(&mut S, &mut SmallRng)) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut world = World { today: 1, ..World::default() };
    let mut standing = Standing::default();
    for _ in 0..rng.random_range(1..4) {
        before_process(sink, &mut rng);
        let steps = rng.random_range(1..40);
        let account = Account::restore(terms_of(seed), standing);
        let (loan, open) = (Loan::default(), BTreeMap::new());
        let mut process = Process { sink: &mut *sink, world: &mut world, account, loan, open, rng: &mut rng };
        let mut alive = process.roll();
        for _ in 0..steps {
            alive = alive && process.act();
        }
        let unseen = |step: &&Step| !matches!(step, Step::Held | Step::Recorded { .. });
        let unseen = process.open.values().filter(unseen).count();
        let idle = alive && process.open.is_empty();
        process.account.call_in(&mut process.loan);
        let before = process.account.standing().clone();
        let (book, released) = sink.restart();
        assert!(!alive || released == unseen, "seed {seed}: released are those whose result was not seen");
        let page = book.tenants.get(&TENANT.into()).map(Cow::into_owned).unwrap_or_default();
        check_world(&page, &world, &Audit::of(&sink.records(), seed), seed);
        standing = page.standing();
        assert!(!idle || standing == before, "seed {seed}: a process that left nothing open loses nothing");
    }
    world
}

#[test]
fn a_hundred_thousand_crashing_histories_conserve_money() {
    let (mut on_loan, mut recalled) = (0, 0);
    for seed in 0..100_000 {
        let world = run(seed, &mut List(Vec::new()), |_, _| {});
        (on_loan, recalled) = (on_loan + world.on_loan, recalled + world.recalled);
    }
    assert!(on_loan > 10_000 && recalled > 0, "{on_loan} calls out of loans, {recalled} by calling one in");
}

#[test]
fn crashes_in_the_middle_of_a_write_conserve_money() {
    for seed in 0..1_500 {
        let disk = MemoryDisk::default();
        let (writer, _) = Writer::open(Arc::new(disk.clone()), SMALL, at(0)).expect("opens");
        let limit = |sink: &mut Disked, rng: &mut SmallRng| sink.disk.die_after(rng.random_range(0..9_000));
        run(seed, &mut Disked { disk, writer }, limit);
    }
}
