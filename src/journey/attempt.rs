//! Calling upstream for what is missing: in parts that every upstream of the space takes, each part with a permit,
//! failing over and retrying inside the space only.
//!
//! A part that succeeds is kept (for its followers, the cache and the bill) at once, whatever becomes of the others, so
//! that a client's retry costs only the rest.

mod cutter;
pub(super) mod failure;
mod race;

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use crate::actors::router::{Reserved, RetryEarned};
use crate::actors::upstream::{Report, TooLarge, Work};
use crate::cache::Value;
use crate::clock;
use crate::dialects::rerank::{Document, search_units};
use crate::dialects::upstream::names_fewer_items;
use crate::dialects::wire::WireError;
use crate::dialects::{BadAnswer, Encoding, Fault, Input, ProviderError, client};
use crate::error::{ApiError, Code};
use crate::ids::UpstreamId;
use crate::pure::adaptive_batch::{Chunk, Limits, Refused, TooMuch, parse_limit_hint};
use crate::pure::admission::{Outcome, OutcomeKind};
use crate::pure::money::UnitPrice;
use crate::pure::rate_headers::wait_after_429;
use crate::pure::retry::Backoff;
use crate::pure::time::Mono;
use crate::room::Seat;
use crate::runtime::{Fleet, Route};
use crate::telemetry::traces::TraceParent;
use crate::vector::{Vector, VectorError};
use crate::worker::{Answered, CallError, Exchange, Reply, Worker};

use super::admit::{CostBounds, cost, cost_bounds, hold_expiry};
use super::classify::{Call, EmbedTask, Task};
use super::plan::{Entry, Reach, Round, client_gone};
use super::refuse;
use super::reserve::{Asker, Demand, Funds, Tries};
use super::settle::{Spent, Tally, UnderWay};
use cutter::Cutter;
use failure::{Failure, PartError, kind_of};
use race::Decided;

/// Parts of one request under way at once: enough to hide an upstream's latency, few enough that a client which
/// leaves has little in flight.
const PARTS_IN_FLIGHT: usize = 4;

/// Bytes of a number in a provider's answer.
const TEXT_NUMBER: u64 = 14;

/// Width of vectors that nobody has stated or seen yet.
const USUAL_WIDTH: u32 = 1536;

struct PartEnd {
    range: Range<usize>,
    result: Result<Landed, PartError>,
    seen: Seen,
}

struct Landed {
    entries: Vec<Entry>,
    spent: Spent,
}

/// What one part saw on its way, whether it succeeded or not.
#[derive(Default)]
struct Seen {
    attempts: u32,
    dwell: Duration,
    calls: Vec<(Mono, Mono)>,
}

/// Calls upstream until every work of the round has its vector or one part has failed for good.
///
/// # Errors
/// The first failure. Parts that were under way by then are finished and kept.
pub async fn run(
    worker: &Rc<Worker>,
    call: &Call,
    round: &mut Round,
    gone: &CancellationToken,
    tally: &mut Tally,
) -> Result<(), ApiError> {
    let routes = refuse::capable_routes(call)?;
    let indices: Vec<usize> = round.led.iter().map(|work| work.input).collect();
    let under_way = tally.under_way.clone();
    let envelope = envelope(call);
    let parts = Parts { worker, call, gone, indices: &indices, routes: &routes, envelope, under_way };
    let mut cutter = Cutter::new(&parts);
    let Some(first) = cutter.next(&parts) else { return Ok(()) };
    if !tally.seat.is_counted() {
        tally.seat = parts.seat().await?;
    }
    let reserved = parts.reserve_with_hold(first.clone(), cutter.calls(&parts), tally).await?;

    let mut running = FuturesUnordered::new();
    // Boxed, as all parts are that run side by side: most requests are one part, and a request should not carry the room of
    // two with it wherever its future goes.
    let mut first = Some(Box::pin(parts.run(first, Some(reserved))));
    let mut failed = None;
    // After a refusal for size one part at a time tries the next size, or each halving would cost as many refusals as
    // parts are under way.
    let mut unproven = false;
    loop {
        let at_once = if unproven { 1 } else { PARTS_IN_FLIGHT };
        while failed.is_none() && !gone.is_cancelled() && running.len() + usize::from(first.is_some()) < at_once {
            let Some(range) = cutter.next(&parts) else { break };
            running.extend(first.take());
            running.push(Box::pin(parts.run(range, None)));
        }
        // Most requests are one part, which needs nobody to choose whom to look at.
        let end = match first.take() {
            Some(only) => Some(only.await),
            None => running.next().await,
        };
        let Some(end) = end else { break };
        tally.saw(end.seen.attempts, end.seen.dwell, &end.seen.calls);
        match end.result {
            Ok(landed) => {
                unproven = false;
                tally.spent.push(landed.spent);
                for (index, entry) in end.range.zip(landed.entries) {
                    round.land(worker, call, index, entry);
                }
            }
            Err(PartError::TooLarge { refused, error }) => {
                unproven = true;
                if !cutter.split(&parts, end.range.clone(), refused) {
                    let alone = end.range.len() == 1;
                    round.fail(end.range, &error, if alone { Reach::Item(0) } else { Reach::Request });
                    failed.get_or_insert(error);
                }
            }
            Err(PartError::Unnamed(error)) => {
                // Halving finds the input in a few calls, and keeps what the others get meanwhile.
                if !cutter.halve(&parts, end.range) {
                    failed.get_or_insert(error);
                }
            }
            Err(PartError::Failed { error, reach }) => {
                round.fail(end.range, &error, reach);
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None if gone.is_cancelled() && round.led.iter().any(|work| work.done.is_none()) => Err(client_gone()),
        None => Ok(()),
    }
}

/// What all parts of one round share.
struct Parts<'a> {
    worker: &'a Rc<Worker>,
    call: &'a Call,
    gone: &'a CancellationToken,
    /// Input index of each work.
    indices: &'a [usize],
    routes: &'a std::sync::Arc<Fleet>,
    under_way: UnderWay,
    /// Bytes that a call's body has besides its inputs, at most.
    envelope: u64,
}

/// What the gateway itself writes into a body besides inputs and what the client's own body had: at most this many bytes.
const OWN_MEMBERS: u64 = 256;

/// See [`Parts::envelope`]: the client's other members may travel with each part.
fn envelope(call: &Call) -> u64 {
    let items: u64 = (0..call.items.len()).map(|index| call.raw_bytes(index)).sum();
    let others = match &call.task {
        Task::Embed(embed) => (embed.original.body.len() as u64).saturating_sub(items),
        Task::Rerank(rerank) => rerank.query.len() as u64,
    };
    others + OWN_MEMBERS
}

impl Parts<'_> {
    /// What one call may carry: the least that any upstream of the space takes, so that any of them may answer it.
    fn limits(&self) -> Limits {
        if !self.call.items_stand_alone() {
            // All inputs are one to the model: a part would be something else.
            return Limits::default();
        }
        let batch = !self.call.class.is_interactive();
        let embeds = self.embeds();
        let kind = self.call.model.plan.kind;
        let stated = self.routes.stated_limits(kind);
        let bytes = stated.max_bytes.map(|bytes| bytes.saturating_sub(self.envelope).max(1));
        let now = if embeds { self.routes.call_limits(batch) } else { self.routes.rerank_limits() };
        let least = now.tighter(Limits { max_bytes: bytes, ..stated });
        // Documents of one query are not a batch in that sense, and each call of theirs may cost a search.
        let configured = (batch && embeds).then_some(self.call.context.running.plan.quota.batch_size);
        least.tighter(Limits { max_items: configured, ..Limits::default() })
    }

    fn embeds(&self) -> bool {
        matches!(self.call.task, Task::Embed(_))
    }

    /// The client's word for its inputs; `None` where a refusal may be about the query as well.
    fn field(&self) -> Option<&'static str> {
        self.embeds().then(|| client::item_fields(self.call.context.dialect).first().copied()).flatten()
    }

    fn tokens(&self, range: &Range<usize>) -> u64 {
        self.indices[range.clone()].iter().map(|index| self.call.estimate(*index).likely).sum()
    }

    /// Reserves the first part together with the hold for the whole round, and notes the hold in the journal before
    /// anything is called, so that a crash cannot strand it unseen.
    async fn reserve_with_hold(
        &self,
        range: Range<usize>,
        calls: usize,
        tally: &mut Tally,
    ) -> Result<Reserved, ApiError> {
        let tenant = &self.call.context.tenant;
        let remaining = tenant.board.remaining();
        let bounds = match remaining {
            Some(remaining) => cost_bounds(self.call, self.indices, calls, remaining).await,
            None => CostBounds::NOTHING,
        };
        let tokens = self.indices.iter().map(|index| self.call.estimate(*index).likely).sum();
        let funds = Funds { bounds, tokens, lapses: hold_expiry(self.call) };
        self.asker().hold_and_reserve(self.routes, self.demand(&range), funds, (&[], Tries::First), tally).await
    }

    fn asker(&self) -> Asker<'_> {
        let Call { context, class, .. } = self.call;
        Asker { worker: self.worker, context, class: *class, gone: self.gone }
    }

    fn demand(&self, range: &Range<usize>) -> Demand {
        Demand { tokens: self.tokens(range), items: range.len() }
    }

    /// Room for the vectors that will be here before the answer can leave.
    async fn seat(&self) -> Result<Seat, ApiError> {
        let Task::Embed(embed) = &self.call.task else { return Ok(Seat::default()) };
        let number = match embed.form.preferred() {
            Encoding::Float => TEXT_NUMBER,
            Encoding::Base64 => size_of::<f32>() as u64,
        };
        let width = embed.width.or(self.call.model.native_width()).unwrap_or(USUAL_WIDTH);
        let bytes = (self.indices.len() as u64).saturating_mul(u64::from(width)).saturating_mul(number);
        let room = &self.worker.gateway.answers;
        tokio::select! {
            seat = room.enter(bytes, self.asker().patience()) => seat,
            () = self.gone.cancelled() => Err(client_gone()),
        }
    }

    /// Room for the request of a part. Whoever sits there waits for nothing but an upstream's answer, so the wait ends.
    async fn room(&self, range: &Range<usize>) -> Result<Seat, ApiError> {
        let bytes = self.indices[range.clone()].iter().map(|index| self.call.raw_bytes(*index)).sum();
        self.worker.gateway.requests.enter(bytes, self.asker().patience()).await
    }

    /// One part to its end: permit, call, and again elsewhere as long as that can help.
    async fn run(&self, range: Range<usize>, mut reserved: Option<Reserved>) -> PartEnd {
        let mut seen = Seen::default();
        let mut avoid: Vec<UpstreamId> = Vec::new();
        let mut last: Option<Box<Failure>> = None;
        let result = loop {
            let permitted = match reserved.take() {
                Some(reserved) => Ok(reserved),
                None => {
                    let tries = if last.is_some() { Tries::Again } else { Tries::More };
                    self.asker().reserve(self.routes, self.demand(&range), None, &avoid, tries).await
                }
            };
            let reserved = match permitted {
                Ok(reserved) => reserved,
                // What the upstream itself said tells more than that there was no second chance.
                Err(refused) => {
                    break Err(last.map_or(PartError::Failed { error: refused, reach: Reach::Upstream }, Into::into));
                }
            };
            let seat = match self.room(&range).await {
                Ok(seat) => seat,
                Err(error) => break Err(PartError::Failed { error, reach: Reach::Request }),
            };
            let sent = self.under_way.begin(self.expected(&self.routes[reserved.route], &range));
            let Decided { route: index, permit, exchange, latency } =
                self.decide(reserved, &range, &mut avoid, &mut seen).await;
            self.under_way.end(sent);
            drop(seat);
            let route = &self.routes[index];
            let report = self.report(&exchange, &range, latency);
            let too_large = report.too_large;
            permit.report(report);
            let failure = match self.judge(exchange, route, &range, too_large) {
                Ok(landed) => {
                    if seen.attempts > 1 {
                        self.worker.gateway.router.do_send(RetryEarned);
                    }
                    break Ok(landed);
                }
                Err(failure) => failure,
            };
            let Some(wait) = self.again(&failure, seen.attempts, index, &avoid) else { break Err(failure.into()) };
            avoid.push(route.upstream.plan.id.clone());
            last = Some(failure);
            tokio::time::sleep(wait).await;
            if self.gone.is_cancelled() {
                break Err(PartError::Failed { error: client_gone(), reach: Reach::Request });
            }
        };
        PartEnd { range, result, seen }
    }

    /// What a call will cost, as far as is known before its answer.
    fn expected(&self, route: &Route, range: &Range<usize>) -> Spent {
        self.bill(route, range.len(), self.tokens(range), true, None)
    }

    /// Makes a call, which tells the upstream of `trace`.
    async fn exchange(&self, route: &Route, range: &Range<usize>, trace: TraceParent) -> Exchange {
        let indices = &self.indices[range.clone()];
        let mut exchange = match &self.call.task {
            Task::Embed(embed) => {
                let inputs: Vec<Input> = indices.iter().map(|index| embed.inputs[*index].clone()).collect();
                self.worker.embed(self.call, embed, (route, trace), inputs).await
            }
            Task::Rerank(rerank) => {
                let documents: Vec<Document> = indices.iter().map(|index| rerank.documents[*index].clone()).collect();
                self.worker.rerank(self.call, rerank, (route, trace), &documents).await
            }
        };
        if let Ok(Reply::Error(error)) = &mut exchange.reply
            && self.call.items_stand_alone()
            && names_fewer_items(error, range.len())
        {
            error.fault = Fault::TooLarge;
        }
        exchange
    }

    /// Whether and after which wait the part is tried again.
    fn again(&self, failure: &Failure, attempts: u32, route: usize, avoid: &[UpstreamId]) -> Option<Duration> {
        let rules = &self.call.context.running.plan.retry;
        if !failure.elsewhere || attempts >= rules.max_attempts || self.gone.is_cancelled() {
            return None;
        }
        let now = clock::mono();
        if self.call.context.deadline.is_some_and(|deadline| deadline <= now) {
            return None;
        }
        // Another upstream is tried at once; the same one after a pause.
        if self.elsewhere(route, avoid) {
            return Some(Duration::ZERO);
        }
        // Nobody searching waits for the same silence twice, and the provider may have done the work.
        if failure.error.code == Code::UpstreamTimeout && self.call.class.is_interactive() {
            return None;
        }
        let backoff = Backoff { max_attempts: rules.max_attempts, base: rules.base, cap: rules.cap };
        let at = backoff.next_try(attempts, failure.retry_after, rand::random(), now, self.asker().deadline(now))?;
        Some(at.since(now))
    }

    fn judge(
        &self,
        exchange: Exchange,
        route: &Route,
        range: &Range<usize>,
        too_large: Option<TooLarge>,
    ) -> Result<Landed, Box<Failure>> {
        match exchange.reply {
            Ok(Reply::Answer(answer)) => {
                self.land(answer, route, range).map_err(|bad| Box::new(Failure::bad_answer(&bad)))
            }
            Ok(Reply::Error(mut error)) => {
                error.wait_hint = wait_after_429(&exchange.rate, error.wait_hint);
                Err(Box::new(Failure::provider(error, &self.indices[range.clone()], self.field(), too_large)))
            }
            Err(error) => Err(Box::new(Failure::wire(&error))),
        }
    }

    /// What the upstream's actor learns from a call.
    fn report(&self, exchange: &Exchange, range: &Range<usize>, latency: Duration) -> Report {
        let (kind, answered, refused) = match &exchange.reply {
            Ok(Reply::Answer(answer)) => (OutcomeKind::Success { latency }, Some(answer), None),
            Ok(Reply::Error(error)) => {
                (kind_of(error), None, Some(error).filter(|error| error.fault == Fault::TooLarge))
            }
            Err(CallError::Wire(WireError::Timeout)) => (OutcomeKind::Timeout, None, None),
            Err(CallError::Wire(WireError::Connect(_))) => (OutcomeKind::Connect, None, None),
            Err(CallError::NotSent) => (OutcomeKind::NotSent, None, None),
            Err(_) => (OutcomeKind::Transport, None, None),
        };
        let billed = answered.and_then(|answer| answer.usage.billed());
        let chunk = billed.filter(|_| self.embeds()).map(|tokens| Chunk { tokens, items: range.len() });
        let outcome = Outcome { kind, actual_tokens: billed, headers: exchange.rate.clone() };
        // A call that cannot be cut teaches nothing about those that can.
        let refused = refused.filter(|_| self.call.items_stand_alone());
        Report { outcome, chunk, too_large: refused.map(|error| self.too_large(error, range)) }
    }

    fn too_large(&self, error: &ProviderError, range: &Range<usize>) -> TooLarge {
        let indices = &self.indices[range.clone()];
        let bytes = indices.iter().map(|index| self.call.raw_bytes(*index)).sum();
        let hint = parse_limit_hint(&error.message);
        let kind = if error.message.to_ascii_lowercase().contains("token") {
            TooMuch::Tokens
        } else if error.status == 413 && hint.is_none() {
            TooMuch::Bytes
        } else {
            TooMuch::Items
        };
        let of = if self.embeds() { Work::Embedding } else { Work::Ranking };
        TooLarge { of, sent: Refused { items: range.len(), tokens: self.tokens(range), bytes }, kind, hint }
    }

    /// Checks and prices what an upstream answered.
    fn land(&self, answer: Answered, route: &Route, range: &Range<usize>) -> Result<Landed, BadAnswer> {
        let indices = &self.indices[range.clone()];
        let values = match &self.call.task {
            Task::Embed(embed) => self.fit(embed, answer.values)?,
            Task::Rerank(_) => answer.values,
        };
        let weights: Vec<u64> = indices.iter().map(|index| self.call.estimate(*index).likely).collect();
        if answer.usage.odd {
            self.worker.gateway.telemetry.usage_odd(&route.upstream.plan.id);
        }
        let stated = answer.usage.billed();
        let tokens = stated.unwrap_or_else(|| weights.iter().sum());
        if stated.is_some() {
            let uncorrected = indices.iter().map(|index| self.call.uncorrected(*index).likely);
            self.call.model.observe_tokens(uncorrected.sum(), tokens);
        }
        let estimated = stated.is_none();
        let shares = apportion(tokens, &weights);
        let entries =
            values.into_iter().zip(shares).map(|(value, tokens)| Entry { value, tokens, estimated }).collect();
        let spent = self.bill(route, indices.len(), tokens, estimated, answer.searches);
        Ok(Landed { entries, spent })
    }

    /// Prices a call by the unit that the route is billed by.
    fn bill(&self, route: &Route, items: usize, tokens: u64, estimated: bool, searches: Option<u64>) -> Spent {
        let prices = &route.prices;
        let by_search = prices.search.filter(|_| matches!(self.call.task, Task::Rerank(_)));
        let counted = match by_search {
            Some(_) => searches.unwrap_or_else(|| search_units(items)),
            None => 0,
        };
        Spent {
            upstream: route.upstream.plan.id.clone(),
            tokens,
            output_tokens: 0,
            searches: counted,
            estimated: if by_search.is_some() { searches.is_none() } else { estimated },
            unit_price: by_search.or(prices.input).unwrap_or_default(),
            output_unit_price: UnitPrice::default(),
            cost: cost(prices, tokens, counted),
            items,
        }
    }

    /// Brings vectors to the width of the answer: as they are, or cut and scaled where the model allows that.
    fn fit(&self, embed: &EmbedTask, values: Vec<Value>) -> Result<Vec<Value>, BadAnswer> {
        let vectors: Vec<Vector> = values
            .into_iter()
            .filter_map(|value| match value {
                Value::Vector(vector) => Some(vector),
                Value::Score(_) => None,
            })
            .collect();
        let Some(seen) = vectors.first().map(Vector::width) else { return Ok(Vec::new()) };
        let model = &self.call.model;
        let asked = embed.asked_width;
        // An upstream that was asked for a narrower width says nothing about the native one by obeying.
        let native =
            if asked.is_none_or(|asked| asked != seen) { Some(model.learn_width(seen)) } else { model.native_width() };
        let wanted = embed.width.or(native).unwrap_or(seen);
        if seen == wanted {
            return Ok(vectors.into_iter().map(Value::Vector).collect());
        }
        let may_cut = wanted < seen
            && native == Some(seen)
            && (model.plan.matryoshka.allows(wanted) || model.plan.enforce_dimensions == Some(wanted));
        if !may_cut {
            return Err(BadAnswer { reason: format!("expected vectors of {wanted} dimensions, got {seen}") });
        }
        let cut = |vector: Vector| vector.cut(wanted).map(Value::Vector);
        let cut = vectors.into_iter().map(cut).collect::<Result<Vec<Value>, VectorError>>();
        cut.map_err(|error| BadAnswer { reason: error.to_string() })
    }
}

/// Splits `total` over `weights` in whole numbers that add up to it, by largest remainder.
fn apportion(total: u64, weights: &[u64]) -> Vec<u32> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
    let mut shares: Vec<(u64, u128)> = weights
        .iter()
        .map(|weight| {
            let exact = u128::from(total) * u128::from(*weight);
            (u64::try_from(exact / sum).unwrap_or(u64::MAX), exact % sum)
        })
        .collect();
    let mut left = total.saturating_sub(shares.iter().map(|(share, _)| share).sum());
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(shares[*index].1));
    for index in order {
        if left == 0 {
            break;
        }
        shares[index].0 += 1;
        left -= 1;
    }
    shares.into_iter().map(|(share, _)| u32::try_from(share).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_add_up_to_the_bill(total in 0_u64..1_000_000, weights in prop::collection::vec(1_u64..10_000, 1..50)) {
            let shares = apportion(total, &weights);
            prop_assert_eq!(shares.iter().map(|share| u64::from(*share)).sum::<u64>(), total);
        }
    }
}
