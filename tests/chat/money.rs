//! Streams on a budget: exact at any concurrency, and over a crash.

use std::sync::Arc;

use futures_util::future::join_all;
use loadtest::provider::{Chat, Provider};
use vectorgate::pure::money::Money;

use super::*;
use crate::support::redis::RedisServer;

fn money(text: &str) -> Money {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// Far from its limits a stream is made out of what upstream and balance have lent, and outlives the loan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_on_a_loan_end_once_and_cost_what_was_billed() {
    let provider = Provider::start(talking(Chat { pieces: 20, gap_ms: 5.0, ..Chat::default() }));
    let gateway = Arc::new(before(&provider, "budget = \"100000\"", ""));
    let clients = (0..8).map(|client| {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move {
            for n in 0..10 {
                // Some in one piece, some left after their first event.
                let leaves = (client + n) % 5 == 4;
                let mut response = open(&gateway, "/v1/chat/completions", &ask(n % 4 != 0 || leaves)).await;
                assert_eq!(response.status(), 200);
                if leaves {
                    response.chunk().await.expect("a piece").expect("a first event");
                } else {
                    text_of(response).await;
                }
            }
        })
    });
    for client in join_all(clients).await {
        client.expect("no request failed");
    }
    let account = settled(&gateway).await;
    let until = Instant::now() + PATIENCE;
    let state = loop {
        let state = gateway.admin_get("/admin/upstreams").await.json()["upstreams"][0]["state"].clone();
        if state["in_flight"] == 0 && state["counters"]["finished"] == 80 {
            break state;
        }
        assert!(Instant::now() < until, "still {state}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let counters = &state["counters"];
    let told = (&counters["granted"], &counters["lost"], &counters["unknown_reports"]);
    assert_eq!(told, (&json!(80), &json!(0), &json!(0)));
    let records = records(&gateway, 80).await;
    let micros = |cost: &str| (cost.parse::<f64>().expect("an amount") * 1e6).round() as u64;
    let costs: u64 = records.iter().map(|record| micros(bill(record).2)).sum();
    assert_eq!(micros(account["spent"].as_str().expect("an amount")), costs, "{account}");
    let whole: Vec<_> = records.iter().filter(|record| !bill(record).3).collect();
    assert!(whole.len() >= 60 && whole.iter().all(|record| bill(record).1 == 20), "twenty words each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_for_a_hundred_streams_pays_for_a_hundred_of_two_hundred_at_once() {
    for (round, max_tokens) in [5, 20, 400].into_iter().enumerate() {
        let provider = Provider::start(talking(Chat { pieces: 5, gap_ms: round as f64, ..Chat::default() }));
        let url = format!("{}/v1", provider.base_url());
        // 3 tokens in and 5 out cost 0.013.
        let extra = "[quota]\ninteractive_max_wait_ms = 20000\n";
        let mut config = chat_config(&[("one", "openai", &url)], "", "budget = \"1.3\"", extra);
        config.push_str("max_concurrency = 256\n");
        let gateway = Arc::new(Gateway::start(&config));
        let mut body = ask(true);
        body["max_tokens"] = json!(max_tokens);
        let requests = (0..200).map(|_| {
            let (gateway, body) = (Arc::clone(&gateway), body.clone());
            tokio::spawn(async move { stream(&gateway, &body).await })
        });
        let answers: Vec<(u16, String)> =
            join_all(requests).await.into_iter().map(|joined| joined.expect("no panic")).collect();
        let count = |status: u16| answers.iter().filter(|(got, _)| *got == status).count();
        let odd = answers.iter().find(|(status, _)| !matches!(status, 200 | 402));
        assert_eq!((count(200), count(402)), (100, 100), "{odd:?}");
        assert!(answers.iter().all(|(status, text)| *status != 200 || text.ends_with("data: [DONE]\n\n")));
        let account = settled(&gateway).await;
        assert_eq!(
            (&account["remaining"], &account["spent"], &account["written_off"]),
            (&json!("0"), &json!("1.3"), &json!("0"))
        );
        assert_eq!(provider.call_count(), 100);
        let records = records(&gateway, 200).await;
        let costs = records.iter().map(|record| money(record["cost"].as_str().expect("an amount")));
        let sum = costs.fold(Money::ZERO, |sum, cost| sum.checked_add(cost).expect("small"));
        assert_eq!(sum, money("1.3"));
    }
}

#[tokio::test]
async fn what_is_held_covers_the_longest_answer_that_may_come() {
    let provider = Provider::start(talking(Chat { pieces: 5, gap_ms: 200.0, ..Chat::default() }));
    let url = format!("{}/v1", provider.base_url());
    let config =
        chat_config(&[("one", "openai", &url)], "max_input_tokens = 50\nmax_output_tokens = 30", "budget = \"10\"", "");
    let gateway = Gateway::start(&config);
    for (max_tokens, choices, held) in [
        // 50 tokens of context at 0.001, and so many answers of so many tokens at 0.002.
        (json!(20), 1, "0.09"),
        (Value::Null, 1, "0.11"),
        (json!(1000), 1, "0.11"),
        (json!(20), 3, "0.17"),
    ] {
        let mut body = ask(true);
        (body["max_tokens"], body["n"]) = (max_tokens, json!(choices));
        let response = open(&gateway, "/v1/chat/completions", &body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(gateway.tenant("t1").await["held"], held, "{body}");
        text_of(response).await;
        assert_eq!(settled(&gateway).await["held"], "0");
    }
}

#[tokio::test]
async fn without_money_nothing_is_called() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "budget = \"0\"", "");
    for streams in [true, false] {
        let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(streams).to_string()).await;
        answer.expect(402);
        assert_eq!(answer.error_code(), "budget_exhausted");
    }
    assert_eq!(provider.call_count(), 0);
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_stream_lists_its_hold_and_keeps_what_was_finished() {
    let provider = Provider::start(talking(Chat { pieces: 1000, gap_ms: 20.0, ..Chat::default() }));
    let mut gateway = before(&provider, "budget = \"10\"", "");
    let mut response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    response.chunk().await.expect("readable").expect("an event");
    assert_eq!(gateway.tenant("t1").await["open_holds"], 1);
    gateway.crash_and_restart();
    let account = gateway.tenant("t1").await;
    assert_eq!(
        (&account["open_holds"], &account["held"], &account["remaining"]),
        (&json!(0), &json!("0"), &json!("10"))
    );
    let folder = std::fs::read_dir(gateway.folder().join("data")).expect("a journal");
    let files = folder.map(|entry| entry.expect("readable").path()).filter(|path| path.extension().is_some());
    let texts: String = files.map(|path| std::fs::read_to_string(path).expect("text")).collect();
    assert_eq!(texts.matches("\"reason\":\"crash\"").count(), 1, "{texts}");

    // A client that has the last event has its record on the books, whatever happens next.
    provider.set_script(talking(Chat { pieces: 2, ..Chat::default() }));
    let (status, text) = stream(&gateway, &ask(true)).await;
    assert!(status == 200 && text.contains("[DONE]"), "{text}");
    gateway.crash_and_restart();
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 2, "0.007", false));
    assert_eq!(gateway.tenant("t1").await["spent"], "0.007");
}

#[tokio::test]
async fn with_a_shared_ledger_a_stream_is_held_and_settled_there() {
    let redis = RedisServer::start();
    let provider = Provider::start(talking(Chat { pieces: 5, gap_ms: 100.0, ..Chat::default() }));
    let extra = format!("[store]\nledger = \"redis\"\nredis_url = \"{}\"\nredis_timeout_ms = 2000\n", redis.url());
    let gateway = before(&provider, "budget = \"10\"", &extra);
    let response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    assert_eq!(response.status(), 200);
    assert_ne!(gateway.tenant("t1").await["held"], "0");
    assert!(text_of(response).await.ends_with("data: [DONE]\n\n"));
    let until = Instant::now() + PATIENCE;
    loop {
        let account = gateway.tenant("t1").await;
        if account["spent"] == "0.013" && account["held"] == "0" {
            assert_eq!(account["remaining"], "9.987", "{account}");
            break;
        }
        assert!(Instant::now() < until, "still {account}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 5, "0.013", false));
}

#[tokio::test]
async fn a_tenants_own_limit_holds_for_chat_too_and_is_told_in_the_routes_words() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "rpm = 2", "");
    for _ in 0..2 {
        assert_eq!(stream(&gateway, &ask(true)).await.0, 200);
    }
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(true).to_string()).await;
    answer.expect(429);
    assert_eq!(answer.error_code(), "tenant_rate_limited");
    assert!(!answer.header("retry-after").is_empty());
    assert_eq!(provider.call_count(), 2);
}
