//! Where every journey ends: the holds are resolved, the record is written, and what is to be told of
//! the request is put together; it is told with the answer's head.
//!
//! The record of an answer that cost something is in the journal before the answer's head leaves. If it cannot be
//! written, the client gets no answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::ledger::{Metered, SettleHold};
use crate::clock;
use crate::config::plan::{BudgetPeriod, Durability, Model};
use crate::error::{ApiError, Code};
use crate::ids::UpstreamId;
use crate::pure::class::TrafficClass;
use crate::pure::ledger::{minus, plus};
use crate::pure::money::{Money, UnitPrice};
use crate::pure::time::{Mono, Wall};
use crate::room::Seat;
use crate::runtime::Shared;
use crate::store::record::{Outcome, Record, ReleaseReason, ReleaseRecord, UsageRecord};
use crate::store::redis::hold::SharedHold;
use crate::store::redis::quota::Taken;
use crate::telemetry::CacheResult;
use crate::telemetry::requests::{JourneyEnd, RequestEnd};
use crate::worker::Worker;

use super::classify::{Call, Context, Task};
use super::guards::Hold;
use super::plan::{Entry, client_gone};

/// What one part cost.
#[derive(Debug, Clone)]
pub struct Spent {
    /// Who answered it.
    pub upstream: UpstreamId,
    /// Tokens counted by the provider, or estimated.
    pub tokens: u64,
    /// Output tokens, counted or estimated; 0 where nothing is generated.
    pub output_tokens: u64,
    /// Searches billed, where that is the unit; else 0.
    pub searches: u64,
    /// Whether the provider named no usable number of the unit that it bills by.
    pub estimated: bool,
    /// Price of one search there if it bills by searches, else of one token.
    pub unit_price: UnitPrice,
    /// Price of one output token there.
    pub output_unit_price: UnitPrice,
    /// Units times price.
    pub cost: Money,
    /// Inputs in the part.
    pub items: usize,
}

/// Calls that were sent and not answered yet, with what each is expected to cost. A journey that is cut leaves them
/// here: the upstream will bill what it was sent.
#[derive(Debug, Clone, Default)]
pub struct UnderWay(Rc<RefCell<Vec<(u32, Spent)>>>);

impl UnderWay {
    /// A call is sent; returns its number.
    pub fn begin(&self, expected: Spent) -> u32 {
        let mut calls = self.0.borrow_mut();
        let number = calls.last().map_or(0, |(last, _)| last + 1);
        calls.push((number, expected));
        number
    }

    /// The call has ended, and what it cost is known elsewhere.
    pub fn end(&self, number: u32) {
        self.0.borrow_mut().retain(|(sent, _)| *sent != number);
    }
}

/// Everything a journey saw and spent so far; survives its failure.
#[derive(Default)]
pub struct Tally {
    /// Inputs answered without a call of this request.
    pub cached_items: usize,
    /// What the client is told about the cache; `None` when it was not asked before the journey ended.
    pub cache: Option<CacheResult>,
    /// Parts that were answered.
    pub spent: Vec<Spent>,
    /// Open holds.
    pub holds: Vec<Hold>,
    /// Open holds in the ledger that replicas share.
    pub shared_holds: Vec<SharedHold>,
    /// What was taken of the tenant's limits over all replicas.
    pub shared_limits: Vec<Taken>,
    /// Upstream calls made.
    pub attempts: u32,
    /// Calls whose end has not been seen.
    pub under_way: UnderWay,
    /// Room for the answer, if it is a large one.
    pub seat: Seat,
    /// From the request's first byte to the answer's head, where the head has left long before the journey ends.
    pub head_after: Option<Duration>,
    dwell: Duration,
    first_call: Option<Mono>,
    last_call: Option<Mono>,
}

impl Tally {
    /// Adds what a part saw.
    pub fn saw(&mut self, attempts: u32, dwell: Duration, calls: &[(Mono, Mono)]) {
        self.attempts += attempts;
        self.dwell = self.dwell.max(dwell);
        for (start, end) in calls {
            self.first_call = Some(self.first_call.map_or(*start, |first| first.min(*start)));
            self.last_call = Some(self.last_call.map_or(*end, |last| last.max(*end)));
        }
    }

    /// Books what the calls cost whose end nobody will see, as far as that can be told.
    pub fn book_under_way(&mut self) {
        let left = std::mem::take(&mut *self.under_way.0.borrow_mut());
        self.attempts += u32::try_from(left.len()).unwrap_or(u32::MAX);
        self.spent.extend(left.into_iter().map(|(_, expected)| expected));
    }

    /// From the first call's start to the last one's end.
    pub fn upstream_time(&self) -> Duration {
        self.first_call.zip(self.last_call).map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    fn cost(&self) -> Money {
        self.spent.iter().fold(Money::ZERO, |sum, part| sum.checked_add(part.cost).unwrap_or(sum))
    }

    fn tokens(&self) -> u64 {
        self.spent.iter().map(|part| part.tokens).sum()
    }

    fn output_tokens(&self) -> u64 {
        self.spent.iter().map(|part| part.output_tokens).sum()
    }

    /// Time in queues.
    pub fn dwell(&self) -> Duration {
        self.dwell
    }

    fn searches(&self) -> u64 {
        self.spent.iter().map(|part| part.searches).sum()
    }
}

/// A journey's end, for the edge to render.
pub struct Finished {
    /// What is still to be told of it.
    pub end: Untold,
    /// The call.
    pub call: Call,
    /// Its vectors or scores, or why there are none.
    pub result: Result<Vec<Entry>, ApiError>,
    /// What it cost.
    pub cost: Money,
    /// What the tenant has left after this settlement and all open holds; `None` without a budget.
    pub remaining: Option<Money>,
    /// Inputs answered from the cache.
    pub cached_items: usize,
    /// What the client is told about the cache.
    pub cache: CacheResult,
    /// Who answered the rest.
    pub upstream: Option<UpstreamId>,
    /// Upstream calls made.
    pub attempts: u32,
    /// Time in queues.
    pub dwell: Duration,
    /// Time at upstreams.
    pub upstream_time: Duration,
    /// Room for the answer, if it is a large one: kept until it is out.
    pub seat: Seat,
}

/// What the books must know of a request besides what it spent.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// What the edge knows of it.
    pub context: &'a Context,
    /// Its class.
    pub class: TrafficClass,
    /// The model asked for.
    pub model: &'a Model,
    /// Whether the answer consists of vectors, and so has a space.
    pub has_space: bool,
    /// What it is called in logs and traces.
    pub operation: &'static str,
    /// Inputs.
    pub items: usize,
}

impl Call {
    fn subject(&self) -> Subject<'_> {
        Subject {
            context: &self.context,
            class: self.class,
            model: &self.model.plan,
            has_space: matches!(self.task, Task::Embed(_)),
            operation: self.operation(),
            items: self.items.len(),
        }
    }
}

/// A request whose books are closed.
pub struct Closed {
    /// What is still to be told of it.
    pub end: Untold,
    /// What it cost.
    pub cost: Money,
    /// What the tenant has left after this settlement and all open holds; `None` without a budget.
    pub remaining: Option<Money>,
    /// Why the client may not have its answer after all.
    pub withheld: Option<ApiError>,
}

/// Resolves, records and counts; the only end of a journey.
///
/// # Cancel safety
/// Must not be dropped: it runs inside the journey's own task.
pub async fn finish(
    worker: &Rc<Worker>,
    call: Call,
    mut tally: Tally,
    mut result: Result<Vec<Entry>, ApiError>,
) -> Finished {
    let closed = close(worker, call.subject(), &mut tally, result.as_ref().err()).await;
    if let Some(withheld) = closed.withheld {
        result = Err(withheld);
    }
    Finished {
        end: closed.end,
        result,
        cost: closed.cost,
        remaining: closed.remaining,
        cached_items: tally.cached_items,
        cache: tally.cache.unwrap_or(CacheResult::Bypass),
        upstream: tally.spent.last().map(|part| part.upstream.clone()),
        attempts: tally.attempts,
        dwell: tally.dwell,
        upstream_time: tally.upstream_time(),
        seat: tally.seat,
        call,
    }
}

/// Closes the books on a request that ended with `error`, or well.
///
/// # Cancel safety
/// Must not be dropped: it runs inside the journey's own task.
pub async fn close(worker: &Rc<Worker>, subject: Subject<'_>, tally: &mut Tally, error: Option<&ApiError>) -> Closed {
    let stage = subject.context.trace.stage("settle");
    let mut charged = resolve(worker, subject.context, tally).await;
    let records = record(subject, tally, &charged, error);
    let holds = std::mem::take(&mut tally.shared_holds);
    let mut limits = std::mem::take(&mut tally.shared_limits).into_iter();
    if let Some(first) = limits.next().filter(|_| !tally.spent.is_empty()) {
        first.settle(tally.tokens() + tally.output_tokens());
    }
    // What other rounds had estimated is in the bill of the first.
    drop(limits);
    let kept = match &subject.context.tenant.shared {
        // Boxed: only where replicas share a ledger is there need of its room.
        Some(shared) => Box::pin(settle_shared(worker, shared, holds, records, &mut charged)).await,
        None => keep(worker, records, charged.cost > Money::ZERO).await,
    };
    let withheld = kept.err().map(|error| {
        worker.gateway.telemetry.store_failed("usage", &error);
        ApiError::new(
            Code::StoreUnavailable,
            "the ledger cannot be written, so the answer is withheld; the cost stays on the books",
        )
    });
    drop(stage);
    let end = Untold::new(worker, subject, tally, charged.cost, withheld.as_ref().or(error));
    Closed { end, cost: charged.cost, remaining: charged.remaining, withheld }
}

/// What the ledger took.
struct Charged {
    cost: Money,
    shortfall: Money,
    hold: Option<crate::ids::HoldId>,
    also_released: Vec<crate::ids::HoldId>,
    period_start: Wall,
    remaining: Option<Money>,
}

async fn resolve(worker: &Worker, context: &Context, tally: &mut Tally) -> Charged {
    let tenant = &context.tenant;
    let cost = tally.cost();
    let mut charged = Charged {
        cost,
        shortfall: Money::ZERO,
        hold: None,
        also_released: Vec::new(),
        period_start: tenant.board.period_start(),
        remaining: tenant.board.remaining(),
    };
    let mut holds = std::mem::take(&mut tally.holds).into_iter();
    let Some(mut first) = holds.next() else {
        if cost > Money::ZERO && tenant.shared.is_none() && tenant.board.meter(cost, clock::wall()).is_none() {
            let id = worker.gateway.journal.next_hold_id();
            tenant.ledger.do_send(Metered { id, charge: cost });
        }
        return charged;
    };
    let tokens = (!tally.spent.is_empty()).then(|| tally.tokens() + tally.output_tokens());
    charged.hold = first.is_noted().then_some(first.id);
    if holds.len() == 0
        && let Some(lent) = first.settle_lent(cost, tokens)
    {
        (charged.remaining, charged.period_start) = (lent.remaining, lent.period_start);
        worker.gateway.telemetry.metrics.tenant_budget_remaining(&tenant.plan.id, lent.remaining);
        return charged;
    }
    let mut left = charged.remaining.and_then(|remaining| remaining.checked_add(first.amount));
    // What the first hold does not cover is taken from the others as far as they go, so that nothing which was held for
    // this request can be taken by another in between. The first bears what no hold covers.
    let mut beyond = minus(cost, first.amount);
    for other in holds {
        left = left.and_then(|sum| sum.checked_add(other.amount));
        if other.is_noted() {
            charged.also_released.push(other.id);
        }
        let share = beyond.min(other.amount);
        beyond = minus(beyond, share);
        other.resolve(Some(share), None);
    }
    let of_others = minus(cost, plus(first.amount, beyond));
    let by_first = minus(cost, of_others);
    let simple = beyond == Money::ZERO && tenant.plan.budget_period == BudgetPeriod::None;
    if simple {
        // The common case needs no answer: the charge is within the hold and counts in the only period there is.
        charged.remaining = left.and_then(|sum| sum.checked_sub(cost));
        first.resolve(Some(by_first), tokens);
        return charged;
    }
    let ask = SettleHold { id: first.id, charge: by_first, tokens };
    match tenant.ledger.send(ask).await {
        Ok(Some(settled)) => {
            first.settled();
            charged.cost = plus(settled.charged, of_others);
            charged.shortfall = settled.shortfall;
            charged.period_start = settled.period_start;
            charged.remaining = tenant.board.remaining();
        }
        // Restarting: the fact is queued and counts when it is back.
        Ok(None) | Err(_) => first.resolve(Some(by_first), tokens),
    }
    charged
}

fn record(subject: Subject<'_>, tally: &Tally, charged: &Charged, error: Option<&ApiError>) -> Vec<Record> {
    let context = subject.context;
    let now = clock::wall();
    let price = |of: fn(&Spent) -> UnitPrice| tally.spent.first().map_or(Money::ZERO, |part| of(part).0);
    let usage = UsageRecord {
        time: now,
        request_id: context.request_id.clone(),
        tenant: context.tenant.plan.id.clone(),
        key: Some(context.key.clone()),
        class: subject.class,
        collection: context.collection.clone(),
        model: subject.model.name.clone(),
        space: subject.has_space.then(|| subject.model.space.clone()),
        upstream: tally.spent.last().map(|part| part.upstream.clone()),
        items: subject.items as u64,
        cached_items: tally.cached_items as u64,
        tokens: tally.tokens(),
        output_tokens: tally.output_tokens(),
        search_units: tally.searches(),
        estimated: tally.spent.iter().any(|part| part.estimated),
        unit_price: price(|part| part.unit_price),
        output_unit_price: price(|part| part.output_unit_price),
        cost: charged.cost,
        shortfall: charged.shortfall,
        status: error.map_or(200, ApiError::status),
        outcome: outcome(tally, error),
        latency: tally.head_after.unwrap_or_else(|| clock::mono().since(context.started)),
        dwell: tally.dwell,
        hold: charged.hold,
        period_start: charged.period_start,
        shared: None,
    };
    let mut records = vec![Record::Usage(Box::new(usage))];
    records.extend(charged.also_released.iter().map(|id| {
        Record::Release(ReleaseRecord {
            time: now,
            hold: *id,
            tenant: context.tenant.plan.id.clone(),
            reason: ReleaseReason::Unused,
        })
    }));
    records
}

fn outcome(tally: &Tally, error: Option<&ApiError>) -> Outcome {
    match error {
        None if tally.spent.is_empty() => Outcome::Cached,
        None => Outcome::Answered,
        Some(error) if error.code == Code::ClientGone => Outcome::Abandoned,
        Some(_) if tally.attempts == 0 && tally.spent.is_empty() => Outcome::Refused,
        Some(_) => Outcome::Failed,
    }
}

/// Settles with the ledger that replicas share: the usage record goes there with the charge, in one step.
async fn settle_shared(
    worker: &Worker,
    shared: &Shared,
    holds: Vec<SharedHold>,
    records: Vec<Record>,
    charged: &mut Charged,
) -> std::io::Result<()> {
    let mut others = Vec::new();
    for record in records {
        match record {
            Record::Usage(mut usage) => {
                let settled = shared.ledger.settle(&shared.account, holds, charged.cost, &mut usage).await?;
                charged.cost = settled.charged;
                charged.shortfall = settled.shortfall;
                charged.remaining = settled.remaining;
                break;
            }
            other => others.push(other),
        }
    }
    if others.is_empty() { Ok(()) } else { keep(worker, others, true).await }
}

/// Records that cost something or end a hold are written now; the others may follow in a batch.
async fn keep(worker: &Worker, records: Vec<Record>, paid: bool) -> std::io::Result<()> {
    let ends_hold = records.iter().any(|record| matches!(record, Record::Usage(usage) if usage.hold.is_some()));
    if paid || ends_hold {
        return match worker.gateway.running.load().plan.store.durability {
            Durability::Process => worker.scribe.write(records).await,
            Durability::Power => worker.gateway.journal.append_all_durable(&records).await,
        };
    }
    worker.later(records);
    Ok(())
}

/// A request's end that is not told yet: it comes with its answer's head. If nobody takes the answer, dropping this tells
/// that the client had left.
pub struct Untold {
    worker: Rc<Worker>,
    end: Option<RequestEnd>,
    head_after: Option<Duration>,
}

impl Untold {
    fn new(worker: &Rc<Worker>, subject: Subject<'_>, tally: &Tally, cost: Money, error: Option<&ApiError>) -> Untold {
        let context = subject.context;
        let journey = JourneyEnd {
            tenant: context.tenant.plan.id.clone(),
            model: subject.model.name.clone(),
            collection: context.collection.clone(),
            cache: tally.cache.unwrap_or(CacheResult::Bypass),
            items: subject.items,
            cached_items: tally.cached_items,
            tokens: tally.tokens() + tally.output_tokens(),
            output_tokens: tally.output_tokens(),
            cost,
            upstream: tally.spent.last().map(|part| part.upstream.clone()),
            attempts: tally.attempts,
            upstream_time: tally.upstream_time(),
            queued: tally.dwell,
        };
        let end = RequestEnd {
            request_id: context.request_id.clone(),
            trace: Arc::clone(&context.trace),
            operation: subject.operation,
            class: subject.class,
            journey: Some(journey),
            error: error.cloned(),
            started: context.started,
        };
        Untold { worker: Rc::clone(worker), end: Some(end), head_after: tally.head_after }
    }

    /// Tells it; how long the request took up to its answer's head, which is now if it has not left before.
    pub fn tell(&mut self) -> Duration {
        self.end.take().map_or(Duration::ZERO, |end| self.worker.tell(&end, self.head_after))
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let Some(end) = &mut self.end {
            end.error.get_or_insert_with(client_gone);
            self.tell();
        }
    }
}
