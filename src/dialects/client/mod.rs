//! The clients' side: bodies of every client dialect to canonical form, canonical answers and errors back.
//!
//! Everything is a pure function of its arguments. Nothing here knows a provider, a price or a route.

mod cohere;
pub mod error;
mod fields;
mod jina;
mod ollama;
mod openai;
mod render;
mod rerank;
mod similarity;
mod tei;
mod voyage;

use bytes::Bytes;

use super::{ClientDialect, Dtype, EmbedOptions, Encoding, Input, OriginalBody};
use crate::config::plan::Provider;
use crate::edge::scan::{Scan, ScanError, ScanErrorCode, ScanLimits};
use crate::error::{ApiError, Code};

pub use error::{ErrorIds, render_error, status};
pub use render::{EmbedChunks, RenderEmbed, render_embed};
pub use rerank::{
    ParsedRerank, RERANK_ITEM_FIELDS, RenderRerank, parse_rerank, render_rerank, rerank_dialect, rerank_scan_limits,
};

pub use similarity::{render_similarity, similarity_as_embed};

use fields::Fields;

/// How the client wants its vectors written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerForm {
    /// Encodings, in the order of the answer: more than one only by type.
    pub encodings: Vec<Encoding>,
    /// Element type.
    pub dtype: Dtype,
    /// Vectors grouped by type instead of one flat list (Cohere).
    pub by_type: bool,
}

impl AnswerForm {
    fn one(encoding: Encoding, dtype: Dtype) -> AnswerForm {
        AnswerForm { encodings: vec![encoding], dtype, by_type: false }
    }

    /// The encoding to ask of an upstream that offers a choice: the shorter one, if the client takes it.
    pub fn preferred(&self) -> Encoding {
        if self.encodings.contains(&Encoding::Base64) { Encoding::Base64 } else { Encoding::Float }
    }
}

/// A client's embedding request in canonical form.
#[derive(Debug, Clone)]
pub struct ParsedEmbed {
    /// The model asked for; `None` only where the route may name it instead (Azure, TEI).
    pub model: Option<String>,
    /// Whether there is one bare input and not a list.
    pub single: bool,
    /// The inputs in the client's order, never none; item `n` is item `n` of [`item_fields`]' first field in the scan.
    pub inputs: Vec<Input>,
    /// The width asked for, at least 1.
    pub dimensions: Option<u32>,
    /// How to write the answer.
    pub form: AnswerForm,
    /// All else that changes the vectors.
    pub options: EmbedOptions,
    /// The client's own body, for upstreams of its dialect ([`shares_body`]).
    pub original: OriginalBody,
}

/// The members that carry inputs in an embedding request of `dialect`.
pub const fn item_fields(dialect: ClientDialect) -> &'static [&'static str] {
    match dialect {
        ClientDialect::OpenAi
        | ClientDialect::Azure
        | ClientDialect::TeiOpenAi
        | ClientDialect::Voyage
        | ClientDialect::Jina
        | ClientDialect::Ollama => &["input"],
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => &["texts"],
        ClientDialect::Tei => &["inputs"],
        ClientDialect::OllamaLegacy => &["prompt"],
        ClientDialect::Anthropic => &[],
    }
}

/// What a scanner must let through for an embedding request of `dialect`.
pub fn scan_limits(dialect: ClientDialect) -> ScanLimits {
    ScanLimits { allow_objects: dialect == ClientDialect::Jina, ..ScanLimits::default() }
}

/// Whether the inputs of an embedding request of `dialect` may lie on disk: they hold no objects, and no answer repeats
/// them.
pub const fn may_spool(dialect: ClientDialect) -> bool {
    !matches!(dialect, ClientDialect::CohereV1 | ClientDialect::CohereV2 | ClientDialect::Jina)
}

/// Whether a body of `dialect` is one that `provider` would take as it is, but for the members that must change.
pub const fn shares_body(dialect: ClientDialect, provider: Provider) -> bool {
    match provider {
        Provider::OpenAi | Provider::Azure | Provider::Vllm => {
            matches!(dialect, ClientDialect::OpenAi | ClientDialect::Azure | ClientDialect::TeiOpenAi)
        }
        Provider::Cohere => matches!(dialect, ClientDialect::CohereV1 | ClientDialect::CohereV2),
        Provider::Voyage => matches!(dialect, ClientDialect::Voyage),
        Provider::Jina => matches!(dialect, ClientDialect::Jina),
        Provider::Tei => matches!(dialect, ClientDialect::Tei),
        Provider::Ollama => matches!(dialect, ClientDialect::Ollama | ClientDialect::OllamaLegacy),
        Provider::Anthropic => matches!(dialect, ClientDialect::Anthropic),
        Provider::Simulated => false,
    }
}

/// Reads an embedding request. `body` is what was scanned into `scan` with [`item_fields`] and [`scan_limits`].
///
/// An explicit `null` is the same as a member's absence.
///
/// # Errors
/// Names the member that is missing, given twice, of the wrong type or out of range, and the item where it is one.
pub fn parse_embed(dialect: ClientDialect, scan: &Scan, body: &Bytes) -> Result<ParsedEmbed, ApiError> {
    let fields = Fields::new(scan, body);
    match dialect {
        ClientDialect::OpenAi | ClientDialect::Azure | ClientDialect::TeiOpenAi => {
            openai::parse_embed(dialect, &fields)
        }
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => cohere::parse_embed(dialect, &fields),
        ClientDialect::Voyage => voyage::parse_embed(&fields),
        ClientDialect::Jina => jina::parse_embed(&fields),
        ClientDialect::Tei => tei::parse_embed(&fields),
        ClientDialect::Ollama => ollama::parse_embed(&fields),
        ClientDialect::OllamaLegacy => ollama::parse_legacy(&fields),
        ClientDialect::Anthropic => Err(ApiError::new(Code::RouteNotFound, "this API has no embeddings")),
    }
}

/// What the scanner refused, as the client reads it.
pub fn scan_error(error: ScanError) -> ApiError {
    let code = match error.code {
        ScanErrorCode::InvalidJson => Code::InvalidJson,
        ScanErrorCode::InvalidInput => Code::InvalidInput,
    };
    let api = ApiError::new(code, error.message);
    match error.field {
        Some(field) => api.param(field),
        None => api,
    }
}

#[cfg(test)]
mod parse_tests;
