//! Money: budgets to the last digit at any concurrency, over crashes and faults, and what reports say of it.

mod budget;
mod crash;
mod drill;
mod reports;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use vectorgate::pure::money::Money;

use crate::support::gateway::Answer;
use crate::support::{Gateway, KEY};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// One token costs this with [`PRICE`] and one unit of currency to the dollar.
const PER_TOKEN: &str = "0.001";

/// Keys of `[[models]]` for [`PER_TOKEN`].
const PRICE: &str = "price_usd_per_million_tokens = \"1000\"\ndimensions = 8";

/// Tables for prices that a reader can add up, and for upstreams that never queue.
const ONE_TO_ONE: &str = "[money]\nper_usd = \"1\"";

fn money(text: &str) -> Money {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// A JSON string that is an amount.
#[track_caller]
fn amount(value: &Value) -> Money {
    money(value.as_str().unwrap_or_else(|| panic!("no amount: {value}")))
}

fn sum(amounts: impl IntoIterator<Item = Money>) -> Money {
    amounts.into_iter().fold(Money::ZERO, |sum, one| sum.checked_add(one).expect("small amounts"))
}

fn minus(a: Money, b: Money) -> Money {
    a.checked_sub(b).expect("small amounts")
}

/// Sends each text as a request of its own, all at once, and returns the answers in order.
async fn all_at_once(gateway: &Arc<Gateway>, texts: Vec<String>) -> Vec<Answer> {
    let requests = texts.into_iter().map(|text| {
        let gateway = Arc::clone(gateway);
        tokio::spawn(async move { gateway.embed(json!(text)).await })
    });
    join_all(requests).await.into_iter().map(|joined| joined.expect("no panic")).collect()
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// Waits until tenant `t1`'s account satisfies `enough`, and returns it.
async fn account_until(gateway: &Gateway, enough: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let account = gateway.tenant("t1").await;
        if enough(&account) {
            return account;
        }
        assert!(Instant::now() < until, "still {account}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until no hold is open. A charge reaches the account just after the answer has left.
async fn settled_account(gateway: &Gateway) -> Value {
    account_until(gateway, |account| account["open_holds"] == 0).await
}

/// Waits until the records of answers that cost nothing are written too, and returns all records.
async fn records(gateway: &Gateway, at_least: usize) -> Vec<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        let records = gateway.usage();
        if records.len() >= at_least {
            return records;
        }
        assert!(Instant::now() < until, "only {} of {at_least} records", records.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A request of tenant `t1` that may fail to get an answer: its gateway may die.
async fn try_embed(
    client: &reqwest::Client,
    url: &str,
    request_id: &str,
    input: &Value,
) -> Option<(u16, reqwest::header::HeaderMap)> {
    let body = json!({ "model": "emb-a", "input": input }).to_string();
    let request = client
        .post(format!("{url}/v1/embeddings"))
        .header("content-type", "application/json")
        .header("x-request-id", request_id)
        .bearer_auth(KEY)
        .body(body);
    let response = request.send().await.ok()?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    response.bytes().await.ok()?;
    Some((status, headers))
}
