//! What replicas share, against a real Redis server and several real gateways.

mod amounts;
mod cache;
mod departed;
mod directory;
mod ledger;
mod outage;
mod quota;
mod reload;
mod scripted;
mod secure;
mod sizes;
mod stages;

use std::sync::Arc;
use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::{Value, json};
use vectorgate::pure::money::Money;

use crate::support::redis::RedisServer;
use crate::support::{Gateway, embedding_config};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prices that a reader can add up: one token costs 0.001.
const MODEL: &str = "price_usd_per_million_tokens = \"1000\"\ndimensions = 8\ntokenizer = \"cl100k\"";

fn money(text: &str) -> Money {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[track_caller]
fn amount(value: &Value) -> Money {
    money(value.as_str().unwrap_or_else(|| panic!("no amount: {value}")))
}

fn sum<'a>(records: impl IntoIterator<Item = &'a Value>) -> Money {
    let costs = records.into_iter().map(|record| amount(&record["cost"]));
    costs.fold(Money::ZERO, |sum, one| sum.checked_add(one).expect("small amounts"))
}

/// A provider that bills one token for each text.
fn provider(delay_ms: f64) -> Provider {
    Provider::start(Script::new().space("A").width(8).tokens(TokenRule::PerItem(1)).delay_ms(delay_ms))
}

/// Gateways with one ledger in `redis`; `tenant` goes into `[[tenants]]` `t1`, `store` and `extra` into the file.
fn config(provider: &Provider, redis_url: &str, tenant: &str, store: &str, extra: &str) -> String {
    let url = format!("{}/v1", provider.base_url());
    let extra = format!(
        "[money]\nper_usd = \"1\"\n[store]\nledger = \"redis\"\nredis_url = \"{redis_url}\"\n{store}\n\
         [cache]\nbackend = \"off\"\n{extra}"
    );
    let mut text = embedding_config(&[("one", "openai", &url)], MODEL, tenant, &extra);
    text.push_str("max_concurrency = 256\n");
    text
}

fn gateways(count: usize, config: &str) -> Vec<Arc<Gateway>> {
    (0..count).map(|_| Arc::new(Gateway::start(config))).collect()
}

/// Waits until `enough` is satisfied by what `look` brings.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> T, enough: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
{
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look().await;
        if enough(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "{what}: still {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Usage records that cost something, of one gateway's own report, once there are as many as expected.
async fn paid_records(gateway: &Gateway, expected: usize) -> Vec<Value> {
    let paid = async || {
        let records = gateway.usage().into_iter().filter(|record| record["cost"] != "0");
        records.collect::<Vec<_>>()
    };
    until("paid records", paid, |records| records.len() >= expected).await
}

/// One request of tenant `t1`; its text is one token, and never asked twice.
async fn ask(gateway: &Gateway) -> u16 {
    gateway.embed(json!("hello")).await.status
}
