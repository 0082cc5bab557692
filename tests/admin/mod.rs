//! The gateway while it runs: reload, tenants and keys, the admin side, and its orderly end.

mod audit;
mod departed;
mod drain;
mod keys;
mod ledger;
mod listener;
mod load;
mod period;
mod reload;
mod reload_midway;
mod standstill;
mod tenants;

use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};

use crate::support::embedding_config;

/// A model with a price that divides evenly: one token costs 0.000001 EUR.
const PRICED: &str = "price_usd_per_million_tokens = \"1\"\ndimensions = 8";

/// Prices count in EUR as they are stated.
const ONE_TO_ONE: &str = "[money]\nper_usd = \"1\"";

/// A provider of space `A` that answers in its own time.
fn provider() -> Provider {
    Provider::start(Script::new().space("A").width(8))
}

/// One upstream called `one`, tenant `t1` with a budget.
fn config_at(url: &str) -> String {
    let url = format!("{url}/v1");
    embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", ONE_TO_ONE)
}

/// Waits until `ready` says so.
async fn until<F: Future<Output = bool>>(what: &str, mut ready: impl FnMut() -> F) {
    let end = Instant::now() + Duration::from_secs(60);
    while !ready().await {
        assert!(Instant::now() < end, "{what}: did not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
