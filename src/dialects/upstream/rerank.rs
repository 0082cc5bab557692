//! Rerank calls: which provider takes what, and scores out of every answer.
//!
//! The words of the larger providers are in their own files beside their embeddings. Nothing here compares scores of
//! two models or decides how many results a client sees.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{cohere, jina, name, no_word_for, openai, tei, unsupported, voyage};
use crate::config::plan::Provider;
use crate::dialects::cut::{UsageRead, read_count, read_usage};
use crate::dialects::json::ObjectWriter;
use crate::dialects::rerank::{Document, RerankAnswer, RerankOptions, RerankRequest, Scored, rank};
use crate::dialects::{BadAnswer, Truncate, Unsupported, WireRequest};

use super::decode::{billed_units, one_count};

/// `request` in the words of `provider`. The same request gives the same bytes each time.
///
/// # Errors
/// Names the field that the provider has no word for and that would change the scores.
pub fn encode_rerank(provider: Provider, request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    match provider {
        Provider::Cohere => cohere::encode_rerank(request),
        Provider::Voyage => voyage::encode_rerank(request),
        Provider::Jina => jina::encode_rerank(request),
        Provider::Tei => tei::encode_rerank(request),
        Provider::OpenAi | Provider::Vllm => openai::encode_rerank(provider, request),
        Provider::Azure | Provider::Ollama | Provider::Anthropic | Provider::Simulated => Err(unsupported(
            "model",
            format!("an upstream of provider `{}` takes no rerank requests over the wire", name(provider)),
        )),
    }
}

/// Which of the options a provider has words for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RerankWords {
    pub(super) raw_scores: bool,
    pub(super) max_tokens_per_doc: bool,
    pub(super) max_chunks_per_doc: bool,
    pub(super) rank_fields: bool,
}

/// Refuses every option that changes the scores and that the provider has no word for.
pub(super) fn refuse_unknown(
    options: &RerankOptions,
    words: RerankWords,
    native: bool,
    provider: Provider,
) -> Result<(), Unsupported> {
    let refused = [
        ("raw_scores", !words.raw_scores && options.raw_scores),
        ("max_tokens_per_doc", !words.max_tokens_per_doc && options.max_tokens_per_doc.is_some()),
        ("max_chunks_per_doc", !words.max_chunks_per_doc && options.max_chunks_per_doc.is_some()),
        ("rank_fields", !words.rank_fields && !options.rank_fields.is_empty()),
    ];
    if let Some((field, _)) = refused.iter().find(|(_, refused)| *refused) {
        return Err(no_word_for(field, provider));
    }
    match options.extra.first() {
        Some((field, _)) if !native => Err(no_word_for(field, provider)),
        _ => Ok(()),
    }
}

/// Refuses documents that are objects with more in them than a text.
pub(super) fn texts_only(documents: &[Document], provider: Provider) -> Result<(), Unsupported> {
    match documents.iter().position(|document| matches!(document, Document::Object(_))) {
        None => Ok(()),
        Some(at) => Err(unsupported(
            "documents",
            format!("documents[{at}] is an object, and the {} upstream of this model takes texts only", name(provider)),
        )),
    }
}

/// Whether over-long pairs may be cut: yes, unless the client forbids it. Every rerank API does so by itself, and a
/// score is kept with nothing that a later reader could take for more than it is.
pub(super) fn may_cut(options: &RerankOptions) -> bool {
    options.truncate != Some(Truncate::Never)
}

/// A member that is the list of `documents`, each as it stood.
pub(super) fn write_documents(object: &mut ObjectWriter, key: &str, documents: &[Document]) {
    let out = object.key(key);
    out.push(b'[');
    for (at, document) in documents.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(document.raw());
    }
    out.push(b']');
}

/// How many results to ask for, by the provider's word for it.
pub(super) fn write_top(object: &mut ObjectWriter, key: &str, request: &RerankRequest<'_>) {
    if let Some(top) = request.top_n {
        object.number(key, u64::try_from(top).unwrap_or(u64::MAX));
    }
}

/// Members that only the client's own dialect knows.
pub(super) fn write_extra(object: &mut ObjectWriter, request: &RerankRequest<'_>) {
    for (key, value) in request.options.extra.iter().filter(|_| request.native) {
        object.raw(key, value);
    }
}

/// Bytes that a body will take, roughly.
pub(super) fn capacity(request: &RerankRequest<'_>) -> usize {
    request.documents.iter().map(|document| document.raw().len() + 1).sum::<usize>() + request.query.len() + 192
}

/// One result of any provider. What else it holds, such as the document again, is of no use here.
#[derive(serde::Deserialize)]
struct WireResult {
    index: usize,
    #[serde(alias = "score")]
    relevance_score: f64,
}

/// Any provider's answer object.
#[derive(serde::Deserialize)]
struct WireAnswer<'a> {
    #[serde(alias = "data")]
    results: Vec<WireResult>,
    #[serde(default)]
    model: Option<String>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    meta: Option<&'a RawValue>,
}

/// Reads the `body` of an answer with a good status to `request`. `headers` gives the value of a header by its
/// lower-case name.
///
/// # Errors
/// If it is not JSON, is an error after all, names a document twice or one that was not sent, has no finite score
/// for one, or has fewer or more results than were asked for.
pub fn decode_rerank(
    provider: Provider,
    headers: &dyn Fn(&str) -> Option<String>,
    body: &Bytes,
    request: &RerankRequest<'_>,
) -> Result<RerankAnswer, BadAnswer> {
    let answer = read(provider, body).map_err(|_| BadAnswer {
        reason: "the provider's answer has no list of documents with their scores".to_owned(),
    })?;
    let sent = request.documents.len();
    let expected = request.top_n.map_or(sent, |top| top.min(sent));
    let results = check(answer.results, sent, expected)?;
    let usage = match (provider, answer.usage, answer.meta) {
        (Provider::Tei, ..) => {
            headers("x-compute-tokens").map(|text| one_count(text.trim().as_bytes())).unwrap_or_default()
        }
        (_, Some(usage), _) => read_usage(usage.get().as_bytes()),
        (_, None, Some(meta)) => billed_units(meta.get().as_bytes()),
        (_, None, None) => UsageRead::default(),
    };
    let searches = answer.meta.and_then(searches);
    Ok(RerankAnswer { results: rank(results, None), usage, searches, model: answer.model })
}

fn read(provider: Provider, body: &Bytes) -> serde_json::Result<WireAnswer<'_>> {
    if provider == Provider::Tei {
        let results = serde_json::from_slice(body)?;
        return Ok(WireAnswer { results, model: None, usage: None, meta: None });
    }
    serde_json::from_slice(body)
}

fn check(results: Vec<WireResult>, sent: usize, expected: usize) -> Result<Vec<Scored>, BadAnswer> {
    let bad = |reason: String| Err(BadAnswer { reason });
    if results.len() != expected {
        return bad(format!("the provider's answer has {} results instead of {expected}", results.len()));
    }
    let mut seen = vec![false; sent];
    let mut scored = Vec::with_capacity(expected);
    for WireResult { index, relevance_score: score } in results {
        match seen.get_mut(index) {
            None => return bad(format!("the provider's answer has a result with index {index}")),
            Some(true) => return bad(format!("the provider's answer has two results with index {index}")),
            Some(first) => *first = true,
        }
        if !score.is_finite() {
            return bad(format!("the provider's score of document {index} is not a finite number"));
        }
        scored.push(Scored { index, score });
    }
    Ok(scored)
}

/// Searches billed, from Cohere's `meta`.
fn searches(meta: &RawValue) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default)]
        billed_units: Option<Units<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Units<'a> {
        #[serde(borrow, default)]
        search_units: Option<&'a RawValue>,
    }
    let meta: Meta<'_> = serde_json::from_str(meta.get()).ok()?;
    read_count(meta.billed_units?.search_units?.get().as_bytes()).number()
}

#[cfg(test)]
mod tests;
