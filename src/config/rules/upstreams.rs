//! `[[upstreams]]`: addresses, keys, what each serves.

use std::path::Path;
use std::sync::Arc;

use actix_web::http::Uri;

use super::models::{ModelEntry, find, prices, unknown_model_hint};
use super::sections::{MoneyRules, breaker_with};
use crate::config::catalogue;
use crate::config::environment::Environment;
use crate::config::fields::Fields;
use crate::config::plan::{Breaker, ModelKind, Prices, Provider, Serves, Upstream};
use crate::config::problem::Report;
use crate::config::schema::{Type, key_named};
use crate::config::secret::Secret;
use crate::ids::{ModelName, UpstreamId};
use crate::tls::Authorities;

/// An upstream and where it is written.
pub(super) struct UpstreamEntry<'a> {
    pub upstream: Arc<Upstream>,
    pub fields: Fields<'a>,
}

pub(super) fn build<'a>(
    entries: &[Fields<'a>],
    models: &[ModelEntry],
    money: &MoneyRules,
    breaker: &Breaker,
    environment: &Environment,
    report: &mut Report,
) -> Vec<UpstreamEntry<'a>> {
    let mut upstreams: Vec<UpstreamEntry> = Vec::new();
    for fields in entries {
        let id = fields.text("id");
        if !id.is_empty() && upstreams.iter().any(|other| other.upstream.id.as_str() == id) {
            fields.problem(report, "id", format!("the upstream \"{id}\" is there twice"), "give it another id");
        }
        // Without a provider nothing else can be judged; what is missing was reported.
        let Some(provider) = Provider::parse(fields.text("provider")) else { continue };
        let api_key = api_key(fields, environment, report);
        let base_url = base_url(fields, provider, api_key.as_ref(), report);
        let own_breaker = nested(fields, "breaker").and_then(|keys| fields.table("breaker", keys));
        let upstream = Arc::new(Upstream {
            id: UpstreamId::from(id),
            provider,
            base_url,
            ca: ca(fields, report),
            api_key,
            region: fields.text("region").to_owned(),
            tier: fields.int("tier"),
            tpm: fields.int_unless_zero("tpm"),
            rpm: fields.int_unless_zero("rpm"),
            max_concurrency: fields.int("max_concurrency"),
            connect_timeout: fields.millis("connect_timeout_ms"),
            timeout: fields.seconds("timeout_s"),
            max_batch_items: fields.int_unless_zero("max_batch_items"),
            max_batch_tokens: fields.int_unless_zero("max_batch_tokens"),
            max_batch_bytes: fields.int_unless_zero("max_batch_bytes"),
            stream_usage: fields.flag("stream_usage"),
            breaker: own_breaker.map_or_else(|| breaker.clone(), |own| breaker_with(breaker, &own)),
            serves: serves(fields, provider, models, money, report),
        });
        upstreams.push(UpstreamEntry { upstream, fields: fields.clone() });
    }
    upstreams
}

/// The keys of the table, or of the tables, at `key`.
fn nested(fields: &Fields, key: &str) -> Option<&'static [crate::config::schema::Key]> {
    match key_named(fields.keys, key)?.ty {
        Type::Table(keys) | Type::Tables(keys) => Some(keys),
        _ => None,
    }
}

fn api_key(fields: &Fields, environment: &Environment, report: &mut Report) -> Option<Secret> {
    let key = fields.secret("api_key", environment, report)?;
    if !key.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = "the secret holds spaces or characters that no header can carry";
        fields.problem(report, "api_key", what, "check that it was copied whole and alone");
    }
    Some(key)
}

fn ca(fields: &Fields, report: &mut Report) -> Option<Authorities> {
    let file = Some(fields.text("ca")).filter(|file| !file.is_empty())?;
    let read = Authorities::read(Path::new(file));
    let right = "a PEM file of certificates; the path is relative to the current directory";
    read.map_err(|what| fields.problem(report, "ca", format!("the file {file} {what}"), right)).ok()
}

/// Where a provider answers when no `base_url` is given.
fn default_base(provider: Provider) -> Option<&'static str> {
    match provider {
        Provider::OpenAi => Some("https://api.openai.com/v1"),
        Provider::Cohere => Some("https://api.cohere.com"),
        Provider::Voyage => Some("https://api.voyageai.com/v1"),
        Provider::Jina => Some("https://api.jina.ai/v1"),
        Provider::Anthropic => Some("https://api.anthropic.com"),
        Provider::Ollama => Some("http://127.0.0.1:11434"),
        Provider::Azure | Provider::Tei | Provider::Vllm | Provider::Simulated => None,
    }
}

/// Whether a base URL of this provider ends with `/v1`, as its SDK's does; `None`: either may be right.
fn ends_with_v1(provider: Provider) -> Option<bool> {
    match provider {
        Provider::OpenAi | Provider::Voyage | Provider::Jina => Some(true),
        Provider::Cohere | Provider::Tei | Provider::Ollama | Provider::Azure => Some(false),
        Provider::Vllm | Provider::Anthropic | Provider::Simulated => None,
    }
}

fn base_url(fields: &Fields, provider: Provider, api_key: Option<&Secret>, report: &mut Report) -> String {
    let stated = fields.text("base_url");
    if provider == Provider::Simulated {
        if !stated.is_empty() {
            fields.problem(report, "base_url", "the simulated provider has no address", "remove it");
        }
        return String::new();
    }
    let text = if stated.is_empty() { default_base(provider).unwrap_or_default() } else { stated };
    let url = text.trim_end_matches('/');
    if url.is_empty() {
        let what = format!("missing; {} has no address of its own", provider.as_str());
        fields.problem(report, "base_url", what, "expected http://host:port or https://host");
        return String::new();
    }
    let expected = "expected http:// or https:// with a host and no user, query or fragment";
    let Some((uri, scheme, host)) = url
        .parse::<Uri>()
        .ok()
        .and_then(|uri| Some((uri.clone(), uri.scheme_str()?.to_owned(), uri.host()?.to_owned())))
    else {
        fields.problem(report, "base_url", "is not an absolute URL", expected);
        return url.to_owned();
    };
    let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if !matches!(scheme.as_str(), "http" | "https") {
        fields.problem(report, "base_url", format!("the scheme \"{scheme}\" cannot be called"), expected);
    } else if user || uri.query().is_some() || text.contains('#') {
        fields.problem(report, "base_url", "holds more than scheme, host and path", expected);
    }
    let versioned = uri.path().split('/').any(is_version);
    match ends_with_v1(provider) {
        Some(true) if !versioned => {
            let text = format!("a base URL of {} usually ends with /v1, this one does not", provider.as_str());
            fields.warning(report, "base_url", text);
        }
        Some(false) if url.ends_with("/v1") || url.ends_with("/v2") => {
            let text = format!("a base URL of {} ends before its /v1 or /v2", provider.as_str());
            fields.warning(report, "base_url", text);
        }
        _ => {}
    }
    let official = default_base(provider).is_some_and(|base| base.contains(&format!("//{host}")));
    if api_key.is_none() && official && provider != Provider::Ollama {
        fields.warning(report, "api_key", format!("missing; {host} will refuse every call"));
    }
    if api_key.is_some() && scheme == "http" && !is_local(&host) {
        fields.warning(report, "base_url", "the key travels without encryption");
    }
    url.to_owned()
}

/// `v1`, `v1beta`, `v4`: some look-alikes count their versions differently.
fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A name without a dot is one of this network: a container, a service.
    !bare.contains(['.', ':']) || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Which kinds of model a provider can serve.
fn can_serve(provider: Provider, kind: ModelKind) -> bool {
    match kind {
        ModelKind::Embedding => provider != Provider::Anthropic,
        ModelKind::Rerank => matches!(
            provider,
            Provider::Cohere | Provider::Voyage | Provider::Jina | Provider::Tei | Provider::Vllm | Provider::Simulated
        ),
        ModelKind::Chat => {
            matches!(
                provider,
                Provider::OpenAi
                    | Provider::Azure
                    | Provider::Ollama
                    | Provider::Vllm
                    | Provider::Anthropic
                    | Provider::Simulated
            )
        }
    }
}

fn serves(
    fields: &Fields,
    provider: Provider,
    models: &[ModelEntry],
    money: &MoneyRules,
    report: &mut Report,
) -> Vec<Serves> {
    let entries = nested(fields, "serves").map(|keys| fields.tables("serves", keys)).unwrap_or_default();
    if entries.is_empty() {
        fields.warning(report, "serves", "serves nothing");
    }
    let mut serves: Vec<Serves> = Vec::new();
    for entry in &entries {
        let Some(name) = entry.opt_text("model") else { continue };
        let Some(model) = find(models, name).map(|found| &found.model) else {
            let right = unknown_model_hint(models, name);
            entry.problem(report, "model", format!("no model is called \"{name}\""), right);
            continue;
        };
        if !can_serve(provider, model.kind) {
            let what = format!("{} serves no {} models such as \"{name}\"", provider.as_str(), model.kind.as_str());
            entry.problem(report, "model", what, "serve it from another provider, or correct its `kind`");
        }
        if serves.iter().any(|other| other.model == model.name) {
            entry.problem(report, "model", format!("\"{name}\" is served twice here"), "remove one");
            continue;
        }
        if provider == Provider::Azure
            && let Some(date) = catalogue::retires_on_azure(name)
        {
            entry.warning(report, "model", format!("\"{name}\" retires on Azure on {date}"));
        }
        if entry.opt_text("as").is_some_and(str::is_empty) {
            entry.problem(report, "as", "empty", "expected the model's name at the upstream, or no key");
        }
        let own = prices(entry, money, report);
        serves.push(Serves {
            model: ModelName::from(name),
            remote_name: entry.opt_text("as").unwrap_or(name).to_owned(),
            prices: Prices {
                input: own.input.or(model.prices.input),
                output: own.output.or(model.prices.output),
                search: own.search.or(model.prices.search),
            },
        });
    }
    serves
}
