//! Which headers cross, in which direction.

use loadtest::provider::script::Framing;
use loadtest::provider::{Call, Effect, Provider, Script, When};
use serde_json::json;

use super::{PATIENT, PRICED, all_compared};
use crate::support::gateway::KEY;
use crate::support::{Gateway, Raw, embedding_config};

fn body(text: &str) -> String {
    json!({ "model": "emb-a", "input": text }).to_string()
}

/// The calls that were made for a client: the gateway itself compares upstreams of one space by texts of its own.
fn for_clients(provider: &Provider) -> Vec<Call> {
    provider.calls().into_iter().filter(|call| raw(call).contains("text ")).collect()
}

/// Everything of a call that the client could have slipped something into.
fn raw(call: &Call) -> String {
    let headers: Vec<String> = call.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{} {}\n{}\n{}", call.method, call.path, headers.join("\n"), String::from_utf8_lossy(&call.body))
}

#[tokio::test]
async fn rg_dsm4_no_credential_of_the_client_travels() {
    const SECRETS: [&str; 9] = [
        "secret-x-api-key",
        "secret-api-key",
        "secret-goog",
        "secret-cookie",
        "secret-proxy",
        "evil.test",
        "secret-forwarded",
        "secret-organization",
        "secret-custom",
    ];
    let headers = [
        "Host: evil.test",
        "x-api-key: secret-x-api-key",
        "api-key: secret-api-key",
        "x-goog-api-key: secret-goog",
        "Cookie: session=secret-cookie",
        "Proxy-Authorization: Basic secret-proxy",
        "X-Forwarded-For: secret-forwarded",
        "X-Forwarded-Host: evil.test",
        "X-Forwarded-Authorization: secret-forwarded",
        "Forwarded: for=secret-forwarded",
        "OpenAI-Organization: secret-organization",
        "OpenAI-Project: secret-organization",
        "X-Custom: secret-custom",
    ];
    // The first one fails, so a request is tried there and sent to the second; later ones may avoid the first.
    let failing = Provider::start(Script::new().rule(When::body("text "), Effect::status(500)));
    let sound = Provider::start(Script::new().api_key("upstream-secret-two"));
    let urls = [failing.base_url(), sound.base_url()].map(|url| format!("{url}/v1"));
    let upstreams = [("one", "openai", urls[0].as_str()), ("two", "openai", urls[1].as_str())];
    let config = embedding_config(&upstreams, PRICED, "", PATIENT).replace("id = \"two\"", "id = \"two\"\ntier = 1");
    let gateway = Gateway::start(&config);
    all_compared(&gateway).await;
    let key = format!("Authorization: Bearer {KEY}");
    let mut lines = vec![key.as_str(), "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"];
    lines.extend(headers);
    let mut client = Raw::connect(&gateway.url);
    for turn in 0..5 {
        client.request("POST /v1/embeddings", &lines, &body(&format!("text {turn}")));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("x-gateway-upstream"), "two");
        if turn == 0 {
            assert_eq!(answer.header("x-gateway-attempts"), "2", "failed at the first, answered by the second");
        }
        for secret in SECRETS {
            assert!(!answer.head.contains(secret), "{secret} came back: {}", answer.head);
        }
    }
    for (provider, own, least) in [(&failing, "upstream-secret-one", 1), (&sound, "upstream-secret-two", 5)] {
        let calls = for_clients(provider);
        assert!(calls.len() >= least, "{} calls", calls.len());
        for call in calls {
            let text = raw(&call);
            for secret in SECRETS.iter().chain([&KEY]) {
                assert!(!text.contains(secret), "{secret} travelled: {text}");
            }
            assert_eq!(call.header("authorization"), Some(format!("Bearer {own}").as_str()));
            assert_eq!(call.header("host"), Some(provider.addr().to_string().as_str()), "its own host");
            let known = [
                "host",
                "authorization",
                "content-type",
                "content-length",
                "accept",
                "user-agent",
                "traceparent",
                "tracestate",
                "accept-encoding",
                "date",
            ];
            for (name, _) in &call.headers {
                assert!(known.contains(&name.to_ascii_lowercase().as_str()), "{name} travelled: {text}");
            }
        }
    }
}

#[tokio::test]
async fn rg_dsm4_each_way_to_give_a_key_stays_here() {
    let provider = Provider::start(Script::new());
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], PRICED, "", ""));
    for (turn, name) in ["Authorization: Bearer ", "x-api-key: ", "api-key: "].into_iter().enumerate() {
        let mut client = Raw::connect(&gateway.url);
        client.request("POST /v1/embeddings", &[&format!("{name}{KEY}")], &body(&format!("text {turn}")));
        assert_eq!(client.answer().status, 200, "{name}");
        let call = provider.calls().pop().expect("a call");
        assert!(!raw(&call).contains(KEY), "{}", raw(&call));
        assert_eq!(call.header("authorization"), Some("Bearer upstream-secret-one"));
    }
    assert!(!gateway.log().contains(KEY) && !gateway.log().contains("upstream-secret"));
}

#[tokio::test]
async fn rg_72cc_hop_by_hop_headers_stay_on_their_hop() {
    let script = Script {
        response_headers: [
            ("Connection", "X-Up"),
            ("X-Up", "hop-value"),
            ("Keep-Alive", "timeout=5, max=1000"),
            ("Proxy-Authenticate", "hop-value"),
            ("X-Other", "hop-value"),
            ("Set-Cookie", "hop-value=1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        trailers: vec![("X-Trailer".to_owned(), "hop-value".to_owned())],
        framing: Framing::Chunked(16),
        ..Script::new()
    };
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], PRICED, "", ""));
    let key = format!("Authorization: Bearer {KEY}");
    let hops = [
        key.as_str(),
        "X-Secret: hop-secret",
        "Keep-Alive: timeout=hop-secret",
        "TE: trailers",
        "Trailer: X-Secret",
        "Proxy-Connection: keep-alive",
        "Upgrade-Insecure-Requests: 1",
    ];
    // One client connection is served by one worker, and each worker has connections of its own.
    let mut client = Raw::connect(&gateway.url);
    for turn in 0..50 {
        let mut lines = vec!["Connection: X-Secret"];
        lines.extend(hops);
        client.request("POST /v1/embeddings", &lines, &body(&format!("text {turn}")));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.body);
        let head = answer.head.to_ascii_lowercase();
        for word in ["hop-value", "x-up", "x-other", "x-trailer", "keep-alive:", "set-cookie", "proxy-"] {
            assert!(!head.contains(word) && !answer.body.contains(word), "{word} crossed: {head}");
        }
    }
    assert_eq!(provider.stats().connections, 1, "the upstream connection stays in the pool");

    // A client that closes after each answer, or offers another protocol as Java's client does with each request, closes
    // nothing upstream: one connection a worker at most.
    let offers = [
        "Connection: close, X-Secret",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: hop-secret",
        "Connection: close, X-Secret\r\nUpgrade: websocket",
    ];
    for turn in 0..48 {
        let offer = offers[turn % offers.len()];
        let mut client = Raw::connect(&gateway.url);
        let mut lines = vec![offer];
        lines.extend(hops);
        client.request("POST /v1/embeddings", &lines, &body(&format!("closing {turn}")));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("upgrade"), "", "the offer is not taken: {}", answer.head);
        if turn % offers.len() == 0 {
            assert!(client.is_closed(), "as the client asked");
        }
    }
    assert!(provider.stats().connections <= 2, "{} connections", provider.stats().connections);
    for call in provider.calls() {
        let text = raw(&call).to_ascii_lowercase();
        for word in [
            "hop-secret",
            "x-secret",
            "\nte:",
            "upgrade",
            "http2-settings",
            "websocket",
            "proxy-connection",
            "keep-alive:",
            "trailer",
            "close",
        ] {
            assert!(!text.replace("closing", "").contains(word), "{word} crossed: {text}");
        }
    }
}
