//! A client's chat request: the few members that decide where it goes and what it may cost, and its body as the upstream
//! shall have it.
//!
//! Of the body two members may change: the model's name, and whether a stream ends with its usage. Everything else goes on
//! as it came, digits, order and white space included.

use std::ops::Range;

use bytes::Bytes;

use super::ChatApi;
use crate::config::plan::{Provider, Upstream};
use crate::dialects::json::{ObjectWriter, boolean, is_null, string, text, whole_number};
use crate::dialects::upstream::openai_path;
use crate::dialects::upstream::splice::{Edit, edits, splice};
use crate::dialects::{OriginalBody, WireRequest};
use crate::edge::scan::{Scan, ScanLimits, Scanner};
use crate::error::{ApiError, Code};

/// Most answers that one request may ask for: what is more is a mistake that would hold a fortune.
const MOST_ANSWERS: u64 = 1_024;

/// Anthropic's version where a client names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A client's chat request.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// What it speaks.
    pub api: ChatApi,
    /// The model asked for; `None` only where the route may name it instead (Azure).
    pub model: Option<String>,
    /// Whether the answer is to come event by event.
    pub stream: bool,
    /// Whether the client itself wants the event that tells a stream's usage.
    pub wants_usage: bool,
    /// Most tokens of one answer, where the client limits them.
    pub max_output: Option<u64>,
    /// How many answers are made: choices times prompts.
    pub answers: u64,
    /// `service_tier`, a hint at the class.
    pub service_tier: Option<String>,
    /// The body.
    pub original: OriginalBody,
    /// What the client's head says to providers of its own dialect.
    pub said: Said,
}

/// What of a request's head goes on to the provider. Nothing else of it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// `anthropic-version`.
    pub anthropic_version: Option<String>,
    /// `anthropic-beta`, all of them.
    pub anthropic_beta: Option<String>,
    /// `?beta=true`.
    pub beta_query: bool,
}

/// The members of a request of `api` that the scanner must look into: several prompts are several answers.
pub const fn item_fields(api: ChatApi) -> &'static [&'static str] {
    match api {
        ChatApi::Completions => &["prompt"],
        ChatApi::Chat | ChatApi::Responses | ChatApi::Messages => &[],
    }
}

/// What a scanner must let through.
pub fn scan_limits() -> ScanLimits {
    ScanLimits { allow_empty_texts: true, ..ScanLimits::default() }
}

/// The raw value of a member that decides something; `None` if it is absent or `null`.
fn member<'a>(scan: &Scan, body: &'a Bytes, name: &str) -> Result<Option<&'a [u8]>, ApiError> {
    let mut found = scan.members.iter().filter(|member| member.key == name);
    let first = found.next().and_then(|member| body.get(member.value.clone()));
    if found.next().is_some() {
        return Err(refuse(name, format!("`{name}` is given twice")));
    }
    Ok(first.filter(|raw| !is_null(raw)))
}

fn refuse(name: &str, message: String) -> ApiError {
    ApiError::new(Code::InvalidInput, message).param(name.to_owned())
}

/// Reads a chat request. `body` is what was scanned into `scan`.
///
/// # Errors
/// Names the member that is missing, given twice or of the wrong type.
pub fn parse(api: ChatApi, scan: &Scan, body: &Bytes, said: Said) -> Result<ChatRequest, ApiError> {
    let get = |name: &str| member(scan, body, name);
    let model = match get("model")? {
        Some(raw) => {
            Some(text(raw).ok_or_else(|| refuse("model", "`model` must be a string".to_owned()))?.into_owned())
        }
        None => None,
    };
    let truth = |name: &str| match get(name)? {
        Some(raw) => boolean(raw).ok_or_else(|| refuse(name, format!("`{name}` must be true or false"))),
        None => Ok(false),
    };
    let stream = truth("stream")?;
    if api == ChatApi::Responses && truth("background")? {
        let message = "`background` is not supported: what such a response costs would be told to nobody here";
        return Err(refuse("background", message.to_owned()));
    }
    let wants_usage = match get("stream_options")? {
        Some(raw) if api.has_usage_on_request() => asks_for_usage(raw)?,
        _ => false,
    };
    let limits: &[&str] = match api {
        ChatApi::Chat => &["max_completion_tokens", "max_tokens"],
        ChatApi::Completions | ChatApi::Messages => &["max_tokens"],
        ChatApi::Responses => &["max_output_tokens"],
    };
    let mut max_output = None;
    for name in limits {
        // What is no whole number is the provider's to judge: without one the model's own limit holds.
        max_output = max_output.max(get(name)?.and_then(whole_number));
    }
    let service_tier = get("service_tier")?.and_then(text).map(std::borrow::Cow::into_owned);
    let members = scan.members.iter().map(|member| (member.key.clone(), member.value.clone())).collect();
    Ok(ChatRequest {
        api,
        model,
        stream,
        wants_usage,
        max_output,
        answers: answers(api, scan, &get)?,
        service_tier,
        original: OriginalBody { body: body.clone(), members },
        said,
    })
}

/// Choices times prompts.
fn answers<'a>(
    api: ChatApi,
    scan: &Scan,
    get: &impl Fn(&str) -> Result<Option<&'a [u8]>, ApiError>,
) -> Result<u64, ApiError> {
    let (names, prompts): (&[&str], u64) = match api {
        ChatApi::Chat => (&["n"], 1),
        ChatApi::Completions => {
            (&["n", "best_of"], scan.items("prompt").map_or(1, |prompts| prompts.items.len() as u64))
        }
        ChatApi::Responses | ChatApi::Messages => (&[], 1),
    };
    let mut choices = 1;
    for name in names {
        if let Some(raw) = get(name)? {
            let number = whole_number(raw).filter(|number| (1..=MOST_ANSWERS).contains(number));
            let number = number
                .ok_or_else(|| refuse(name, format!("`{name}` must be a whole number from 1 to {MOST_ANSWERS}")))?;
            choices = choices.max(number);
        }
    }
    Ok(choices.saturating_mul(prompts))
}

/// The members of a small object inside the body.
fn inner(raw: &[u8]) -> Option<OriginalBody> {
    let mut scanner = Scanner::new(&[], ScanLimits::default());
    scanner.feed(raw).ok()?;
    let scan = scanner.finish().ok()?;
    let members: Vec<(String, Range<usize>)> =
        scan.members.into_iter().map(|member| (member.key, member.value)).collect();
    Some(OriginalBody { body: Bytes::copy_from_slice(raw), members })
}

fn asks_for_usage(options: &[u8]) -> Result<bool, ApiError> {
    let options =
        inner(options).ok_or_else(|| refuse("stream_options", "`stream_options` must be an object".to_owned()))?;
    let asked = options.members.iter().rev().find(|(name, _)| name == "include_usage");
    Ok(asked.and_then(|(_, range)| options.body.get(range.clone())) == Some(b"true"))
}

/// `options` with the wish for usage, and everything else as it was.
fn with_usage(options: &[u8]) -> Vec<u8> {
    const WISH: &str = "include_usage";
    let Some(original) = inner(options) else {
        let mut object = ObjectWriter::with_capacity(32);
        object.boolean(WISH, true);
        return object.finish();
    };
    let mut there = false;
    let edits = edits(&original, |name, _| {
        if name != WISH {
            return Edit::Keep;
        }
        there = true;
        Edit::Replace(b"true".to_vec())
    });
    let added: &[(&str, Vec<u8>)] = if there { &[] } else { &[(WISH, b"true".to_vec())] };
    splice(&original, &edits, added).to_vec()
}

impl ChatRequest {
    /// Whether the event that tells a stream's usage has to be asked for, and hidden from the client, at an upstream.
    pub fn adds_usage(&self, upstream: &Upstream) -> bool {
        self.stream && self.api.has_usage_on_request() && !self.wants_usage && upstream.stream_usage
    }

    /// The request as `upstream` gets it, for the model that it calls `remote_model`. The same request gives the same
    /// bytes each time.
    pub fn encode(&self, upstream: &Upstream, remote_model: &str) -> WireRequest {
        let adds_usage = self.adds_usage(upstream);
        let (mut has_model, mut has_options) = (false, false);
        let edits = edits(&self.original, |name, value| match name {
            "model" => {
                has_model = true;
                if text(value).as_deref() == Some(remote_model) {
                    Edit::Keep
                } else {
                    Edit::Replace(string(remote_model))
                }
            }
            "stream_options" if adds_usage => {
                has_options = true;
                Edit::Replace(with_usage(if is_null(value) { b"{}" } else { value }))
            }
            _ => Edit::Keep,
        });
        let mut added = Vec::new();
        if !has_model {
            added.push(("model", string(remote_model)));
        }
        if adds_usage && !has_options {
            added.push(("stream_options", with_usage(b"{}")));
        }
        let accept = if self.stream { "text/event-stream" } else { "application/json" };
        let mut headers = vec![("content-type", "application/json".to_owned()), ("accept", accept.to_owned())];
        if self.api == ChatApi::Messages {
            let version = self.said.anthropic_version.clone().unwrap_or_else(|| ANTHROPIC_VERSION.to_owned());
            headers.push(("anthropic-version", version));
            headers.extend(self.said.anthropic_beta.clone().map(|beta| ("anthropic-beta", beta)));
        }
        WireRequest { path: self.path(upstream, remote_model), headers, body: splice(&self.original, &edits, &added) }
    }

    fn path(&self, upstream: &Upstream, remote_model: &str) -> String {
        let operation = self.api.operation();
        match upstream.provider {
            // Its newer API only; the others have a path for each deployment.
            Provider::Azure if self.api == ChatApi::Responses => format!("/openai/v1/{operation}"),
            Provider::Ollama => format!("/v1/{operation}"),
            Provider::Anthropic => {
                let version = if upstream.base_url.ends_with("/v1") { "" } else { "/v1" };
                let query = if self.said.beta_query { "?beta=true" } else { "" };
                format!("{version}/{operation}{query}")
            }
            provider => openai_path(provider, remote_model, operation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::Plan;
    use crate::config::{Environment, Source, load};

    fn scanned(api: ChatApi, body: &str) -> Result<ChatRequest, ApiError> {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let mut scanner = Scanner::new(item_fields(api), scan_limits());
        scanner.feed(&bytes).expect("sound");
        let scan = scanner.finish().expect("sound");
        parse(api, &scan, &bytes, Said::default())
    }

    fn upstream(provider: &str, url: &str) -> std::sync::Arc<Upstream> {
        let text = format!("[[upstreams]]\nid = \"u\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n");
        let plan: Plan = load(&Source::Text { name: "t".to_owned(), text }, &Environment::default()).expect("valid");
        std::sync::Arc::clone(&plan.upstreams[0])
    }

    #[track_caller]
    fn sent(api: ChatApi, body: &str, expected: &str) {
        let request = scanned(api, body).expect("acceptable");
        let wire = request.encode(&upstream("openai", "http://h/v1"), "there");
        assert_eq!(std::str::from_utf8(&wire.body).expect("text"), expected);
    }

    #[test]
    fn only_the_models_name_and_the_wish_for_usage_change() {
        let odd = r#"{ "seed":9007199254740993, "model" : "here","x_trace":{"b":1,"a":[18446744073709551615,1e400]},"t":1.10 }"#;
        sent(ChatApi::Chat, odd, &odd.replace("\"here\"", "\"there\""));
        let same = r#"{"model":"there","stream":false}"#;
        sent(ChatApi::Chat, same, same);
        let wish = r#"{"model":"there","stream":true,"stream_options":{"include_usage":true}}"#;
        sent(ChatApi::Chat, wish, wish);
        sent(ChatApi::Completions, r#"{"model":"there","stream":true}"#, wish);
        sent(ChatApi::Chat, r#"{"model":"there","stream":true,"stream_options":null}"#, wish);
        sent(ChatApi::Chat, r#"{"model":"there","stream":true,"stream_options":{"include_usage":false}}"#, wish);
        sent(
            ChatApi::Chat,
            r#"{"model":"there","stream":true,"stream_options":{ "include_obfuscation" : 1.0 },"z":0}"#,
            r#"{"model":"there","stream":true,"stream_options":{ "include_obfuscation" : 1.0,"include_usage":true },"z":0}"#,
        );
        // These APIs tell it anyway.
        let stream = r#"{"model":"there","stream":true}"#;
        sent(ChatApi::Responses, stream, stream);
        sent(ChatApi::Messages, stream, stream);
        sent(ChatApi::Chat, r#"{"stream":false}"#, r#"{"stream":false,"model":"there"}"#);
    }

    #[test]
    fn every_provider_has_its_path() {
        #[track_caller]
        fn check(api: ChatApi, provider: &str, url: &str, path: &str) {
            let request = scanned(api, r#"{"model":"m"}"#).expect("acceptable");
            assert_eq!(request.encode(&upstream(provider, url), "my model").path, path);
        }
        check(ChatApi::Chat, "openai", "http://h/v1", "/chat/completions");
        check(ChatApi::Responses, "vllm", "http://h/v1", "/responses");
        check(ChatApi::Chat, "ollama", "http://h", "/v1/chat/completions");
        let deployment = "/openai/deployments/my%20model/chat/completions?api-version=2024-10-21";
        check(ChatApi::Chat, "azure", "http://h", deployment);
        check(ChatApi::Responses, "azure", "http://h", "/openai/v1/responses");
        check(ChatApi::Messages, "anthropic", "http://h", "/v1/messages");
        check(ChatApi::Messages, "anthropic", "http://h/v1", "/messages");
    }

    #[test]
    fn what_decides_the_cost_is_read() {
        let of = |api, body| scanned(api, body).map(|request| (request.max_output, request.answers));
        assert_eq!(of(ChatApi::Chat, r#"{"max_tokens":5,"max_completion_tokens":9,"n":3}"#), Ok((Some(9), 3)));
        assert_eq!(of(ChatApi::Chat, r#"{"max_tokens":null}"#), Ok((None, 1)));
        assert_eq!(of(ChatApi::Chat, r#"{"max_tokens":5.0}"#), Ok((None, 1)));
        let prompts = r#"{"prompt":["a","","c"],"max_tokens":7,"best_of":2}"#;
        assert_eq!(of(ChatApi::Completions, prompts), Ok((Some(7), 6)));
        assert_eq!(of(ChatApi::Completions, r#"{"prompt":[[1,2],[3]]}"#), Ok((None, 2)));
        assert_eq!(of(ChatApi::Responses, r#"{"max_output_tokens":8,"prompt":{"id":"x"}}"#), Ok((Some(8), 1)));
        assert_eq!(of(ChatApi::Messages, r#"{"max_tokens":8}"#), Ok((Some(8), 1)));
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        #[track_caller]
        fn check(api: ChatApi, body: &str, field: &str) {
            let refused = scanned(api, body).expect_err("refused");
            assert_eq!((refused.code, refused.param.as_deref()), (Code::InvalidInput, Some(field)), "{body}");
        }
        check(ChatApi::Chat, r#"{"max_tokens":1,"max_tokens":100000}"#, "max_tokens");
        check(ChatApi::Chat, r#"{"stream":"yes"}"#, "stream");
        check(ChatApi::Chat, r#"{"model":7}"#, "model");
        check(ChatApi::Chat, r#"{"n":0}"#, "n");
        check(ChatApi::Chat, r#"{"n":"2"}"#, "n");
        check(ChatApi::Chat, r#"{"stream_options":[]}"#, "stream_options");
        check(ChatApi::Responses, r#"{"background":true}"#, "background");
    }

    #[test]
    fn anthropics_head_goes_on() {
        let mut request = scanned(ChatApi::Messages, r#"{"model":"m"}"#).expect("acceptable");
        let anthropic = upstream("anthropic", "http://h");
        let header = |request: &ChatRequest, name: &str| {
            let headers = request.encode(&anthropic, "m").headers;
            headers.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
        };
        assert_eq!(header(&request, "anthropic-version").as_deref(), Some(ANTHROPIC_VERSION));
        assert_eq!(header(&request, "anthropic-beta"), None);
        let (version, beta) = (Some("2026-10-21".to_owned()), Some("a,b".to_owned()));
        request.said = Said { anthropic_version: version.clone(), anthropic_beta: beta.clone(), beta_query: true };
        assert_eq!((header(&request, "anthropic-version"), header(&request, "anthropic-beta")), (version, beta));
        assert_eq!(request.encode(&anthropic, "m").path, "/v1/messages?beta=true");
    }
}
