//! The server is slow, gone, or back with nothing.

use super::*;

/// A tenant with a budget and one without, in turn, until told to stop; slowest answer and statuses of each.
struct Load {
    stop: tokio::sync::watch::Sender<bool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<(Instant, Duration, u16)>>>,
}

impl Load {
    fn start(gateway: &Arc<Gateway>, keys: &[&'static str]) -> Load {
        let (stop, _) = tokio::sync::watch::channel(false);
        let tasks = keys.iter().map(|key| {
            let (gateway, mut stopped, key) = (Arc::clone(gateway), stop.subscribe(), *key);
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let begun = Instant::now();
                    let body = json!({ "model": "emb-a", "input": "hello" }).to_string();
                    let status = gateway.post("/v1/embeddings", key, &[], body).await.status;
                    seen.push((begun, begun.elapsed(), status));
                    let pause = tokio::time::sleep(Duration::from_millis(20));
                    tokio::select! {
                        () = pause => {}
                        _ = stopped.wait_for(|stop| *stop) => return seen,
                    }
                }
            })
        });
        Load { tasks: tasks.collect(), stop }
    }

    async fn stop(self) -> Vec<Vec<(Instant, Duration, u16)>> {
        self.stop.send_replace(true);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.expect("no panic"));
        }
        all
    }
}

async fn status_of(gateway: &Gateway, key: &str) -> u16 {
    let body = json!({ "model": "emb-a", "input": "hello" }).to_string();
    gateway.post("/v1/embeddings", key, &[], body).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_waited_for_briefly_and_forgiven_soon() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let config = config(&provider, &redis.url(), "budget = \"1000\"", "redis_timeout_ms = 100", "");
    let gateway = Arc::new(Gateway::start(&config));
    until("the server is found", async || ask(&gateway).await, |status| *status == 200).await;
    let load = Load::start(&gateway, &[crate::support::KEY, crate::support::gateway::KEY_TWO]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let frozen = Instant::now();
    redis.freeze();
    until("refusals", async || status_of(&gateway, crate::support::KEY).await, |status| *status == 503).await;
    until("readiness says so", async || gateway.admin_get("/readyz").await.text, |text| text.contains("without redis"))
        .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    redis.wake();
    let woken = Instant::now();
    until("recovery", async || status_of(&gateway, crate::support::KEY).await, |status| *status == 200).await;
    let back = woken.elapsed();
    assert!(back < Duration::from_secs(5), "back after {back:?}");
    let seen = load.stop().await;
    let statuses = |of: &[(Instant, Duration, u16)]| of.iter().map(|(_, _, status)| *status).collect::<Vec<_>>();
    assert!(statuses(&seen[1]).iter().all(|status| *status == 200), "without a budget everything goes on");
    assert!(statuses(&seen[0]).iter().all(|status| matches!(status, 200 | 503)));
    let paid_waits = seen.iter().flatten().filter(|(begun, _, _)| *begun > frozen && *begun < woken);
    let slowest = paid_waits.map(|(_, took, _)| *took).max().expect("requests meanwhile");
    println!("slowest while the server was frozen {slowest:?}, back {back:?} after it went on");
    assert!(slowest < Duration::from_secs(3), "a request waited {slowest:?}");
    assert!(gateway.metric("vectorgate_store_errors_total{store=\"redis_ledger\"}").await > 0.0);

    let answered = seen.iter().flatten().filter(|(_, _, status)| *status == 200).count();
    let billed = usize::try_from(provider.tokens_billed()).expect("small");
    assert!(billed >= answered);
    let records = paid_records(&gateway, billed).await;
    assert_eq!(records.len(), billed, "every call is in the report, once");
    let account = until("the balance", async || gateway.tenant("t1").await, |account| account["open_holds"] == 0).await;
    let own = records.iter().filter(|record| record["tenant"] == "t1").collect::<Vec<_>>();
    assert_eq!(amount(&account["spent"]), sum(own), "{account}");
}

/// However many steps a request makes (cache, hold, limits, settlement), it waits in vain for one of them, not for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_a_frozen_server_once() {
    const LIMIT: Duration = Duration::from_millis(1_000);
    let (redis, provider) = (RedisServer::start(), provider(200.0));
    let quota = "[quota]\nshared = \"redis\"\n";
    let text = config(&provider, &redis.url(), "budget = \"1000\"\ntpm = 100000", "redis_timeout_ms = 1000", quota);
    let text =
        text.replace("backend = \"off\"", "backend = \"redis\"").replace("id = \"t2\"", "id = \"t2\"\ntpm = 100000");
    let gateway = Arc::new(Gateway::start(&text));
    until("the server is found", async || ask(&gateway).await, |status| *status == 200).await;
    let keys = [crate::support::KEY, crate::support::gateway::KEY_TWO];
    // One by one, so that nobody else's wait has told before; and one whose hold is placed when the server stops.
    for (round, key) in keys.into_iter().cycle().take(6).enumerate() {
        let fresh = format!("text of round {round}");
        let timed = async |text: String| {
            let begun = Instant::now();
            let body = json!({ "model": "emb-a", "input": text }).to_string();
            let answer = gateway.post("/v1/embeddings", key, &[], body).await;
            (answer.status, begun.elapsed(), answer.header("server-timing").to_owned())
        };
        let (status, took, timing) = if round < 4 {
            redis.freeze();
            timed(fresh).await
        } else {
            let calls = provider.call_count();
            let (answer, ()) = tokio::join!(timed(fresh), async {
                provider.until_calls(calls + 1).await;
                redis.freeze();
            });
            answer
        };
        let expected: &[u16] = if key == keys[0] && round < 4 { &[503] } else { &[200] };
        assert!(expected.contains(&status), "round {round}: {status}");
        // Its one wait, its normal time, and half a wait for a busy machine: two waits would be more.
        assert!(took < LIMIT + LIMIT * 7 / 10, "round {round}: {took:?}, {timing}");
        redis.wake();
        let ready = async || (gateway.admin_get("/readyz").await.text, ask(&gateway).await);
        until("recovery", ready, |seen| seen.1 == 200 && seen.0 == "ready\n").await;
    }
}

/// As many records as may wait for the server do; then nothing is served that would add one, and it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_owed_to_a_server_that_is_gone_are_bounded() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let store = "redis_timeout_ms = 1000\nredis_owed_records = 25";
    let gateway = Gateway::start(&config(&provider, &redis.url(), "", store, ""));
    until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    assert_eq!(ask(&gateway).await, 200);
    paid_records(&gateway, 1).await;
    redis.stop();
    until("without", async || gateway.admin_get("/readyz").await.text, |text| text.contains("without redis")).await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(ask(&gateway).await);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 25, "{statuses:?}");
    assert!(statuses[25..].iter().all(|status| *status == 503), "{statuses:?}");
    let refused = gateway.embed(json!("hello")).await;
    assert_eq!((refused.error_code().as_str(), refused.header("retry-after")), ("store_unavailable", "5"));
    assert_eq!(gateway.metric("vectorgate_store_owed_records").await, 25.0);
    assert!(gateway.log().contains("25 usage records wait"), "{}", gateway.log());
    redis.restart_empty();
    until("room again", async || ask(&gateway).await, |status| *status == 200).await;
    until("nothing owed", async || gateway.metric("vectorgate_store_owed_records").await, |owed| *owed == 0.0).await;
    let records = paid_records(&gateway, 27).await;
    assert_eq!(records.len(), 27, "nothing that was answered is missing, nothing is there twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_server_gets_its_balances_back() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let config = config(&provider, &redis.url(), "budget = \"0.1\"", "redis_timeout_ms = 1000", "");
    let gateways = gateways(2, &config);
    for number in 0..60_usize {
        until("an answer", async || ask(&gateways[number % 2]).await, |status| *status == 200).await;
    }
    for gateway in &gateways {
        paid_records(gateway, 60).await;
    }
    redis.restart_empty();
    until("recovery", async || status_of(&gateways[0], crate::support::KEY).await, |status| *status == 200).await;
    let mut spent = 61;
    while status_of(&gateways[spent % 2], crate::support::KEY).await != 402 {
        spent += 1;
        assert!(spent < 200, "the balance was forgotten");
    }
    let billed = provider.tokens_billed();
    assert_eq!(billed, 100, "nothing was spent twice");
    for gateway in &gateways {
        let account = until(
            "the balance",
            async || gateway.tenant("t1").await,
            |account| account["open_holds"] == 0 && account["spent"] == "0.1",
        )
        .await;
        assert_eq!(account["remaining"], "0");
        assert_eq!(paid_records(gateway, 100).await.len(), 100);
        assert!(!gateway.log().contains("panicked"));
    }
    let alarm = |gateway: &Arc<Gateway>| gateway.log().contains("restored from the records in this replica's journal");
    assert!(gateways.iter().any(alarm), "whoever restored them says so, and from where");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_owed_to_a_server_that_was_gone_survives_a_crash() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let config = config(&provider, &redis.url(), "", "redis_timeout_ms = 1000", "");
    let mut gateway = Gateway::start(&config);
    until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    for _ in 0..5 {
        assert_eq!(ask(&gateway).await, 200);
    }
    redis.stop();
    until("without", async || gateway.admin_get("/readyz").await.text, |text| text.contains("without redis")).await;
    for _ in 0..20 {
        assert_eq!(ask(&gateway).await, 200, "a tenant without a budget goes on");
    }
    gateway.crash_and_restart();
    for _ in 0..5 {
        assert_eq!(ask(&gateway).await, 200);
    }
    redis.restart_empty();
    let records = paid_records(&gateway, 30).await;
    let spent = until("the balance", async || gateway.tenant("t1").await, |account| account["spent"] == "0.03").await;
    assert_eq!(records.len(), 30, "{spent}");
    gateway.crash_and_restart();
    until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    assert_eq!(ask(&gateway).await, 200);
    assert_eq!(paid_records(&gateway, 31).await.len(), 31, "nothing is sent twice");
}
