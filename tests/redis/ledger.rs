//! One tenant's money over several gateways.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::*;

/// A busy machine may stall for longer than queries usually wait.
const PATIENT: &str = "[quota]\ninteractive_max_wait_ms = 10000\n";

/// Sends `total` requests, 64 at a time, to the gateways in turn; how many had each status.
async fn spend(gateways: &[Arc<Gateway>], total: usize) -> (usize, usize, Vec<u16>) {
    let next = Arc::new(AtomicUsize::new(0));
    let clients = (0..64).map(|_| {
        let (gateways, next) = (gateways.to_vec(), Arc::clone(&next));
        tokio::spawn(async move {
            let mut statuses = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return statuses;
                }
                statuses.push(ask(&gateways[number % gateways.len()]).await);
            }
        })
    });
    let statuses: Vec<u16> = join_all(clients).await.into_iter().flat_map(|joined| joined.expect("no panic")).collect();
    let count = |status| statuses.iter().filter(|seen| **seen == status).count();
    let others = statuses.iter().copied().filter(|status| !matches!(status, 200 | 402)).collect();
    (count(200), count(402), others)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_spend_one_budget_to_the_last_digit() {
    let (redis, provider) = (RedisServer::start(), provider(2.0));
    let config = config(&provider, &redis.url(), "budget = \"5\"", "redis_timeout_ms = 2000", PATIENT);
    let gateways = gateways(3, &config);
    let (answered, refused, others) = spend(&gateways, 6_000).await;
    assert_eq!((answered, refused, others), (5_000, 1_000, vec![]));
    assert_eq!(provider.tokens_billed(), 5_000);
    for gateway in &gateways {
        let account = until(
            "the account",
            async || gateway.tenant("t1").await,
            |account| account["open_holds"] == 0 && account["spent"] == "5",
        )
        .await;
        assert_eq!(account["remaining"], "0", "{account}");
        assert_eq!(account["held"], "0", "{account}");
        let records = paid_records(gateway, 5_000).await;
        assert_eq!(records.len(), 5_000, "every replica's report has every record, once");
        assert_eq!(sum(&records), money("5"));
        let ids: BTreeSet<&str> = records.iter().filter_map(|record| record["request_id"].as_str()).collect();
        assert_eq!(ids.len(), 5_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_costs_nobody_anything_but_what_is_listed() {
    kill_one_of_three(600, 16, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the same at full size"]
async fn a_killed_gateway_among_five_thousand_requests() {
    for kill_after in [300, 1_500, 3_500] {
        kill_one_of_three(5_000, 32, kill_after).await;
    }
}

/// A budget for `total` requests; one gateway, with that many clients of its own, is killed after so many calls.
async fn kill_one_of_three(total: usize, clients: usize, kill_after: u64) {
    let budget = format!("{}.{:03}", total / 1_000, total % 1_000);
    let (redis, provider) = (RedisServer::start(), provider(20.0));
    let store = "redis_timeout_ms = 2000\nredis_lease_s = 1";
    let config = config(&provider, &redis.url(), &format!("budget = \"{budget}\""), store, PATIENT);
    let steady = gateways(2, &config);
    let mut doomed = Gateway::start(&config);
    let (url, client) = (doomed.url.clone(), reqwest::Client::new());
    let at_doomed = (0..clients).map(|_| {
        let (url, client) = (url.clone(), client.clone());
        tokio::spawn(async move {
            let mut answered = 0;
            loop {
                let sent = client
                    .post(format!("{url}/v1/embeddings"))
                    .header("content-type", "application/json")
                    .bearer_auth(crate::support::KEY)
                    .body(json!({ "model": "emb-a", "input": "hello" }).to_string())
                    .send()
                    .await;
                let Ok(answer) = sent else { return answered };
                if answer.status() == 200 && answer.bytes().await.is_ok() {
                    answered += 1;
                }
            }
        })
    });
    let at_doomed: Vec<_> = at_doomed.collect();
    provider.until_calls(kill_after).await;
    let half = spend(&steady, total / 6);
    doomed.crash_and_restart();
    let (first, _, others) = half.await;
    assert_eq!(others, Vec::<u16>::new());
    let answered_by_doomed: usize = join_all(at_doomed).await.into_iter().map(|joined| joined.expect("no panic")).sum();
    // What the dead process had held is free again after the lease; then everything can be spent.
    let account =
        until("the dead replica's holds", async || steady[0].tenant("t1").await, |account| account["open_holds"] == 0)
            .await;
    assert!(amount(&account["spent"]) <= money(&budget), "{account}");
    let (second, refused, others) = spend(&steady, total + 100).await;
    assert_eq!(others, Vec::<u16>::new());
    assert!(refused > 0);
    let account = until(
        "the last settlement",
        async || steady[0].tenant("t1").await,
        |account| account["open_holds"] == 0 && account["remaining"] == "0",
    )
    .await;
    assert_eq!(amount(&account["spent"]), money(&budget), "{account}");
    for gateway in [&*steady[0], &*steady[1], &doomed] {
        let records = paid_records(gateway, total).await;
        assert_eq!(records.len(), total, "spent and listed are the same");
        assert_eq!(sum(&records), money(&budget));
    }
    // Whatever the provider billed beyond that was under way in the dead process, and each such call is listed.
    let log = steady[0].log();
    let listed = log.matches("the lease of a hold ended").count();
    let unseen = usize::try_from(provider.tokens_billed()).expect("small") - total;
    println!("{unseen} calls were under way in the killed process, {listed} holds are listed, {refused} refused");
    assert!(unseen <= listed, "{unseen} calls were billed and not seen, {listed} are listed");
    assert!(answered_by_doomed + first + second <= total, "nobody got an answer that nobody paid for");
}

/// Case RG-bspk, over two processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_bspk_two_processes_never_race_past_a_budget() {
    let redis = RedisServer::start();
    // Four tokens by our exact count, three by the provider's; 0.010 covers two calls and a half.
    let script = Script::new().space("A").width(8).tokens(TokenRule::PerItem(3)).delay_ms(2_000.0);
    let provider = Provider::start(script);
    let config = config(&provider, &redis.url(), "budget = \"0.010\"", "redis_timeout_ms = 2000", "");
    let gateways = gateways(2, &config);
    let text = "text number 001";
    let started = Instant::now();
    let requests = (0..30).map(|number: usize| {
        let gateway = Arc::clone(&gateways[number % 2]);
        tokio::spawn(async move {
            let answer = gateway.embed(json!(text)).await;
            (answer.status, started.elapsed())
        })
    });
    let answers: Vec<(u16, Duration)> =
        join_all(requests).await.into_iter().map(|joined| joined.expect("no panic")).collect();
    let answered = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(answered, 2, "{answers:?}");
    for (status, after) in answers.iter().filter(|(status, _)| *status != 200) {
        assert_eq!(*status, 402);
        assert!(*after < Duration::from_millis(1_900), "refused at once, not after the calls: {after:?}");
    }
    assert_eq!(provider.call_count(), 2);
    // They settled below their holds, which leaves room for exactly one more.
    let account = gateways[0].tenant("t1").await;
    assert_eq!(account["remaining"], "0.004", "{account}");
    let more = [gateways[1].embed(json!(text)).await, gateways[0].embed(json!(text)).await];
    assert_eq!(more.map(|answer| answer.status), [200, 402]);
    assert_eq!(gateways[1].tenant("t1").await["spent"], "0.009");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlimited_tenants_are_metered_in_every_report() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let config = config(&provider, &redis.url(), "", "redis_timeout_ms = 2000", "");
    let gateways = gateways(2, &config);
    let (answered, _, others) = spend(&gateways, 300).await;
    assert_eq!((answered, others), (300, vec![]));
    for gateway in &gateways {
        let records = paid_records(gateway, 300).await;
        assert_eq!(records.len(), 300);
        let account = gateway.tenant("t1").await;
        assert_eq!(account["spent"], "0.3", "{account}");
        assert_eq!(account["remaining"], Value::Null);
    }
}

/// Case RG-rvt6, for embeddings: a client that leaves while its call is under way pays what the provider bills, once, in
/// either ledger; one that leaves right after its answer is an ordinary success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_rvt6_a_client_that_leaves_in_mid_call_pays_for_it() {
    for shared in [false, true] {
        let (redis, provider) = (RedisServer::start(), provider(1_000.0));
        let mut text = config(&provider, &redis.url(), "budget = \"1\"", "redis_timeout_ms = 2000", PATIENT);
        if !shared {
            text = text.replace("ledger = \"redis\"", "ledger = \"embedded\"");
        }
        let gateway = Arc::new(Gateway::start(&text));
        let leaving: Vec<_> = (0..8)
            .map(|_| {
                let gateway = Arc::clone(&gateway);
                tokio::spawn(async move { ask(&gateway).await })
            })
            .collect();
        provider.until_calls(8).await;
        for client in leaving {
            client.abort();
            assert!(client.await.is_err_and(|error| error.is_cancelled()), "it had its answer already");
        }
        let records = paid_records(&gateway, 8).await;
        assert_eq!(records.len(), 8);
        assert!(
            records.iter().all(|record| record["outcome"] == "abandoned" && record["cost"] == "0.001"),
            "{records:?}"
        );
        assert_eq!(ask(&gateway).await, 200);
        let records = paid_records(&gateway, 9).await;
        assert_eq!(records.iter().filter(|record| record["outcome"] == "answered").count(), 1, "{records:?}");
        assert_eq!(sum(&records), money("0.009"));
        assert_eq!(provider.tokens_billed(), 9);
        let account =
            until("the balance", async || gateway.tenant("t1").await, |account| account["open_holds"] == 0).await;
        assert_eq!((&account["spent"], &account["held"]), (&json!("0.009"), &json!("0")), "{account}");
    }
}
