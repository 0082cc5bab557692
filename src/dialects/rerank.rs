//! Rerank in canonical form: a query, documents, and scores by the documents' places.
//!
//! Scores of different models are not comparable, so nothing here joins lists of two models. Knows no dialect.

use std::cmp::Ordering;

use bytes::Bytes;

use super::Truncate;
use super::cut::UsageRead;

/// Documents that Cohere counts as one search together with their query.
const DOCUMENTS_PER_SEARCH: u64 = 100;

/// One document as it stands in the client's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// A JSON string, quotes included.
    Text(Bytes),
    /// A JSON object, braces included, with more in it than one text.
    Object(Bytes),
}

impl Document {
    /// The raw JSON value.
    pub fn raw(&self) -> &Bytes {
        match self {
            Document::Text(raw) | Document::Object(raw) => raw,
        }
    }
}

/// All that changes a score besides model, query and document.
///
/// Every field is part of the key of a cached pair. `None` means that the client did not say.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RerankOptions {
    /// Over-long pairs. Unlike embeddings, every provider cuts them unless told otherwise.
    pub truncate: Option<Truncate>,
    /// Cohere v2: tokens of a document that are looked at.
    pub max_tokens_per_doc: Option<u64>,
    /// Cohere v1: chunks of a document that are looked at.
    pub max_chunks_per_doc: Option<u64>,
    /// Cohere v1: members of object documents that are looked at.
    pub rank_fields: Vec<String>,
    /// TEI: scores before the sigmoid.
    pub raw_scores: bool,
    /// Members that no dialect here knows, as (name, raw JSON value).
    pub extra: Vec<(String, Bytes)>,
}

/// One upstream call for scores, in canonical form.
#[derive(Debug, Clone)]
pub struct RerankRequest<'a> {
    /// The model's name at the upstream.
    pub remote_model: &'a str,
    /// The query, a JSON string with its quotes.
    pub query: &'a Bytes,
    /// The documents of this call, in order, never none.
    pub documents: &'a [Document],
    /// How many results to ask for; `None`: a score for every document.
    pub top_n: Option<usize>,
    /// All else that changes a score.
    pub options: &'a RerankOptions,
    /// Whether client and upstream speak the same dialect, so that unknown members may travel.
    pub native: bool,
}

/// One document's score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Place of the document in the list that was sent.
    pub index: usize,
    /// Its score, finite; higher is better.
    pub score: f64,
}

/// A provider's answer in canonical form.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankAnswer {
    /// Scores, best first.
    pub results: Vec<Scored>,
    /// Tokens, where the provider counts them.
    pub usage: UsageRead,
    /// Searches, where the provider bills by them.
    pub searches: Option<u64>,
    /// The model that the provider names.
    pub model: Option<String>,
}

/// Best first, documents of equal score in their own order, at most `top_n`.
pub fn rank(mut results: Vec<Scored>, top_n: Option<usize>) -> Vec<Scored> {
    results
        .sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal).then_with(|| a.index.cmp(&b.index)));
    if let Some(top_n) = top_n {
        results.truncate(top_n);
    }
    results
}

/// Searches that a call with so many documents is billed as, where that is the unit.
pub fn search_units(documents: usize) -> u64 {
    u64::try_from(documents).unwrap_or(u64::MAX).div_ceil(DOCUMENTS_PER_SEARCH)
}

/// Tokens by Voyage's formula: the query is read once with every document.
pub fn voyage_tokens(query_tokens: u64, documents: usize, document_tokens: u64) -> u64 {
    let documents = u64::try_from(documents).unwrap_or(u64::MAX);
    query_tokens.saturating_mul(documents).saturating_add(document_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_counted_as_the_providers_bill() {
        assert_eq!([0, 1, 100, 101, 200, 201].map(search_units), [0, 1, 1, 2, 2, 3]);
        assert_eq!(voyage_tokens(10, 3, 60), 90);
    }

    proptest! {
        #[test]
        fn ranking_sorts_and_loses_nothing(scores in proptest::collection::vec(-2i8..3, 0..40), top in proptest::option::of(0usize..50)) {
            let given: Vec<Scored> =
                scores.iter().enumerate().map(|(index, score)| Scored { index, score: f64::from(*score) }).collect();
            let ranked = rank(given.clone(), top);
            prop_assert_eq!(ranked.len(), top.unwrap_or(usize::MAX).min(given.len()));
            for pair in ranked.windows(2) {
                let [a, b] = pair else { unreachable!("windows of two") };
                prop_assert!(a.score > b.score || (a.score == b.score && a.index < b.index));
            }
            // Nothing that was left out is better than what stayed.
            if let Some(worst) = ranked.last() {
                for out in given.iter().filter(|out| !ranked.contains(out)) {
                    prop_assert!(out.score <= worst.score);
                }
            }
            for kept in &ranked {
                prop_assert_eq!(given[kept.index], *kept);
            }
        }
    }
}
