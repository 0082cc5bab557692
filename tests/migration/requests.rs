//! Who gets which model, who is refused, and what is said of it.

use super::*;
use crate::support::gateway::KEY_TWO;

#[tokio::test]
async fn each_stage_sends_documents_and_queries_where_it_says() {
    let providers = Providers::start();
    for (stage, documents, queries) in [
        ("stage = \"old\"", Side::From, Side::From),
        ("stage = \"backfill\"", Side::To, Side::From),
        ("stage = \"canary\"\ncanary = 1.0", Side::To, Side::To),
        ("stage = \"canary\"", Side::To, Side::From),
        ("stage = \"new\"", Side::To, Side::To),
    ] {
        let gateway = Gateway::start(&providers.config(stage, "", ""));
        assert_eq!(side(&gateway, Kind::Documents, "a document").await, documents, "{stage}");
        assert_eq!(side(&gateway, Kind::Query, "a query").await, queries, "{stage}");
        // The header with the collection's name, with either model, or with none, means the same as the name alone.
        for model in ["handbook", "emb-a", "emb-b"] {
            let answer = ask_as(&gateway, Kind::Query, model, &[("x-collection", "handbook")], "a query").await;
            assert_eq!(side_of(&answer, &["a query"]), queries, "{stage} {model}");
        }
        let tei = gateway.post("/tei/handbook/embed", KEY, &[], r#"{"inputs":"a query"}"#).await;
        let width = tei.expect(200)[0].as_array().expect("a vector").len();
        assert_eq!(width, if queries == Side::To { 12 } else { 8 }, "{stage}");
        // Without the collection a model is the model.
        assert_eq!(side_of(&ask_as(&gateway, Kind::Query, "emb-a", &[], "q").await, &["q"]), Side::From);
        assert_eq!(side_of(&ask_as(&gateway, Kind::Documents, "emb-b", &[], "q").await, &["q"]), Side::To);
        let record = gateway.usage().into_iter().find(|record| record["collection"] == "handbook");
        assert!(record.is_some(), "the name as the model is the collection in the books");
    }
}

#[tokio::test]
async fn a_header_of_no_configured_collection_is_a_label() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("stage = \"new\"", "", ""));
    let answer = ask_as(&gateway, Kind::Query, "emb-a", &[("x-collection", "wiki")], "text").await;
    assert_eq!(side_of(&answer, &["text"]), Side::From);
    drop(ask(&gateway, Kind::Query, "text").await);
    let report = gateway.command(&["usage", "--by", "collection,model", "--format", "csv"]);
    assert!(report.contains("wiki,emb-a") && report.contains("handbook,emb-b"), "{report}");
}

#[tokio::test]
async fn what_contradicts_itself_is_refused_in_plain_words() {
    let providers = Providers::start();
    let other = "[[models]]\nname = \"emb-c\"\nspace = \"C\"\ndimensions = 8\nprice_usd_per_million_tokens = \"0\"\n";
    let gateway = Gateway::start(&(providers.config("", "", "") + other));
    let headers = [("x-collection", "handbook")];
    let answer = ask_as(&gateway, Kind::Query, "emb-c", &headers, "t").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_input"), "{}", answer.text);
    for part in ["handbook", "emb-a", "emb-b", "emb-c"] {
        assert!(answer.text.contains(part), "{part}: {}", answer.text);
    }
    let answer = ask_as(&gateway, Kind::Query, "no-such-model", &headers, "t").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"));
    let answer = ask_as(&gateway, Kind::Query, "handbook", &[("x-collection", "wiki")], "t").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_input"), "{}", answer.text);
    assert!(answer.text.contains("wiki"), "{}", answer.text);
    let answer = ask_as(&gateway, Kind::Query, "handbok", &[], "t").await;
    assert!(answer.status == 404 && answer.text.contains("handbook"), "it is among what is known: {}", answer.text);
    let rerank = json!({ "model": "handbook", "query": "q", "documents": ["d"] }).to_string();
    let answer = gateway.post("/v1/rerank", KEY, &[], rerank).await;
    assert!(answer.status == 400 && answer.text.contains("/v1/embeddings"), "{}", answer.text);
    assert_eq!(providers.old.call_count() + providers.new.call_count(), 0);
}

#[tokio::test]
async fn an_upstream_is_asked_for_its_own_model() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("stage = \"backfill\"", "", ""));
    drop(ask(&gateway, Kind::Query, "a query").await.expect(200));
    drop(ask_as(&gateway, Kind::Documents, "emb-a", &[("x-collection", "handbook")], "a document").await.expect(200));
    for (provider, model) in [(&providers.old, "emb-a"), (&providers.new, "emb-b")] {
        let calls = provider.calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].json()["model"], model);
    }
}

#[tokio::test]
async fn a_width_that_only_one_model_has_names_model_and_stage() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("", "", ""));
    let body = json!({ "model": "handbook", "input": "t", "dimensions": 4 }).to_string();
    let ask = async || gateway.post("/v1/embeddings", KEY, &[], body.clone()).await;
    let answer = ask().await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "unsupported_dimensions"));
    for part in ["emb-a", "handbook", "old", "interactive-search"] {
        assert!(answer.text.contains(part), "{part}: {}", answer.text);
    }
    put(&gateway, json!({ "stage": "new" })).await.expect(200);
    let answer = ask().await;
    assert_eq!(vectors(&answer.expect(200))[0].len(), 4);
    assert_eq!(answer.header("x-embedding-space"), "B");
}

#[tokio::test]
async fn a_tenant_needs_the_name_or_both_models() {
    let providers = Providers::start();
    let status = async |models: &str, model: &str| {
        let gateway = Gateway::start(&providers.config("stage = \"new\"", &format!("models = {models}"), ""));
        let answer = ask_as(&gateway, Kind::Query, model, &[("x-collection", "handbook")], "t").await;
        let listed = gateway.get("/v1/models", KEY).await.expect(200);
        let ids: Vec<&str> =
            listed["data"].as_array().expect("a list").iter().filter_map(|model| model["id"].as_str()).collect();
        assert_eq!(ids.contains(&"handbook"), answer.status == 200, "{models}: {ids:?}");
        let one = gateway.get("/v1/models/handbook", KEY).await;
        assert_eq!(one.status, answer.status, "{models}: {}", one.text);
        (answer.status, gateway.command(&["check"]))
    };
    assert_eq!(status("[\"*\"]", "handbook").await.0, 200);
    assert_eq!(status("[\"handbook\"]", "handbook").await.0, 200);
    assert_eq!(status("[\"emb-a\", \"emb-b\"]", "emb-a").await.0, 200);
    // At every stage, so that no stage change locks anybody out.
    let (code, check) = status("[\"emb-b\"]", "emb-b").await;
    assert_eq!(code, 403);
    assert!(check.contains("handbook") && check.contains("warning"), "{check}");
}

#[tokio::test]
async fn the_list_of_models_has_the_collection() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("stage = \"canary\"\ncanary = 0.5", "", ""));
    let model = gateway.get("/v1/models/handbook", KEY_TWO).await.expect(200);
    assert_eq!(
        model["collection"],
        json!({ "from": "emb-a", "to": "emb-b", "stage": "canary", "canary": 0.5 }),
        "{model}"
    );
    let info = gateway.get("/tei/handbook/info", KEY).await.expect(200);
    assert_eq!(info["model_id"], "emb-a", "the model of most queries");
}

#[tokio::test]
async fn a_cached_vector_never_crosses_over() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("", "", ""));
    for (stage, expected, cache) in
        [("old", Side::From, "MISS"), ("new", Side::To, "MISS"), ("old", Side::From, "HIT"), ("new", Side::To, "HIT")]
    {
        put(&gateway, json!({ "stage": stage })).await.expect(200);
        let answer = ask(&gateway, Kind::Query, "the same question").await;
        assert_eq!((side_of(&answer, &["the same question"]), answer.header("x-cache")), (expected, cache), "{stage}");
    }
    assert_eq!((providers.old.call_count(), providers.new.call_count()), (1, 1));
}

#[tokio::test]
async fn a_canary_is_sticky_by_the_question_and_only_grows() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("", "", "[cache]\nbackend = \"off\""));
    let texts: Vec<String> = (0..60).map(|n| format!("How do I rotate key {n}?")).collect();
    let mut moved_before = 0;
    for share in [0.0, 0.2, 0.5, 0.8, 1.0] {
        put(&gateway, json!({ "stage": "canary", "canary": share })).await.expect(200);
        let mut moved = 0;
        for text in &texts {
            let first = side(&gateway, Kind::Query, text).await;
            let folded = format!("  {} ", text.to_uppercase());
            assert_eq!(side(&gateway, Kind::Query, &folded).await, first, "case and spaces move nobody: {text}");
            let by_other = gateway.post("/v1/embeddings", KEY_TWO, &[], asking("handbook", text)).await;
            assert_eq!(side_of(&by_other, &[text.as_str()]), first, "whoever asks: {text}");
            let list = json!({ "model": "handbook", "input": [text, "a variant"] }).to_string();
            let together = gateway.post("/v1/embeddings", KEY, &[], list).await;
            assert_eq!(side_of(&together, &[text.as_str(), "a variant"]), first, "variants go with it: {text}");
            moved += usize::from(first == Side::To);
        }
        assert!(moved >= moved_before, "{moved} at {share}, {moved_before} before");
        let bounds = (share * 60.0 - 16.0, share * 60.0 + 16.0);
        assert!((bounds.0..=bounds.1).contains(&(moved as f64)), "{moved} of 60 at {share}");
        moved_before = moved;
    }
    assert_eq!(moved_before, 60);
}
