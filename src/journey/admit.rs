//! May this tenant spend anything, and how much must be held for a call. Knows prices and estimates; balances are the
//! ledger's.

use std::time::Duration;

use actix_web::rt::task::spawn_blocking;

use crate::clock;
use crate::config::plan::{Prices, Tokenizer};
use crate::dialects::Input;
use crate::error::{ApiError, Code};
use crate::pure::money::{Money, UnitPrice};
use crate::pure::token_estimate::Estimate;
use crate::pure::utc::Stamp;
use crate::runtime::Route;
use crate::tokens;

use super::classify::Call;

/// Inputs up to this many bytes together are counted exactly whatever the balance: a search query costs a microsecond
/// or two.
const ALWAYS_EXACT_BYTES: u64 = 512;

/// A balance that covers fewer requests like this one is near its limit: then the hold is an upper bound.
const NEAR_LIMIT_REQUESTS: u64 = 4096;

/// Larger inputs are counted on a blocking thread: at 40 MB/s this much takes about 6 ms.
const BLOCKING_COUNT_BYTES: u64 = 256 << 10;

/// While the balance is comfortable a hold is the estimate and half as much again, in per cent.
const COMFORTABLE_PERCENT: u64 = 150;

/// A hold that nobody resolves lapses after the longest journey a request may have, and this.
pub const HOLD_GRACE: Duration = Duration::from_secs(60);

/// Refuses a tenant without money before anything is looked up.
///
/// # Errors
/// `budget_exhausted` when nothing is left and the tenant does not ask for cached vectors even so.
pub fn check_budget(call: &Call) -> Result<(), ApiError> {
    if call.context.tenant.plan.serve_cached_when_exhausted {
        return Ok(());
    }
    check_missing(call)
}

/// Refuses a tenant without money for what is not cached.
///
/// # Errors
/// `budget_exhausted` when nothing is left. A model whose price is zero everywhere costs nothing and is never refused.
pub fn check_missing(call: &Call) -> Result<(), ApiError> {
    let tenant = &call.context.tenant;
    let exhausted = tenant.board.remaining() == Some(Money::ZERO);
    if exhausted && dearest(&call.model.routes).is_some_and(|price| price.0 > Money::ZERO) {
        return Err(exhausted_error(call));
    }
    Ok(())
}

/// What a client without money reads.
pub fn exhausted_error(call: &Call) -> ApiError {
    let mut message = "Payment Required: Retrieval quota exceeded".to_owned();
    if let Some(resets_at) = call.context.tenant.board.resets_at() {
        message.push_str(&format!("; the budget is refilled at {}", Stamp(resets_at)));
    }
    ApiError::new(Code::BudgetExhausted, message)
}

/// The bounds of what calling for these inputs can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostBounds {
    /// What is held.
    pub upper: Money,
    /// What it costs at least.
    pub lower: Money,
}

impl CostBounds {
    /// Costs nothing.
    pub const NOTHING: CostBounds = CostBounds { upper: Money::ZERO, lower: Money::ZERO };
}

/// The highest price of an input token among the routes: the hold must cover whichever is taken.
pub fn dearest(routes: &[Route]) -> Option<UnitPrice> {
    routes.iter().filter_map(|route| route.prices.input).max_by_key(|price| price.0)
}

/// The price of an input token on one route; a missing price counts as nothing, which configuration allows only for
/// tenants without a budget.
pub fn token_price(prices: &Prices) -> UnitPrice {
    prices.input.unwrap_or_default()
}

/// What must be held for the inputs at `indices`, given what the tenant has left.
pub async fn cost_bounds(call: &Call, indices: &[usize], remaining: Money) -> CostBounds {
    let price = dearest(&call.model.routes).unwrap_or_default();
    let least = call.model.routes.iter().map(|route| token_price(&route.prices)).min_by_key(|price| price.0);
    let least = least.unwrap_or_default();
    let rough = indices.iter().fold(None, |sum: Option<Estimate>, index| {
        let one = call.estimate(*index);
        Some(sum.map_or(one, |sum| sum.plus(one)))
    });
    let Some(rough) = rough else { return CostBounds::NOTHING };
    let bytes: u64 = indices.iter().map(|index| call.items[*index].text_bytes()).sum();
    let near = price.times(rough.likely.saturating_mul(NEAR_LIMIT_REQUESTS)) > remaining;
    if bytes > ALWAYS_EXACT_BYTES && !near {
        let held = (rough.likely.saturating_mul(COMFORTABLE_PERCENT) / 100).max(rough.likely + 1);
        return CostBounds { upper: price.times(held), lower: least.times(rough.lower) };
    }
    let bound = exact(call, indices, bytes).await.map_or(rough, Estimate::exact);
    CostBounds { upper: price.times(bound.upper), lower: least.times(bound.lower) }
}

/// Exact tokens of the inputs together; `None` where the tokenizer is not known here.
async fn exact(call: &Call, indices: &[usize], bytes: u64) -> Option<u64> {
    let tokenizer = call.model.plan.tokenizer;
    if tokenizer == Tokenizer::Unknown {
        return None;
    }
    let inputs: Vec<Input> = indices.iter().map(|index| call.inputs[*index].clone()).collect();
    let listed: u64 = indices.iter().map(|index| u64::from(call.items[*index].tokens)).sum();
    let count = move || {
        let texts = inputs.iter().filter(|input| !input.is_tokens());
        texts.map(|input| count_text(tokenizer, input)).sum::<Option<u64>>()
    };
    let texts = if bytes > BLOCKING_COUNT_BYTES { spawn_blocking(count).await.ok().flatten()? } else { count()? };
    texts.checked_add(listed)
}

fn count_text(tokenizer: Tokenizer, input: &Input) -> Option<u64> {
    let input = input.load_blocking().ok()?;
    let text: std::borrow::Cow<'_, str> = serde_json::from_slice(input.raw()).ok()?;
    Some(tokens::count_exact(tokenizer, &text)?.max(1))
}

/// When a hold placed now lapses.
pub fn hold_expiry(call: &Call) -> crate::pure::time::Mono {
    let quota = &call.context.running.plan.quota;
    let longest = call.model.routes.iter().map(|route| route.upstream.plan.timeout).max().unwrap_or_default();
    let attempts = call.context.running.plan.retry.max_attempts;
    clock::mono().plus(quota.batch_max_dwell + longest * attempts + HOLD_GRACE)
}
