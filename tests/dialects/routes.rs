//! Which path does what: lists of models, TEI's servers of one model, paths that dialects share, and what is no route.

use loadtest::provider::{Provider, Script, signature};
use serde_json::{Value, json};

use super::{expected, gateway, one_model, post, ranking};
use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY};

async fn get(gateway: &Gateway, path: &str, key: &str) -> Answer {
    gateway.get(path, key).await
}

/// An embedding model with slash and colon in its name and a reranker, both at TEI.
fn tei_models(server: &Provider) -> String {
    let embedder = one_model(server, "tei", "BAAI/bge-m3:q8", "dimensions = 8\nprice_usd_per_million_tokens = \"0.5\"");
    let ranker = one_model(server, "tei", "ranker", "kind = \"rerank\"\npairwise = true");
    format!("{embedder}{}", ranker.replace("at-tei", "ranker-at-tei"))
}

#[track_caller]
fn rows(body: &Value) -> Vec<Vec<f32>> {
    let rows = body.as_array().unwrap_or_else(|| panic!("no rows: {body}"));
    let row =
        |row: &Value| row.as_array().expect("a row").iter().map(|x| x.as_f64().expect("a number") as f32).collect();
    rows.iter().map(row).collect()
}

#[tokio::test]
async fn models_are_listed_with_what_they_are() {
    let server = Provider::start(Script::new());
    let gateway = gateway(&tei_models(&server), "models = [\"BAAI/bge-m3:q8\"]");
    let list = get(&gateway, "/v1/models", KEY).await.expect(200);
    let model = json!({"id": "BAAI/bge-m3:q8", "object": "model", "created": 0, "owned_by": "vectorgate",
        "kind": "embedding", "space": "BAAI/bge-m3:q8", "dimensions": 8,
        "price": {"currency": "EUR", "per_million_tokens": "0.46"}});
    assert_eq!(list, json!({"object": "list", "data": [model]}));
    for path in ["/v1/models/BAAI/bge-m3:q8", "/v1/models/BAAI%2Fbge-m3%3Aq8", "/openai/v1/models/BAAI/bge-m3:q8"] {
        assert_eq!(get(&gateway, path, KEY).await.expect(200), model, "{path}");
    }
    assert_eq!(get(&gateway, "/v1/models", "").await.error_code(), "invalid_api_key");
    let foreign = get(&gateway, "/v1/models/ranker", KEY).await;
    assert_eq!((foreign.status, foreign.error_code().as_str()), (403, "model_not_allowed"));
    let unknown = get(&gateway, "/v1/models/x", KEY).await;
    assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "model_not_found"));
}

#[tokio::test]
async fn a_tei_server_of_one_model_is_at_its_own_path_and_at_the_root() {
    let server = Provider::start(Script::new().space("A").width(8));
    let gateway = gateway(&tei_models(&server), "");
    let vectors = [signature("A", "a", 8), signature("A", "b", 8)];
    for base in ["", "/tei/BAAI/bge-m3:q8", "/tei/BAAI%2Fbge-m3%3Aq8"] {
        let root = if base.is_empty() { "/" } else { base };
        for path in [root.to_owned(), format!("{base}/embed")] {
            let answer = post(&gateway, &path, &json!({"inputs": ["a", "b"]})).await;
            assert_eq!(rows(&answer.expect(200)), vectors, "{path}");
            assert_eq!(answer.header("x-embedding-model"), "BAAI/bge-m3:q8");
            let single = post(&gateway, &path, &json!({"inputs": "a"})).await;
            assert_eq!(rows(&single.expect(200)), vectors[..1], "{path}");
        }
        for path in [root.to_owned(), format!("{base}/similarity")] {
            let body = json!({"inputs": {"source_sentence": "a", "sentences": ["b", "a"]}});
            let scores = post(&gateway, &path, &body).await.expect(200);
            let dot: f32 = vectors[0].iter().zip(&vectors[1]).map(|(x, y)| x * y).sum();
            let near = |value: &Value, wanted: f32| (value.as_f64().expect("a number") as f32 - wanted).abs() < 1e-5;
            assert!(near(&scores[0], dot) && near(&scores[1], 1.0), "{scores} for {dot}");
        }
        let texts = post(&gateway, &format!("{base}/similarity"), &json!({"inputs": ["a"]})).await;
        assert_eq!(texts.status, 400);
        let info = get(&gateway, &format!("{base}/info"), KEY).await.expect(200);
        assert_eq!(info["model_id"], "BAAI/bge-m3:q8");
        assert!(info["model_type"]["embedding"].is_object(), "{info}");
        let health = get(&gateway, &format!("{base}/health"), "").await;
        assert_eq!((health.status, health.text.as_str()), (200, ""));
        let embeddings = post(&gateway, &format!("{base}/embeddings"), &json!({"input": "a"})).await.expect(200);
        assert_eq!(embeddings["data"][0]["embedding"].as_array().map(Vec::len), Some(8));
    }
    assert_eq!(get(&gateway, "/", "").await.status, 200);
    assert_eq!(get(&gateway, "/info", "").await.status, 401);
    // The root of a reranker ranks.
    for path in ["/rerank", "/tei/ranker/rerank", "/tei/ranker"] {
        let ranked = post(&gateway, path, &json!({"query": "q", "texts": ["a", "b"], "return_text": true})).await;
        let ranked = ranked.expect(200);
        assert_eq!(ranking(&ranked), expected("q", &["a", "b"]), "{path}");
        assert!(ranked[0]["text"].is_string());
    }
    let info = get(&gateway, "/tei/ranker/info", KEY).await.expect(200);
    assert!(info["model_type"]["reranker"].is_object(), "{info}");
}

#[tokio::test]
async fn without_a_name_several_models_are_no_model() {
    let server = Provider::start(Script::new());
    let two = format!(
        "{}{}",
        one_model(&server, "tei", "one", "dimensions = 8"),
        one_model(&server, "tei", "two", "dimensions = 8").replace("at-tei", "other")
    );
    let gateway = gateway(&two, "");
    let answer = post(&gateway, "/embed", &json!({"inputs": "a"})).await;
    let error = answer.expect(400)["error"].as_str().expect("text").to_owned();
    assert!(error.contains("one, two"), "{error}");
    assert_eq!(post(&gateway, "/embed", &json!({"inputs": "a", "model": "two"})).await.status, 200);
    assert_eq!(server.call_count(), 1);
}

#[tokio::test]
async fn shared_rerank_paths_are_told_apart_by_their_members() {
    let server = Provider::start(Script::new().space("A"));
    let gateway = gateway(&one_model(&server, "cohere", "ranker", "kind = \"rerank\""), "");
    let documents = ["a", "b", "c"];
    let all = expected("q", &documents);
    for path in ["/rerank", "/v1/rerank", "/v2/rerank", "/cohere/v1/rerank", "/jina/v1/rerank"] {
        let body = json!({"model": "ranker", "query": "q", "documents": documents, "top_n": 2});
        let answer = post(&gateway, path, &body).await.expect(200);
        assert!(answer["results"].is_array(), "{path}: {answer}");
        assert_eq!(ranking(&answer), all[..2], "{path}");
    }
    for path in ["/rerank", "/v1/rerank", "/voyage/v1/rerank"] {
        let body = json!({"model": "ranker", "query": "q", "documents": documents, "top_k": 2});
        let answer = post(&gateway, path, &body).await.expect(200);
        assert!(answer["data"].is_array(), "{path}: {answer}");
        assert_eq!(ranking(&answer), all[..2], "{path}");
    }
    for path in ["/rerank", "/v1/rerank", "/tei/ranker/rerank"] {
        let answer = post(&gateway, path, &json!({"model": "ranker", "query": "q", "texts": documents})).await;
        assert_eq!(ranking(&answer.expect(200)), all, "{path}");
    }
}

#[tokio::test]
async fn the_default_configuration_ranks_out_of_the_box() {
    let gateway = Gateway::start(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 1\n[store]\npath = \"data\"\n",
    );
    let documents = ["opening hours of the canteen", "how mutual TLS works", "mutual TLS on the proxy"];
    let body = json!({"model": "simulated-rerank", "query": "mutual TLS", "documents": documents, "top_n": 2});
    let answer = gateway.post("/v1/rerank", "vg-demo-key", &[], body.to_string()).await;
    let told = answer.expect(200);
    let places: Vec<usize> = ranking(&told).iter().map(|(place, _)| *place).collect();
    assert!(places.len() == 2 && !places.contains(&0), "{told}");
    assert_eq!(answer.header("x-gateway-cost-eur"), "0.00184");
    assert_eq!(told["meta"]["billed_units"]["search_units"], 1);
}

#[tokio::test]
async fn azure_is_known_by_its_path_or_by_where_its_key_is() {
    let server = Provider::start(Script::new().space("A").width(8));
    let gateway = gateway(&one_model(&server, "openai", "m", "dimensions = 8"), "");
    let body = json!({"model": "ignored", "input": "a"}).to_string();
    let azure = [("api-key", KEY)];
    let path = "/openai/deployments/m/embeddings?api-version=2024-10-21";
    let answer = gateway.post(path, "", &azure, body.clone()).await.expect(200);
    assert_eq!(answer["model"], "m");
    // The deployment in the path is what counts.
    let unknown = gateway.post(&path.replace("/m/", "/x/"), "", &azure, body.clone()).await;
    assert_eq!(unknown.expect(404)["error"]["code"], "DeploymentNotFound");
    let newer = gateway.post("/openai/v1/embeddings", "", &azure, body.clone()).await;
    assert_eq!(newer.expect(404)["error"]["code"], "DeploymentNotFound");
    let openai = gateway.post("/openai/v1/embeddings", KEY, &[], body).await;
    assert_eq!(openai.expect(404)["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn what_is_no_route_is_said_in_the_dialect_of_its_neighbours() {
    let server = Provider::start(Script::new());
    let gateway = gateway(&one_model(&server, "openai", "m", "dimensions = 8"), "");
    let pointer = |path: &str| -> &'static str {
        match path {
            path if path.starts_with("/cohere") || path.starts_with("/v2") || path.starts_with("/v1/embed/") => {
                "/message"
            }
            path if path.starts_with("/voyage") || path.starts_with("/jina") => "/detail",
            path if path.starts_with("/ollama") || path.starts_with("/api") => "/error",
            _ => "/error/message",
        }
    };
    for path in [
        "/v1/embeddings/",
        "/v1/embed/",
        "/v2/embeddings",
        "/cohere/embed",
        "/voyage/v1/embed",
        "/jina/embeddings",
        "/api/generate",
        "/ollama/api/chat",
        "/nothing",
    ] {
        let answer = post(&gateway, path, &json!({})).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.json().pointer(pointer(path)).is_some_and(Value::is_string), "{path}: {}", answer.text);
    }
    for (path, allow) in [
        ("/v1/embeddings", "POST"),
        ("/cohere/v2/embed", "POST"),
        ("/voyage/v1/rerank", "POST"),
        ("/api/embed", "POST"),
    ] {
        let answer = get(&gateway, path, KEY).await;
        assert_eq!((answer.status, answer.header("allow")), (405, allow), "{path}");
        assert!(answer.json().pointer(pointer(path)).is_some_and(Value::is_string), "{path}: {}", answer.text);
    }
    let answer = post(&gateway, "/v1/models", &json!({})).await;
    assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"));
}
