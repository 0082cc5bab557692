//! What is particular to rerank: a query with its documents as one call, keys of pairs, and what a search costs.
//!
//! Everything else (admission, flights, the cache, holds, failover, settlement) is the one journey of all requests: to it
//! a document is an input like any other. Refuses to know providers and money.

use bytes::Bytes;

use crate::config::plan::{ModelKind, Normalization};
use crate::dialects::Truncate;
use crate::dialects::client::ParsedRerank;
use crate::dialects::rerank::{Document, RerankOptions, search_units};
use crate::edge::body::BodyShare;
use crate::edge::scan::Item;
use crate::error::ApiError;
use crate::pure::class;
use crate::pure::token_estimate::Sample;

use super::classify::{Call, Context, Task, classified, density, model};

/// Tokens of a document and its query that Cohere counts as one document; a longer one counts as several.
const TOKENS_PER_COUNTED_DOCUMENT: u64 = 500;

/// Documents to score for one query.
pub struct RerankTask {
    /// The query, a JSON string with its quotes.
    pub query: Bytes,
    /// What the scanner found of it.
    pub query_item: Item,
    /// The documents in the client's order, one for each of the call's items.
    pub documents: Vec<Document>,
    /// How many results the client wants; `None`: all.
    pub top_n: Option<usize>,
    /// Whether the client wants its documents back.
    pub return_documents: bool,
    /// All else that changes a score.
    pub options: RerankOptions,
}

/// Makes a [`Call`] for scores.
///
/// # Errors
/// The model is unknown, not allowed or of another kind; the class is unknown.
pub fn call(
    context: Context,
    parsed: ParsedRerank,
    query_item: Item,
    items: Vec<Item>,
    sample: &Sample,
    share: BodyShare,
) -> Result<Call, ApiError> {
    let model = model(&context, parsed.model.as_deref(), ModelKind::Rerank)?;
    let classified = classified(&context, class::Route::Rerank, items.len(), None)?;
    let normalization = context.running.plan.cache.normalize_queries;
    let task = RerankTask {
        query: parsed.query,
        query_item,
        documents: parsed.documents,
        top_n: parsed.top_n,
        return_documents: parsed.return_documents,
        options: parsed.options,
    };
    let (class, demoted) = (classified.class, classified.demoted);
    let density = density(&context, &model, sample);
    Ok(Call { context, class, demoted, model, items, task: Task::Rerank(task), normalization, density, share })
}

/// Every option as (name, value), and how documents are folded: a new field of [`RerankOptions`] does not compile
/// until it is part of the key. How many results are wanted and whether documents come back changes no score.
pub(super) fn parameters(options: &RerankOptions, documents: Normalization) -> Vec<(String, String)> {
    let RerankOptions { truncate, max_tokens_per_doc, max_chunks_per_doc, rank_fields, raw_scores, extra } = options;
    let mut list = Vec::new();
    let mut add = |name: &str, value: String| list.push((format!("={name}"), value));
    add("documents", format!("{documents:?}"));
    if let Some(truncate) = truncate {
        add("truncate", truncate_word(*truncate).to_owned());
    }
    if let Some(tokens) = max_tokens_per_doc {
        add("max_tokens_per_doc", tokens.to_string());
    }
    if let Some(chunks) = max_chunks_per_doc {
        add("max_chunks_per_doc", chunks.to_string());
    }
    // One parameter a name: joined, `["a,b"]` would be `["a","b"]`.
    for name in rank_fields {
        add("rank_fields", name.clone());
    }
    if *raw_scores {
        add("raw_scores", "true".to_owned());
    }
    list.extend(extra.iter().map(|(name, raw)| (name.clone(), String::from_utf8_lossy(raw).into_owned())));
    list
}

/// One word for each way to treat what is too long.
pub(super) const fn truncate_word(truncate: Truncate) -> &'static str {
    match truncate {
        Truncate::Never => "never",
        Truncate::Cut => "cut",
        Truncate::Start => "start",
        Truncate::End => "end",
    }
}

/// The searches that the documents at `indices` are billed as at least and at most, in so many calls.
///
/// At most, because a long document counts as several, and each call is rounded up by itself.
pub(super) fn searches(call: &Call, indices: &[usize], calls: usize) -> (u64, u64) {
    let counted = |index: &usize| call.estimate(*index).upper.div_ceil(TOKENS_PER_COUNTED_DOCUMENT).max(1);
    let documents: u64 = indices.iter().map(counted).fold(0, u64::saturating_add);
    let rounded = search_units(usize::try_from(documents).unwrap_or(usize::MAX));
    (search_units(indices.len()), rounded.saturating_add(calls.saturating_sub(1) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_differs(one: RerankOptions, other: RerankOptions) {
        let of = |options: &RerankOptions| parameters(options, Normalization::Exact);
        assert_ne!(of(&one), of(&other), "{one:?} {other:?}");
    }

    #[test]
    fn every_option_is_part_of_the_key() {
        let none = RerankOptions::default;
        check_differs(none(), RerankOptions { truncate: Some(Truncate::Never), ..none() });
        check_differs(none(), RerankOptions { max_tokens_per_doc: Some(1), ..none() });
        check_differs(
            RerankOptions { max_chunks_per_doc: Some(1), ..none() },
            RerankOptions { max_tokens_per_doc: Some(1), ..none() },
        );
        let fields = |names: &[&str]| RerankOptions {
            rank_fields: names.iter().map(|name| (*name).to_owned()).collect(),
            ..none()
        };
        check_differs(fields(&["a,b"]), fields(&["a", "b"]));
        check_differs(fields(&["a", "b"]), fields(&["b", "a"]));
        check_differs(none(), RerankOptions { raw_scores: true, ..none() });
        let extra = |name: &str, raw: &'static str| RerankOptions {
            extra: vec![(name.to_owned(), Bytes::from_static(raw.as_bytes()))],
            ..none()
        };
        check_differs(extra("a", "1"), extra("a", "2"));
        check_differs(extra("raw_scores", "true"), RerankOptions { raw_scores: true, ..none() });
        assert_ne!(parameters(&none(), Normalization::Exact), parameters(&none(), Normalization::Trim));
    }
}
