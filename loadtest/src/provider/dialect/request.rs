//! Reading what a call asks for out of its body, by each provider's own rules.

use serde_json::{Map, Value};

use super::refusal::{Kind, Refusal};
use super::{Dialect, Op, Route};
use crate::provider::script::{Honour, Script};
use crate::provider::signature::Item;

/// What a call asks for.
#[derive(Clone, Debug)]
pub(in crate::provider) enum Job {
    Embed(EmbedJob),
    Rerank(RerankJob),
    Chat(ChatJob),
    /// A call without a body.
    Look,
}

impl Job {
    /// Items the call holds: texts or documents.
    pub fn items(&self) -> usize {
        match self {
            Self::Embed(job) => job.items.len(),
            Self::Rerank(job) => job.documents.len(),
            Self::Chat(_) => 1,
            Self::Look => 0,
        }
    }

    /// The model asked for.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Embed(job) => job.model.as_deref(),
            Self::Rerank(job) => job.model.as_deref(),
            Self::Chat(job) => job.model.as_deref(),
            Self::Look => None,
        }
    }
}

/// Texts to embed.
#[derive(Clone, Debug)]
pub(in crate::provider) struct EmbedJob {
    pub model: Option<String>,
    pub items: Vec<Item>,
    /// The width asked for.
    pub width: Option<usize>,
    /// Number types asked for: `float`, `base64`, and for Cohere and Jina the integer ones. Never empty.
    pub types: Vec<String>,
    /// Cohere v1 without `embedding_types` answers in another shape.
    pub types_named: bool,
    /// Members that change the vectors, as `name=value` joined by `;`.
    pub options: String,
    /// Texts that are too long are to be cut.
    pub truncate: bool,
}

/// Documents to rank.
#[derive(Clone, Debug)]
pub(in crate::provider) struct RerankJob {
    pub model: Option<String>,
    pub query: String,
    pub documents: Vec<String>,
    pub top: Option<usize>,
    pub echo: bool,
    pub raw_scores: bool,
}

/// A chat or completion.
#[derive(Clone, Debug)]
pub(in crate::provider) struct ChatJob {
    pub model: Option<String>,
    pub stream: bool,
    pub include_usage: bool,
    /// All text of the request, for counting.
    pub prompt: String,
}

/// Members of an embeddings request and what they are called.
struct Members {
    input: &'static str,
    width: Option<&'static str>,
    encoding: Option<&'static str>,
    /// Members that change a vector, in alphabetical order.
    options: &'static [&'static str],
    others: &'static [&'static str],
    /// Members refused in whatever mood, because the provider is known to.
    refused: &'static [&'static str],
    tokens: bool,
}

const OPENAI: Members = Members {
    input: "input",
    width: Some("dimensions"),
    encoding: Some("encoding_format"),
    options: &[],
    others: &["user"],
    refused: &[],
    tokens: true,
};

fn members(route: Route) -> Members {
    match (route.dialect, route.op) {
        (Dialect::CohereV1, _) => Members {
            input: "texts",
            width: None,
            encoding: Some("embedding_types"),
            options: &["input_type"],
            others: &["images", "truncate"],
            tokens: false,
            ..OPENAI
        },
        (Dialect::CohereV2, _) => Members {
            input: "texts",
            width: Some("output_dimension"),
            encoding: Some("embedding_types"),
            options: &["input_type"],
            others: &["images", "inputs", "max_tokens", "truncate", "priority"],
            tokens: false,
            ..OPENAI
        },
        (Dialect::Voyage, _) => Members {
            width: Some("output_dimension"),
            options: &["input_type"],
            others: &["truncation", "output_dtype"],
            refused: &["dimensions", "user"],
            tokens: false,
            ..OPENAI
        },
        (Dialect::Jina, _) => Members {
            encoding: Some("embedding_type"),
            options: &["task"],
            others: &["normalized", "late_chunking", "truncate", "return_multivector"],
            refused: &["encoding_format"],
            tokens: false,
            ..OPENAI
        },
        (Dialect::Tei, Op::Embed) => Members {
            input: "inputs",
            encoding: None,
            options: &["prompt_name"],
            others: &["truncate", "truncation_direction", "normalize"],
            ..OPENAI
        },
        (Dialect::Ollama, Op::Embed) => {
            Members { encoding: None, others: &["truncate", "keep_alive", "options"], tokens: false, ..OPENAI }
        }
        (Dialect::Ollama, Op::Prompt) => Members {
            input: "prompt",
            width: None,
            encoding: None,
            others: &["keep_alive", "options"],
            tokens: false,
            ..OPENAI
        },
        (Dialect::Vllm, _) => Members { others: &["user", "truncate_prompt_tokens", "priority"], ..OPENAI },
        (Dialect::Azure, _) => Members { others: &["user", "input_type"], ..OPENAI },
        (Dialect::Mistral, _) => {
            Members { width: Some("output_dimension"), others: &["output_dtype", "metadata"], tokens: false, ..OPENAI }
        }
        _ => OPENAI,
    }
}

/// Reads the job of a call.
///
/// # Errors
/// The refusal the provider would give.
pub(in crate::provider) fn read(route: Route, body: &[u8], script: &Script) -> Result<Job, Refusal> {
    if !route.op.takes_body() {
        return if route.op == Op::Nothing { Err(Refusal::new(Kind::NoRoute, "no such route")) } else { Ok(Job::Look) };
    }
    let value: Value =
        serde_json::from_slice(body).map_err(|error| Refusal::new(Kind::BadJson, &format!("invalid JSON: {error}")))?;
    let Value::Object(body) = value else {
        return Err(Refusal::new(Kind::BadRequest, "the body is not an object"));
    };
    let job = match route.op {
        Op::Rerank => Job::Rerank(rerank(route, &body, script)?),
        Op::Chat | Op::Completions | Op::Responses | Op::Messages => Job::Chat(chat(&body)),
        _ => Job::Embed(embed(route, &body, script)?),
    };
    if let Some(model) = job.model()
        && !script.models.is_empty()
        && !script.models.iter().any(|known| known == model)
        && !matches!(route.dialect, Dialect::Tei | Dialect::Azure)
    {
        return Err(Refusal::new(Kind::NoModel, &format!("the model '{model}' does not exist")).param("model"));
    }
    Ok(job)
}

fn text(body: &Map<String, Value>, name: &str) -> Option<String> {
    body.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// A member that is present and not null.
fn given<'a>(body: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

fn known(body: &Map<String, Value>, allowed: &[&[&str]], refused: &[&str], strict: bool) -> Result<(), Refusal> {
    let foreign = body.keys().find(|name| {
        let name = name.as_str();
        refused.contains(&name) || (strict && !allowed.iter().any(|names| names.contains(&name)))
    });
    match foreign {
        Some(name) => Err(Refusal::new(Kind::BadRequest, &format!("unknown parameter '{name}'")).param(name)),
        None => Ok(()),
    }
}

fn embed(route: Route, body: &Map<String, Value>, script: &Script) -> Result<EmbedJob, Refusal> {
    let members = members(route);
    let own = [
        &["model", members.input][..],
        members.width.as_slice(),
        members.encoding.as_slice(),
        members.options,
        members.others,
    ];
    // TEI, Ollama and vLLM read over what they do not know; being strict is a choice for the others.
    known(body, &own, members.refused, script.strict)?;
    let input = match (route.dialect, body.get("inputs")) {
        (Dialect::CohereV2, Some(inputs)) => inputs,
        _ => body.get(members.input).unwrap_or(&Value::Null),
    };
    let items = items(route, input, &members)?;
    let (types, types_named) = types(route.dialect, members.encoding.and_then(|name| given(body, name)))?;
    let width = width(body, &members, script)?;
    let cuts = |name| {
        given(body, name).is_some_and(|value| !matches!(value.as_str(), Some("NONE")) && *value != Value::Bool(false))
    };
    let options: Vec<String> = members
        .options
        .iter()
        .filter_map(|name| given(body, name).map(|value| format!("{name}={}", value.as_str().unwrap_or_default())))
        .collect();
    Ok(EmbedJob {
        model: text(body, "model"),
        items,
        width,
        types,
        types_named,
        options: options.join(";"),
        truncate: cuts("truncate") || cuts("truncation"),
    })
}

fn width(body: &Map<String, Value>, members: &Members, script: &Script) -> Result<Option<usize>, Refusal> {
    let Some((name, value)) = members.width.and_then(|name| given(body, name).map(|value| (name, value))) else {
        return Ok(None);
    };
    let refuse = |why: &str| Err(Refusal::new(Kind::BadRequest, &format!("'{name}' {why}")).param(name));
    match script.dimensions {
        Honour::Ignore => Ok(None),
        Honour::Refuse => refuse("is not supported by this model"),
        Honour::Honour => match value.as_u64().and_then(|width| usize::try_from(width).ok()) {
            Some(0) | None => refuse("is not a positive integer"),
            Some(width) if width > script.width => refuse("is larger than the width of the model"),
            width => Ok(width),
        },
    }
}

fn types(dialect: Dialect, asked: Option<&Value>) -> Result<(Vec<String>, bool), Refusal> {
    let allowed: &[&str] = match dialect {
        Dialect::CohereV1 | Dialect::CohereV2 => &["float", "int8", "uint8", "binary", "ubinary", "base64"],
        Dialect::Jina => &["float", "base64", "binary", "ubinary"],
        // Voyage says nothing for lists and refuses the word that everybody else uses for them.
        Dialect::Voyage => &["base64"],
        _ => &["float", "base64"],
    };
    let Some(asked) = asked else { return Ok((vec!["float".to_owned()], false)) };
    let names: Vec<&Value> = asked.as_array().map_or_else(|| vec![asked], |names| names.iter().collect());
    let names: Option<Vec<String>> =
        names.into_iter().map(|name| name.as_str().filter(|name| allowed.contains(name)).map(str::to_owned)).collect();
    match names.filter(|names| !names.is_empty()) {
        Some(names) => Ok((names, true)),
        None => Err(Refusal::new(Kind::BadRequest, "unknown embedding format").param("encoding_format")),
    }
}

fn items(route: Route, input: &Value, members: &Members) -> Result<Vec<Item>, Refusal> {
    let refuse = |kind, why: &str| Err(Refusal::new(kind, &format!("'{}' {why}", members.input)).param(members.input));
    let list = match input {
        Value::String(text) => {
            let empty = text.is_empty() && !matches!(route.dialect, Dialect::Ollama);
            return if empty { refuse(Kind::Empty, "is empty") } else { Ok(vec![Item::Text(text.clone())]) };
        }
        Value::Array(list) => list,
        Value::Null if route == (Route { dialect: Dialect::Ollama, op: Op::Embed }) => return Ok(Vec::new()),
        Value::Null => return refuse(Kind::BadRequest, "is missing"),
        _ => return refuse(Kind::BadRequest, "is neither text nor a list"),
    };
    if list.is_empty() && route.dialect == Dialect::Ollama && route.op == Op::Embed {
        return Ok(Vec::new());
    }
    if list.is_empty() {
        return refuse(Kind::Empty, "is empty");
    }
    if list.iter().any(Value::is_number) {
        return match tokens(input).filter(|_| members.tokens) {
            Some(tokens) => Ok(vec![Item::Tokens(tokens)]),
            None => refuse(Kind::BadRequest, "is of an invalid input type"),
        };
    }
    let mixed = list.iter().any(Value::is_array) && list.iter().any(Value::is_string);
    if mixed && route.dialect != Dialect::Tei {
        return refuse(Kind::BadRequest, "mixes texts and token lists");
    }
    let mut items = Vec::with_capacity(list.len());
    for (place, value) in list.iter().enumerate() {
        let item = match value {
            Value::String(text) => Some(Item::Text(text.clone())),
            Value::Array(_) if members.tokens => tokens(value).map(Item::Tokens),
            Value::Object(parts) => content(parts).map(Item::Text),
            _ => None,
        };
        match item {
            Some(Item::Text(text)) if text.is_empty() && route.dialect != Dialect::Ollama => {
                return refuse(Kind::Empty, &format!("[{place}] is empty"));
            }
            Some(Item::Tokens(tokens)) if tokens.is_empty() => {
                return refuse(Kind::Empty, &format!("[{place}] is empty"));
            }
            Some(item) => items.push(item),
            None => return refuse(Kind::BadRequest, &format!("[{place}] is of an invalid input type")),
        }
    }
    Ok(items)
}

fn tokens(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

/// The text of an object item: Jina's `{"text"}` and Cohere's `{"content":[{"text"}]}`.
fn content(parts: &Map<String, Value>) -> Option<String> {
    if let Some(text) = parts.get("text").and_then(Value::as_str) {
        return Some(text.to_owned());
    }
    let parts = parts.get("content")?.as_array()?;
    Some(parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join(" "))
}

fn rerank(route: Route, body: &Map<String, Value>, script: &Script) -> Result<RerankJob, Refusal> {
    let tei = route.dialect == Dialect::Tei && body.contains_key("texts");
    let (list, top, echo, others): (_, _, _, &[&str]) = match route.dialect {
        _ if tei => ("texts", "", "return_text", &["truncate", "truncation_direction", "raw_scores"]),
        Dialect::Voyage => ("documents", "top_k", "return_documents", &["truncation"]),
        Dialect::CohereV2 => ("documents", "top_n", "", &["max_tokens_per_doc", "priority", "relevant_spans"]),
        Dialect::Vllm | Dialect::Tei => ("documents", "top_n", "", &["truncate_prompt_tokens"]),
        _ => ("documents", "top_n", "return_documents", &["rank_fields", "max_chunks_per_doc"]),
    };
    known(body, &[&["model", "query", list, top, echo], others], &[], script.strict)?;
    let refuse = |kind, name: &str, why: &str| Err(Refusal::new(kind, &format!("'{name}' {why}")).param(name));
    let Some(query) = text(body, "query") else { return refuse(Kind::BadRequest, "query", "is missing") };
    let Some(documents) = body.get(list).and_then(Value::as_array) else {
        return refuse(Kind::BadRequest, list, "is missing");
    };
    if documents.is_empty() {
        return refuse(Kind::Empty, list, "is empty");
    }
    let documents: Option<Vec<String>> = documents
        .iter()
        .map(|document| match document {
            Value::String(text) => Some(text.clone()),
            Value::Object(parts) => content(parts),
            _ => None,
        })
        .collect();
    let Some(documents) = documents else { return refuse(Kind::BadRequest, list, "holds something else than texts") };
    let top = given(body, top).and_then(Value::as_u64).and_then(|top| usize::try_from(top).ok());
    let default_echo =
        matches!(route.dialect, Dialect::Jina | Dialect::Vllm) || (route.dialect == Dialect::Tei && !tei);
    let echo = given(body, echo).and_then(Value::as_bool).unwrap_or(default_echo);
    let raw_scores = body.get("raw_scores").and_then(Value::as_bool).unwrap_or(false);
    Ok(RerankJob { model: text(body, "model"), query, documents, top, echo, raw_scores })
}

fn chat(body: &Map<String, Value>) -> ChatJob {
    let mut prompt = String::new();
    for name in ["system", "messages", "prompt", "input"] {
        if let Some(value) = body.get(name) {
            gather(value, &mut prompt);
        }
    }
    let include_usage = body.get("stream_options").and_then(|options| options.get("include_usage"));
    ChatJob {
        model: text(body, "model"),
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        include_usage: include_usage.and_then(Value::as_bool).unwrap_or(false),
        prompt,
    }
}

/// Every text below a value that is content and not a role or a type.
fn gather(value: &Value, into: &mut String) {
    match value {
        Value::String(text) => {
            into.push_str(text);
            into.push(' ');
        }
        Value::Array(list) => list.iter().for_each(|value| gather(value, into)),
        Value::Object(parts) => {
            ["content", "text"].iter().filter_map(|name| parts.get(*name)).for_each(|value| gather(value, into));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::dialect::route;

    fn embed_of(target: &str, body: &str) -> Result<EmbedJob, Kind> {
        let route = route("POST", target, None);
        match read(route, body.as_bytes(), &Script::default()) {
            Ok(Job::Embed(job)) => Ok(job),
            Ok(other) => panic!("{other:?} is no embedding"),
            Err(refusal) => Err(refusal.kind),
        }
    }

    #[track_caller]
    fn check(target: &str, body: &str, expected: Result<usize, Kind>) {
        assert_eq!(embed_of(target, body).map(|job| job.items.len()), expected);
    }

    #[test]
    fn the_four_shapes_of_input() {
        let path = "/v1/embeddings";
        check(path, r#"{"input":"a"}"#, Ok(1));
        check(path, r#"{"input":["a","b"]}"#, Ok(2));
        check(path, r#"{"input":[1,2]}"#, Ok(1));
        check(path, r#"{"input":[[1,2],[3]]}"#, Ok(2));
        check(path, r#"{"input":[]}"#, Err(Kind::Empty));
        check(path, r#"{"input":[[]]}"#, Err(Kind::Empty));
        check(path, r#"{"input":["a",[1]]}"#, Err(Kind::BadRequest));
        check(path, r#"{"input":[1.5]}"#, Err(Kind::BadRequest));
        check(path, r#"{"input":[-1]}"#, Err(Kind::BadRequest));
        check(path, r#"{"input":""}"#, Err(Kind::Empty));
        check(path, r#"{"#, Err(Kind::BadJson));
    }

    #[test]
    fn other_dialects_have_their_own_rules() {
        check("/voyage/v1/embeddings", r#"{"input":[1,2]}"#, Err(Kind::BadRequest));
        check("/voyage/v1/embeddings", r#"{"input":"a","encoding_format":"float"}"#, Err(Kind::BadRequest));
        check("/voyage/v1/embeddings", r#"{"input":"a","encoding_format":null,"input_type":null}"#, Ok(1));
        check("/voyage/v1/embeddings", r#"{"input":"a","dimensions":4}"#, Err(Kind::BadRequest));
        check("/jina/v1/embeddings", r#"{"input":[{"text":"a"},"b"]}"#, Ok(2));
        check("/jina/v1/embeddings", r#"{"input":"a","encoding_format":"base64"}"#, Err(Kind::BadRequest));
        check("/embed", r#"{"inputs":["a",[1,2]]}"#, Ok(2));
        check("/api/embed", r#"{"model":"m","input":[]}"#, Ok(0));
        check("/api/embed", r#"{"model":"m","input":[1]}"#, Err(Kind::BadRequest));
        check("/v2/embed", r#"{"inputs":[{"content":[{"type":"text","text":"a"}]}]}"#, Ok(1));
        check("/v1/embeddings", r#"{"input":"a","dimensions":9}"#, Err(Kind::BadRequest));
    }

    #[test]
    fn members_that_change_the_vector_are_kept_as_options() {
        let job = embed_of("/v2/embed", r#"{"texts":["a"],"input_type":"search_query","truncate":"END"}"#);
        let job = job.expect("read");
        assert_eq!(job.options, "input_type=search_query");
        assert!(job.truncate);
        let job = embed_of("/v2/embed", r#"{"texts":["a"],"input_type":null,"truncate":"NONE"}"#).expect("read");
        assert_eq!(job.options, "");
        assert!(!job.truncate);
    }

    #[test]
    fn a_strict_provider_refuses_foreign_members() {
        let script = Script { strict: true, ..Script::default() };
        for (target, body) in [
            ("/v1/rerank", r#"{"query":"q","documents":["a"],"top_k":1}"#),
            ("/voyage/v1/rerank", r#"{"query":"q","documents":["a"],"top_n":1}"#),
            ("/rerank", r#"{"query":"q","texts":["a"],"top_n":1}"#),
        ] {
            let refusal = read(route("POST", target, None), body.as_bytes(), &script).expect_err("foreign");
            assert!(refusal.message.contains("top_"), "{}", refusal.message);
            read(route("POST", target, None), body.as_bytes(), &Script::default()).expect("lenient");
        }
    }
}
