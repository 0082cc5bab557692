//! Rerank requests and answers of every client dialect that has them.
//!
//! The dialects differ by a few words, so they stand side by side here and not in files of their own.

use bytes::Bytes;

use super::fields::{Fields, cannot, refuse};
use super::tei;
use crate::dialects::ClientDialect;
use crate::dialects::json::{ObjectWriter, text};
use crate::dialects::rerank::{Document, RerankOptions, Scored};
use crate::edge::scan::{Scan, ScanLimits};
use crate::error::{ApiError, Code};

/// The members that carry inputs in a rerank request of any dialect: which dialect it is may only be known afterwards.
pub const RERANK_ITEM_FIELDS: &[&str] = &["query", "documents", "texts"];

/// What a scanner must let through for a rerank request.
pub fn rerank_scan_limits() -> ScanLimits {
    ScanLimits { allow_empty_texts: true, allow_objects: true, ..ScanLimits::default() }
}

/// The dialect of a rerank request on a path that several share: `texts` are TEI's, `top_k` and `truncation` are
/// Voyage's; anything else is of `route`'s own.
pub fn rerank_dialect(scan: &Scan, route: ClientDialect) -> ClientDialect {
    let has = |key: &str| scan.member(key).is_some();
    match () {
        () if has("texts") && !has("documents") => ClientDialect::Tei,
        () if has("documents") && (has("top_k") || has("truncation")) => ClientDialect::Voyage,
        () if has("documents") && route == ClientDialect::Tei => ClientDialect::CohereV1,
        () => route,
    }
}

/// A client's rerank request in canonical form.
#[derive(Debug, Clone)]
pub struct ParsedRerank {
    /// The model asked for; `None` only where the route may name it instead (TEI).
    pub model: Option<String>,
    /// The query, a JSON string with its quotes; item 0 of `query` in the scan.
    pub query: Bytes,
    /// The documents in the client's order, never none; item `n` is item `n` of [`Self::field`] in the scan.
    pub documents: Vec<Document>,
    /// The member that the documents came from.
    pub field: &'static str,
    /// How many results the client wants, at least 1; `None`: all.
    pub top_n: Option<usize>,
    /// Whether the client wants its documents back.
    pub return_documents: bool,
    /// All else that changes a score.
    pub options: RerankOptions,
}

/// Reads a rerank request. `body` is what was scanned into `scan` with [`RERANK_ITEM_FIELDS`] and
/// [`rerank_scan_limits`].
///
/// # Errors
/// Names the member that is missing, given twice, of the wrong type or out of range.
pub fn parse_rerank(dialect: ClientDialect, scan: &Scan, body: &Bytes) -> Result<ParsedRerank, ApiError> {
    let fields = Fields::new(scan, body);
    match dialect {
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => cohere(&fields),
        ClientDialect::Voyage => voyage(&fields),
        ClientDialect::Jina => jina(&fields),
        ClientDialect::Tei => tei(&fields),
        ClientDialect::OpenAi
        | ClientDialect::Azure
        | ClientDialect::TeiOpenAi
        | ClientDialect::Ollama
        | ClientDialect::OllamaLegacy
        | ClientDialect::Anthropic => Err(ApiError::new(Code::RouteNotFound, "this API has no rerank")),
    }
}

/// Both versions of Cohere's. The second dropped a few members of the first; a client that sends them means them.
fn cohere(fields: &Fields<'_>) -> Result<ParsedRerank, ApiError> {
    if fields.raw("relevant_spans")?.is_some() {
        return Err(cannot("relevant_spans", "answers hold scores only"));
    }
    let options = RerankOptions {
        max_tokens_per_doc: fields.number("max_tokens_per_doc", 1)?,
        max_chunks_per_doc: fields.number("max_chunks_per_doc", 1)?,
        rank_fields: rank_fields(fields)?,
        extra: fields.extra(&[
            "model",
            "query",
            "documents",
            "top_n",
            "return_documents",
            "max_tokens_per_doc",
            "max_chunks_per_doc",
            "rank_fields",
        ]),
        ..RerankOptions::default()
    };
    Ok(ParsedRerank {
        model: fields.model(true)?,
        query: query(fields)?,
        documents: fields.documents("documents")?,
        field: "documents",
        top_n: top(fields, "top_n")?,
        return_documents: fields.boolean("return_documents")?.unwrap_or(false),
        options,
    })
}

fn voyage(fields: &Fields<'_>) -> Result<ParsedRerank, ApiError> {
    let options = RerankOptions {
        truncate: fields.truncate("truncation")?,
        extra: fields.extra(&["model", "query", "documents", "top_k", "return_documents", "truncation"]),
        ..RerankOptions::default()
    };
    Ok(ParsedRerank {
        model: fields.model(true)?,
        query: query(fields)?,
        documents: fields.documents("documents")?,
        field: "documents",
        top_n: top(fields, "top_k")?,
        return_documents: fields.boolean("return_documents")?.unwrap_or(false),
        options,
    })
}

/// Jina gives documents back unless told otherwise.
fn jina(fields: &Fields<'_>) -> Result<ParsedRerank, ApiError> {
    let options = RerankOptions {
        extra: fields.extra(&["model", "query", "documents", "top_n", "return_documents"]),
        ..RerankOptions::default()
    };
    Ok(ParsedRerank {
        model: fields.model(true)?,
        query: query(fields)?,
        documents: fields.documents("documents")?,
        field: "documents",
        top_n: top(fields, "top_n")?,
        return_documents: fields.boolean("return_documents")?.unwrap_or(true),
        options,
    })
}

/// TEI gives all results and ignores members that it does not know, `top_n` among them.
fn tei(fields: &Fields<'_>) -> Result<ParsedRerank, ApiError> {
    let options = RerankOptions {
        truncate: tei::truncate(fields)?,
        raw_scores: fields.boolean("raw_scores")?.unwrap_or(false),
        ..RerankOptions::default()
    };
    Ok(ParsedRerank {
        model: fields.model(false)?,
        query: query(fields)?,
        documents: fields.documents("texts")?,
        field: "texts",
        top_n: None,
        return_documents: fields.boolean("return_text")?.unwrap_or(false),
        options,
    })
}

fn query(fields: &Fields<'_>) -> Result<Bytes, ApiError> {
    let (inputs, single) = fields.texts("query")?;
    match inputs.first() {
        Some(only) if single && !text(only.raw()).is_some_and(|query| query.is_empty()) => Ok(only.raw().clone()),
        Some(_) if single => Err(refuse(Code::InvalidInput, "query", "`query` is an empty string".to_owned())),
        _ => Err(refuse(Code::InvalidInput, "query", "`query` must be a string".to_owned())),
    }
}

fn top(fields: &Fields<'_>, field: &str) -> Result<Option<usize>, ApiError> {
    Ok(fields.number(field, 1)?.map(|top| usize::try_from(top).unwrap_or(usize::MAX)))
}

fn rank_fields(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    const FIELD: &str = "rank_fields";
    let Some(raw) = fields.raw(FIELD)? else { return Ok(Vec::new()) };
    let names: Vec<String> = serde_json::from_slice(raw)
        .map_err(|_| refuse(Code::InvalidInput, FIELD, format!("`{FIELD}` must be a list of strings")))?;
    // The text alone is what is looked at in any case.
    Ok(if names == ["text"] { Vec::new() } else { names })
}

/// What a rerank answer says.
#[derive(Debug, Clone, Copy)]
pub struct RenderRerank<'a> {
    /// The model by the name the client used.
    pub model: &'a str,
    /// The answer's id where the dialect has one.
    pub id: &'a str,
    /// Results, best first, already cut to what the client wants; indexes into [`Self::documents`].
    pub results: &'a [Scored],
    /// The client's documents in the client's order.
    pub documents: &'a [Document],
    /// Whether the client wants its documents back.
    pub return_documents: bool,
    /// Tokens of the request.
    pub tokens: u64,
    /// Searches of the request.
    pub searches: u64,
    /// Whether the tokens are this gateway's own estimate; said in the answer where the dialect has a place for it.
    pub estimated: bool,
}

/// The rerank answer of `dialect`. Documents are in it only if they are wanted; the key is absent otherwise.
pub fn render_rerank(dialect: ClientDialect, answer: &RenderRerank<'_>) -> Bytes {
    if dialect == ClientDialect::Tei {
        return Bytes::from(results(dialect, answer));
    }
    let mut object = ObjectWriter::with_capacity(256 + 64 * answer.results.len());
    match dialect {
        ClientDialect::Voyage => {
            object.string("object", "list");
            object.raw("data", &results(dialect, answer));
            object.string("model", answer.model);
            object.raw("usage", &usage(answer));
        }
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => {
            let version = if dialect == ClientDialect::CohereV1 { "1" } else { "2" };
            object.string("id", answer.id);
            object.raw("results", &results(dialect, answer));
            let mut meta = ObjectWriter::with_capacity(96);
            meta.raw("api_version", format!("{{\"version\":\"{version}\"}}").as_bytes());
            meta.raw("billed_units", format!("{{\"search_units\":{}}}", answer.searches).as_bytes());
            object.raw("meta", &meta.finish());
        }
        _ => {
            object.string("model", answer.model);
            object.raw("results", &results(dialect, answer));
            object.raw("usage", &usage(answer));
        }
    }
    Bytes::from(object.finish())
}

fn usage(answer: &RenderRerank<'_>) -> Vec<u8> {
    let mut usage = ObjectWriter::with_capacity(64);
    usage.number("total_tokens", answer.tokens);
    if answer.estimated {
        usage.boolean("estimated", true);
    }
    usage.finish()
}

fn results(dialect: ClientDialect, answer: &RenderRerank<'_>) -> Vec<u8> {
    let mut out = vec![b'['];
    let mut number = zmij::Buffer::new();
    for (nth, Scored { index, score }) in answer.results.iter().enumerate() {
        if nth > 0 {
            out.push(b',');
        }
        let mut object = ObjectWriter::with_capacity(64);
        object.number("index", u64::try_from(*index).unwrap_or(u64::MAX));
        let key = if dialect == ClientDialect::Tei { "score" } else { "relevance_score" };
        object.raw(key, number.format_finite(*score).as_bytes());
        match answer.documents.get(*index) {
            Some(document) if answer.return_documents => write_document(&mut object, dialect, document),
            _ => {}
        }
        out.extend_from_slice(&object.finish());
    }
    out.push(b']');
    out
}

fn write_document(object: &mut ObjectWriter, dialect: ClientDialect, document: &Document) {
    let raw = document.raw();
    match (dialect, document) {
        (ClientDialect::Tei, _) => object.raw("text", raw),
        (ClientDialect::Voyage, _) | (_, Document::Object(_)) => object.raw("document", raw),
        (_, Document::Text(_)) => {
            let mut wrapped = ObjectWriter::with_capacity(raw.len() + 16);
            wrapped.raw("text", raw);
            object.raw("document", &wrapped.finish());
        }
    }
}

#[cfg(test)]
mod tests;
