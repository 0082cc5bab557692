//! Limits per minute over several gateways.

use loadtest::provider::Quota;
use vectorgate::config::plan::Tokenizer;
use vectorgate::tokens::count_exact;

use super::*;

const MINUTE: u64 = 1_200;

fn config(provider: &Provider, redis: &RedisServer, limits: &str, extra: &str) -> String {
    let url = format!("{}/v1", provider.base_url());
    let extra = format!(
        "[store]\nredis_url = \"{}\"\nredis_timeout_ms = 1000\n[cache]\nbackend = \"off\"\n[quota]\nshared = \"redis\"\n{extra}",
        redis.url()
    );
    let mut text = embedding_config(&[("one", "openai", &url)], MODEL, "", &extra);
    text.push_str(&format!("max_concurrency = 256\n{limits}\n"));
    text
}

/// Queries for `text` at a steady rate, and bulk clients that always want more, until the time is over; how many answers
/// came.
async fn load(
    gateway: Arc<Gateway>,
    text: &'static str,
    per_second: u32,
    bulk: usize,
    span: Duration,
) -> (usize, Vec<u16>) {
    let end = Instant::now() + span;
    let body = json!({ "model": "emb-a", "input": text }).to_string();
    let (sent, mut seen) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..bulk {
        let (gateway, sent, body) = (Arc::clone(&gateway), sent.clone(), body.clone());
        tokio::spawn(async move {
            while Instant::now() < end {
                let headers = [("x-traffic-class", "batch-ingestion")];
                let answer = gateway.post("/v1/embeddings", crate::support::KEY, &headers, body.clone());
                let Ok(answer) = tokio::time::timeout_at(end.into(), answer).await else { return };
                if sent.send(answer.status).is_err() {
                    return;
                }
            }
        });
    }
    let mut next = Instant::now();
    while Instant::now() < end {
        let (own, sent, body) = (Arc::clone(&gateway), sent.clone(), body.clone());
        tokio::spawn(async move {
            sent.send(own.post("/v1/embeddings", crate::support::KEY, &[], body).await.status).is_ok()
        });
        next += Duration::from_secs(1) / per_second;
        tokio::time::sleep_until(next.into()).await;
    }
    drop(sent);
    let mut statuses = Vec::new();
    while let Some(status) = seen.recv().await {
        statuses.push(status);
    }
    let answered = statuses.iter().filter(|status| **status == 200).count();
    let odd = statuses.into_iter().filter(|status| !matches!(status, 200 | 429)).collect();
    (answered, odd)
}

/// Three gateways under three times the load that `tpm` allows, a part of it in bulk: the provider never refuses, and nine
/// tenths of its quota are used. `text` has `tokens` by the model's tokenizer.
async fn share(tpm: u64, text: &'static str, tokens: u64, per_second: u32, span: Duration) {
    assert_eq!(count_exact(Tokenizer::Cl100k, text), Some(tokens));
    let redis = RedisServer::start();
    let script = Script::new().space("A").width(8).tokens(TokenRule::PerItem(tokens));
    let provider = Provider::start(script.quota(Quota::tpm(tpm).sliding()));
    let gateways = gateways(3, &config(&provider, &redis, &format!("tpm = {tpm}"), ""));
    let begun = Instant::now();
    let loads = gateways.iter().map(|gateway| tokio::spawn(load(Arc::clone(gateway), text, per_second, 2, span)));
    let mut answered = 0;
    for load in loads.collect::<Vec<_>>() {
        let (count, odd) = load.await.expect("no panic");
        assert_eq!(odd, Vec::<u16>::new());
        answered += count;
    }
    let refused = provider.stats().by_status.get(&429).copied().unwrap_or(0);
    // Over the whole span a sliding minute allows its limit once, and what has aged out since.
    let allowed = tpm as f64 * begun.elapsed().as_secs_f64() / 60.0;
    let used = provider.tokens_billed() as f64 / allowed;
    println!("{answered} answers, {refused} refusals of the provider, {:.1} % of the quota used", used * 100.0);
    assert_eq!(refused, 0, "the provider had to refuse");
    assert!(used >= 0.9, "{used:.3} of {allowed:.0} tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_use_one_quota_and_never_exceed_it() {
    share(MINUTE, "hello", 1, 14, Duration::from_secs(72)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes three minutes"]
async fn three_gateways_use_one_quota_for_three_minutes() {
    // A hundred tokens: a thousand requests a minute, at three times that rate.
    const TEXT: &str = concat!(
        "one two three four five six seven eight nine ten one two three four five six seven eight nine ten ",
        "one two three four five six seven eight nine ten one two three four five six seven eight nine ten ",
        "one two three four five six seven eight nine ten one two three four five six seven eight nine ten ",
        "one two three four five six seven eight nine ten one two three four five six seven eight nine ten ",
        "one two three four five six seven eight nine ten one two three four five six seven eight nine ten"
    );
    share(100_000, TEXT, 100, 15, Duration::from_secs(180)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_server_each_gateway_keeps_to_its_part() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &config(&provider, &redis, "rpm = 40", ""));
    for gateway in &gateways {
        until("an answer", async || ask(gateway).await, |status| *status == 200).await;
    }
    // Both have met.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    redis.stop();
    for gateway in &gateways {
        until("without", async || gateway.admin_get("/readyz").await.text, |text| text.contains("without redis")).await;
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut answered = Vec::new();
    for gateway in &gateways {
        let mut count = 0;
        while ask(gateway).await == 200 {
            count += 1;
            assert!(count < 100, "no limit holds");
        }
        answered.push(count);
    }
    assert!(answered.iter().all(|count| (5..=20).contains(count)), "{answered:?}: half of 40 each");
    redis.restart_empty();
    until("the server", async || gateways[0].admin_get("/readyz").await.text, |text| text == "ready\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateways_open_breaker_opens_the_others() {
    use loadtest::provider::Effect;
    let redis = RedisServer::start();
    let provider = Provider::start(Script::new().space("A").width(8).always(Effect::status(500)));
    let breaker = "breaker = { min_requests = 5, cooldown_s = 60 }";
    let gateways = gateways(2, &config(&provider, &redis, breaker, "[retry]\nmax_attempts = 1\n"));
    for _ in 0..8 {
        ask(&gateways[0]).await;
    }
    let open = async |gateway: &Gateway| gateway.metric("vectorgate_breaker_state{upstream=\"one\"}").await;
    until("its own breaker", async || open(&gateways[0]).await, |state| *state == 2.0).await;
    until("the other's breaker", async || open(&gateways[1]).await, |state| *state == 2.0).await;
    let calls = provider.call_count();
    let answer = gateways[1].embed(json!("hello")).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "upstream_circuit_open"));
    assert_eq!(provider.call_count(), calls, "nothing is called to learn the same again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_own_limit_holds_over_all_gateways() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let config = config(&provider, &redis, "", "").replacen("id = \"t1\"", "id = \"t1\"\nrpm = 10\ntpm = 1000", 1);
    let gateways = gateways(3, &config);
    for gateway in &gateways {
        until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    }
    let mut answers = Vec::new();
    for number in 0..24_usize {
        answers.push(gateways[number % 3].embed(json!("hello")).await);
    }
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(answered, 10);
    let refused = answers.iter().filter(|answer| answer.status != 200);
    for answer in refused {
        assert_eq!((answer.status, answer.error_code().as_str()), (429, "tenant_rate_limited"));
        assert!(!answer.header("retry-after").is_empty());
    }
    assert_eq!(provider.call_count(), 10);
}
