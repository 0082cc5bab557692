//! Answers through the gateway are those of the upstream called directly, by each SDK's own reading of them.

use loadtest::provider::{Provider, Script};
use serde_json::{Value, json};

use super::run::{EmbeddingServer, Home, told};
use crate::dialects::{base_url, gateway};
use crate::support::{Gateway, KEY, embedding_config};

/// Every SDK, with and without a word about what its texts are for.
const EVERY: [&str; 12] = [
    "openai",
    "azure",
    "langchain",
    "llama-index",
    "cohere-v1",
    "cohere-v1-typed",
    "cohere-v2",
    "voyage",
    "voyage-typed",
    "hugging-face",
    "ollama",
    "ollama-older-route",
];

/// Every SDK with a provider of its own dialect, and whether it ranks too.
const OWN: [(&str, &str, bool); 8] = [
    ("openai", "openai", false),
    ("azure", "azure", false),
    ("cohere-v1-typed", "cohere", true),
    ("cohere-v2", "cohere", true),
    ("voyage", "voyage", true),
    ("voyage-typed", "voyage", false),
    ("hugging-face", "tei", false),
    ("ollama", "ollama", false),
];

/// Texts that nobody else has asked for, with everything in them that breaks an encoding.
fn texts(whose: &str) -> Vec<String> {
    let tails = ["mutual TLS", "é 日本 🦀", "\"quoted\"\n\tand split", "MUTUAL tls, in capitals"];
    tails.iter().map(|tail| format!("{whose}: {tail}")).collect()
}

/// The numbers of `vectors` as 32-bit floats: what every SDK has in the end, whichever way they came.
#[track_caller]
fn floats(vectors: &Value) -> Vec<Vec<f32>> {
    let list = vectors.as_array().unwrap_or_else(|| panic!("no vectors: {vectors}"));
    let numbers = |vector: &Value| -> Vec<f32> {
        let numbers = vector.as_array().unwrap_or_else(|| panic!("no vector: {vector}"));
        numbers.iter().map(|number| number.as_f64().expect("a number") as f32).collect()
    };
    list.iter().map(numbers).collect()
}

/// What the embedding server itself says, asked by nobody's SDK.
async fn directly(server: &EmbeddingServer, texts: &[String]) -> Vec<Vec<f32>> {
    let body = json!({ "model": "any", "input": texts, "encoding_format": "float" }).to_string();
    let request = reqwest::Client::new().post(format!("{}/embeddings", server.url));
    let answer = request.header("content-type", "application/json").body(body).send().await.expect("it answers");
    let text = answer.text().await.expect("a body");
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let data = body["data"].as_array().unwrap_or_else(|| panic!("no data: {text}"));
    floats(&data.iter().map(|item| item["embedding"].clone()).collect())
}

/// Each SDK twice: what was called and what was cached are the real model's vectors.
async fn check_real_vectors(sdks: &[(Home, &str)]) {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = EmbeddingServer::start().await;
    // The server has no word for what a text is for.
    let config = embedding_config(&[("nano", "openai", &server.url)], "symmetric = true", "", "");
    let gateway = Gateway::start(&config);
    for (home, name) in sdks {
        let texts = texts(&format!("{home:?} {name}"));
        let asked = json!({ "model": "emb-a", "texts": texts });
        let got = told(*home, "answers", &[name, KEY, &gateway.url, &gateway.url], &asked);
        let expected = directly(&server, &texts).await;
        assert_eq!((expected.len(), expected[0].len()), (texts.len(), 384));
        assert_eq!(got.len(), 2);
        for answer in &got {
            assert_eq!(floats(&answer["vectors"]), expected, "{home:?} {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_newest_python_sdk_gets_a_real_models_vectors() {
    check_real_vectors(&EVERY.map(|name| (Home::Newest, name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_older_python_sdk_gets_a_real_models_vectors() {
    check_real_vectors(&EVERY.map(|name| (Home::Older, name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_sdk_gets_a_real_models_vectors() {
    const NAMES: [&str; 6] = ["openai", "openai-older", "cohere-v1", "cohere-v1-older", "cohere-v2", "cohere-v2-older"];
    check_real_vectors(&NAMES.map(|name| (Home::Node, name))).await;
}

/// The root of the gateway and the model's own path are TEI servers to the SDK, with all that it asks of one.
#[tokio::test(flavor = "multi_thread")]
async fn hugging_faces_client_finds_a_tei_server() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = EmbeddingServer::start().await;
    let gateway = Gateway::start(&embedding_config(&[("nano", "openai", &server.url)], "", "", ""));
    let texts = ["the canteen opens at noon", "how mutual TLS works", "mutual TLS on the proxy"].map(str::to_owned);
    let vectors = directly(&server, &texts).await;
    let cosine = |one: &[f32], other: &[f32]| -> f64 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
    };
    let expected: Vec<f64> = vectors[..2].iter().map(|vector| cosine(&vectors[2], vector)).collect();
    let asked = json!({ "model": "emb-a", "sentence": texts[2], "others": texts[..2] });
    for home in [Home::Newest, Home::Older] {
        let got = told(home, "hugging_face", &[&gateway.url, KEY], &asked);
        for place in ["root", "model"] {
            let got = &got[0][place];
            assert_eq!((&got["info"], &got["healthy"]), (&json!("emb-a"), &json!(true)), "{home:?} {place}");
            assert_eq!(floats(&got["vectors"]), vectors[..2], "{home:?} {place}");
            let similar = got["similar"].as_array().expect("scores");
            assert_eq!(similar.len(), 2, "{home:?} {place}");
            for (score, expected) in similar.iter().zip(&expected) {
                let score = score.as_f64().expect("a number");
                assert!((score - expected).abs() < 1e-5, "{home:?} {place}: {score} instead of {expected}");
            }
        }
    }
}

/// A model at each provider, and rankers, all of one server.
fn tables(server: &Provider) -> String {
    let mut tables = String::new();
    for provider in ["openai", "azure", "cohere", "voyage", "tei", "ollama"] {
        let url = base_url(server, provider);
        tables.push_str(&format!(
            "[[models]]\nname = \"m-{provider}\"\ndimensions = 8\n[[upstreams]]\nid = \"{provider}\"\n\
             provider = \"{provider}\"\nbase_url = \"{url}\"\nserves = [{{ model = \"m-{provider}\" }}]\n"
        ));
    }
    for provider in ["cohere", "voyage"] {
        let url = base_url(server, provider);
        tables.push_str(&format!(
            "[[models]]\nname = \"r-{provider}\"\nkind = \"rerank\"\npairwise = true\n[[upstreams]]\n\
             id = \"ranks-{provider}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
             serves = [{{ model = \"r-{provider}\" }}]\n"
        ));
    }
    tables
}

/// The same SDK with the same words at the provider and at the gateway, called and cached.
fn check_own_provider(sdks: &[(Home, &str, &str, bool)]) {
    let server = Provider::start(Script::new().space("A").width(8));
    let gateway = gateway(&tables(&server), "");
    let provider_url = server.base_url();
    for (home, name, provider, ranks) in sdks {
        let whose = format!("{home:?} {name}");
        let mut asked = json!({ "model": format!("m-{provider}"), "texts": texts(&whose) });
        if *ranks {
            asked["ranker"] = json!(format!("r-{provider}"));
            asked["query"] = json!(format!("{whose}: which one?"));
            asked["documents"] = json!(texts("document"));
            asked["top"] = json!(3);
        }
        let got = told(*home, "answers", &[name, KEY, &provider_url, &gateway.url, &gateway.url], &asked);
        let [direct, called, cached] = got.as_slice() else { panic!("{whose}: {got:?}") };
        assert_eq!(floats(&direct["vectors"]).len(), 4, "{whose}");
        assert_eq!(direct["ranking"].as_array().map_or(0, Vec::len), if *ranks { 3 } else { 0 }, "{whose}");
        assert_eq!((called, cached), (direct, direct), "{whose}");
    }
}

#[test]
fn every_newest_python_sdk_reads_its_own_providers_answers() {
    check_own_provider(&OWN.map(|(name, provider, ranks)| (Home::Newest, name, provider, ranks)));
}

#[test]
fn every_older_python_sdk_reads_its_own_providers_answers() {
    check_own_provider(&OWN.map(|(name, provider, ranks)| (Home::Older, name, provider, ranks)));
}

#[test]
fn every_node_sdk_reads_its_own_providers_answers() {
    check_own_provider(&[
        (Home::Node, "openai", "openai", false),
        (Home::Node, "openai-older", "openai", false),
        (Home::Node, "cohere-v1-typed", "cohere", true),
        (Home::Node, "cohere-v1-typed-older", "cohere", true),
        (Home::Node, "cohere-v2", "cohere", true),
        (Home::Node, "cohere-v2-older", "cohere", true),
    ]);
}
