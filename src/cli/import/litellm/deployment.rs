//! One entry of `model_list`: a model at a provider.

use rust_decimal::Decimal;
use toml_edit::{InlineTable, Value};

use super::super::draft::{Draft, Keys, Serve, Upstream, put};
use super::super::yaml::Node;
use super::{Variables, number, whole};
use crate::config::catalogue;

/// LiteLLM's word for a provider, ours, and the address where it is not the provider's own.
const PROVIDERS: &[(&str, &str, Option<&str>)] = &[
    ("openai", "openai", None),
    ("azure", "azure", None),
    ("cohere", "cohere", None),
    ("cohere_chat", "cohere", None),
    ("voyage", "voyage", None),
    ("jina_ai", "jina", None),
    ("huggingface", "tei", None),
    ("ollama", "ollama", None),
    ("ollama_chat", "ollama", None),
    ("vllm", "vllm", None),
    ("hosted_vllm", "vllm", None),
    ("infinity", "vllm", None),
    ("anthropic", "anthropic", None),
    ("openai_like", "openai", None),
    ("litellm_proxy", "openai", None),
    ("lm_studio", "openai", None),
    ("mistral", "openai", Some("https://api.mistral.ai/v1")),
    ("groq", "openai", Some("https://api.groq.com/openai/v1")),
    ("together_ai", "openai", Some("https://api.together.xyz/v1")),
    ("deepinfra", "openai", Some("https://api.deepinfra.com/v1/openai")),
    ("fireworks_ai", "openai", Some("https://api.fireworks.ai/inference/v1")),
    ("nvidia_nim", "openai", Some("https://integrate.api.nvidia.com/v1")),
    ("openrouter", "openai", Some("https://openrouter.ai/api/v1")),
    ("deepseek", "openai", Some("https://api.deepseek.com/v1")),
];

/// Members that are carried over, or say nothing.
const KNOWN: &[&str] = &[
    "model",
    "api_key",
    "api_base",
    "base_url",
    "tpm",
    "rpm",
    "max_parallel_requests",
    "timeout",
    "order",
    "dimensions",
    "input_cost_per_token",
    "output_cost_per_token",
    "input_cost_per_query",
    "custom_llm_provider",
];

/// Why others stay behind; anything else has no counterpart.
const REASONS: &[(&str, &str)] = &[
    ("api_version", "Azure is called by a version that is known to work, whatever was set"),
    ("organization", "an organisation goes with its key: use a key of that organisation"),
    ("input_type", "it would make queries and documents alike; each request says it for itself"),
    ("max_retries", "retries are set for all upstreams, by [retry]"),
    ("num_retries", "retries are set for all upstreams, by [retry]"),
    ("stream_timeout", "timeout_s holds for streams, too"),
    ("weight", "of upstreams in one tier the less loaded and faster is taken; set `tier` to prefer one"),
    ("drop_params", "a field that an upstream has no word for is refused with a 400 that names it, never dropped"),
    ("extra_headers", "no headers are added to calls"),
    ("tags", "give the model a name of its own, and list it in the `models` of those who may use it"),
];

/// One entry of `model_list`, understood.
pub(super) struct Deployment {
    /// Where it is in the file, for notes.
    pub place: String,
    /// What clients ask for.
    pub name: String,
    /// `embedding`, `rerank` or `chat`.
    pub kind: &'static str,
    /// The model behind it, where that is known.
    pub base: Option<String>,
    remote: String,
    upstream: Keys,
    model: Keys,
    prices: Keys,
}

impl Deployment {
    /// Reads the entry at place `at`; `earlier` is what an earlier deployment of the same name makes. Small things that do not come along are noted in `draft`.
    ///
    /// # Errors
    /// Why the whole entry does not come along.
    pub(super) fn read(
        at: usize,
        node: &Node,
        earlier: Option<&'static str>,
        variables: &Variables<'_>,
        draft: &mut Draft,
    ) -> Result<Deployment, String> {
        let name = node.get("model_name").and_then(Node::text).unwrap_or_default();
        let place = format!("model_list[{at}] ({name})");
        let none = Node::Null;
        let params = node.get("litellm_params").unwrap_or(&none);
        let info = node.get("model_info").unwrap_or(&none);
        let model = params.get("model").and_then(Node::text).unwrap_or_default();
        if name.is_empty() || model.is_empty() {
            return Err(format!("{place}: model_name or litellm_params.model is missing"));
        }
        if name.contains('*') || model.contains('*') {
            return Err(format!("{place}: every model is listed by its name here; there are no wildcards"));
        }
        let named = params.get("custom_llm_provider").and_then(Node::text);
        let (word, remote) = split(&model, named.as_deref());
        let Some((_, provider, public)) = PROVIDERS.iter().find(|(known, ..)| *known == word) else {
            return Err(format!("{place}: the provider \"{word}\" cannot be called from here"));
        };
        let base_model = info.get("base_model").or_else(|| params.get("base_model")).and_then(Node::text);
        let base = match (base_model, *provider) {
            (Some(base), _) => Some(split(&base, None).1),
            // The name of a deployment says nothing.
            (None, "azure") => catalogue::knows(&remote).then(|| remote.clone()),
            (None, _) => Some(remote.clone()),
        };
        let own = base.as_deref().unwrap_or(&remote);
        let kind = mode(info).or(earlier).unwrap_or_else(|| guess(&name, own));
        let base_url = ["api_base", "base_url"].iter().find_map(|key| params.get(key)?.text());
        if base_url.is_none() && matches!(*provider, "azure" | "tei" | "vllm") {
            return Err(format!("{place}: no api_base says where it is"));
        }
        let base_url = base_url.or(public.map(str::to_owned));
        let base_url = base_url.map(|url| match url.strip_prefix("os.environ/") {
            None => address(provider, &url),
            Some(variable) => match variables(variable) {
                Some(url) => address(provider, &url),
                None => {
                    draft.note(format!(
                        "{place}: api_base: {variable} is not set here; write its address into base_url"
                    ));
                    format!("http://{}.invalid", variable.to_ascii_lowercase().replace('_', "-"))
                }
            },
        });
        let deployment = Deployment {
            upstream: upstream_keys(&place, provider, base_url, params, draft),
            model: model_keys(&name, kind, base.as_deref(), params, info),
            prices: prices(&place, params, info, draft),
            place,
            name,
            kind,
            base,
            remote,
        };
        for (key, _) in params.members().iter().filter(|(key, _)| !KNOWN.contains(&key.as_str())) {
            let reason = REASONS.iter().find(|(known, _)| known == key).map(|(_, reason)| *reason);
            draft.note(format!("{}: {key}: {}", deployment.place, reason.unwrap_or("there is no counterpart")));
        }
        Ok(deployment)
    }

    /// Adds it: to an upstream that differs in nothing, or as one of its own.
    pub(super) fn add_to(self, draft: &mut Draft) {
        let Deployment { place, name, remote, upstream, model, prices, .. } = self;
        if draft.model(&name).is_none() {
            draft.models.push((name.clone(), model));
        }
        let serve = Serve { model: name.clone(), remote, prices };
        // Limits are a deployment's own there: two that have some are two upstreams.
        let limited = upstream.iter().any(|(key, _)| matches!(key.as_str(), "tpm" | "rpm" | "max_concurrency"));
        let same = |other: &&mut Upstream| {
            shown(&other.keys) == shown(&upstream) && !other.serves.iter().any(|serve| serve.model == name)
        };
        if let Some(twin) = draft.upstreams.iter_mut().filter(|_| !limited).find(same) {
            twin.serves.push(serve);
            return;
        }
        if !limited
            && draft.upstreams.iter().any(|other| {
                shown(&other.keys) == shown(&upstream) && other.serves.iter().any(|other| other.remote == serve.remote)
            })
        {
            draft.note(format!("{place}: the same deployment is there twice"));
            return;
        }
        let word = upstream.iter().find(|(key, _)| key == "provider").and_then(|(_, value)| value.as_str());
        let word = word.unwrap_or("upstream").to_owned();
        let id = (1..).map(|n| format!("{word}-{n}")).find(|id| draft.upstreams.iter().all(|other| other.id != *id));
        draft.upstreams.push(Upstream { id: id.unwrap_or(word), keys: upstream, serves: vec![serve] });
    }
}

fn shown(keys: &Keys) -> Vec<(String, String)> {
    keys.iter().map(|(key, value)| (key.clone(), value.to_string())).collect()
}

/// `provider/model`. A name without a provider is one that LiteLLM knows by heart.
fn split(model: &str, named: Option<&str>) -> (String, String) {
    if let Some(named) = named {
        let bare = model.strip_prefix(named).and_then(|rest| rest.strip_prefix('/'));
        return (named.to_owned(), bare.unwrap_or(model).to_owned());
    }
    let guess = || {
        let cohere = ["embed-", "rerank-", "command"].iter().any(|begin| model.starts_with(begin));
        let word = match model {
            _ if model.starts_with("claude") => "anthropic",
            _ if model.starts_with("voyage-") => "voyage",
            _ if cohere => "cohere",
            _ => "openai",
        };
        (word.to_owned(), model.to_owned())
    };
    match model.split_once('/') {
        // LiteLLM calls other servers' rerankers and embedders by a second word of its own.
        Some((word, rest)) => (word.to_owned(), rest.strip_prefix("rerank/").unwrap_or(rest).to_owned()),
        None => guess(),
    }
}

/// What the file says that the model makes.
fn mode(info: &Node) -> Option<&'static str> {
    match info.get("mode").and_then(Node::text)?.as_str() {
        "embedding" => Some("embedding"),
        "rerank" => Some("rerank"),
        _ => Some("chat"),
    }
}

/// What a model of that name makes, by what is known of it or else by its name.
fn guess(name: &str, base: &str) -> &'static str {
    let known = |name: &str| {
        let facts = catalogue::facts(name)?;
        let ranks = facts.iter().any(|(key, value)| key == "kind" && value.as_str() == Some("rerank"));
        Some(if ranks { "rerank" } else { "embedding" })
    };
    known(base).or_else(|| known(name)).unwrap_or_else(|| {
        let text = base.to_ascii_lowercase();
        match () {
            () if text.contains("rerank") => "rerank",
            () if text.contains("embed") => "embedding",
            () => "chat",
        }
    })
}

fn upstream_keys(place: &str, provider: &str, base_url: Option<String>, params: &Node, draft: &mut Draft) -> Keys {
    let mut keys = vec![("provider".to_owned(), Value::from(provider))];
    if let Some(url) = base_url {
        put(&mut keys, "base_url", url);
    }
    if let Some(key) = params.get("api_key").and_then(Node::text) {
        let variable = key.strip_prefix("os.environ/").map(str::to_owned);
        let variable = variable.unwrap_or_else(|| {
            let name = format!("{}_API_KEY", provider.to_ascii_uppercase());
            draft.note(format!(
                "{place}: api_key: the key itself is not copied; put it into the environment variable {name}"
            ));
            name
        });
        let mut secret = InlineTable::new();
        secret.insert("env", Value::from(variable));
        put(&mut keys, "api_key", secret);
    }
    for (key, ours) in [("order", "tier"), ("tpm", "tpm"), ("rpm", "rpm"), ("max_parallel_requests", "max_concurrency")]
    {
        match params.get(key).map(Node::count) {
            Some(Some(count)) => put(&mut keys, ours, whole(count)),
            Some(None) => draft.note(format!("{place}: {key}: not a whole number")),
            None => {}
        }
    }
    if let Some(seconds) = params.get("timeout").and_then(Node::number) {
        put(&mut keys, "timeout_s", number(seconds));
    }
    keys
}

/// The base URL as our provider of that name has it: up to `/v1`, or before it.
fn address(provider: &str, url: &str) -> String {
    let url = url.trim_end_matches('/');
    let cut = |ends: &[&str]| ends.iter().find_map(|end| url.strip_suffix(end)).unwrap_or(url).to_owned();
    match provider {
        "cohere" => cut(&["/v1/rerank", "/v2/rerank", "/v1/embed", "/v2/embed", "/v1", "/v2"]),
        "tei" => cut(&["/embed", "/rerank"]),
        "jina" | "voyage" | "openai" | "vllm" => cut(&["/embeddings", "/rerank"]),
        _ => url.to_owned(),
    }
}

fn model_keys(name: &str, kind: &str, base: Option<&str>, params: &Node, info: &Node) -> Keys {
    let mut keys = Keys::new();
    let known = catalogue::knows(name);
    // Under a name of its own, what is known of the model behind it has to be said.
    let facts = base.filter(|_| !known).and_then(catalogue::facts).unwrap_or_default();
    let of_catalogue = !facts.is_empty();
    for (key, value) in facts {
        put(&mut keys, &key, value);
    }
    if !known || kind == "chat" {
        put(&mut keys, "kind", kind);
    }
    if kind == "embedding" {
        if let Some(base) = base.filter(|base| *base != name) {
            put(&mut keys, "space", base);
        }
        if let Some(width) = info.get("output_vector_size").and_then(Node::count).filter(|_| !known && !of_catalogue) {
            put(&mut keys, "dimensions", whole(width));
        }
        if let Some(width) = params.get("dimensions").and_then(Node::count) {
            put(&mut keys, "enforce_dimensions", whole(width));
        }
    }
    if let Some(limit) = info.get("max_input_tokens").and_then(Node::count).filter(|_| !known && !of_catalogue) {
        put(&mut keys, "max_input_tokens", whole(limit));
    }
    keys
}

fn prices(place: &str, params: &Node, info: &Node, draft: &mut Draft) -> Keys {
    let mut keys = Keys::new();
    for (key, ours, units) in [
        ("input_cost_per_token", "price_usd_per_million_tokens", 1_000_000_u32),
        ("output_cost_per_token", "output_price_usd_per_million_tokens", 1_000_000),
        ("input_cost_per_query", "price_usd_per_thousand_searches", 1_000),
    ] {
        let Some(stated) = params.get(key).or_else(|| info.get(key)) else { continue };
        match stated.number().and_then(|price| price.checked_mul(Decimal::from(units))) {
            Some(price) => put(&mut keys, ours, price.normalize().to_string()),
            None => draft.note(format!("{place}: {key}: not a number")),
        }
    }
    keys
}
