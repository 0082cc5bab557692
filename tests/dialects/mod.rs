//! Every client dialect through real sockets, to every provider's dialect; rerank from end to end.

mod bill;
pub mod errors;
mod fields;
mod matrix;
mod pairs;
mod routes;

use loadtest::provider::Provider;
use serde_json::Value;
use sha2::Digest as _;

use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY};

/// A gateway with these `[[models]]` and `[[upstreams]]` tables (TOML) and one tenant, whose keys are `tenant`.
#[track_caller]
pub fn gateway(tables: &str, tenant: &str) -> Gateway {
    let hash = hex::encode(sha2::Sha256::digest(KEY));
    Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\n\
         [[tenants]]\nid = \"t1\"\nkey_sha256 = [\"{hash}\"]\n{tenant}\n{tables}"
    ))
}

/// The base URL under which the scripted provider speaks as `provider`.
pub fn base_url(server: &Provider, provider: &str) -> String {
    let path = match provider {
        "openai" => "/v1",
        "azure" => "",
        "cohere" => "/cohere",
        "voyage" => "/voyage/v1",
        "jina" => "/jina/v1",
        "tei" => "/tei",
        "ollama" => "/ollama",
        "vllm" => "/vllm/v1",
        other => panic!("no provider is called {other}"),
    };
    format!("{}{path}", server.base_url())
}

/// `[[models]]` and `[[upstreams]]` for one model at one provider.
pub fn one_model(server: &Provider, provider: &str, model: &str, keys: &str) -> String {
    let url = base_url(server, provider);
    format!(
        "[[models]]\nname = \"{model}\"\n{keys}\n[[upstreams]]\nid = \"at-{provider}\"\nprovider = \"{provider}\"\n\
         base_url = \"{url}\"\napi_key = {{ value = \"upstream-key\" }}\nserves = [{{ model = \"{model}\" }}]\n"
    )
}

/// A POST of tenant `t1`.
pub async fn post(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    gateway.post(path, KEY, &[], body.to_string()).await
}

/// The results of a rerank answer of any dialect as (index, score), checked to be in descending order.
#[track_caller]
pub fn ranking(body: &Value) -> Vec<(usize, f64)> {
    let list = body.get("results").or_else(|| body.get("data")).unwrap_or(body);
    let list = list.as_array().unwrap_or_else(|| panic!("no results: {body}"));
    let ranking: Vec<(usize, f64)> = list
        .iter()
        .map(|result| {
            let score = result.get("relevance_score").or_else(|| result.get("score"));
            let index = result["index"].as_u64().unwrap_or_else(|| panic!("no index: {result}"));
            (index as usize, score.and_then(Value::as_f64).unwrap_or_else(|| panic!("no score: {result}")))
        })
        .collect();
    assert!(ranking.is_sorted_by(|(_, one), (_, other)| one >= other), "not in descending order: {body}");
    ranking
}

/// What the scripted provider thinks of `documents`, best first.
pub fn expected(query: &str, documents: &[&str]) -> Vec<(usize, f64)> {
    let scored = documents.iter().map(|document| loadtest::provider::rerank_score("A", query, document));
    let mut ranking: Vec<(usize, f64)> = scored.enumerate().collect();
    ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranking
}
