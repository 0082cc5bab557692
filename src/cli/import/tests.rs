//! What comes out of a LiteLLM configuration, to the letter, and that it is a valid one of ours.

use sha2::{Digest as _, Sha256};

use super::litellm::translate;
use crate::config::{Source, load};

fn variables(name: &str) -> Option<String> {
    match name {
        "MASTER" => Some("sk-master".to_owned()),
        "TEI_URL" => Some("http://tei.internal:8080/embed".to_owned()),
        _ => None,
    }
}

#[track_caller]
fn check(yaml: &str, toml: &str, notes: &[&str]) {
    let draft = translate(yaml, &variables).expect("a LiteLLM configuration");
    let made = draft.to_toml();
    let tables: Vec<&str> = made.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(tables.join("\n").trim(), toml.trim());
    assert_eq!(draft.notes(), notes);
    for note in notes {
        assert!(made.contains(note), "the file says it, too");
    }
}

/// A file's problems as ours, with every key in the environment.
#[track_caller]
fn check_valid(yaml: &str) {
    let made = translate(yaml, &variables).expect("a LiteLLM configuration").to_toml();
    let environment = ["OPENAI_API_KEY", "AZURE_KEY", "COHERE_API_KEY", "JINA_KEY", "VOYAGE_API_KEY"];
    let environment = environment.into_iter().map(|name| (name, "secret-value")).collect();
    let source = Source::Text { name: "made.toml".to_owned(), text: made.clone() };
    if let Err(problems) = load(&source, &environment) {
        panic!("{problems}\n{made}");
    }
}

const RETRIEVAL: &str = r#"
model_list:
  - model_name: text-embedding-3-small
    litellm_params:
      model: openai/text-embedding-3-small
      api_key: os.environ/OPENAI_API_KEY
  - model_name: text-embedding-3-small
    litellm_params:
      model: azure/my-deployment
      api_base: https://east.openai.azure.com/
      api_key: os.environ/AZURE_KEY
      api_version: "2024-06-01"
      tpm: 100000
      rpm: 600
      order: 2
    model_info: {base_model: azure/text-embedding-3-small}
  - model_name: search
    litellm_params:
      model: text-embedding-3-large
      api_key: os.environ/OPENAI_API_KEY
      dimensions: 1024
      input_cost_per_token: 1.3e-07
  - model_name: ranker
    litellm_params: {model: cohere/rerank-v3.5, api_key: os.environ/COHERE_API_KEY, input_cost_per_query: 0.002}
  - model_name: local
    litellm_params: {model: huggingface/BAAI/bge-m3, api_base: os.environ/TEI_URL}
    model_info: {mode: embedding}
litellm_settings:
  num_retries: 2
  request_timeout: 20
  cache: true
  cache_params: {type: local, ttl: 600}
  max_budget: 100
general_settings:
  master_key: os.environ/MASTER
"#;

#[test]
fn models_keys_limits_and_prices_come_along() {
    let hash = hex::encode(Sha256::digest("sk-master"));
    let hash_line = format!("key_sha256 = [\"{hash}\"]");
    check(
        RETRIEVAL,
        &format!(
            r#"
[money]
currency = "USD"
per_usd = "1"

[retry]
max_attempts = 3

[cache]
ttl_s = 600

[[models]]
name = "text-embedding-3-small"

[[models]]
name = "search"
kind = "embedding"
symmetric = true
dimensions = 3072
matryoshka = {{ min = 1, max = 3072 }}
max_input_tokens = 8191
tokenizer = "cl100k"
case = "kept"
price_usd_per_million_tokens = "0.13"
space = "text-embedding-3-large"
enforce_dimensions = 1024

[[models]]
name = "ranker"
kind = "rerank"
max_input_tokens = 4096
pairwise = true
price_usd_per_thousand_searches = "2.00"

[[models]]
name = "local"
kind = "embedding"
symmetric = true
dimensions = 1024
max_input_tokens = 8192
case = "kept"
space = "BAAI/bge-m3"
price_usd_per_million_tokens = "0"

[[upstreams]]
id = "openai-1"
provider = "openai"
api_key = {{ env = "OPENAI_API_KEY" }}
timeout_s = 20
serves = [
    {{ model = "text-embedding-3-small" }},
    {{ model = "search", as = "text-embedding-3-large", price_usd_per_million_tokens = "0.13" }},
]

[[upstreams]]
id = "azure-1"
provider = "azure"
base_url = "https://east.openai.azure.com"
api_key = {{ env = "AZURE_KEY" }}
tier = 2
tpm = 100000
rpm = 600
timeout_s = 20
serves = [
    {{ model = "text-embedding-3-small", as = "my-deployment" }},
]

[[upstreams]]
id = "cohere-1"
provider = "cohere"
api_key = {{ env = "COHERE_API_KEY" }}
timeout_s = 20
serves = [
    {{ model = "ranker", as = "rerank-v3.5", price_usd_per_thousand_searches = "2" }},
]

[[upstreams]]
id = "tei-1"
provider = "tei"
base_url = "http://tei.internal:8080"
timeout_s = 20
serves = [
    {{ model = "local", as = "BAAI/bge-m3" }},
]

[[tenants]]
id = "master"
{hash_line}
budget = "100"
"#
        ),
        &[
            "model_list[1] (text-embedding-3-small): api_version: Azure is called by a version that is known to work, whatever \
             was set",
            "general_settings.master_key: opens the client routes as tenant \"master\"; the admin side has a token of its own, \
             VECTORGATE_ADMIN_TOKEN",
            "prices: none is known of local, so calls cost nothing, as they did; set what they cost",
        ],
    );
}

#[test]
fn what_comes_out_is_a_valid_configuration() {
    check_valid(RETRIEVAL);
    check_valid(
        r#"
model_list:
  - {model_name: jina-reranker-m0, litellm_params: {model: jina_ai/jina-reranker-m0, api_key: os.environ/JINA_KEY}}
  - {model_name: voyage-4, litellm_params: {model: voyage/voyage-4, api_key: os.environ/VOYAGE_API_KEY, timeout: 2.5}}
  - {model_name: nomic, litellm_params: {model: ollama/nomic-embed-text, api_base: "http://localhost:11434"}}
  - {model_name: mine, litellm_params: {model: hosted_vllm/intfloat/mine, api_base: "http://vllm:8000/v1"}, model_info: {mode: embedding, output_vector_size: 768}}
router_settings: {model_group_alias: {embed: voyage-4}, cooldown_time: 12.5}
"#,
    );
}

#[test]
fn a_second_model_behind_one_name_stays_behind() {
    check(
        r#"
model_list:
  - {model_name: embed, litellm_params: {model: ollama/mine-embed}}
  - {model_name: embed, litellm_params: {model: voyage/other-embed}}
  - {model_name: embed, litellm_params: {model: azure/whatever, api_base: "http://a"}}
litellm_settings:
  fallbacks: [{embed: [other]}]
general_settings: {master_key: os.environ/UNSET}
"#,
        r#"
[money]
currency = "USD"
per_usd = "1"

[[models]]
name = "embed"
kind = "embedding"
space = "mine-embed"

[[upstreams]]
id = "ollama-1"
provider = "ollama"
serves = [
    { model = "embed", as = "mine-embed" },
]

[[upstreams]]
id = "azure-1"
provider = "azure"
base_url = "http://a"
serves = [
    { model = "embed", as = "whatever" },
]
"#,
        &[
            "model_list[1] (embed): left out, since \"embed\" is served by mine-embed already and other-embed makes other \
             vectors or scores; if they are the same weights, add it to `serves` by hand and run `vectorgate probe`",
            "model_list[2] (embed): taken for mine-embed, as the other deployments of this name; no base_model says so, so run \
             `vectorgate probe`",
            "litellm_settings.fallbacks: \"embed\" → other: another model's vectors lie in another space (and scores of two \
             rerankers cannot be compared), so the answer would be wrong without an error; a mirror of the same weights goes \
             into `serves`",
            "general_settings.master_key: os.environ/UNSET is not set here, so its hash is not known; set it and import again, \
             or make a key with `vectorgate key new`",
            "keys: add a [[tenants]] entry for each team, with keys of `vectorgate key new`; virtual keys are in LiteLLM's \
             database and not in its file",
        ],
    );
}

#[test]
fn chat_models_keep_their_fallbacks_and_no_key_is_copied() {
    check(
        r#"
model_list:
  - &first
    model_name: gpt
    litellm_params: {model: gpt-4o, api_key: sk-very-secret}
  - {<<: *first, model_name: cheap}
  - {model_name: titan, litellm_params: {model: bedrock/amazon.titan-embed-text-v2, aws_region_name: eu-central-1}}
  - {model_name: "*", litellm_params: {model: "openai/*"}}
router_settings:
  fallbacks: [{gpt: [cheap, titan]}]
  routing_strategy: simple-shuffle
guardrails: []
environment_variables: {A: 1, B: 2}
"#,
        r#"
[money]
currency = "USD"
per_usd = "1"

[[models]]
name = "gpt"
kind = "chat"
fallbacks = ["cheap"]

[[models]]
name = "cheap"
kind = "chat"

[[upstreams]]
id = "openai-1"
provider = "openai"
api_key = { env = "OPENAI_API_KEY" }
serves = [
    { model = "gpt", as = "gpt-4o" },
    { model = "cheap", as = "gpt-4o" },
]
"#,
        &[
            "model_list[0] (gpt): api_key: the key itself is not copied; put it into the environment variable OPENAI_API_KEY",
            "model_list[1] (cheap): api_key: the key itself is not copied; put it into the environment variable \
             OPENAI_API_KEY",
            "model_list[2] (titan): the provider \"bedrock\" cannot be called from here",
            "model_list[3] (*): every model is listed by its name here; there are no wildcards",
            "router_settings.fallbacks: \"gpt\": not every fallback is a chat model of this file",
            "router_settings.routing_strategy: of upstreams in one tier the less loaded and faster is taken; set `tier` to \
             prefer one",
            "guardrails: there is no counterpart of this section",
            "environment_variables: set A, B where the gateway is started; its file sets none",
            "keys: add a [[tenants]] entry for each team, with keys of `vectorgate key new`; virtual keys are in LiteLLM's \
             database and not in its file",
        ],
    );
}

#[test]
fn what_is_no_such_file_is_refused() {
    assert!(translate("a: [1", &variables).is_err());
    assert!(translate("", &variables).is_err());
    assert!(translate("models: []", &variables).is_err());
}
