//! Calling upstream for what is missing: in parts that every upstream of the space takes, each part with a permit,
//! failing over and retrying inside the space only.
//!
//! A part that succeeds is kept (for its followers, the cache and the bill) at once, whatever becomes of the others, so
//! that a client's retry costs only the rest.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use crate::actors::ledger::{HoldRefusal, PlaceHold};
use crate::actors::router::{Reserve, Reserved, Unreserved, leave_queues};
use crate::actors::upstream::{Report, TooLarge};
use crate::clock;
use crate::config::limits;
use crate::dialects::upstream::{EmbedAnswer, Expect};
use crate::dialects::wire::WireError;
use crate::dialects::{BadAnswer, Encoding, Fault, Input, ProviderError};
use crate::error::{ApiError, Code, ProviderWord};
use crate::ids::{AttemptId, UpstreamId, WaiterId};
use crate::pure::adaptive_batch::{Chunk, ItemSize, Learned, Limits, Refused, TooMuch, front, parse_limit_hint, split};
use crate::pure::admission::{Ask, Outcome, OutcomeKind};
use crate::pure::money::Money;
use crate::pure::retry::Backoff;
use crate::pure::time::Mono;
use crate::room::Seat;
use crate::runtime::Route;
use crate::store::record::{HoldRecord, Record};
use crate::vector::Vector;
use crate::worker::{CallError, Exchange, Reply, Worker};

use super::admit::{CostBounds, cost_bounds, exhausted_error, hold_expiry, token_price};
use super::classify::Call;
use super::guards::Hold;
use super::plan::{Entry, Round, client_gone};
use super::refuse;
use super::settle::{Spent, Tally};

/// Parts of one request under way at once: enough to hide an upstream's latency, few enough that a client which
/// leaves has little in flight.
const PARTS_IN_FLIGHT: usize = 4;

/// Bytes of a number in a provider's answer.
const TEXT_NUMBER: u64 = 14;

/// Width of vectors that nobody has stated or seen yet.
const USUAL_WIDTH: u32 = 1536;

/// A part that did not succeed.
enum PartError {
    /// The upstream takes fewer inputs at once; nothing was charged.
    TooLarge {
        /// What it refused.
        refused: TooLarge,
        /// What the client reads if the part is a single input.
        error: ApiError,
    },
    /// The request fails.
    Failed(ApiError),
}

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
    let parts = Parts { worker, call, gone, indices: &indices, routes: &routes };
    let mut cutter = Cutter::new(&parts);
    let Some(first) = cutter.next(&parts) else { return Ok(()) };
    if !tally.seat.is_counted() {
        tally.seat = parts.seat().await?;
    }
    let reserved = parts.reserve_with_hold(first.clone(), tally).await?;

    let mut running = FuturesUnordered::new();
    running.push(parts.run(first, Some(reserved)));
    let mut failed = None;
    loop {
        while failed.is_none() && !gone.is_cancelled() && running.len() < PARTS_IN_FLIGHT {
            let Some(range) = cutter.next(&parts) else { break };
            running.push(parts.run(range, None));
        }
        let Some(end) = running.next().await else { break };
        tally.saw(end.seen.attempts, end.seen.dwell, &end.seen.calls);
        match end.result {
            Ok(landed) => {
                tally.spent.push(landed.spent);
                for (index, entry) in end.range.zip(landed.entries) {
                    round.land(worker, call, index, entry);
                }
            }
            Err(PartError::TooLarge { refused, error }) => {
                if !cutter.split(end.range, refused) {
                    failed.get_or_insert(error);
                }
            }
            Err(PartError::Failed(error)) => {
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

/// Cuts the work into parts, as late as possible so that each is sized by what is known then.
struct Cutter {
    sizes: Vec<ItemSize>,
    next: usize,
    again: VecDeque<Range<usize>>,
    learned: Learned,
}

impl Cutter {
    fn new(parts: &Parts<'_>) -> Cutter {
        let size = |index: &usize| ItemSize {
            tokens: parts.call.estimate(*index).likely,
            bytes: parts.call.inputs[*index].len() as u64 + 1,
        };
        let sizes = parts.indices.iter().map(size).collect();
        Cutter { sizes, next: 0, again: VecDeque::new(), learned: Learned::default() }
    }

    fn next(&mut self, parts: &Parts<'_>) -> Option<Range<usize>> {
        if let Some(range) = self.again.pop_front() {
            return Some(range);
        }
        if self.next >= self.sizes.len() {
            return None;
        }
        let length = front(&self.sizes[self.next..], &parts.limits().tighter(self.learned.limits()));
        let range = self.next..self.next + length;
        self.next = range.end;
        Some(range)
    }

    /// Cuts a part that was too large into smaller ones; false if it is a single input, which cannot be cut.
    fn split(&mut self, range: Range<usize>, refused: TooLarge) -> bool {
        if !self.learned.refused(refused.sent, refused.kind, refused.hint) {
            return false;
        }
        let pieces = split(&self.sizes[range.clone()], &self.learned.limits());
        for piece in pieces.into_iter().rev() {
            self.again.push_front(range.start + piece.start..range.start + piece.end);
        }
        true
    }
}

/// What all parts of one round share.
struct Parts<'a> {
    worker: &'a Rc<Worker>,
    call: &'a Call,
    gone: &'a CancellationToken,
    /// Input index of each work.
    indices: &'a [usize],
    routes: &'a std::sync::Arc<[Route]>,
}

impl Parts<'_> {
    /// What one call may carry: the least that any upstream of the space takes, so that any of them may answer it.
    fn limits(&self) -> Limits {
        if self.call.options.late_chunking {
            // All inputs are one document to the model: a part would be another document.
            return Limits::default();
        }
        let batch = !self.call.class.is_interactive();
        let mut least = Limits::default();
        for route in self.routes.iter() {
            let own = limits::of_upstream(&route.upstream.plan, &route.remote_name);
            let own = Limits { max_items: own.items, max_tokens: own.tokens, max_bytes: own.bytes };
            least = least.tighter(own).tighter(route.upstream.board.call_limits(batch));
        }
        let configured = batch.then_some(self.call.context.running.plan.quota.batch_size);
        least.tighter(Limits { max_items: configured, ..Limits::default() })
    }

    fn tokens(&self, range: &Range<usize>) -> u64 {
        self.indices[range.clone()].iter().map(|index| self.call.estimate(*index).likely).sum()
    }

    /// Reserves the first part together with the hold for the whole round, and notes the hold in the journal before
    /// anything is called, so that a crash cannot strand it unseen.
    async fn reserve_with_hold(&self, range: Range<usize>, tally: &mut Tally) -> Result<Reserved, ApiError> {
        let tenant = &self.call.context.tenant;
        let remaining = tenant.board.remaining();
        let bounds = match remaining {
            Some(remaining) => cost_bounds(self.call, self.indices, remaining).await,
            None => CostBounds::NOTHING,
        };
        let limited = tenant.plan.tpm.is_some() || tenant.plan.rpm.is_some();
        if bounds.upper == Money::ZERO && !limited {
            return self.reserve(&range, None, &[], false).await;
        }
        let journal = &self.worker.gateway.journal;
        let id = journal.next_hold_id();
        let ask = PlaceHold {
            id,
            upper: bounds.upper,
            lower: bounds.lower,
            expires_at: hold_expiry(self.call),
            patience: self.patience(),
            tokens: self.indices.iter().map(|index| self.call.estimate(*index).likely).sum(),
        };
        let holds_money = bounds.upper > Money::ZERO;
        let hold = Hold::new(tenant.ledger.clone(), id, bounds.upper, holds_money);
        let reserved = self.reserve(&range, Some(ask), &[], false).await?;
        if holds_money {
            let record = Record::Hold(HoldRecord {
                time: clock::wall(),
                hold: id,
                tenant: tenant.plan.id.clone(),
                request_id: self.call.context.request_id.clone(),
                amount: bounds.upper,
            });
            journal.append(&record).map_err(|error| {
                self.worker.gateway.telemetry.store_failed("hold", &error);
                ApiError::new(
                    Code::StoreUnavailable,
                    "the ledger cannot be written, so nothing that costs money is called",
                )
            })?;
        }
        tally.holds.push(hold);
        Ok(reserved)
    }

    /// Room for the vectors that will be here before the answer can leave.
    async fn seat(&self) -> Result<Seat, ApiError> {
        let number = match self.call.form.preferred() {
            Encoding::Float => TEXT_NUMBER,
            Encoding::Base64 => size_of::<f32>() as u64,
        };
        let width = self.call.width.or(self.call.model.native_width()).unwrap_or(USUAL_WIDTH);
        let bytes = (self.indices.len() as u64).saturating_mul(u64::from(width)).saturating_mul(number);
        let room = &self.worker.gateway.answers;
        tokio::select! {
            seat = room.enter(bytes, self.patience()) => seat,
            () = self.gone.cancelled() => Err(client_gone()),
        }
    }

    /// How long this request can wait for capacity or for money that is held by others.
    fn patience(&self) -> Duration {
        let quota = &self.call.context.running.plan.quota;
        if self.call.class.is_interactive() { quota.interactive_max_wait } else { quota.batch_max_dwell }
    }

    async fn reserve(
        &self,
        range: &Range<usize>,
        hold: Option<PlaceHold>,
        avoid: &[UpstreamId],
        retry: bool,
    ) -> Result<Reserved, ApiError> {
        let tenant = &self.call.context.tenant;
        let waiter = WaiterId::next();
        let now = clock::mono();
        let reserve = Reserve {
            hold: hold.map(|hold| (tenant.ledger.clone(), hold)),
            routes: std::sync::Arc::clone(self.routes),
            avoid: avoid.to_vec(),
            retry,
            ask: Ask {
                attempt: AttemptId::next(),
                waiter,
                tenant: tenant.plan.id.clone(),
                weight: tenant.plan.weight,
                class: self.call.class,
                tokens: self.tokens(range),
                items: range.len(),
                may_queue: true,
                deadline: now.plus(self.patience()),
                roll: rand::random(),
            },
            rolls: [rand::random(), rand::random()],
        };
        let asked = self.worker.gateway.router.send(reserve);
        let answer = tokio::select! {
            answer = asked => answer,
            () = self.gone.cancelled() => {
                leave_queues(self.routes, waiter);
                return Err(client_gone());
            }
        };
        match answer {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(Unreserved::Hold(HoldRefusal::Exhausted))) => Err(exhausted_error(self.call)),
            Ok(Err(Unreserved::Hold(HoldRefusal::RateLimited(exceeded)))) => {
                Err(refuse::tenant_limit(&exceeded, clock::mono()))
            }
            Ok(Err(Unreserved::Refused(refusal))) => Err(refuse::refusal(self.call, &refusal, clock::mono())),
            Ok(Err(Unreserved::RetryBudget)) => Err(refuse::retry_budget()),
            Ok(Err(Unreserved::Hold(HoldRefusal::Unavailable) | Unreserved::Unavailable)) | Err(_) => {
                Err(refuse::restarting())
            }
        }
    }

    /// One part to its end: permit, call, and again elsewhere as long as that can help.
    async fn run(&self, range: Range<usize>, mut reserved: Option<Reserved>) -> PartEnd {
        let mut seen = Seen::default();
        let mut avoid: Vec<UpstreamId> = Vec::new();
        let mut last: Option<ApiError> = None;
        let result = loop {
            let permitted = match reserved.take() {
                Some(reserved) => Ok(reserved),
                None => self.reserve(&range, None, &avoid, last.is_some()).await,
            };
            let Reserved { route, permit } = match permitted {
                Ok(reserved) => reserved,
                // What the upstream itself said tells more than that there was no second chance.
                Err(refused) => break Err(PartError::Failed(last.unwrap_or(refused))),
            };
            let route = &self.routes[route];
            // The bytes of a part are in memory from here to the end of its call only.
            let (inputs, seat) = match self.inputs(&range).await {
                Ok(inputs) => inputs,
                Err(error) => break Err(PartError::Failed(error)),
            };
            seen.attempts += 1;
            seen.dwell += permit.dwell;
            let started = clock::mono();
            let exchange = self.exchange(route, inputs).await;
            drop(seat);
            let ended = clock::mono();
            seen.calls.push((started, ended));
            let latency = ended.since(started);
            self.worker.gateway.telemetry.metrics.upstream_call(
                &route.upstream.plan.id,
                exchange.status(),
                latency,
                None,
            );
            let report = self.report(&exchange, &range, latency);
            let too_large = report.too_large;
            permit.report(report);
            let failure = match self.judge(exchange, route, &range, too_large) {
                Ok(landed) => break Ok(landed),
                Err(failure) => failure,
            };
            let Some(wait) = self.again(&failure, seen.attempts) else { break Err(failure.into()) };
            avoid.push(route.upstream.plan.id.clone());
            last = Some(failure.error);
            tokio::time::sleep(wait).await;
            if self.gone.is_cancelled() {
                break Err(PartError::Failed(client_gone()));
            }
        };
        PartEnd { range, result, seen }
    }

    /// The inputs of a part, in memory, and the room that its request takes.
    async fn inputs(&self, range: &Range<usize>) -> Result<(Vec<Input>, Seat), ApiError> {
        let inputs: Vec<Input> =
            self.indices[range.clone()].iter().map(|index| self.call.inputs[*index].clone()).collect();
        let bytes = inputs.iter().map(|input| input.len() as u64).sum();
        // Whoever sits there waits for nothing but an upstream's answer, so this ends.
        let seat = self.worker.gateway.requests.enter(bytes, self.patience()).await?;
        let inputs = Input::load(inputs).await.map_err(|error| {
            tracing::warn!(%error, "a spooled request body could not be read (server.spool_dir)");
            ApiError::new(Code::Internal, "the request body could not be kept")
        })?;
        Ok((inputs, seat))
    }

    async fn exchange(&self, route: &Route, inputs: Vec<Input>) -> Exchange {
        let expect = Expect { count: inputs.len(), width: None, dtype: self.call.options.dtype };
        self.worker.embed(self.call, route, inputs, &expect).await
    }

    /// Whether and after which wait the part is tried again.
    fn again(&self, failure: &Failure, attempts: u32) -> Option<Duration> {
        let rules = &self.call.context.running.plan.retry;
        if !failure.elsewhere || attempts >= rules.max_attempts || self.gone.is_cancelled() {
            return None;
        }
        // Another upstream is tried at once; the same one after a pause.
        if self.routes.len() > attempts as usize {
            return Some(Duration::ZERO);
        }
        let backoff = Backoff { max_attempts: rules.max_attempts, base: rules.base, cap: rules.cap };
        let now = clock::mono();
        let deadline = now.plus(self.patience());
        let at = backoff.next_try(attempts, failure.retry_after, rand::random(), now, deadline)?;
        Some(at.since(now))
    }

    fn judge(
        &self,
        exchange: Exchange,
        route: &Route,
        range: &Range<usize>,
        too_large: Option<TooLarge>,
    ) -> Result<Landed, Failure> {
        match exchange.reply {
            Ok(Reply::Answer(answer)) => self.land(answer, route, range).map_err(|bad| Failure::bad_answer(&bad)),
            Ok(Reply::Error(error)) => Err(Failure::provider(error, &self.indices[range.clone()], too_large)),
            Err(error) => Err(Failure::wire(&error)),
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
            Err(_) => (OutcomeKind::Transport, None, None),
        };
        let billed = answered.and_then(|answer| answer.usage.billed());
        let chunk = billed.map(|tokens| Chunk { tokens, items: range.len() });
        let outcome = Outcome { kind, actual_tokens: billed, headers: exchange.rate.clone() };
        Report { outcome, chunk, too_large: refused.map(|error| self.too_large(error, range)) }
    }

    fn too_large(&self, error: &ProviderError, range: &Range<usize>) -> TooLarge {
        let indices = &self.indices[range.clone()];
        let bytes = indices.iter().map(|index| self.call.inputs[*index].len() as u64 + 1).sum();
        let hint = parse_limit_hint(&error.message);
        let kind = if error.message.to_ascii_lowercase().contains("token") {
            TooMuch::Tokens
        } else if error.status == 413 && hint.is_none() {
            TooMuch::Bytes
        } else {
            TooMuch::Items
        };
        TooLarge { sent: Refused { items: range.len(), tokens: self.tokens(range), bytes }, kind, hint }
    }

    /// Checks and prices what an upstream answered.
    fn land(&self, answer: EmbedAnswer, route: &Route, range: &Range<usize>) -> Result<Landed, BadAnswer> {
        let indices = &self.indices[range.clone()];
        let vectors = self.fit(answer.vectors)?;
        let likely: u64 = indices.iter().map(|index| self.call.estimate(*index).likely).sum();
        if answer.usage.odd {
            self.worker.gateway.telemetry.usage_odd(&route.upstream.plan.id);
        }
        let stated = answer.usage.billed();
        let tokens = stated.unwrap_or(likely);
        if stated.is_some() {
            let uncorrected =
                indices.iter().map(|i| self.call.items[*i].estimate(self.call.model.plan.tokenizer).likely);
            self.call.model.observe_tokens(uncorrected.sum(), tokens);
        }
        let weights: Vec<u64> = indices.iter().map(|index| self.call.estimate(*index).likely).collect();
        let shares = apportion(tokens, &weights);
        let entries = vectors.into_iter().zip(shares).map(|(vector, tokens)| Entry { vector, tokens }).collect();
        let price = token_price(&route.prices);
        let spent = Spent {
            upstream: route.upstream.plan.id.clone(),
            tokens,
            estimated: stated.is_none(),
            unit_price: price,
            cost: price.times(tokens),
            items: range.len(),
        };
        Ok(Landed { entries, spent })
    }

    /// Brings vectors to the width of the answer: as they are, or cut and scaled where the model allows that.
    fn fit(&self, vectors: Vec<Vector>) -> Result<Vec<Vector>, BadAnswer> {
        let Some(seen) = vectors.first().map(Vector::width) else { return Ok(vectors) };
        let model = &self.call.model;
        let asked = self.call.asked_width;
        // An upstream that was asked for a narrower width says nothing about the native one by obeying.
        let native =
            if asked.is_none_or(|asked| asked != seen) { Some(model.learn_width(seen)) } else { model.native_width() };
        let wanted = self.call.width.or(native).unwrap_or(seen);
        if seen == wanted {
            return Ok(vectors);
        }
        let may_cut = wanted < seen
            && native == Some(seen)
            && (model.plan.matryoshka.allows(wanted) || model.plan.enforce_dimensions == Some(wanted));
        if !may_cut {
            return Err(BadAnswer { reason: format!("expected vectors of {wanted} dimensions, got {seen}") });
        }
        vectors
            .into_iter()
            .map(|vector| vector.cut(wanted).map_err(|error| BadAnswer { reason: error.to_string() }))
            .collect()
    }
}

/// A call that brought no usable answer.
struct Failure {
    error: ApiError,
    /// Whether another try, here or elsewhere, may help.
    elsewhere: bool,
    retry_after: Option<Duration>,
    too_large: Option<TooLarge>,
}

impl From<Failure> for PartError {
    fn from(failure: Failure) -> PartError {
        match failure.too_large {
            Some(refused) => PartError::TooLarge { refused, error: failure.error },
            None => PartError::Failed(failure.error),
        }
    }
}

impl Failure {
    fn bad_answer(bad: &BadAnswer) -> Failure {
        let message = format!("the upstream's answer cannot be used: {}", bad.reason);
        Failure {
            error: ApiError::new(Code::UpstreamBadResponse, message),
            elsewhere: true,
            retry_after: None,
            too_large: None,
        }
    }

    fn wire(error: &CallError) -> Failure {
        let code = if error.is_timeout() { Code::UpstreamTimeout } else { Code::UpstreamError };
        let message = format!("the upstream {}", error.describe());
        Failure { error: ApiError::new(code, message), elsewhere: true, retry_after: None, too_large: None }
    }

    fn provider(error: ProviderError, indices: &[usize], refused: Option<TooLarge>) -> Failure {
        let retry_after = error.wait_hint;
        let word = Box::new(ProviderWord { status: error.status, code: error.code, kind: error.kind });
        let said = |code: Code| {
            let mut message = error.message.clone();
            if let [only] = indices
                && !message.contains("input[")
            {
                message = format!("input[{only}]: {message}");
            }
            ApiError {
                code,
                message: message.into(),
                param: error.param.clone().map(Into::into),
                retry_after,
                provider: None,
            }
        };
        let (error, elsewhere, too_large) = match error.fault {
            Fault::Request => (ApiError { provider: Some(word), ..said(Code::InvalidInput) }, false, None),
            Fault::TooLarge => (ApiError { provider: Some(word), ..said(Code::BodyTooLarge) }, false, refused),
            Fault::Auth => {
                let message = "the upstream refused the gateway's own key; the operator has been told";
                (ApiError::new(Code::UpstreamAuth, message), true, None)
            }
            Fault::Quota => (ApiError { provider: Some(word), ..said(Code::UpstreamRateLimited) }, true, None),
            Fault::RateLimited => (ApiError { provider: Some(word), ..said(Code::UpstreamRateLimited) }, true, None),
            Fault::Server => {
                let message = format!("the upstream failed with status {}: {}", error.status, error.message);
                (ApiError::new(Code::UpstreamError, message), true, None)
            }
        };
        Failure { error, elsewhere, retry_after, too_large }
    }
}

fn kind_of(error: &ProviderError) -> OutcomeKind {
    match error.fault {
        Fault::Request | Fault::TooLarge => OutcomeKind::RequestError,
        Fault::Auth => OutcomeKind::KeyRejected,
        Fault::Quota => OutcomeKind::OutOfQuota,
        Fault::RateLimited => OutcomeKind::RateLimited { hint: error.wait_hint },
        Fault::Server => OutcomeKind::ServerError,
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
