//! A budget is spent to its last digit and never beyond, whoever comes at once and however rough the holds are.

use std::sync::Arc;

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::{Value, json};
use vectorgate::config::plan::Tokenizer;
use vectorgate::tokens::count_exact;

use super::*;
use crate::support::{Gateway, embedding_config};

/// Two hundred requests at once on a budget for a hundred of them, in a fresh gateway.
async fn check_two_hundred(model: &str, text: fn(usize) -> String, tokens: u64, delay_ms: f64) {
    let script = Script::new().space("A").width(8).tokens(TokenRule::PerItem(tokens)).delay_ms(delay_ms);
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let price = money("0.0000000184");
    let budget = price.checked_mul(100 * tokens).expect("small");
    let model = format!("price_usd_per_million_tokens = \"0.02\"\ndimensions = 8\n{model}");
    // A busy machine may stall for longer than queries usually wait for others' settlements.
    let patience = "[quota]\ninteractive_max_wait_ms = 10000\n";
    let mut config = embedding_config(&[("one", "openai", &url)], &model, &format!("budget = \"{budget}\""), patience);
    config.push_str("max_concurrency = 256\n");
    let gateway = Arc::new(Gateway::start(&config));

    let answers = all_at_once(&gateway, (0..200).map(text).collect()).await;
    assert_eq!((count(&answers, 200), count(&answers, 402)), (100, 100), "{}", others(&answers));
    for answer in answers.iter().filter(|answer| answer.status == 402) {
        assert_eq!(answer.error_code(), "budget_exhausted");
        assert!(answer.text.contains("Payment Required: Retrieval quota exceeded"), "{}", answer.text);
    }
    let account = settled_account(&gateway).await;
    assert_eq!(account["remaining"], "0", "{account}");
    assert_eq!(amount(&account["spent"]), budget);
    assert_eq!(account["written_off"], "0");
    assert_eq!(provider.call_count(), 100);
    let records = records(&gateway, 200).await;
    assert_eq!(records.len(), 200);
    assert_eq!(sum(records.iter().map(|record| amount(&record["cost"]))), budget);
    assert_eq!(records.iter().filter(|record| record["status"] == 402 && record["cost"] == "0").count(), 100);
}

/// Answers that are neither 200 nor 402, for a message.
fn others(answers: &[Answer]) -> String {
    let odd: Vec<&str> = answers
        .iter()
        .filter(|answer| !matches!(answer.status, 200 | 402))
        .map(|answer| answer.text.as_str())
        .collect();
    format!("{} other answers, such as {:?}", odd.len(), odd.first())
}

fn four_tokens(number: usize) -> String {
    let text = format!("text number {number:03}");
    assert_eq!(count_exact(Tokenizer::Cl100k, &text), Some(4), "{text:?}");
    text
}

fn long_words(number: usize) -> String {
    format!("internationalisation counterrevolutionaries {number:03}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_for_a_hundred_pays_for_a_hundred_of_two_hundred_at_once_ten_times() {
    for round in 0..10 {
        check_two_hundred("tokenizer = \"cl100k\"", four_tokens, 4, f64::from(round)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_of_many_times_the_cost_pay_for_the_same_hundred_ten_times() {
    for round in 0..10 {
        check_two_hundred("", long_words, 3 + round % 3, 2.0 * round as f64).await;
    }
}

/// 30 requests at once on 0.010, each held at 0.004 or more; the upstream answers after `most` calls or fewer.
async fn check_race(model: &str, most: u64) {
    let slow = Script::new().space("A").width(8).tokens(TokenRule::PerItem(3)).delay_ms(2_000.0);
    let provider = Provider::start(slow);
    let url = format!("{}/v1", provider.base_url());
    let gateway = Arc::new(Gateway::start(&embedding_config(
        &[("one", "openai", &url)],
        &format!("{PRICE}\n{model}"),
        "budget = \"0.010\"",
        ONE_TO_ONE,
    )));
    let refused = {
        let gateway = Arc::clone(&gateway);
        let requests = (0..30).map(move |number| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move { gateway.embed(json!(four_tokens(number))).await })
        });
        let mut running: futures_util::stream::FuturesUnordered<_> = requests.collect();
        let mut refused = 0;
        let mut answered = 0;
        while let Some(answer) = futures_util::StreamExt::next(&mut running).await {
            match answer.expect("no panic").status {
                402 => {
                    refused += 1;
                    assert_eq!(provider.stats().finished, 0, "refused while the first calls were still out");
                }
                status => {
                    assert_eq!(status, 200);
                    answered += 1;
                }
            }
        }
        assert_eq!(answered, provider.call_count());
        refused
    };
    let ran = provider.call_count();
    assert!((1..=most).contains(&ran), "{ran} ran");
    assert_eq!(refused, 30 - ran);
    let account = settled_account(&gateway).await;
    let spent = money(PER_TOKEN).checked_mul(3 * ran).expect("small");
    assert_eq!(amount(&account["remaining"]), minus(money("0.010"), spent));

    // They settled below what was held: what that left pays for whatever fits, and then no more.
    provider.set_script(Script::new().space("A").width(8).tokens(TokenRule::PerItem(4)));
    gateway.embed(json!(four_tokens(100))).await.expect(200);
    let left = minus(minus(money("0.010"), spent), money("0.004"));
    assert_eq!(amount(&settled_account(&gateway).await["remaining"]), left);
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_bspk_a_race_past_the_budget_is_refused_at_once() {
    check_race("tokenizer = \"cl100k\"", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_bspk_a_race_with_rough_holds_is_refused_before_the_first_call_ends() {
    check_race("", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_balance_covers_is_written_off_named_and_never_a_debt() {
    let provider = Provider::start(Script::new().space("A").width(8).tokens(TokenRule::PerItem(9)));
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(
        &[("one", "openai", &url)],
        &format!("{PRICE}\ntokenizer = \"cl100k\""),
        "budget = \"0.010\"",
        ONE_TO_ONE,
    ));
    // Held at 4 tokens each, billed at 9: the second takes the last 0.001, and 0.008 are nobody's.
    let first = gateway.embed(json!(four_tokens(1))).await;
    first.expect(200);
    assert_eq!(first.header("x-gateway-cost-eur"), "0.009");
    assert_eq!(first.header("x-tenant-remaining-budget-eur"), "0.001");
    gateway.embed(json!(four_tokens(2))).await.expect(402);
    let second = gateway.embed(json!("one")).await;
    second.expect(200);
    assert_eq!(second.header("x-gateway-cost-eur"), "0.001");
    assert_eq!(second.header("x-tenant-remaining-budget-eur"), "0");
    gateway.embed(json!("two")).await.expect(402);
    let account = settled_account(&gateway).await;
    assert_eq!(
        (&account["remaining"], &account["spent"], &account["written_off"]),
        (&json!("0"), &json!("0.01"), &json!("0.008"))
    );
    let records = records(&gateway, 4).await;
    let paid: Vec<&Value> = records.iter().filter(|record| record["status"] == 200).collect();
    assert_eq!(sum(paid.iter().map(|record| amount(&record["cost"]))), money("0.010"));
    assert_eq!(paid[1]["shortfall"], "0.008");
    assert_eq!(provider.call_count(), 2);
}
