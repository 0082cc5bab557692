//! How providers speak: which dialect a path belongs to, and what a call asks for.
//!
//! Owns the paths. Requests are read in [`request`], answers written in [`answer`], [`rerank`], [`chat`] and [`info`],
//! errors in [`refusal`]. None of them knows sockets, time or scripts' rules.

pub(super) mod answer;
pub(super) mod chat;
pub(super) mod info;
pub(super) mod refusal;
pub(super) mod request;
pub(super) mod rerank;
pub(super) mod vectors;

use serde::{Deserialize, Serialize};

/// A provider's way of speaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI.
    Openai,
    /// Azure OpenAI.
    Azure,
    /// Cohere, API version 1.
    CohereV1,
    /// Cohere, API version 2.
    CohereV2,
    /// Voyage AI.
    Voyage,
    /// Jina.
    Jina,
    /// Hugging Face Text Embeddings Inference.
    Tei,
    /// Ollama.
    Ollama,
    /// vLLM.
    Vllm,
    /// Mistral.
    Mistral,
    /// Anthropic.
    Anthropic,
}

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Embeddings at the dialect's own route.
    Embed,
    /// Embeddings at an OpenAI-like route of a dialect that has another one of its own.
    OpenaiEmbed,
    /// Ollama's older route: one prompt, one vector.
    Prompt,
    Rerank,
    Chat,
    Completions,
    Responses,
    Messages,
    Models,
    Info,
    Health,
    Version,
    Tags,
    /// No such route.
    Nothing,
}

impl Op {
    /// Whether a body is expected.
    pub fn takes_body(self) -> bool {
        matches!(
            self,
            Self::Embed
                | Self::OpenaiEmbed
                | Self::Prompt
                | Self::Rerank
                | Self::Chat
                | Self::Completions
                | Self::Responses
                | Self::Messages
        )
    }
}

/// Where a call arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub dialect: Dialect,
    pub op: Op,
}

/// The most items one call may hold at the real provider. `tei`: the batch size of the TEI server.
pub(super) fn max_items(route: Route, tei: usize) -> Option<usize> {
    match (route.dialect, route.op) {
        (Dialect::Openai | Dialect::Azure, Op::Embed) => Some(2048),
        (Dialect::CohereV1 | Dialect::CohereV2, Op::Embed) => Some(96),
        (Dialect::CohereV1 | Dialect::CohereV2, Op::Rerank) => Some(10_000),
        (Dialect::Voyage, Op::Embed | Op::Rerank) => Some(1000),
        (Dialect::Tei, Op::Embed | Op::OpenaiEmbed | Op::Rerank) => Some(tei),
        _ => None,
    }
}

const PREFIXES: &[(&str, Dialect)] = &[
    ("/voyage", Dialect::Voyage),
    ("/jina", Dialect::Jina),
    ("/tei", Dialect::Tei),
    ("/cohere", Dialect::CohereV2),
    ("/ollama", Dialect::Ollama),
    ("/vllm", Dialect::Vllm),
    ("/mistral", Dialect::Mistral),
    ("/azure", Dialect::Azure),
    ("/anthropic", Dialect::Anthropic),
];

/// Whose route a request target is. `shared`: who answers where several could.
pub(super) fn route(method: &str, target: &str, shared: Option<Dialect>) -> Route {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let prefix = PREFIXES.iter().find_map(|(prefix, dialect)| {
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((*dialect, rest))
    });
    let (owner, path) = prefix.map_or((shared, path), |(dialect, rest)| (Some(dialect), rest));
    let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let found = match method {
        "GET" | "HEAD" => get(owner, path),
        "POST" => post(owner, path, query),
        _ => None,
    };
    let (dialect, op) = found.unwrap_or((owner.unwrap_or(Dialect::Openai), Op::Nothing));
    Route { dialect, op }
}

fn get(owner: Option<Dialect>, path: &str) -> Option<(Dialect, Op)> {
    let or = |dialect| owner.unwrap_or(dialect);
    Some(match path {
        "/health" | "/ping" | "/" | "" => (or(Dialect::Tei), Op::Health),
        "/info" => (or(Dialect::Tei), Op::Info),
        "/version" | "/api/version" => (or(Dialect::Ollama), Op::Version),
        "/api/tags" => (Dialect::Ollama, Op::Tags),
        "/v1/models" | "/models" | "/openai/v1/models" => (or(Dialect::Openai), Op::Models),
        _ => return None,
    })
}

fn post(owner: Option<Dialect>, path: &str, query: &str) -> Option<(Dialect, Op)> {
    let or = |dialect| owner.unwrap_or(dialect);
    if let Some(rest) = path.strip_prefix("/openai/deployments/") {
        // The classic form exists only with a version, which is what a client forgets most often.
        let (_, tail) = rest.split_once('/').filter(|_| query.contains("api-version="))?;
        return Some((Dialect::Azure, tail_op(tail)?));
    }
    if let Some(tail) = path.strip_prefix("/openai/v1/") {
        return Some((Dialect::Azure, tail_op(tail)?));
    }
    if owner == Some(Dialect::Tei) {
        // TEI servers of several models are told apart by a path segment that means nothing here.
        let last = path.rsplit('/').next().unwrap_or_default();
        return match last {
            "embed" | "" => Some((Dialect::Tei, Op::Embed)),
            "rerank" => Some((Dialect::Tei, Op::Rerank)),
            "embeddings" => Some((Dialect::Tei, Op::OpenaiEmbed)),
            "predict" | "similarity" | "tokenize" | "decode" | "embed_all" | "embed_sparse" => None,
            // The root of one of them.
            model if path.strip_prefix('/') == Some(model) => Some((Dialect::Tei, Op::Embed)),
            _ => None,
        };
    }
    Some(match path {
        "/v1/embeddings" | "/embeddings" => match owner {
            Some(Dialect::Ollama) => (Dialect::Ollama, Op::OpenaiEmbed),
            other => (other.unwrap_or(Dialect::Openai), Op::Embed),
        },
        "/v1/embed" => (Dialect::CohereV1, Op::Embed),
        "/v2/embed" => (Dialect::CohereV2, Op::Embed),
        "/v1/rerank" => match owner {
            Some(dialect @ (Dialect::Voyage | Dialect::Jina | Dialect::Vllm)) => (dialect, Op::Rerank),
            _ => (Dialect::CohereV1, Op::Rerank),
        },
        "/v2/rerank" => (if owner == Some(Dialect::Vllm) { Dialect::Vllm } else { Dialect::CohereV2 }, Op::Rerank),
        "/rerank" => (or(Dialect::Tei), Op::Rerank),
        "/embed" => (Dialect::Tei, Op::Embed),
        "/" | "" => (Dialect::Tei, Op::Embed),
        "/api/embed" => (Dialect::Ollama, Op::Embed),
        "/api/embeddings" => (Dialect::Ollama, Op::Prompt),
        "/v1/messages" => (Dialect::Anthropic, Op::Messages),
        _ => (or(Dialect::Openai), tail_op(path.strip_prefix("/v1/").or_else(|| path.strip_prefix('/'))?)?),
    })
}

fn tail_op(tail: &str) -> Option<Op> {
    Some(match tail {
        "embeddings" => Op::Embed,
        "chat/completions" => Op::Chat,
        "completions" => Op::Completions,
        "responses" => Op::Responses,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, target: &str, shared: Option<Dialect>, dialect: Dialect, op: Op) {
        assert_eq!(route(method, target, shared), Route { dialect, op });
    }

    #[test]
    fn paths_belong_to_dialects() {
        check("POST", "/v1/embeddings", None, Dialect::Openai, Op::Embed);
        check("POST", "/v1/embeddings/", None, Dialect::Openai, Op::Embed);
        check("POST", "/v1/embeddings", Some(Dialect::Vllm), Dialect::Vllm, Op::Embed);
        check("POST", "/voyage/v1/embeddings", Some(Dialect::Vllm), Dialect::Voyage, Op::Embed);
        check("POST", "/jina/v1/rerank", None, Dialect::Jina, Op::Rerank);
        check("POST", "/v1/embed", None, Dialect::CohereV1, Op::Embed);
        check("POST", "/cohere/v2/rerank", None, Dialect::CohereV2, Op::Rerank);
        check("POST", "/rerank", None, Dialect::Tei, Op::Rerank);
        check("POST", "/", None, Dialect::Tei, Op::Embed);
        check("POST", "/tei/bge-m3/embed", None, Dialect::Tei, Op::Embed);
        check("POST", "/tei", None, Dialect::Tei, Op::Embed);
        check("POST", "/tei/bge-m3", None, Dialect::Tei, Op::Embed);
        check("POST", "/tei/tokenize", None, Dialect::Tei, Op::Nothing);
        check("POST", "/tei/v1/embeddings", None, Dialect::Tei, Op::OpenaiEmbed);
        check("GET", "/info", None, Dialect::Tei, Op::Info);
        check("POST", "/api/embed", None, Dialect::Ollama, Op::Embed);
        check("POST", "/ollama/api/embeddings", None, Dialect::Ollama, Op::Prompt);
        check("POST", "/openai/deployments/d/embeddings?api-version=2024-10-21", None, Dialect::Azure, Op::Embed);
        check("POST", "/openai/deployments/d/embeddings", None, Dialect::Openai, Op::Nothing);
        check("POST", "/openai/v1/embeddings", None, Dialect::Azure, Op::Embed);
        check("POST", "/v1/chat/completions", None, Dialect::Openai, Op::Chat);
        check("POST", "/v1/messages", None, Dialect::Anthropic, Op::Messages);
        check("GET", "/v1/models", None, Dialect::Openai, Op::Models);
        check("GET", "/v1/embeddings", None, Dialect::Openai, Op::Nothing);
        check("POST", "/voyager/v1/embeddings", None, Dialect::Openai, Op::Nothing);
    }
}
