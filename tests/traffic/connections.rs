//! Connections to upstreams: kept, renewed without a client noticing, shared over HTTP/2, and closed when nobody needs them.

use loadtest::provider::Chat;

use super::*;
use crate::chat::chat_config;
use crate::support::assert_signatures;
use crate::support::front::{Front, Strike};

/// An upstream `one` behind TLS.
fn behind(front: &Front) -> Config {
    Config::new().upstream("one", &front.url, &format!("ca = \"{}\"", front.ca))
}

/// So many queries at once, all answered by the right vectors.
async fn ask_together(gateway: &Gateway, start: &str, count: usize) {
    let texts = texts(start, count);
    let mut asking: FuturesUnordered<_> =
        texts.iter().map(async |text| (text, query(gateway, text).await.expect(200))).collect();
    while let Some((text, body)) = asking.next().await {
        assert_signatures(&body, "A", &[text]);
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "never {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn provider() -> Provider {
    Provider::start(Script::new().space("A").width(8))
}

#[tokio::test]
async fn connections_that_an_upstream_closes_are_not_noticed_by_clients() {
    let wears_out = Script { max_calls_per_connection: 2, ..Script::new().space("A").width(8) };
    let provider = Provider::start(wears_out.clone());
    let gateway = Config::new().upstream("one", &provider.base_url(), "").with("[retry]\nmax_attempts = 1\n").start();
    for turn in 0..16 {
        query(&gateway, &format!("text {turn}")).await.expect(200);
        if turn % 2 == 1 {
            // Its end was sent, and is to be noticed, without a second try.
            until("closed", || provider.stats().open_connections == 0).await;
        }
    }
    assert_eq!(provider.call_count(), 16, "each was made once");
    assert_eq!(provider.stats().connections, 8, "each was used twice");

    // What is being closed while the next request comes costs a second try, which is the gateway's own affair.
    let provider = Provider::start(wears_out);
    let gateway = Config::new().upstream("one", &provider.base_url(), "").start();
    for turn in 0..4 {
        ask_together(&gateway, &format!("turn {turn}"), 25).await;
    }
    assert_eq!(provider.call_count(), 100, "none was worked on twice");
}

#[tokio::test]
async fn connections_to_an_upstream_that_is_gone_from_the_configuration_close() {
    let (gone, stays) = (provider(), provider());
    let config = Config::new().upstream("gone", &gone.base_url(), "").upstream("stays", &stays.base_url(), "tier = 1");
    let gateway = config.start();
    until_verified(&gateway, "stays").await;
    ask_together(&gateway, "before", 20).await;
    assert!(gone.stats().open_connections > 0 && stays.call_count() == 1, "only the check");
    gateway.configure(&Config::new().upstream("stays", &stays.base_url(), "tier = 1").text());
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    until("closed", || gone.stats().open_connections == 0).await;
    ask_together(&gateway, "after", 20).await;
    assert!(stays.stats().open_connections > 0);
}

/// Upstreams of these ids at `front`, with further keys of each, and one worker.
fn several_behind(front: &Front, upstreams: &[(&str, &str)]) -> String {
    let config = upstreams.iter().fold(Config::new(), |config, (id, keys)| {
        config.upstream(id, &front.url, &format!("ca = \"{}\"\n{keys}", front.ca))
    });
    config.text().replace("workers = 2", "workers = 1")
}

#[tokio::test]
async fn upstreams_at_one_place_share_connections_and_each_call_has_its_own_key() {
    let provider = provider();
    let front = Front::start(&provider.base_url(), &["h2"]);
    // The third is at the same host, but connected to in another way.
    let all = [("one", ""), ("two", "max_concurrency = 5"), ("three", "connect_timeout_ms = 1500")];
    let gateway = Gateway::start(&several_behind(&front, &all));
    for (id, _) in all {
        until_verified(&gateway, id).await;
    }
    let (made, calls) = (front.connections(), provider.calls().len());
    for turn in 0..3 {
        ask_together(&gateway, &format!("turn {turn}"), 30).await;
    }
    for (id, _) in all {
        let secret = format!("Bearer upstream-secret-{id}");
        let of_it = |call: &&Call| call.headers.iter().any(|(_, value)| *value == secret);
        assert!(provider.calls()[calls..].iter().filter(of_it).count() > 1, "{id} has no part in it");
    }
    assert_eq!(front.connections() - made, 2, "one for the first two, one for the third");
    until("closed", || front.open() == 2).await;

    // What the first needs stays as it is when the others leave; once nobody needs it, it closes.
    gateway.configure(&several_behind(&front, &all[..1]));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    until("closed", || front.open() == 1).await;
    let made = front.connections();
    ask_together(&gateway, "of one", 20).await;
    assert_eq!((front.open(), front.connections()), (1, made));
    gateway.configure(
        &Config::new().upstream("one", &provider.base_url(), "").text().replace("workers = 2", "workers = 1"),
    );
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    until("closed", || front.open() == 0).await;
}

#[tokio::test]
async fn an_upstream_that_offers_http_2_gets_many_calls_over_one_connection() {
    let provider = provider();
    let front = Front::start(&provider.base_url(), &["h2", "http/1.1"]);
    let gateway = behind(&front).start();
    for turn in 0..3 {
        ask_together(&gateway, &format!("turn {turn}"), 40).await;
    }
    assert!(front.connections() <= 2, "one a worker, not {}", front.connections());
    assert!(front.most_calls() >= 50, "{} on one", front.most_calls());
    let call = provider.calls().remove(0);
    let header = |name: &str| call.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!(header("authorization").as_deref(), Some("Bearer upstream-secret-one"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    gateway.configure(&Config::new().upstream("one", &provider.base_url(), "").text());
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    until("closed", || front.open() == 0).await;
}

#[tokio::test]
async fn an_upstream_that_offers_only_http_1_over_tls_gets_that() {
    let provider = provider();
    let front = Front::start(&provider.base_url(), &["http/1.1"]);
    let gateway = behind(&front).start();
    for turn in 0..3 {
        ask_together(&gateway, &format!("turn {turn}"), 10).await;
    }
    assert!((1..=20).contains(&front.connections()), "{}", front.connections());
    let stranger = Front::start(&provider.base_url(), &["h2"]);
    let gateway = Config::new().upstream("one", &stranger.url, &format!("ca = \"{}\"", front.ca)).start();
    let refused = query(&gateway, "alpha").await;
    assert_eq!(refused.error_code(), "upstream_error");
    assert!(refused.text.contains("failed the TLS handshake"), "{}", refused.text);
}

#[tokio::test]
async fn more_calls_at_once_than_a_connection_takes_get_more_connections() {
    let provider = Provider::start(Script::new().space("A").width(8).delay_ms(100.0));
    let front = Front::start_with(&provider.base_url(), &["h2"], Some(4));
    let gateway = behind(&front).start();
    for turn in 0..2 {
        ask_together(&gateway, &format!("turn {turn}"), 40).await;
    }
    assert!((4..=20).contains(&front.connections()), "{} for 40 calls of which each takes 4", front.connections());
    assert_eq!(provider.call_count(), 80);
}

#[tokio::test]
async fn windows_of_http_2_stop_neither_large_requests_nor_large_answers() {
    let provider = Provider::start(Script::new().space("A").width(3072));
    let front = Front::start(&provider.base_url(), &["h2"]);
    let text = behind(&front).text().replace("dimensions = 8", "dimensions = 3072");
    let gateway = Gateway::start(&text);
    let large: Vec<String> = (0..64).map(|n| format!("{n} {}", "alpha ".repeat(2_000))).collect();
    let body = batch(&gateway, KEY, &large).await.expect(200);
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    assert_signatures(&body, "A", &large);
}

#[tokio::test]
async fn what_an_upstream_did_not_begin_over_http_2_is_sent_again() {
    let provider = provider();
    let front = Front::start(&provider.base_url(), &["h2"]);
    let gateway = behind(&front).with("[retry]\nmax_attempts = 1\n").start();
    front.strike(&[Strike::Refuse, Strike::Refuse]);
    query(&gateway, "refused at first").await.expect(200);
    for turn in 0..5 {
        front.strike(&[Strike::Leave]);
        query(&gateway, &format!("leaves {turn}")).await.expect(200);
    }
    query(&gateway, "after").await.expect(200);
    assert_eq!(provider.call_count(), 7, "each was made once");
    assert!(front.connections() >= 4, "a connection that is left is not used: {}", front.connections());

    front.strike(&[Strike::Break]);
    let broken = query(&gateway, "broken off").await;
    assert_eq!((broken.status, broken.error_code().as_str()), (502, "upstream_error"), "{}", broken.text);
    assert!(broken.text.contains("closed the connection before its answer"), "{}", broken.text);
    front.strike(&[Strike::Cut]);
    let cut = query(&gateway, "cut").await;
    assert!(cut.text.contains("closed the connection in the middle of its answer"), "{}", cut.text);
    query(&gateway, "and on").await.expect(200);
}

#[tokio::test]
async fn chat_streams_over_http_2_and_a_broken_one_says_so() {
    let chat = Chat { pieces: 5, gap_ms: 5.0, ..Chat::default() };
    let provider = Provider::start(Script { chat, ..Script::new() });
    let front = Front::start(&provider.base_url(), &["h2"]);
    let mut config =
        chat_config(&[("one", "openai", &format!("{}/v1", front.url))], "", "", "[retry]\nmax_attempts = 1\n");
    config.push_str(&format!("ca = \"{}\"\n", front.ca));
    let gateway = Gateway::start(&config);
    let body = json!({
        "model": "talk",
        "messages": [{ "role": "user", "content": "one two three" }],
        "max_tokens": 20,
        "stream": true,
    });
    let asking = async || gateway.post("/v1/chat/completions", KEY, &[], body.to_string()).await;
    for _ in 0..4 {
        let answer = asking().await;
        assert_eq!(answer.status, 200);
        assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
    }
    assert!(front.connections() <= 2, "{}", front.connections());
    front.strike(&[Strike::Cut]);
    let cut = asking().await;
    assert!(!cut.text.contains("[DONE]") && cut.text.contains("error"), "{}", cut.text);
}
