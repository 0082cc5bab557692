//! Clients that leave: before the answer, in the middle of it, and right after its end.

use std::io::Read as _;

use loadtest::provider::{Chat, Cut, Effect, Fault, Framing, Pace, Provider, StreamUsage};

use super::*;
use crate::support::Raw;

/// Longest time in which a provider must see that nobody wants its answer any more; generous for a busy machine, and far
/// below any time limit that would end the call anyway.
const AT_ONCE: Duration = Duration::from_secs(1);

fn begin(gateway: &Gateway, body: &Value) -> Raw {
    let mut client = Raw::connect(&gateway.url);
    client.request("POST /v1/chat/completions", &[&format!("Authorization: Bearer {KEY}")], &body.to_string());
    client
}

/// Reads until so many events have come.
fn read_events(client: &Raw, count: usize) -> String {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while String::from_utf8_lossy(&seen).matches("data: ").count() < count {
        let read = client.stream().read(&mut piece).expect("events come");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Closes with a reset instead of in order.
fn reset(client: &Raw) {
    socket2::SockRef::from(client.stream()).set_linger(Some(Duration::ZERO)).expect("a socket option");
}

/// Waits until the provider has no connection, and says how long that took.
async fn disconnected(provider: &Provider) -> Duration {
    let began = Instant::now();
    while provider.stats().open_connections > 0 {
        assert!(began.elapsed() < PATIENCE, "the provider is still connected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

#[tokio::test]
async fn rg_rvt6_who_leaves_in_the_middle_pays_for_what_came_and_the_provider_stops() {
    for hard in [false, true] {
        let silent = Chat { pieces: 20, cut_after_events: Some(5), cut: Cut::Silence, ..Chat::default() };
        let provider = Provider::start(talking(silent));
        let gateway = before(&provider, "budget = \"10\"", "");
        let client = begin(&gateway, &ask(true));
        read_events(&client, 5);
        if hard {
            reset(&client);
        }
        drop(client);
        let took = disconnected(&provider).await;
        assert!(took < AT_ONCE, "{took:?}");
        let records = records(&gateway, 1).await;
        let (input, output, _, estimated) = bill(&records[0]);
        assert!(estimated && input >= 3 && (5..20).contains(&output), "{records:?}");
        assert_eq!((&records[0]["outcome"], &records[0]["status"]), (&json!("abandoned"), &json!(499)));
        let cancelled =
            "vectorgate_request_duration_seconds_count{class=\"chat\",model=\"talk\",outcome=\"cancelled\"}";
        assert_eq!(gateway.metric(cancelled).await, 1.0);
        let account = settled(&gateway).await;
        assert_eq!((&account["held"], &account["spent"]), (&json!("0"), &records[0]["cost"]));
        // The upstream did nothing wrong.
        let state = &gateway.admin_get("/admin/upstreams").await.expect(200)["upstreams"][0]["state"];
        assert_eq!((&state["in_flight"], &state["last_error"]), (&json!(0), &Value::Null), "{state}");
    }
}

#[tokio::test]
async fn rg_rvt6_early_usage_is_not_taken_for_the_whole() {
    let shape = Chat { pieces: 20, gap_ms: 20.0, stream_usage: StreamUsage::InFirstPiece, ..Chat::default() };
    // What stands in the first event is the count of a beginning.
    let provider = Provider::start(talking(shape));
    let gateway = before(&provider, "budget = \"10\"", "");
    let client = begin(&gateway, &ask(true));
    read_events(&client, 5);
    drop(client);
    let left = records(&gateway, 1).await;
    let (_, output, _, estimated) = bill(&left[0]);
    assert!(estimated && output >= 5, "{left:?}");
    assert_eq!(left[0]["outcome"], "abandoned");
}

#[tokio::test]
async fn rg_r5q7_a_plain_chat_whose_client_leaves_stops_the_provider_and_frees_its_place() {
    let provider = Provider::start(Script::new().always(Effect::fault(Fault::NeverAnswer)));
    let url = format!("{}/v1", provider.base_url());
    let mut config = chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", "");
    config.push_str("max_concurrency = 1\n");
    let gateway = Gateway::start(&config);
    for (place, streams) in [false, true].into_iter().enumerate() {
        let client = begin(&gateway, &ask(streams));
        let until = Instant::now() + PATIENCE;
        while provider.stats().open_connections == 0 || provider.call_count() <= place as u64 {
            assert!(Instant::now() < until, "the call is under way");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(client);
        let took = disconnected(&provider).await;
        assert!(took < AT_ONCE, "{took:?}");
        let records = records(&gateway, place + 1).await;
        let record = records.last().expect("a record");
        assert_eq!((&record["outcome"], &record["estimated"]), (&json!("abandoned"), &json!(true)), "{record}");
        assert!(record["tokens"].as_u64().expect("tokens") >= 3, "the input was sent: {record}");
        assert_eq!(settled(&gateway).await["held"], "0");
    }
    provider.set_script(Script::new());
    gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_xw2z_a_client_that_closes_after_the_last_event_is_a_success() {
    const EACH: usize = 100;
    let provider = Provider::start(talking(Chat { pieces: 3, ..Chat::default() }));
    let url = format!("{}/v1", provider.base_url());
    let mut config = chat_config(&[("one", "openai", &url)], "", "", "");
    config.push_str("max_concurrency = 64\n");
    let gateway = std::sync::Arc::new(Gateway::start(&config));
    let clients = (0..8).map(|number| {
        let gateway = std::sync::Arc::clone(&gateway);
        tokio::task::spawn_blocking(move || {
            for turn in 0..EACH {
                let client = begin(&gateway, &ask(true));
                let mut seen = String::new();
                while !seen.contains("[DONE]") {
                    seen = read_events(&client, 5);
                }
                if (number + turn) % 2 == 0 {
                    reset(&client);
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("every answer came whole");
    }
    let records = records(&gateway, 8 * EACH).await;
    assert!(records.iter().all(|record| record["outcome"] == "answered" && record["estimated"] == false));
    let of = |outcome: &str| {
        format!("vectorgate_request_duration_seconds_count{{class=\"chat\",model=\"talk\",outcome=\"{outcome}\"}}")
    };
    assert_eq!(gateway.metric(&of("success")).await, (8 * EACH) as f64);
    assert_eq!(gateway.metric(&of("cancelled")).await, 0.0);
}

#[tokio::test]
async fn a_client_that_reads_slowly_holds_the_provider_back_and_gets_everything() {
    let word =
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "a".repeat(64 << 10));
    let body = word.repeat(200) + "data: [DONE]\n\n";
    let effect = Effect {
        body: Some(body.clone()),
        content_type: Some("text/event-stream".to_owned()),
        framing: Some(Framing::Chunked(64 << 10)),
        pace: Some(Pace::trickle(64 << 10, 0.01)),
        ..Effect::default()
    };
    let provider = Provider::start(Script::new().always(effect));
    let gateway = before(&provider, "", "");
    let mut client = begin(&gateway, &ask(true));
    assert!(provider.wait_calls(1, PATIENCE));
    // Nothing is read for a moment: what is in between is bounded, so the provider cannot have got rid of it all.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(provider.stats().finished, 0, "13 MB do not fit between");
    let answer = tokio::task::spawn_blocking(move || client.answer()).await.expect("read");
    assert!(answer.body == body, "{} bytes of {}", answer.body.len(), body.len());
}
