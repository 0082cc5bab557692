//! A request's life, from a scanned body to an answer whose money is settled.
//!
//! `classify → admit → look up → reserve and call → settle → answer`. The journey outlives the HTTP handler that awaits
//! it: a client that leaves drops the handler, and the journey still ends in order (calls that were sent are finished,
//! charged and cached; nothing new is started).
//!
//! **Invariant:** every path out of [`serve`] passes [`settle::finish`] exactly once.

pub mod admit;
pub mod attempt;
pub mod chat;
pub mod classify;
pub mod guards;
pub mod items;
pub mod plan;
pub mod rate;
pub mod refuse;
pub mod rerank;
pub mod reserve;
pub mod settle;

use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, Code};
use crate::lifecycle;
use crate::worker::Worker;

use classify::Call;
use plan::{Entry, Plan};
use settle::{Finished, Tally};

/// How often a request looks again at inputs that another request had begun to ask for and failed at.
const ROUNDS: usize = 3;

/// Takes one call from admission to its settled answer.
///
/// # Cancel safety
/// Must not be dropped: it has to outlive its waiter. `gone` is cancelled when the client leaves.
pub async fn serve(worker: Rc<Worker>, call: Call, gone: CancellationToken) -> Finished {
    let mut tally = Tally::default();
    let mut result = tokio::select! {
        // In this order, so that what is ready at once costs no look at the token.
        biased;
        result = entries(&worker, &call, &gone, &mut tally) => result,
        () = worker.cut.cancelled() => Err(lifecycle::cut_error()),
    };
    tally.book_under_way();
    if gone.is_cancelled() && result.is_ok() {
        // It is cached and on the books, but nobody gets it.
        result = Err(plan::client_gone());
    }
    settle::finish(&worker, call, tally, result).await
}

/// The vectors or scores of a call, one an input, in order.
async fn entries(
    worker: &Rc<Worker>,
    call: &Call,
    gone: &CancellationToken,
    tally: &mut Tally,
) -> Result<Vec<Entry>, ApiError> {
    let trace = &call.context.trace;
    {
        let _stage = trace.stage("admit");
        admit::check_budget(call).await?;
    }
    let mut plan = {
        let _stage = trace.stage("cache");
        plan::look_up(worker, call).await
    };
    let ended = complete(worker, call, &mut plan, gone, tally).await;
    tally.cached_items = plan.hits();
    tally.cache = Some(plan.cache_result());
    ended.map(|()| plan.into_entries())
}

/// Leads and follows until every input has its answer.
async fn complete(
    worker: &Rc<Worker>,
    call: &Call,
    plan: &mut Plan,
    gone: &CancellationToken,
    tally: &mut Tally,
) -> Result<(), ApiError> {
    for _ in 0..ROUNDS {
        if plan.is_complete() {
            return Ok(());
        }
        admit::check_missing(call).await?;
        let mut round = plan.next_round(worker, call);
        let ended = match round.led.is_empty() {
            true => Ok(()),
            false => attempt::run(worker, call, &mut round, gone, tally).await,
        };
        plan.take(round);
        ended?;
        let _stage = plan.follows().then(|| call.context.trace.stage("follow"));
        plan.await_followed(gone).await?;
    }
    if plan.is_complete() {
        return Ok(());
    }
    // Whoever led failed each time.
    Err(plan.last_told().unwrap_or_else(|| {
        ApiError::new(Code::UpstreamError, "the upstream failed while another request was asking for the same")
    }))
}
