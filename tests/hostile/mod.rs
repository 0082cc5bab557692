//! What hostile clients, providers, names and machines do to the gateway, and that it holds.

mod document;
mod faults;
mod limits;
mod pages;
mod smuggling;
mod steering;

use loadtest::provider::{Provider, Script};

use crate::support::embedding_config;

/// One token costs 0.000001 EUR.
const PRICED: &str = "price_usd_per_million_tokens = \"1\"\ndimensions = 8";

/// Prices count in EUR as they are stated.
const ONE_TO_ONE: &str = "[money]\nper_usd = \"1\"\n";

fn provider() -> Provider {
    Provider::start(Script::new().space("A").width(8))
}

/// One upstream called `one`, tenant `t1` with a budget; `server` are further keys of `[server]`, and tables.
fn config(provider: &Provider, server: &str) -> String {
    let url = format!("{}/v1", provider.base_url());
    let extra = format!("{server}\n{ONE_TO_ONE}");
    embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", &extra)
}
