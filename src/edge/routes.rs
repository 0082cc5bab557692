//! The client listener's route table: which path speaks which dialect and does what. Errors are answered in the dialect of
//! the route entered, also where there is no such route or no such method.
//!
//! Knows paths, and the few clues by which clients of two dialects are told apart on one path before the body is read.

use actix_web::http::header::{ALLOW, AUTHORIZATION, HeaderMap};
use actix_web::web::{self, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};

use crate::dialects::ClientDialect::{
    self, Anthropic, Azure, CohereV1, CohereV2, Jina, Ollama, OllamaLegacy, OpenAi, Tei, TeiOpenAi, Voyage,
};
use crate::dialects::chat::ChatApi;
use crate::error::{ApiError, Code};
use crate::pure::class::TrafficClass;

use super::{chat, models, ops, respond, serve};

/// What a POST does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Texts to vectors.
    Embed,
    /// Query and documents to scores.
    Rerank {
        /// Several dialects use this path: the body's members tell which one it is.
        shared: bool,
    },
    /// One sentence compared with others (TEI).
    Similarity,
    /// TEI's root: whatever the model is for; for an embedding model also a comparison.
    Root,
}

impl Op {
    /// What it is called in logs and traces, and whose traffic it counts as before it has a class of its own.
    pub const fn stands_for(self) -> (&'static str, TrafficClass) {
        match self {
            Op::Embed | Op::Similarity | Op::Root => ("embeddings", TrafficClass::InteractiveSearch),
            Op::Rerank { .. } => ("rerank", TrafficClass::Rerank),
        }
    }
}

/// What a GET does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Lists models.
    Models,
    /// Shows one model.
    Model,
    /// What TEI tells of a server.
    Info,
    /// TEI's health.
    Health,
}

/// What a listed route does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// Serves a POST.
    Post(Op),
    /// Passes a chat through; a POST, too.
    Chat(ChatApi),
    /// Serves a GET.
    Get(Look),
}

/// A route as it is listed for people.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// Its path, with patterns.
    pub path: &'static str,
    /// Whose words it speaks; where two dialects share it, the one it is named after.
    pub dialect: ClientDialect,
    /// What it does.
    pub does: Does,
}

/// Every route of the tables, in their order.
pub fn listed() -> impl Iterator<Item = Listed> {
    let post = |entry: &Entry| Listed { path: entry.path, dialect: entry.dialect, does: Does::Post(entry.op) };
    let get = |(path, dialect, look): &(&'static str, ClientDialect, Look)| Listed {
        path,
        dialect: *dialect,
        does: Does::Get(*look),
    };
    let chat = |entry: &ChatEntry| Listed { path: entry.path, dialect: entry.dialect, does: Does::Chat(entry.api) };
    POSTS.iter().map(post).chain(CHATS.iter().map(chat)).chain(GETS.iter().map(get))
}

/// One path that takes a POST.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    path: &'static str,
    dialect: ClientDialect,
    /// What it does.
    pub op: Op,
}

impl Entry {
    const fn new(path: &'static str, dialect: ClientDialect, op: Op) -> Entry {
        Entry { path, dialect, op }
    }

    /// The dialect of a request on this route, as far as its head tells.
    pub fn dialect_of(&self, headers: &HeaderMap) -> ClientDialect {
        entered(self.path, self.dialect, headers)
    }
}

/// One path of a chat.
#[derive(Debug, Clone, Copy)]
pub struct ChatEntry {
    path: &'static str,
    dialect: ClientDialect,
    /// What it speaks.
    pub api: ChatApi,
}

impl ChatEntry {
    /// The dialect of a request on this route, as far as its head tells.
    pub fn dialect_of(&self, headers: &HeaderMap) -> ClientDialect {
        entered(self.path, self.dialect, headers)
    }
}

/// Two paths belong to two dialects each: Azure's newer API and OpenAI's behind a prefix, told apart by where the key
/// is; TEI's alias and what an OpenAI SDK sends when its base URL lacks the version, told apart by the SDK's own header.
fn entered(path: &str, dialect: ClientDialect, headers: &HeaderMap) -> ClientDialect {
    let has = |name: &str| headers.contains_key(name);
    match path {
        _ if path.starts_with(OPENAI_V1) && has("api-key") && !headers.contains_key(AUTHORIZATION) => Azure,
        TEI_ALIAS if has("x-stainless-lang") => OpenAi,
        _ => dialect,
    }
}

const OPENAI_V1: &str = "/openai/v1/";
const TEI_ALIAS: &str = "/embeddings";
const RERANK: Op = Op::Rerank { shared: false };
const SHARED_RERANK: Op = Op::Rerank { shared: true };

/// Every POST. Of two paths that match, the first is taken, so a model's root stands last.
const POSTS: &[Entry] = &[
    Entry::new("/v1/embeddings", OpenAi, Op::Embed),
    Entry::new("/openai/v1/embeddings", OpenAi, Op::Embed),
    Entry::new("/openai/deployments/{model}/embeddings", Azure, Op::Embed),
    Entry::new("/v1/embed", CohereV1, Op::Embed),
    Entry::new("/v2/embed", CohereV2, Op::Embed),
    Entry::new("/v1/rerank", CohereV1, SHARED_RERANK),
    Entry::new("/v2/rerank", CohereV2, RERANK),
    Entry::new("/cohere/v1/embed", CohereV1, Op::Embed),
    Entry::new("/cohere/v2/embed", CohereV2, Op::Embed),
    Entry::new("/cohere/v1/rerank", CohereV1, RERANK),
    Entry::new("/cohere/v2/rerank", CohereV2, RERANK),
    Entry::new("/voyage/v1/embeddings", Voyage, Op::Embed),
    Entry::new("/voyage/v1/rerank", Voyage, RERANK),
    Entry::new("/jina/v1/embeddings", Jina, Op::Embed),
    Entry::new("/jina/v1/rerank", Jina, RERANK),
    Entry::new("/api/embed", Ollama, Op::Embed),
    Entry::new("/api/embeddings", OllamaLegacy, Op::Embed),
    Entry::new("/ollama/api/embed", Ollama, Op::Embed),
    Entry::new("/ollama/api/embeddings", OllamaLegacy, Op::Embed),
    Entry::new("/embed", Tei, Op::Embed),
    Entry::new(TEI_ALIAS, TeiOpenAi, Op::Embed),
    Entry::new("/rerank", Tei, SHARED_RERANK),
    Entry::new("/similarity", Tei, Op::Similarity),
    Entry::new("/", Tei, Op::Root),
    Entry::new("/tei/{model:.+}/v1/embeddings", TeiOpenAi, Op::Embed),
    Entry::new("/tei/{model:.+}/embeddings", TeiOpenAi, Op::Embed),
    Entry::new("/tei/{model:.+}/embed", Tei, Op::Embed),
    Entry::new("/tei/{model:.+}/rerank", Tei, RERANK),
    Entry::new("/tei/{model:.+}/similarity", Tei, Op::Similarity),
    Entry::new(TEI_MODEL, Tei, Op::Root),
];

/// Every chat route.
const CHATS: &[ChatEntry] = &[
    ChatEntry { path: "/v1/chat/completions", dialect: OpenAi, api: ChatApi::Chat },
    ChatEntry { path: "/v1/completions", dialect: OpenAi, api: ChatApi::Completions },
    ChatEntry { path: "/v1/responses", dialect: OpenAi, api: ChatApi::Responses },
    ChatEntry { path: "/v1/messages", dialect: Anthropic, api: ChatApi::Messages },
    ChatEntry { path: "/openai/v1/chat/completions", dialect: OpenAi, api: ChatApi::Chat },
    ChatEntry { path: "/openai/v1/completions", dialect: OpenAi, api: ChatApi::Completions },
    ChatEntry { path: "/openai/v1/responses", dialect: OpenAi, api: ChatApi::Responses },
    ChatEntry { path: "/openai/deployments/{model}/chat/completions", dialect: Azure, api: ChatApi::Chat },
    ChatEntry { path: "/openai/deployments/{model}/completions", dialect: Azure, api: ChatApi::Completions },
];

const TEI_MODEL: &str = "/tei/{model:.+}";

/// Every GET.
const GETS: &[(&str, ClientDialect, Look)] = &[
    ("/v1/models", OpenAi, Look::Models),
    ("/v1/models/{model:.+}", OpenAi, Look::Model),
    ("/openai/v1/models", OpenAi, Look::Models),
    ("/openai/v1/models/{model:.+}", OpenAi, Look::Model),
    ("/info", Tei, Look::Info),
    ("/health", Tei, Look::Health),
    ("/", Tei, Look::Health),
    ("/tei/{model:.+}/info", Tei, Look::Info),
    ("/tei/{model:.+}/health", Tei, Look::Health),
    (TEI_MODEL, Tei, Look::Health),
];

/// What a path that is only looked at allows.
const READ: &str = "GET, HEAD";

/// Registers health and readiness, which both listeners have.
pub fn probes(config: &mut ServiceConfig) {
    let probe = |path: &'static str| {
        let refuse = move |http: HttpRequest| async move { wrong_method(&http, path, OpenAi, READ) };
        web::resource(path).default_service(web::to(refuse))
    };
    config
        .service(probe("/healthz").route(web::get().to(ops::healthz)).route(web::head().to(ops::healthz)))
        .service(probe("/readyz").route(web::get().to(ops::readyz)).route(web::head().to(ops::readyz)));
}

/// Registers every route of the client listener.
pub fn register(config: &mut ServiceConfig) {
    probes(config);
    for (path, dialect) in paths() {
        let post = POSTS.iter().find(|entry| entry.path == path).copied();
        let chat = CHATS.iter().find(|entry| entry.path == path).copied();
        let get = GETS.iter().find(|(own, ..)| *own == path).copied();
        let mut resource = web::resource(path);
        if let Some(entry) = post {
            let handler = move |http: HttpRequest, payload: Payload| serve::post(http, payload, entry);
            resource = resource.route(web::post().to(handler));
        }
        if let Some(entry) = chat {
            let handler = move |http: HttpRequest, payload: Payload| chat::post(http, payload, entry);
            resource = resource.route(web::post().to(handler));
        }
        if let Some((_, dialect, look)) = get {
            let handler = move |http: HttpRequest| async move { self::look(&http, dialect, look).await };
            resource = resource.route(web::get().to(handler)).route(web::head().to(handler));
        }
        let allow = match (post.is_some() || chat.is_some(), get) {
            (true, Some(_)) => "GET, HEAD, POST",
            (true, None) => "POST",
            (false, _) => READ,
        };
        let refuse = move |http: HttpRequest| async move { wrong_method(&http, path, dialect, allow) };
        config.service(resource.default_service(web::to(refuse)));
    }
}

/// Every path once, in the order of the tables; one that ends in a model's name after all that go on from there.
fn paths() -> Vec<(&'static str, ClientDialect)> {
    let all = || listed().map(|route| (route.path, route.dialect));
    let mut paths: Vec<(&str, ClientDialect)> = Vec::new();
    for (path, dialect) in all().filter(|(path, _)| *path != TEI_MODEL).chain([(TEI_MODEL, Tei)]) {
        if !paths.iter().any(|(known, _)| *known == path) {
            paths.push((path, dialect));
        }
    }
    paths
}

async fn look(http: &HttpRequest, dialect: ClientDialect, look: Look) -> HttpResponse {
    let answer = match look {
        Look::Models => models::list(http).await,
        Look::Model => models::one(http).await,
        Look::Info => models::tei_info(http).await,
        Look::Health => models::tei_health(http),
    };
    answer.unwrap_or_else(|error| respond::plain_error(http, dialect, &error))
}

fn wrong_method(http: &HttpRequest, path: &str, dialect: ClientDialect, allow: &'static str) -> HttpResponse {
    let message = format!("{} is not allowed here: use {}", http.method(), allow.replace(", ", " or "));
    let error = ApiError::new(Code::MethodNotAllowed, message);
    let mut answer = respond::plain_error(http, entered(path, dialect, http.headers()), &error);
    answer.headers_mut().insert(ALLOW, actix_web::http::header::HeaderValue::from_static(allow));
    answer
}

/// The model that a path names, decoded; `None` where a path names none.
///
/// # Errors
/// `invalid_input` when its escapes are not text.
pub fn model_of(http: &HttpRequest) -> Result<Option<String>, ApiError> {
    if http.match_info().get("model").is_none() {
        return Ok(None);
    }
    let (name,): (String,) = http
        .match_info()
        .load()
        .map_err(|_| ApiError::new(Code::InvalidInput, "the model's name in the path is not text").param("model"))?;
    Ok(Some(name))
}

/// The dialect of a path that is no route, by how it begins.
pub fn dialect_near(path: &str) -> ClientDialect {
    const NEAR: &[(&str, ClientDialect)] = &[
        ("/openai/deployments", Azure),
        ("/cohere/v1", CohereV1),
        ("/cohere", CohereV2),
        ("/v1/embed", CohereV1),
        ("/v1/rerank", CohereV1),
        ("/v2", CohereV2),
        ("/voyage", Voyage),
        ("/jina", Jina),
        ("/tei", Tei),
        ("/ollama", Ollama),
        ("/api", Ollama),
        ("/v1/messages", Anthropic),
    ];
    let begins = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    NEAR.iter().find(|(prefix, _)| begins(prefix)).map_or(OpenAi, |(_, dialect)| *dialect)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_path_is_there_twice_and_a_models_root_is_last() {
        let posts: HashSet<&str> =
            POSTS.iter().map(|entry| entry.path).chain(CHATS.iter().map(|entry| entry.path)).collect();
        assert_eq!(posts.len(), POSTS.len() + CHATS.len());
        let gets: HashSet<&str> = GETS.iter().map(|(path, ..)| *path).collect();
        assert_eq!(gets.len(), GETS.len());
        let paths = paths();
        assert_eq!(paths.len(), posts.union(&gets).count());
        assert_eq!(paths.last(), Some(&(TEI_MODEL, Tei)));
    }

    #[test]
    fn an_unknown_path_is_answered_in_the_words_of_its_neighbours() {
        for (path, dialect) in [
            ("/v1/embeddingz", OpenAi),
            ("/v1/embed/", CohereV1),
            ("/v2/chat", CohereV2),
            ("/voyage/v1/embeddings/", Voyage),
            ("/voyager", OpenAi),
            ("/jina", Jina),
            ("/tei", Tei),
            ("/api/tags", Ollama),
            ("/v1/messages", Anthropic),
            ("/openai/deployments/m/chat/completions", Azure),
        ] {
            assert_eq!(dialect_near(path), dialect, "{path}");
        }
    }
}
