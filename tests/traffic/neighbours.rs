//! A bulk job beside people's queries, under a provider that really enforces its quota.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use loadtest::provider::{Provider, Quota, Script, TokenRule};

use super::{Config, batch, query, statuses};
use crate::support::Gateway;
use crate::support::gateway::{KEY, KEY_TWO};

const KEY_THREE: &str = "test-key-three";

/// `n` documents of 100 words, each different.
fn docs(name: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{name} {i}{}", " word".repeat(98 - name.split(' ').count()))).collect()
}

/// A client that sends one request after the other until the time is over; the tokens it was served.
async fn bulk_client(gateway: &Gateway, key: &str, name: &str, sizes: &[usize], until: Instant) -> u64 {
    let mut served = 0;
    for n in 0.. {
        let size = sizes[n % sizes.len()];
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let docs = docs(&format!("{name} {n}"), size);
        match tokio::time::timeout(left, batch(gateway, key, &docs)).await {
            Ok(answer) => served += answer.expect(200)["usage"]["total_tokens"].as_u64().expect("a number"),
            Err(_over) => break,
        }
    }
    served
}

/// Ten queries a second until the time is over: the status of each, and how many milliseconds it waited for its turn. A busy
/// machine makes a query slow, but no queue long.
async fn searching(gateway: &Gateway, until: Instant) -> Vec<(u16, f64)> {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let (mut running, mut ended, mut sent) = (FuturesUnordered::new(), Vec::new(), 0);
    while Instant::now() < until {
        tokio::select! {
            _ = tick.tick() => {
                let text = format!("who pays for query {sent}");
                running.push(async move {
                    let answer = query(gateway, &text).await;
                    let queue = answer.header("server-timing").split("queue;dur=").nth(1);
                    let queue_ms = queue.and_then(|rest| rest.split(',').next()).and_then(|ms| ms.parse().ok());
                    (answer.status, queue_ms.unwrap_or(f64::MAX))
                });
                sent += 1;
            }
            Some(answer) = running.next() => ended.push(answer),
        }
    }
    ended.extend(running.collect::<Vec<_>>().await);
    ended
}

#[tokio::test]
async fn a_bulk_job_beside_queries_hurts_nobody_and_uses_its_share() {
    let quota = Quota::tpm(60_000);
    let provider = Provider::start(Script::new().tokens(TokenRule::Words).quota(quota).delay_ms(8.0));
    let gateway = Config::new().upstream("one", &provider.base_url(), "tpm = 60000\nrpm = 6000").start();
    let span = Duration::from_secs(30);
    let until = Instant::now() + span;
    let sizes = [1, 30, 4, 64, 12];
    let names: Vec<String> = (0..8).map(|n| format!("job {n}")).collect();
    let jobs = join_all(names.iter().map(|name| bulk_client(&gateway, KEY_TWO, name, &sizes, until)));
    let (queries, _) = tokio::join!(searching(&gateway, until), jobs);
    assert!(queries.len() > 250, "{}", queries.len());
    assert!(queries.iter().all(|(status, _)| *status == 200), "no query fails");
    let mut waits: Vec<f64> = queries.iter().map(|(_, queue_ms)| *queue_ms).collect();
    waits.sort_by(f64::total_cmp);
    let p95 = waits[waits.len() * 95 / 100];
    assert!(p95 < 20.0, "queries wait for no bulk: {p95} ms");
    let stats = provider.stats();
    assert_eq!(stats.by_status.get(&429), None, "not one refusal by the provider");
    let by_queries = queries.len() as u64 * 5;
    let by_bulk = stats.tokens_billed - by_queries;
    // Seven tenths of the limit, paced over the minute.
    let share = 60_000 * 7 / 10 * span.as_secs() / 60;
    assert!(by_bulk >= share * 85 / 100, "{by_bulk} of {share}");
}

#[tokio::test]
async fn bulk_tenants_are_served_by_weight_and_a_small_one_soon() {
    let provider = Provider::start(Script::new().tokens(TokenRule::Words).quota(Quota::tpm(60_000)).delay_ms(5.0));
    let config =
        Config::new().only_tenant("weight = 1").tenant("t2", KEY_TWO, "weight = 3").tenant("t3", KEY_THREE, "");
    let gateway = config.upstream("one", &provider.base_url(), "tpm = 60000").start();
    let span = Duration::from_secs(20);
    let until = Instant::now() + span;
    let clients = async |key: &str, name: &str| {
        let names: Vec<String> = (0..12).map(|n| format!("{name} {n}")).collect();
        join_all(names.iter().map(|name| bulk_client(&gateway, key, name, &[2], until))).await.iter().sum::<u64>()
    };
    let waited = Cell::new(Duration::MAX);
    let newcomer = async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        let began = Instant::now();
        batch(&gateway, KEY_THREE, &docs("small", 2)).await.expect(200);
        waited.set(began.elapsed());
    };
    let (light, heavy, ()) = tokio::join!(clients(KEY, "light"), clients(KEY_TWO, "heavy"), newcomer);
    assert!(light > 1_000, "{light} and {heavy}");
    let ratio = heavy as f64 / light as f64;
    assert!((2.4..=3.7).contains(&ratio), "{heavy} to {light}: {ratio}");
    assert!(waited.get() < Duration::from_secs(3), "{:?}", waited.get());
    assert_eq!(provider.stats().by_status.get(&429), None);
}

#[tokio::test]
async fn queries_above_the_quota_leave_batch_its_floor() {
    let provider = Provider::start(Script::new().tokens(TokenRule::Words).quota(Quota::tpm(6_000)).delay_ms(5.0));
    let config = Config::new().with("[quota]\ninteractive_max_wait_ms = 2000\nbatch_floor = 0.1\n");
    let gateway = config.upstream("one", &provider.base_url(), "tpm = 6000").start();
    let long = " word".repeat(45);
    let storm = async {
        let mut answers = Vec::new();
        for wave in 0..8 {
            let texts: Vec<String> = (0..40).map(|n| format!("storm {wave} {n}{long}")).collect();
            answers.extend(join_all(texts.iter().map(|text| query(&gateway, text))).await);
        }
        answers
    };
    let ingest = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let began = Instant::now();
        let mut served = 0;
        for n in 0..5 {
            batch(&gateway, KEY_TWO, &docs(&format!("patient {n}"), 1)).await.expect(200);
            served += 1;
        }
        (served, began.elapsed())
    };
    let (answers, (served, took)) = tokio::join!(storm, ingest);
    let counts = statuses(&answers);
    assert!(counts.get(&429).copied().unwrap_or(0) > 50, "more is asked than there is: {counts:?}");
    assert_eq!(served, 5);
    assert!(took < Duration::from_secs(20), "its floor is served while queries wait: {took:?}");
    assert_eq!(provider.stats().by_status.get(&429), None);
}
