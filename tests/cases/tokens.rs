//! Token ids as input, and texts that are too long.

use loadtest::provider::limits::Limits;
use loadtest::provider::{Dialect, Effect, Provider, Script, UsageShape, When, signature_tokens};
use serde_json::{Value, json};

use super::faces::Face;
use super::{PRICED, before, recorded_tokens, upstream_state};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures, embedding_config, vectors};

/// Inputs that are no list of token ids and no list of texts.
const BAD_SHAPES: [&str; 11] = [
    "[]",
    "[[]]",
    "[\"a\",[1]]",
    "[[1],\"a\"]",
    "[1,\"a\"]",
    "[1.5]",
    "[-1]",
    "[[1],[-1]]",
    "[18446744073709551616]",
    "[[18446744073709551616]]",
    "[1,[2]]",
];

fn body(input: &str) -> String {
    format!("{{\"model\":\"emb-a\",\"input\":{input}}}")
}

fn floats(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|number| *number as f32).collect()
}

#[tokio::test]
async fn rg_zmkp_token_lists_to_an_openai_upstream() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    for input in BAD_SHAPES {
        let answer = gateway.post("/v1/embeddings", KEY, &[], body(input)).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_input"), "{input}: {}", answer.text);
        assert!(answer.text.contains("input"), "{}", answer.text);
    }
    assert_eq!(provider.call_count(), 0);

    let one = gateway.post("/v1/embeddings", KEY, &[], body("[101,202,303]")).await;
    let got = vectors(&one.expect(200));
    assert_eq!(got.len(), 1, "a flat list is one input");
    assert_eq!(floats(&got[0]), signature_tokens("A", &[101, 202, 303], 8));
    let two = gateway.post("/v1/embeddings", KEY, &[], body("[[101],[202,303]]")).await;
    let got = vectors(&two.expect(200));
    assert_eq!(got.len(), 2);
    assert_eq!(floats(&got[0]), signature_tokens("A", &[101], 8));
    assert_eq!(floats(&got[1]), signature_tokens("A", &[202, 303], 8));
    let inputs: Vec<Value> = provider.calls().iter().map(|call| call.json()["input"].clone()).collect();
    assert_eq!(inputs, [json!([101, 202, 303]), json!([[101], [202, 303]])], "integers, not strings");

    // A text that looks like the list is another input.
    let text = gateway.embed(json!("[101,202,303]")).await;
    assert_signatures(&text.expect(200), "A", &["[101,202,303]"]);
    assert_eq!(text.header("x-cache"), "MISS");
    let again = gateway.post("/v1/embeddings", KEY, &[], body("[ [101,202,303] ]")).await;
    assert_eq!(again.header("x-cache"), "HIT", "a list of one list is the same input");
}

#[tokio::test]
async fn rg_zmkp_a_token_list_counts_its_length() {
    let provider = Provider::start(Script::new().usage(UsageShape::Absent));
    let gateway = before(&provider, "");
    gateway.post("/v1/embeddings", KEY, &[], body("[[101],[202,303]]")).await.expect(200);
    assert_eq!(recorded_tokens(&gateway), 3);
}

#[tokio::test]
async fn rg_zmkp_token_lists_to_a_text_only_upstream() {
    for (name, dialect) in [("tei", Dialect::Tei), ("ollama", Dialect::Ollama)] {
        let provider = Provider::start(Script::new().dialect(dialect));
        let gateway = Gateway::start(&embedding_config(&[("one", name, &provider.base_url())], PRICED, "", ""));
        for input in BAD_SHAPES {
            let answer = gateway.post("/v1/embeddings", KEY, &[], body(input)).await;
            assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_input"), "{input}");
        }
        for input in ["[101,202,303]", "[[101],[202,303]]"] {
            let answer = gateway.post("/v1/embeddings", KEY, &[], body(input)).await;
            assert_eq!(
                (answer.status, answer.error_code().as_str()),
                (400, "unsupported_input_type"),
                "{name} {input}"
            );
            assert!(answer.text.contains("token"), "says what is not supported: {}", answer.text);
        }
        assert_eq!(provider.call_count(), 0);
    }
}

#[tokio::test]
async fn rg_zmkp_token_lists_are_no_texts_to_routes_that_know_none() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    for face in [Face::Cohere, Face::Voyage] {
        for input in BAD_SHAPES.into_iter().chain(["[101,202,303]", "[[101],[202,303]]"]) {
            let body = format!("{{\"model\":\"emb-a\",\"{}\":{input}}}", face.field());
            let answer = gateway.post(&face.path("emb-a"), KEY, &[], body).await;
            assert_eq!(answer.status, 400, "{face:?} {input}: {}", answer.text);
            assert!(answer.text.contains(face.field()), "{face:?} {input}: {}", answer.text);
        }
    }
    for input in BAD_SHAPES {
        let answer = gateway.post(&Face::Tei.path("emb-a"), KEY, &[], format!("{{\"inputs\":{input}}}")).await;
        assert_eq!(answer.status, 400, "{input}: {}", answer.text);
    }
    assert_eq!(provider.call_count(), 0);
    // TEI's clients may send ids; a server that reads them with another vocabulary never sees them.
    let tei = Provider::start(Script::new().dialect(Dialect::Tei));
    let gateway = Gateway::start(&embedding_config(&[("one", "tei", &tei.base_url())], PRICED, "", ""));
    let answer = Face::Tei.embed(&gateway, json!([101, 202, 303])).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "unsupported_input_type"), "{}", answer.text);
    assert_eq!(tei.call_count(), 0);
}

/// A provider that refuses texts above 100 characters unless it may cut them.
fn strict_about_length() -> Provider {
    Provider::start(Script::new().limits(Limits { max_item_bytes: Some(100), ..Limits::default() }))
}

fn long_with(truncate: Option<bool>, input: Value) -> Value {
    let mut body = json!({ "model": "emb-a", "input": input });
    if let Some(truncate) = truncate {
        body["truncate"] = json!(truncate);
    }
    body
}

#[tokio::test]
async fn rg_mhcw_an_over_long_text_is_refused_by_name_or_cut_as_asked() {
    let long = "x".repeat(150);
    for truncate in [None, Some(false)] {
        let provider = strict_about_length();
        let gateway = before(&provider, "");
        let alone = gateway.embed_with(long_with(truncate, json!(long))).await;
        assert_eq!(alone.status, 400, "{}", alone.text);
        assert!(alone.text.contains("input[0]") && alone.text.contains("exceeds context"), "{}", alone.text);
        assert_eq!((provider.call_count(), alone.header("x-gateway-attempts")), (1, "1"), "no second try");
        assert_eq!(provider.calls()[0].json().get("truncate"), truncate.map(|word| json!(word)).as_ref());

        provider.clear();
        let middle = gateway.embed_with(long_with(truncate, json!(["first", long, "third"]))).await;
        assert_eq!(middle.status, 400, "{}", middle.text);
        assert!(middle.text.contains("input[1]"), "names the item: {}", middle.text);
        assert_eq!(middle.header("x-cache"), "MISS");
        let sent: Vec<Value> = provider.calls().iter().map(|call| call.json()["input"].clone()).collect();
        for (at, one) in sent.iter().enumerate() {
            assert!(!sent[..at].contains(one), "the same part twice: {sent:?}");
            assert_eq!(provider.calls()[at].json().get("truncate"), truncate.map(|word| json!(word)).as_ref());
        }
    }

    let provider = strict_about_length();
    let gateway = before(&provider, "");
    let cut = gateway.embed_with(long_with(Some(true), json!(long))).await;
    assert_signatures(&cut.expect(200), "A", &["x".repeat(100).as_str()]);
    assert_eq!(provider.calls()[0].json()["truncate"], true);
    let middle = gateway.embed_with(long_with(Some(true), json!(["first", long, "third"]))).await;
    assert_signatures(&middle.expect(200), "A", &["first", "x".repeat(100).as_str(), "third"]);
    assert_eq!(middle.header("x-cache-hits"), "1/3");
    // The cut vector is not the text's.
    let whole = gateway.embed_with(long_with(None, json!(long))).await;
    assert_eq!((whole.status, whole.header("x-cache")), (400, "MISS"));
    let refused = gateway.embed_with(long_with(Some(false), json!(long))).await;
    assert_eq!((refused.status, refused.header("x-cache")), (400, "MISS"));
}

/// The same for each dialect with its own provider, by its own word for cutting.
#[tokio::test]
async fn rg_mhcw_every_dialects_word_for_cutting_arrives_unchanged() {
    let long = "x".repeat(150);
    for (face, name, word) in
        [(Face::Cohere, "cohere", "truncate"), (Face::Voyage, "voyage", "truncation"), (Face::Tei, "tei", "truncate")]
    {
        let provider = strict_about_length();
        let url = crate::dialects::base_url(&provider, name);
        let gateway = Gateway::start(&embedding_config(&[("one", name, &url)], PRICED, "", ""));
        let ask = async |truncate: Option<bool>, input: Value| {
            let mut asked = long_with(truncate, input);
            if face == Face::Cohere {
                asked["input_type"] = json!("search_document");
            }
            provider.clear();
            // Nobody's silence means a cut: where a provider would cut by itself, it is told not to.
            let never = face.body(&long_with(Some(false), json!([])))[word].clone();
            let sent = face.body(&asked).get(word).cloned().unwrap_or(never);
            let answer = face.embed_with(&gateway, asked).await;
            for call in provider.calls() {
                assert_eq!(call.json()[word], sent, "{face:?} {truncate:?}");
            }
            answer
        };
        let alone = ask(Some(false), json!([long])).await;
        assert!((400..=422).contains(&alone.status), "{face:?}: {}", alone.text);
        let named = |place: usize| format!("{}[{place}]", face.field());
        assert!(alone.text.contains(&named(0)) || alone.text.contains("input[0]"), "{face:?}: {}", alone.text);
        assert_eq!(provider.call_count(), 1, "{face:?}: no second try");
        let middle = ask(Some(false), json!(["first", long, "third"])).await;
        assert!(middle.text.contains(&named(1)) || middle.text.contains("input[1]"), "{face:?}: {}", middle.text);
        let cut = ask(Some(true), json!([long])).await;
        assert_eq!((cut.status, cut.header("x-cache")), (200, "MISS"), "{face:?}: {}", cut.text);
        let again = ask(Some(true), json!([long])).await;
        assert_eq!((again.header("x-cache"), &again.text), ("HIT", &cut.text), "{face:?}");
        for truncate in [None, Some(false)] {
            let whole = ask(truncate, json!([long])).await;
            assert!((400..=422).contains(&whole.status), "{face:?}: {}", whole.text);
            assert_eq!(whole.header("x-cache"), "MISS", "{face:?}: a cut vector is not the text's");
        }
    }
}

#[tokio::test]
async fn rg_mhcw_hopeless_texts_do_not_open_the_breaker() {
    let provider = strict_about_length();
    let gateway = before(&provider, "[breaker]\nmin_requests = 5\n");
    for turn in 0..30 {
        let answer = gateway.embed(json!(format!("{turn} {}", "x".repeat(150)))).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    assert_eq!(provider.call_count(), 30);
    let state = upstream_state(&gateway).await;
    assert_eq!((&state["breaker"], &state["last_error"]), (&json!("closed"), &Value::Null), "{state}");
    gateway.embed(json!("short")).await.expect(200);
}

#[tokio::test]
async fn rg_mhcw_the_item_is_named_by_the_clients_count() {
    // The provider counts in its own part: positions 0 and 1 are cached, so its input[1] is the client's input[3].
    let provider = strict_about_length();
    let gateway = before(&provider, "");
    gateway.embed(json!(["first", "second"])).await.expect(200);
    let long = "x".repeat(150);
    let answer = gateway.embed(json!(["first", "second", "third", long])).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("input[3]") && !answer.text.contains("input[1]"), "{}", answer.text);

    // A provider that names no item: it is found out.
    let nameless =
        Effect::answer(400, "{\"error\":{\"message\":\"input length exceeds context\",\"code\":\"too_long\"}}");
    let provider = Provider::start(Script::new().rule(When::body("xxxx"), nameless));
    let gateway = before(&provider, "");
    for (place, count) in [(0, 1), (1, 3), (0, 8), (5, 8), (7, 8), (20, 40), (39, 40)] {
        provider.clear();
        let mut texts: Vec<String> = (0..count).map(|at| format!("text {at} of {count} with {place}")).collect();
        texts[place] = format!("{place} of {count} {long}");
        let answer = gateway.embed(json!(texts)).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (400, "too_long"), "{}", answer.text);
        let named = format!("input[{place}]");
        assert!(answer.text.contains(&named), "{named} of {count}: {}", answer.text);
        let most = 2 * (f64::from(count).log2().ceil() as u64) + 1;
        assert!(provider.call_count() <= most, "{} calls for {count} texts", provider.call_count());
    }
}
