//! Owns what an upstream's admission is configured to do. Refuses to know where the settings come from beyond the plan.

use std::time::Duration;

use crate::config::plan::{self, Provider};
use crate::pure::token_bucket::Shares;

/// What concurrency is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountBy {
    /// Calls.
    Calls,
    /// Input texts: a server that takes a permit for each text of a call refuses batches long before its number of calls.
    Texts,
}

/// Settings of one upstream's admission.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Tokens per minute; `None`: unknown.
    pub tpm: Option<u64>,
    /// Requests per minute; `None`: unknown.
    pub rpm: Option<u64>,
    /// Most in flight at once, in the unit of `count`, at least 1.
    pub max_concurrency: usize,
    /// The unit of concurrency.
    pub count: CountBy,
    /// Whether concurrency adapts below its maximum: for providers that do not announce a quota.
    pub adaptive: bool,
    /// Guaranteed shares of tokens, requests and concurrency.
    pub shares: Shares,
    /// Longest wait of an interactive request.
    pub interactive_max_wait: Duration,
    /// Longest wait of a batch request.
    pub batch_max_dwell: Duration,
    /// Bound of the batch queue, input items.
    pub batch_queue_max_items: usize,
    /// The breaker's settings.
    pub breaker: plan::Breaker,
    /// Longest call; one not reported some seconds after it counts as lost.
    pub call_timeout: Duration,
}

impl Policy {
    /// The policy of a configured upstream.
    pub fn of(upstream: &plan::Upstream, quota: &plan::Quota) -> Policy {
        Policy {
            tpm: upstream.tpm,
            rpm: upstream.rpm,
            max_concurrency: upstream.max_concurrency.max(1),
            count: if upstream.provider == Provider::Tei { CountBy::Texts } else { CountBy::Calls },
            adaptive: matches!(upstream.provider, Provider::Tei | Provider::Ollama | Provider::Vllm),
            shares: Shares { interactive_reserve: quota.interactive_reserve, batch_floor: quota.batch_floor },
            interactive_max_wait: quota.interactive_max_wait,
            batch_max_dwell: quota.batch_max_dwell,
            batch_queue_max_items: quota.batch_queue_max_items,
            breaker: upstream.breaker.clone(),
            call_timeout: upstream.timeout,
        }
    }
}
