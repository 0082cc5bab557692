//! Traces: one a request with all its stages, the client's as parent, the upstream's call as its child; and what the
//! absence or the death of a receiver costs.

use std::collections::BTreeSet;
use std::net::TcpListener;

use loadtest::provider::{Provider, Script};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use serde_json::json;

use super::receiver::{Receiver, attribute};
use super::until;
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn config(provider: &Provider) -> String {
    let url = format!("{}/v1", provider.base_url());
    let model = "dimensions = 8\nprice_usd_per_million_tokens = \"0.02\"";
    embedding_config(&[("one", "openai", &url)], model, "budget = \"1.00\"", "")
}

fn traced(provider: &Provider, endpoint: &str) -> Gateway {
    let fast = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
    Gateway::start_with(&config(provider), &fast)
}

async fn embed(gateway: &Gateway, traceparent: Option<&str>, text: &str) -> crate::support::gateway::Answer {
    let headers: Vec<(&str, &str)> = traceparent.iter().map(|value| ("traceparent", *value)).collect();
    let body = json!({ "model": "emb-a", "input": text }).to_string();
    gateway.post("/v1/embeddings", KEY, &headers, body).await
}

/// The spans of a trace once its server's span, which ends last, is there.
#[track_caller]
fn whole(receiver: &Receiver, id: &str) -> (Span, Vec<Span>) {
    until(&format!("the trace {id}"), || {
        let (root, others): (Vec<Span>, Vec<Span>) =
            receiver.trace(id).into_iter().partition(|span| span.kind == SpanKind::Server as i32);
        let [root] = root.try_into().ok()?;
        Some((root, others))
    })
}

fn names(spans: &[Span]) -> BTreeSet<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_trace_with_its_stages_and_the_upstream_in_it() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = traced(&provider, &receiver.url);

    let answer = embed(&gateway, Some(CLIENT), "alpha").await;
    answer.expect(200);
    let id = "0af7651916cd43dd8448eb211c80319c";
    assert_eq!(answer.header("x-trace-id"), id);
    let (root, others) = whole(&receiver, id);
    assert_eq!(hex::encode(&root.parent_span_id), "b7ad6b7169203331");
    assert_eq!(root.name, "POST /v1/embeddings");
    let expected = ["admit", "cache", "classify", "embeddings emb-a", "receive", "reserve", "settle"];
    assert_eq!(names(&others), BTreeSet::from(expected));
    assert_eq!(others.len(), expected.len(), "{others:?}");
    for span in &others {
        assert_eq!(span.parent_span_id, root.span_id, "{}", span.name);
        let inside = span.start_time_unix_nano >= root.start_time_unix_nano
            && span.end_time_unix_nano <= root.end_time_unix_nano;
        assert!(inside, "{} lies in its request", span.name);
    }
    let call = others.iter().find(|span| span.kind == SpanKind::Client as i32).expect("the call");
    let seen = provider.calls()[0].header("traceparent").expect("a traceparent").to_owned();
    assert_eq!(seen, format!("00-{id}-{}-01", hex::encode(&call.span_id)));

    for (span, name, value) in [
        (&root, "gen_ai.operation.name", "embeddings"),
        (&root, "gen_ai.request.model", "emb-a"),
        (&root, "http.route", "/v1/embeddings"),
        (&root, "http.response.status_code", "200"),
        (&root, "tenant", "t1"),
        (&root, "class", "interactive-search"),
        (&root, "cache", "miss"),
        (&root, "attempts", "1"),
        (&root, "upstream", "one"),
        (&root, "request_id", answer.header("x-request-id")),
        (call, "gen_ai.operation.name", "embeddings"),
        (call, "gen_ai.provider.name", "openai"),
        (call, "gen_ai.request.model", "emb-a"),
        (call, "http.response.status_code", "200"),
        (call, "upstream", "one"),
        (call, "items", "1"),
    ] {
        assert_eq!(attribute(span, name), value, "{name} of {}", span.name);
    }
    assert_eq!(attribute(call, "gen_ai.usage.input_tokens"), provider.tokens_billed().to_string());
    let everything = format!("{root:?}{others:?}");
    assert!(!everything.contains("alpha") && !everything.contains(KEY), "no text and no key");

    let hit = embed(&gateway, None, "alpha").await;
    let (root, others) = whole(&receiver, hit.header("x-trace-id"));
    assert_ne!(hit.header("x-trace-id"), id);
    assert!(root.parent_span_id.is_empty());
    assert_eq!(attribute(&root, "cache"), "hit");
    assert_eq!(names(&others), BTreeSet::from(["admit", "cache", "classify", "receive", "settle"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_side_by_side_do_not_share_spans_and_exemplars_lead_to_them() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8).delay_ms(30.0));
    let gateway = traced(&provider, &receiver.url);
    let texts: Vec<String> = (0..40).map(|number| format!("text {number}")).collect();
    let answers = futures_util::future::join_all(texts.iter().map(|text| embed(&gateway, None, text))).await;
    let ids: BTreeSet<&str> = answers.iter().map(|answer| answer.header("x-trace-id")).collect();
    assert_eq!(ids.len(), texts.len());
    for id in &ids {
        let (root, others) = whole(&receiver, id);
        assert!(others.iter().all(|span| span.parent_span_id == root.span_id));
        assert_eq!(others.iter().filter(|span| span.kind == SpanKind::Client as i32).count(), 1);
    }
    let page = gateway.admin_get_with("/metrics", &[("accept", "application/openmetrics-text")]).await.text;
    let exemplars: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("vectorgate_request_duration_seconds_bucket"))
        .filter_map(|line| line.split("trace_id=\"").nth(1)?.split('"').next())
        .collect();
    assert!(!exemplars.is_empty() && exemplars.iter().all(|id| ids.contains(id)), "{exemplars:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_show_in_the_trace_and_the_trace_in_the_error() {
    use loadtest::provider::Effect;

    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().always(Effect::status(503)));
    let gateway = traced(&provider, &receiver.url);
    let answer = embed(&gateway, Some(CLIENT), "alpha").await;
    let error = answer.expect(502);
    assert_eq!(error["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    let (root, others) = whole(&receiver, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(attribute(&root, "error.type"), "upstream_error");
    assert_eq!(root.status.expect("a status").code, StatusCode::Error as i32);
    let calls: Vec<&Span> = others.iter().filter(|span| span.kind == SpanKind::Client as i32).collect();
    assert_eq!(calls.len().to_string(), answer.header("x-gateway-attempts"));
    assert!(calls.iter().all(|call| attribute(call, "error.type") == "503"));
    let parents: BTreeSet<String> =
        provider.calls().iter().filter_map(|call| Some(call.header("traceparent")?.to_owned())).collect();
    assert_eq!(parents.len(), calls.len(), "each call has a span of its own");

    // Refused before anything is known of it.
    let answer = gateway.post("/v1/embeddings", "wrong", &[], "{}").await;
    let id = answer.expect(401)["trace_id"].as_str().expect("an id").to_owned();
    let (root, _) = whole(&receiver, &id);
    assert_eq!(attribute(&root, "error.type"), "invalid_api_key");
    assert_ne!(root.status.unwrap_or_default().code, StatusCode::Error as i32, "the client's fault is no server error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_the_client_left_out_is_passed_on_and_not_exported() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = traced(&provider, &receiver.url);
    let unsampled = CLIENT.replace("-01", "-00");
    embed(&gateway, Some(&unsampled), "alpha").await.expect(200);
    let seen = provider.calls()[0].header("traceparent").expect("a traceparent").to_owned();
    assert!(seen.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && seen.ends_with("-00"), "{seen}");
    assert!(!seen.contains("b7ad6b7169203331"), "a call has an id of its own: {seen}");
    // A later request's trace is there, this one's is not.
    let later = embed(&gateway, None, "beta").await;
    whole(&receiver, later.header("x-trace-id"));
    assert!(receiver.trace("0af7651916cd43dd8448eb211c80319c").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_sampled_ids_are_told_and_passed_on_all_the_same() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8));
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let gateway = Gateway::start_with(&config(&provider), &environment);
    let answer = embed(&gateway, None, "alpha").await;
    answer.expect(200);
    let seen = provider.calls()[0].header("traceparent").expect("a traceparent").to_owned();
    assert!(seen.starts_with(&format!("00-{}-", answer.header("x-trace-id"))) && seen.ends_with("-00"), "{seen}");
    let refused = gateway.post("/v1/embeddings", "wrong", &[], "{}").await;
    assert_eq!(refused.expect(401)["trace_id"], refused.header("x-trace-id"));
    // The client's own decision stands; when its trace is there, the others would be.
    embed(&gateway, Some(CLIENT), "beta").await.expect(200);
    whole(&receiver, "0af7651916cd43dd8448eb211c80319c");
    assert!(receiver.trace(answer.header("x-trace-id")).is_empty());
    let page = gateway.admin_get_with("/metrics", &[("accept", "application/openmetrics-text")]).await.text;
    assert!(!page.contains(answer.header("x-trace-id")), "an exemplar leads to what can be found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_loses_spans_and_no_requests() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let provider = Provider::start(Script::new().space("A").width(8));
    let mut gateway = traced(&provider, &format!("http://{nobody}"));
    for number in 0..300 {
        embed(&gateway, None, &format!("text {number}")).await.expect(200);
    }
    let deadline = std::time::Instant::now() + super::PATIENCE;
    while gateway.metric("vectorgate_trace_spans_lost_total").await == 0.0 {
        assert!(std::time::Instant::now() < deadline, "no span was lost");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    gateway.terminate();
    assert!(gateway.wait().success());
}

#[tokio::test]
async fn without_a_receiver_the_clients_trace_goes_through_as_it_came() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = Gateway::start(&config(&provider));
    let headers = [("traceparent", CLIENT), ("tracestate", "vendor=1")];
    let body = json!({ "model": "emb-a", "input": "alpha" }).to_string();
    let answer = gateway.post("/v1/embeddings", KEY, &headers, body).await;
    answer.expect(200);
    assert_eq!(answer.header("x-trace-id"), "0af7651916cd43dd8448eb211c80319c");
    let calls = provider.calls();
    assert_eq!(calls[0].header("traceparent"), Some(CLIENT));
    assert_eq!(calls[0].header("tracestate"), Some("vendor=1"));
    embed(&gateway, Some("nonsense"), "beta").await.expect(200);
    let fresh = provider.calls()[1].header("traceparent").expect("a traceparent").to_owned();
    assert!(fresh.starts_with("00-") && fresh.ends_with("-00") && fresh.len() == CLIENT.len(), "{fresh}");
}
