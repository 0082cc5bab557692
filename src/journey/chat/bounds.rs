//! What a chat request may cost: before the call, between bounds; after it, exactly.
//!
//! A provider's count of the input cannot exceed the bytes of the request, since a token is at least a byte of what it
//! reads, nor the model's context. Files, images and earlier turns that a request only names are not in its bytes; what
//! they cost beyond the hold is taken from the balance like any excess.

use crate::config::plan::{Model, Prices};
use crate::dialects::chat::meter::Told;
use crate::pure::money::Money;
use crate::pure::token_estimate::Estimate;
use crate::runtime::{Fleet, ModelRuntime, Route};

use super::ChatCall;
use crate::journey::admit::CostBounds;
use crate::journey::settle::Spent;

/// Longest answer of a model about which nothing is known, tokens.
const UNKNOWN_OUTPUT: u64 = 32_768;

/// What an answer takes that nobody has limited, for the quota's sake: most end by themselves long before the limit.
const USUAL_OUTPUT: u64 = 512;

/// The most output that a call takes out of an upstream's quota in advance; the rest is taken as it is counted.
const MOST_RESERVED_OUTPUT: u64 = 4_096;

/// Output that is likely and most, tokens, of all answers of a request together.
struct Output {
    likely: u64,
    most: u64,
}

impl Output {
    fn of(call: &ChatCall, model: &Model) -> Output {
        let request = &call.request;
        let own = model.max_output_tokens.map(u64::from);
        let most = match (request.max_output, own) {
            (Some(asked), Some(own)) => asked.min(own),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => UNKNOWN_OUTPUT,
        };
        let usual = if request.max_output.is_some() { MOST_RESERVED_OUTPUT } else { USUAL_OUTPUT };
        Output { likely: usual.min(most).saturating_mul(request.answers), most: most.saturating_mul(request.answers) }
    }
}

/// Input tokens of the request, as this model's providers have counted so far.
pub(super) fn input(call: &ChatCall, model: &ModelRuntime) -> Estimate {
    let all = model.correct(uncorrected(call, model));
    let context = model.plan.max_input_tokens.map_or(u64::MAX, u64::from);
    let upper = all.upper.min(context).max(1);
    Estimate { likely: all.likely.min(upper), upper, lower: 1 }
}

/// The same without what was learned.
pub(super) fn uncorrected(call: &ChatCall, model: &ModelRuntime) -> Estimate {
    Estimate::of(call.counts, model.plan.tokenizer)
}

/// Tokens to take out of an upstream's quota for a call.
pub(super) fn tokens(call: &ChatCall, model: &ModelRuntime) -> u64 {
    input(call, model).likely.saturating_add(Output::of(call, &model.plan).likely)
}

/// Input and output at their prices. A missing price counts as nothing: configuration allows a model without any only to
/// tenants without a budget.
pub(super) fn cost(prices: &Prices, input: u64, output: u64) -> Money {
    let (of_input, of_output) = (prices.input.unwrap_or_default(), prices.output.unwrap_or_default());
    let sum = of_input.times(input).checked_add(of_output.times(output));
    sum.unwrap_or(Money::from_units(i128::MAX))
}

/// What is held for a call at any of `routes`: it covers the dearest.
pub(super) fn bounds(call: &ChatCall, model: &ModelRuntime, routes: &Fleet) -> CostBounds {
    let (input, output) = (input(call, model), Output::of(call, &model.plan));
    let most =
        |input, output| routes.prices().iter().map(|prices| cost(prices, input, output)).max().unwrap_or_default();
    let least = routes.prices().iter().map(|prices| cost(prices, 1, 0)).min().unwrap_or_default();
    CostBounds { upper: most(input.upper, output.most), likely: most(input.likely, output.likely), lower: least }
}

/// What a call cost that brought `told`, be it all of the answer or a part of it.
pub(super) fn spent(call: &ChatCall, model: &ModelRuntime, route: &Route, told: &Told) -> Spent {
    let estimate = input(call, model).likely;
    let (output, exact) = told.output(model.plan.tokenizer);
    let (tokens, exact) = match told.usage.input {
        Some(counted) => (counted, exact),
        None => (estimate, false),
    };
    if exact {
        model.observe_tokens(uncorrected(call, model).likely, tokens);
    }
    Spent {
        upstream: route.upstream.plan.id.clone(),
        tokens,
        output_tokens: output,
        searches: 0,
        estimated: !exact,
        unit_price: route.prices.input.unwrap_or_default(),
        output_unit_price: route.prices.output.unwrap_or_default(),
        cost: cost(&route.prices, tokens, output),
        items: 1,
    }
}
