//! Decisions: no clock, no randomness, no IO, no actors. `now` is always an argument.
#![deny(clippy::disallowed_methods)]

pub mod adaptive_batch;
pub mod admission;
pub mod aimd;
pub mod breaker;
pub mod budget_period;
pub mod cache_key;
pub mod call_stats;
pub mod class;
pub mod digits;
pub mod fair_queue;
pub mod header_duration;
pub mod latency_window;
pub mod leaky_bucket;
pub mod ledger;
pub mod migration;
pub mod money;
pub mod quota_lease;
pub mod rate_headers;
pub mod rate_window;
pub mod retry;
pub mod select;
pub mod service_levels;
#[cfg(test)]
mod simulation;
pub mod slo;
pub mod sparse_window;
pub mod tenant_limits;
pub mod time;
pub mod token_bucket;
pub mod token_estimate;
pub mod utc;
