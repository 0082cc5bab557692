//! Where every journey ends: the holds are resolved, the record is written, the numbers are counted.
//!
//! The record of an answer that cost something is in the journal before the answer's head leaves. If it cannot be
//! written, the client gets no answer.

use std::rc::Rc;
use std::time::Duration;

use crate::actors::ledger::{Metered, SettleHold};
use crate::actors::router::Served;
use crate::clock;
use crate::config::plan::{BudgetPeriod, Durability};
use crate::error::{ApiError, Code, Source};
use crate::ids::UpstreamId;
use crate::pure::class::TrafficClass;
use crate::pure::money::{Money, UnitPrice};
use crate::pure::time::{Mono, Wall};
use crate::room::Seat;
use crate::store::record::{Outcome, Record, ReleaseReason, ReleaseRecord, UsageRecord};
use crate::telemetry::CacheResult;
use crate::telemetry::labels;
use crate::worker::Worker;

use super::classify::Call;
use super::guards::Hold;
use super::plan::Entry;

/// What one part cost.
#[derive(Debug, Clone)]
pub struct Spent {
    /// Who answered it.
    pub upstream: UpstreamId,
    /// Tokens billed, or estimated.
    pub tokens: u64,
    /// Whether the provider named no usable number.
    pub estimated: bool,
    /// Price of one token there.
    pub unit_price: UnitPrice,
    /// Tokens times price.
    pub cost: Money,
    /// Inputs in the part.
    pub items: usize,
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
    /// Upstream calls made.
    pub attempts: u32,
    /// Room for the answer, if it is a large one.
    pub seat: Seat,
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

    /// From the first call's start to the last one's end.
    fn upstream_time(&self) -> Duration {
        self.first_call.zip(self.last_call).map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    fn cost(&self) -> Money {
        self.spent.iter().fold(Money::ZERO, |sum, part| sum.checked_add(part.cost).unwrap_or(sum))
    }

    fn tokens(&self) -> u64 {
        self.spent.iter().map(|part| part.tokens).sum()
    }
}

/// A journey's end, for the edge to render.
pub struct Finished {
    /// The call.
    pub call: Call,
    /// Its vectors, or why there are none.
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
    /// Whether some of the tokens are this gateway's own estimate.
    pub estimated: bool,
    /// Upstream calls made.
    pub attempts: u32,
    /// Time in queues.
    pub dwell: Duration,
    /// Time at upstreams.
    pub upstream_time: Duration,
    /// Room for the answer, if it is a large one: kept until it is out.
    pub seat: Seat,
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
    let charged = resolve(worker, &call, &mut tally).await;
    let record = record(&call, &tally, &charged, &result);
    if let Err(error) = keep(worker, record, charged.cost > Money::ZERO).await {
        worker.gateway.telemetry.store_failed("usage", &error);
        result = Err(ApiError::new(
            Code::StoreUnavailable,
            "the ledger cannot be written, so the answer is withheld; the cost stays on the books",
        ));
    }
    count(worker, &call, &tally, &charged, &result);
    Finished {
        result,
        cost: charged.cost,
        remaining: charged.remaining,
        cached_items: tally.cached_items,
        cache: tally.cache.unwrap_or(CacheResult::Bypass),
        upstream: tally.spent.last().map(|part| part.upstream.clone()),
        estimated: tally.spent.iter().any(|part| part.estimated),
        attempts: tally.attempts,
        dwell: tally.dwell,
        upstream_time: tally.upstream_time(),
        seat: tally.seat,
        call,
    }
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

async fn resolve(worker: &Worker, call: &Call, tally: &mut Tally) -> Charged {
    let tenant = &call.context.tenant;
    let cost = tally.cost();
    let mut charged = Charged {
        cost,
        shortfall: Money::ZERO,
        hold: None,
        also_released: Vec::new(),
        period_start: Wall(0),
        remaining: tenant.board.remaining(),
    };
    let mut holds = std::mem::take(&mut tally.holds).into_iter();
    let Some(first) = holds.next() else {
        if cost > Money::ZERO {
            let id = worker.gateway.journal.next_hold_id();
            tenant.ledger.do_send(Metered { id, charge: cost });
        }
        return charged;
    };
    let tokens = (!tally.spent.is_empty()).then(|| tally.tokens());
    charged.hold = first.journaled.then_some(first.id);
    let mut left = charged.remaining.and_then(|remaining| remaining.checked_add(first.upper));
    for other in holds {
        left = left.and_then(|sum| sum.checked_add(other.upper));
        if other.journaled {
            charged.also_released.push(other.id);
        }
        other.resolve(None, None);
    }
    let simple = cost <= first.upper && tenant.plan.budget_period == BudgetPeriod::None;
    if simple {
        // The common case needs no answer: the charge is within the hold and counts in the only period there is.
        charged.remaining = left.and_then(|sum| sum.checked_sub(cost));
        first.resolve(Some(cost), tokens);
        return charged;
    }
    let ask = SettleHold { id: first.id, charge: cost, tokens };
    match tenant.ledger.send(ask).await {
        Ok(Some(settled)) => {
            first.settled();
            charged.cost = settled.charged;
            charged.shortfall = settled.shortfall;
            charged.period_start = settled.period_start;
            charged.remaining = tenant.board.remaining();
        }
        // Restarting: the fact is queued and counts when it is back.
        Ok(None) | Err(_) => first.resolve(Some(cost), tokens),
    }
    charged
}

fn record(call: &Call, tally: &Tally, charged: &Charged, result: &Result<Vec<Entry>, ApiError>) -> Vec<Record> {
    let context = &call.context;
    let now = clock::wall();
    let unit_price = tally.spent.first().map_or(Money::ZERO, |part| part.unit_price.0);
    let usage = UsageRecord {
        time: now,
        request_id: context.request_id.clone(),
        tenant: context.tenant.plan.id.clone(),
        key: Some(context.key.clone()),
        class: call.class,
        collection: context.collection.clone(),
        model: call.model.plan.name.clone(),
        space: Some(call.model.plan.space.clone()),
        upstream: tally.spent.last().map(|part| part.upstream.clone()),
        items: call.items.len() as u64,
        cached_items: tally.cached_items as u64,
        tokens: tally.tokens(),
        output_tokens: 0,
        search_units: 0,
        estimated: tally.spent.iter().any(|part| part.estimated),
        unit_price,
        output_unit_price: Money::ZERO,
        cost: charged.cost,
        shortfall: charged.shortfall,
        status: result.as_ref().map_or_else(ApiError::status, |_| 200),
        outcome: outcome(tally, result),
        latency: clock::mono().since(context.started),
        dwell: tally.dwell,
        hold: charged.hold,
        period_start: charged.period_start,
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

fn outcome(tally: &Tally, result: &Result<Vec<Entry>, ApiError>) -> Outcome {
    match result {
        Ok(_) if tally.spent.is_empty() => Outcome::Cached,
        Ok(_) => Outcome::Answered,
        Err(error) if error.code == Code::ClientGone => Outcome::Abandoned,
        Err(_) if tally.attempts == 0 => Outcome::Refused,
        Err(_) => Outcome::Failed,
    }
}

/// Records that cost something or end a hold are written now; the others may follow in a batch.
async fn keep(worker: &Worker, records: Vec<Record>, paid: bool) -> std::io::Result<()> {
    let ends_hold = records.iter().any(|record| matches!(record, Record::Usage(usage) if usage.hold.is_some()));
    if paid || ends_hold {
        return match worker.gateway.running.load().plan.store.durability {
            Durability::Process => worker.gateway.journal.append_all(&records),
            Durability::Power => worker.gateway.journal.append_all_durable(&records).await,
        };
    }
    worker.later(records);
    Ok(())
}

fn count(worker: &Worker, call: &Call, tally: &Tally, charged: &Charged, result: &Result<Vec<Entry>, ApiError>) {
    let metrics = &worker.gateway.telemetry.metrics;
    let tenant = &call.context.tenant.plan.id;
    let model = &call.model.plan.name;
    let latency = clock::mono().since(call.context.started);
    let overhead = latency.saturating_sub(tally.upstream_time()).saturating_sub(tally.dwell);
    metrics.cache(
        tenant,
        tally.cache.unwrap_or(CacheResult::Bypass),
        tally.cached_items as u64,
        call.items.len() as u64,
    );
    let label = result.as_ref().map_or_else(labels::Outcome::of, |_| labels::Outcome::Success);
    metrics.request_finished(call.class, model, label, latency, overhead, None);
    if tally.tokens() > 0 {
        metrics.settled(tenant, model, call.class, charged.cost, tally.tokens());
    }
    if result.is_ok() && call.class == TrafficClass::InteractiveSearch {
        metrics.query_answered(tenant);
    }
    let failed = result.as_ref().err().is_some_and(|error| error.code.row().source != Source::Client);
    worker.served(Served { class: call.class, latency, failed });
    tracing::debug!(
        request_id = %call.context.request_id,
        tenant = %tenant,
        class = %call.class,
        model = %model,
        items = call.items.len(),
        cached = tally.cached_items,
        tokens = tally.tokens(),
        cost = %charged.cost,
        attempts = tally.attempts,
        latency_us = latency.as_micros() as u64,
        error = result.as_ref().err().map(|error| error.code.row().name),
        "request finished"
    );
}
