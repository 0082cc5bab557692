//! An upstream of two goes down, in every way that there is, and nobody notices.

use std::time::{Duration, Instant};

use loadtest::provider::{Effect, Fault, Pace, Provider, Script};

use super::{
    Config, SOON, client_calls, healthy, load, query, statuses, until_breaker, until_checked, until_closed,
    until_upstream, until_verified,
};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures};

/// A breaker whose outages fit into a test.
const BRIEF: &str = "[breaker]\ncooldown_s = 2\nprobe_interval_s = 0.2\n";

/// Two upstreams of one space, the second only for when the first fails.
fn pair(one: &str, two: &str, extra: &str, keys: &str) -> Config {
    Config::new().with(extra).upstream("one", one, &format!("{keys}\ntier = 0")).upstream("two", two, "tier = 1")
}

#[tokio::test]
async fn a_region_goes_down_under_load_and_comes_back() {
    let script = || Script::new().delay_ms(10.0);
    let (one, two) = (Provider::start(script()), Provider::start(script()));
    let config = Config::new().with(BRIEF).upstream("one", &one.base_url(), "").upstream("two", &two.base_url(), "");
    let gateway = config.start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    drop(load(&gateway, "warm", 400, Duration::from_millis(5)).await);
    assert!(client_calls(&one).len() > 50 && client_calls(&two).len() > 50, "both are used");
    let outage = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        one.set_script(Script::new().always(Effect::fault(Fault::Refuse)));
        tokio::time::sleep(Duration::from_secs(3)).await;
        // Two calls or three were enough to keep it out of the traffic, and on-call sees it for what it is.
        until_breaker(&gateway, "one", "open").await;
        one.set_script(script());
        one.clear();
    };
    let (answers, ()) = tokio::join!(load(&gateway, "during", 1_200, Duration::from_millis(5)), outage);
    let refused = answers.iter().find(|answer| answer.status != 200).map(|answer| &answer.text);
    assert_eq!(statuses(&answers), [(200, 1_200)].into(), "not one error: {refused:?}");
    let began = Instant::now();
    while client_calls(&one).is_empty() {
        assert_eq!(
            statuses(&load(&gateway, &format!("{:?}", began.elapsed()), 20, Duration::from_millis(5)).await)[&200],
            20
        );
        assert!(began.elapsed() < SOON, "traffic returns");
    }
}

/// With every fault of host 1, embeddings come from host 2 within `bound`.
async fn fails_over(name: &str, one: &str, keys: &str, bound: Duration) -> Gateway {
    let two = healthy();
    let extra = "[breaker]\nslow_ms = 300\n[retry]\nbase_ms = 10\n";
    let gateway = pair(one, &two.base_url(), extra, keys).start();
    until_verified(&gateway, "two").await;
    for n in 0..3 {
        let began = Instant::now();
        let text = format!("{name} {n}");
        let answer = query(&gateway, &text).await;
        assert_signatures(&answer.expect(200), "A", &[&text]);
        assert_eq!(answer.header("x-gateway-upstream"), "two", "{name}");
        assert!(began.elapsed() < bound, "{name}: {:?}", began.elapsed());
    }
    two.stop().await;
    let began = Instant::now();
    let answer = query(&gateway, "nobody is left").await;
    assert!(matches!(answer.status, 502..=504), "{name}: {} {}", answer.status, answer.text);
    assert!(began.elapsed() < bound * 4, "{name}: {:?}", began.elapsed());
    let address = one.trim_start_matches("http://").trim_start_matches("https://");
    assert!(!answer.text.contains(address) && !answer.text.contains("127.0.0.1"), "{name}: {}", answer.text);
    assert_eq!(answer.header("x-retrieval-fallback"), "lexical-only", "{name}");
    gateway
}

#[tokio::test]
async fn rg_5fbn_every_kind_of_connection_fault_fails_over() {
    let connect = "connect_timeout_ms = 300";
    let bound = Duration::from_secs(3);
    let dead = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", socket.local_addr().expect("bound"))
    };
    fails_over("refused port", &dead, connect, bound).await;
    fails_over("unknown name", "http://no-such-host.invalid:8080", connect, bound).await;
    fails_over("unroutable", "http://10.255.255.1:8080", connect, bound).await;
    let plain = healthy();
    fails_over("plain where TLS is spoken", &plain.base_url().replace("http:", "https:"), connect, bound).await;
    for fault in [
        Fault::AcceptAndClose,
        Fault::ResetOnAccept,
        Fault::CloseAfterBody,
        Fault::ResetAfterBody,
        Fault::HalfClose,
        Fault::Garbage,
        Fault::Truncate { after_bytes: 20 },
        Fault::ResetMidAnswer { after_bytes: 20 },
        Fault::WrongLength { by: 10 },
        Fault::EndlessHeader,
    ] {
        let name = format!("{fault:?}");
        let one = Provider::start(Script::new().always(Effect::fault(fault)));
        fails_over(&name, &one.base_url(), connect, bound).await;
    }
    for status in [500, 502, 503, 504, 529] {
        let one = Provider::start(Script::new().always(Effect::status(status)));
        fails_over(&status.to_string(), &one.base_url(), connect, bound).await;
    }
}

fn silences() -> [(&'static str, Script); 5] {
    let script = Script::new;
    [
        ("accepts, reads, never answers", script().always(Effect::fault(Fault::NeverAnswer))),
        ("never reads", script().always(Effect::fault(Fault::NeverRead))),
        ("head, then stalls", script().always(Effect::pace(Pace::stall(0, 3_600_000.0)))),
        ("a byte a second for ever", script().always(Effect::pace(Pace::trickle(1, 1_000.0)))),
        ("a second longer than the limit", script().delay_ms(3_000.0)),
    ]
}

#[tokio::test]
async fn rg_db2b_a_silent_host_is_left_for_another_in_time() {
    for (name, script) in silences() {
        let one = Provider::start(script);
        let gateway = fails_over(name, &one.base_url(), "timeout_s = 2", Duration::from_secs(3)).await;
        let timeouts = r#"vectorgate_upstream_requests_total{upstream="one",status="timeout"}"#;
        assert!(gateway.metric(timeouts).await >= 1.0, "{name}: a timeout is counted");
        drop(gateway);
    }
}

#[tokio::test]
async fn rg_db2b_the_clients_own_patience_is_respected() {
    let (one, two) = (Provider::start(Script::new().always(Effect::fault(Fault::NeverAnswer))), healthy());
    let gateway = pair(&one.base_url(), &two.base_url(), "", "").start();
    until_verified(&gateway, "two").await;
    let began = Instant::now();
    let headers = [("x-stainless-read-timeout", "2")];
    let answer = gateway.post("/v1/embeddings", KEY, &headers, super::asking(&serde_json::json!("hurry"))).await;
    answer.expect(200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Connections from this machine to a port that are up on the side of whoever opened them.
fn established(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table of sockets");
    let remote = format!(":{port:04X}");
    let is_up = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(2).is_some_and(|to| to.ends_with(&remote)) && fields.get(3) == Some(&"01")
    };
    table.lines().filter(is_up).count()
}

#[tokio::test]
async fn rg_db2b_without_another_host_it_is_a_504_and_the_connection_is_not_used_again() {
    for (name, script) in silences() {
        let one = Provider::start(script);
        let gateway = Config::new().upstream("one", &one.base_url(), "timeout_s = 1").start();
        let began = Instant::now();
        let answer = query(&gateway, "alone").await;
        assert_eq!((answer.status, answer.error_code().as_str()), (504, "upstream_timeout"), "{name}: {}", answer.text);
        assert!(began.elapsed() < Duration::from_secs(5), "{name}");
        let until = Instant::now() + SOON;
        while established(one.addr().port()) > 0 {
            assert!(Instant::now() < until, "{name}: the connection is given up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn rg_9g28_traffic_returns_to_the_first_and_does_not_swing_with_every_flap() {
    let (one, two) = (healthy(), Provider::start(Script::new().delay_ms(20.0)));
    let gateway = pair(&one.base_url(), &two.base_url(), BRIEF, "").start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    let share = async |name: &str| {
        one.clear();
        two.clear();
        let answers = load(&gateway, name, 60, Duration::from_millis(10)).await;
        assert_eq!(statuses(&answers), [(200, 60)].into(), "{name}");
        (client_calls(&one).len(), client_calls(&two).len())
    };
    assert_eq!(share("healthy").await, (60, 0));
    one.set_script(Script::new().always(Effect::fault(Fault::Refuse)));
    assert_eq!(share("down").await, (0, 60));
    until_breaker(&gateway, "one", "open").await;
    one.set_script(Script::new());
    until_verified(&gateway, "one").await;
    until_closed(&gateway, "one").await;
    assert_eq!(share("back").await, (60, 0), "without a restart");

    let mut switches = 0;
    let mut on_first = true;
    for flap in 0..4 {
        for (phase, script) in [("down", Script::new().always(Effect::fault(Fault::Refuse))), ("up", Script::new())] {
            one.set_script(script);
            for second in 0..2 {
                let (first, _) = share(&format!("flap {flap} {phase} {second}")).await;
                let now = first > 30;
                switches += usize::from(now != on_first);
                on_first = now;
            }
        }
    }
    assert!(switches <= 4, "{switches} switches in 8 changes");
    until_upstream(&gateway, "one", "back", |state| state["unverified"] == false).await;
}

#[tokio::test]
async fn a_connection_closed_in_answer_to_one_request_is_no_outage() {
    let (one, two) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = pair(&one.base_url(), &two.base_url(), "", "").start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    one.clear();
    one.set_script(Script::new().next(1, Effect::fault(Fault::CloseAfterBody)));
    let until = Instant::now() + super::SOON;
    while client_calls(&one).len() < 3 {
        super::query(&gateway, &format!("query {}", one.call_count())).await.expect(200);
        assert!(Instant::now() < until, "the first upstream is not used");
    }
    let all = usize::try_from(one.call_count()).expect("few");
    assert_eq!(all, client_calls(&one).len(), "it was taken out and had to prove itself");
}
