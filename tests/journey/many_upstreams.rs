//! Many upstreams of one space: what is summed up for all of them follows what each of them does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};
use serde_json::json;

use crate::support::{Gateway, embedding_config};

/// More than are looked at each time.
const MANY: usize = 40;

/// Tokens a minute of each, and what queries may take of them: batch has its floor.
const TPM: usize = 1_000_000;
const OWN: usize = 950_000;

/// Asks until `enough` is true of what an answer says: who answered, and the limit of tokens.
async fn until(gateway: &Gateway, what: &str, mut enough: impl FnMut(&str, usize) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = gateway.embed(json!(format!("{what} {:?}", Instant::now()))).await;
        answer.expect(200);
        let limit = answer.header("x-ratelimit-limit-tokens").parse().unwrap_or(0);
        if enough(answer.header("x-gateway-upstream"), limit) {
            return;
        }
        if Instant::now() > end {
            let list = gateway.admin_get("/admin/upstreams").await.json();
            let out = list["upstreams"].as_array().expect("a list").iter().filter(|one| one["state"]["usable"] != true);
            let out: Vec<String> = out.map(ToString::to_string).collect();
            panic!("{what}: {} at {limit} tokens; out are {out:?}", answer.header("x-gateway-upstream"));
        }
    }
}

/// Names and configuration of many upstreams at `provider`.
fn many(provider: &Provider, model: &str, tenant: &str) -> (Vec<String>, String) {
    let url = format!("{}/v1", provider.base_url());
    let names: Vec<String> = (0..MANY).map(|n| format!("u{n}")).collect();
    let upstreams: Vec<(&str, &str, &str)> = names.iter().map(|name| (name.as_str(), "openai", url.as_str())).collect();
    let config = embedding_config(&upstreams, model, tenant, "");
    (names, config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_to_one_of_many_takes_effect_on_all_sums() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let priced = "price_usd_per_million_tokens = \"0.02\"\ndimensions = 8";
    let (names, mut config) = many(&provider, priced, "budget = \"100\"");
    config = config.replace("serves = [", &format!("tpm = {TPM}\nserves = ["));
    // Half of them are asked only while no other can be.
    for name in &names[MANY / 2..] {
        config = config.replace(&format!("id = \"{name}\"\n"), &format!("id = \"{name}\"\ntier = 1\n"));
    }
    let gateway = Gateway::start(&config);
    until(&gateway, "all have been looked at", |_, limit| limit == MANY * OWN).await;

    // The traffic is spread over the lower tier, and over no other.
    let mut answers: BTreeMap<String, usize> = BTreeMap::new();
    let mut asked = 0;
    until(&gateway, "spread", |upstream, _| {
        *answers.entry(upstream.to_owned()).or_default() += 1;
        asked += 1;
        asked == 400
    })
    .await;
    let first_tier = |name: &str| name[1..].parse::<usize>().is_ok_and(|number| number < MANY / 2);
    assert!(answers.keys().all(|name| first_tier(name)), "{answers:?}");
    assert!(answers.len() > MANY / 4 && answers.values().all(|count| *count < 200), "{answers:?}");

    // Nothing is sent to those that are out from the moment of the answer on; sums follow.
    for name in &names[..MANY / 2] {
        gateway.admin_post(&format!("/admin/upstreams/{name}/open"), json!({})).await.expect(200);
    }
    let calls = provider.call_count();
    let mut asked = 0;
    until(&gateway, "only the second tier", |upstream, _| {
        assert!(!first_tier(upstream), "{upstream}");
        asked += 1;
        asked == 50
    })
    .await;
    assert!(provider.call_count() >= calls + 50);
    until(&gateway, "half of the limit", |_, limit| limit == MANY / 2 * OWN).await;

    gateway.admin_post("/admin/upstreams/u3/close", json!({})).await.expect(200);
    until(&gateway, "one is back", |upstream, limit| upstream == "u3" && limit == (MANY / 2 + 1) * OWN).await;
    let mut asked = 0;
    until(&gateway, "it is the only one of its tier", |upstream, _| {
        assert_eq!(upstream, "u3");
        asked += 1;
        asked == 20
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_more_than_are_looked_at_at_once_each_has_its_turn_and_the_only_one_left_is_found() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let (names, config) = many(&provider, "dimensions = 8", "");
    let gateway = Gateway::start(&config);
    let mut heard = BTreeMap::new();
    until(&gateway, "all have their turn", |upstream, _| {
        *heard.entry(upstream.to_owned()).or_insert(0) += 1;
        heard.len() == MANY
    })
    .await;
    for name in names.iter().filter(|name| *name != "u7") {
        gateway.admin_post(&format!("/admin/upstreams/{name}/open"), json!({})).await.expect(200);
    }
    let end = Instant::now() + Duration::from_millis(500);
    until(&gateway, "only one is left", |upstream, _| {
        assert_eq!(upstream, "u7");
        // Longer than a window lasts.
        Instant::now() > end
    })
    .await;
}
