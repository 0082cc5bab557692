//! May this tenant spend anything, and how much must be held for a call. Knows prices and estimates; balances are the
//! ledger's.

use std::time::Duration;

use actix_web::rt::task::spawn_blocking;
use bytes::Bytes;

use crate::clock;
use crate::config::plan::{Prices, Tokenizer};
use crate::dialects::Input;
use crate::error::{ApiError, Code};
use crate::pure::money::Money;
use crate::pure::token_estimate::Estimate;
use crate::pure::utc::Stamp;
use crate::runtime::TenantRuntime;
use crate::tokens;

use super::classify::{Call, Context, Task};
use super::rerank;

/// A balance that covers fewer requests like this one is near its limit: then the hold is an upper bound.
const NEAR_LIMIT_REQUESTS: u64 = 4096;

/// Larger inputs are counted on a blocking thread: at 40 MB/s this much takes about 6 ms.
const BLOCKING_COUNT_BYTES: u64 = 256 << 10;

/// While the balance is comfortable a hold is the estimate and half as much again, in per cent …
const COMFORTABLE_PERCENT: u64 = 150;

/// … and at least so many tokens more, since estimates of short texts err the most.
const COMFORTABLE_TOKENS: u64 = 32;

/// A hold that nobody resolves lapses after the longest journey a request may have, and this.
pub const HOLD_GRACE: Duration = Duration::from_secs(60);

/// Refuses a tenant without money before anything is looked up.
///
/// # Errors
/// `budget_exhausted` when nothing is left and the tenant does not ask for cached vectors even so.
///
/// # Cancel safety
/// Safe.
pub async fn check_budget(call: &Call) -> Result<(), ApiError> {
    if call.context.tenant.plan.serve_cached_when_exhausted {
        return Ok(());
    }
    check_missing(call).await
}

/// Refuses a tenant without money for what is not cached.
///
/// # Errors
/// `budget_exhausted` when nothing is left. A model whose price is zero everywhere costs nothing and is never refused.
///
/// # Cancel safety
/// Safe.
pub async fn check_missing(call: &Call) -> Result<(), ApiError> {
    let costs = || call.model.routes.prices().iter().any(|prices| cost(prices, 1, 1) > Money::ZERO);
    check_funds(&call.context, costs).await
}

/// Refuses a tenant without money what `costs` something.
///
/// # Errors
/// `budget_exhausted` when nothing is left.
///
/// # Cancel safety
/// Safe.
pub async fn check_funds(context: &Context, costs: impl FnOnce() -> bool) -> Result<(), ApiError> {
    let tenant = &context.tenant;
    if !is_exhausted(tenant) || !costs() {
        return Ok(());
    }
    if let Some(shared) = &tenant.shared {
        // Another replica may have given a credit, or a reload a larger budget, since the server was asked last. Where it
        // does not answer, the last that it said holds.
        let _unanswered = shared.ledger.observe(&shared.account).await;
        if !is_exhausted(tenant) {
            return Ok(());
        }
    }
    Err(exhausted_error(context))
}

/// Whether nothing is left, as far as the board says.
fn is_exhausted(tenant: &TenantRuntime) -> bool {
    // Once the refill is due the ledger decides: it may not have looked at the clock since.
    tenant.board.exhausted() && tenant.board.resets_at().is_none_or(|at| at > clock::wall())
}

/// What a client without money reads.
pub fn exhausted_error(context: &Context) -> ApiError {
    let mut message = "Payment Required: Retrieval quota exceeded".to_owned();
    if let Some(resets_at) = context.tenant.board.resets_at() {
        message.push_str(&format!("; the budget is refilled at {}", Stamp(resets_at)));
    }
    ApiError::new(Code::BudgetExhausted, message)
}

/// The bounds of what calling for these inputs can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostBounds {
    /// What is held.
    pub upper: Money,
    /// What it will probably cost.
    pub likely: Money,
    /// What it costs at least.
    pub lower: Money,
}

impl CostBounds {
    /// Costs nothing.
    pub const NOTHING: CostBounds = CostBounds { upper: Money::ZERO, likely: Money::ZERO, lower: Money::ZERO };
}

/// What a call costs: tokens and searches at their prices. A missing price counts as nothing: that is how a unit which
/// a model is not billed by reads, and configuration allows a model without any price only to tenants without a budget.
pub fn cost(prices: &Prices, tokens: u64, searches: u64) -> Money {
    let (token, search) = (prices.input.unwrap_or_default(), prices.search.unwrap_or_default());
    token.times(tokens).checked_add(search.times(searches)).unwrap_or(Money::from_units(i128::MAX))
}

/// What must be held for the inputs at `indices`, sent in so many calls, given what the tenant has left.
///
/// The hold covers whichever route is taken: it is the dearest of them, as `lower` is the cheapest.
pub async fn cost_bounds(call: &Call, indices: &[usize], calls: usize, remaining: Money) -> CostBounds {
    let prices = call.model.routes.prices();
    let most = |tokens, searches| prices.iter().map(|prices| cost(prices, tokens, searches)).max();
    let least = |tokens, searches| prices.iter().map(|prices| cost(prices, tokens, searches)).min();
    let rough = indices.iter().fold(None, |sum: Option<Estimate>, index| {
        let one = call.estimate(*index);
        Some(sum.map_or(one, |sum| sum.plus(one)))
    });
    let Some(rough) = rough else { return CostBounds::NOTHING };
    let (fewest, most_searches) = match call.task {
        Task::Embed(_) => (0, 0),
        Task::Rerank(_) => rerank::searches(call, indices, calls),
    };
    let bounds = |tokens: Estimate, held: u64| CostBounds {
        upper: most(held, most_searches).unwrap_or_default(),
        likely: most(tokens.likely, fewest).unwrap_or_default(),
        lower: least(tokens.lower, fewest).unwrap_or_default(),
    };
    let bytes: u64 = indices.iter().map(|index| call.items[*index].text_bytes()).sum();
    let likely = most(rough.likely, fewest).unwrap_or_default();
    let near = likely.checked_mul(NEAR_LIMIT_REQUESTS).is_none_or(|many| many > remaining);
    if !near {
        let held = rough.likely.saturating_mul(COMFORTABLE_PERCENT) / 100;
        let held = held.max(rough.likely.saturating_add(COMFORTABLE_TOKENS)).min(rough.upper);
        return bounds(rough, held);
    }
    let bound = exact(call, indices, bytes).await.map_or(rough, Estimate::exact);
    bounds(bound, bound.upper)
}

/// Exact tokens of the inputs together; `None` where the tokenizer is not known here.
async fn exact(call: &Call, indices: &[usize], bytes: u64) -> Option<u64> {
    let tokenizer = call.model.plan.tokenizer;
    if tokenizer == Tokenizer::Unknown {
        return None;
    }
    let (inputs, query): (Vec<Input>, Option<Bytes>) = match &call.task {
        Task::Embed(embed) => (indices.iter().map(|index| embed.inputs[*index].clone()).collect(), None),
        Task::Rerank(rerank) => {
            let documents = indices.iter().map(|index| Input::Text(rerank.documents[*index].raw().clone()));
            (documents.collect(), Some(rerank.query.clone()))
        }
    };
    let listed: u64 = indices.iter().map(|index| u64::from(call.items[*index].tokens)).sum();
    let count = move || {
        let texts = inputs.iter().filter(|input| !input.is_tokens());
        let count = |input: &Input| count_text(tokenizer, input.load_blocking().ok()?.raw());
        let own = texts.map(count).sum::<Option<u64>>()?;
        match query {
            // The query is read once with each document.
            Some(query) => count_text(tokenizer, &query)?.checked_mul(inputs.len() as u64)?.checked_add(own),
            None => Some(own),
        }
    };
    let texts = if bytes > BLOCKING_COUNT_BYTES { spawn_blocking(count).await.ok().flatten()? } else { count()? };
    texts.checked_add(listed)
}

fn count_text(tokenizer: Tokenizer, raw: &[u8]) -> Option<u64> {
    let text: std::borrow::Cow<'_, str> = serde_json::from_slice(raw).ok()?;
    Some(tokens::count_exact(tokenizer, &text)?.max(1))
}

/// When a hold placed now lapses.
pub fn hold_expiry(call: &Call) -> crate::pure::time::Mono {
    let quota = &call.context.running.plan.quota;
    let longest = call.model.routes.longest_timeout();
    let attempts = call.context.running.plan.retry.max_attempts;
    clock::mono().plus(quota.batch_max_dwell + longest * attempts + HOLD_GRACE)
}
