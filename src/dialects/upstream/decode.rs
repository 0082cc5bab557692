//! Good answers of every provider to checked vectors in the order of the inputs.
//!
//! A good status proves nothing: an answer counts only if it has exactly one sound vector of the right width for each
//! input. Knows no client and stores nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::cohere::type_word;
use crate::config::plan::Provider;
use crate::dialects::cut::{
    Answer, Count, CutError, CutItem, Embedding, Layout, UsageRead, cut, pair, read_count, read_usage,
};
use crate::dialects::{BadAnswer, Dtype, json};
use crate::vector::Vector;

/// An answer that has this much beside as much again as its vectors is not kept alive for them, bytes.
const SLACK: usize = 4096;

/// An only vector is kept together with its answer where no more than this part of it is something else.
const ROOM_PART: usize = 8;

/// A small body is looked at again to say better what is wrong with it, bytes.
const SMALL_BODY: usize = 64 * 1024;

/// What an answer must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expect {
    /// Inputs sent.
    pub count: usize,
    /// Width in dimensions, where it is known: packed bits have an eighth as many elements.
    pub width: Option<u32>,
    /// Element type asked for.
    pub dtype: Dtype,
}

/// A provider's answer in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedAnswer {
    /// One vector an input, in the order of the inputs. They may share the answer's memory: whoever keeps one beyond the
    /// request detaches it.
    pub vectors: Vec<Vector>,
    /// What the provider says that it cost.
    pub usage: UsageRead,
    /// The model that the provider names.
    pub model: Option<String>,
}

/// Reads the `body` of an answer with a good status. `headers` gives the value of a header by its lower-case name.
///
/// # Errors
/// If it is not JSON, is an error after all, or does not have exactly one vector of finite numbers of the expected
/// width for each input, labelled without gaps or repetitions or not at all.
pub fn decode_embed(
    provider: Provider,
    headers: &dyn Fn(&str) -> Option<String>,
    body: &Bytes,
    expect: &Expect,
) -> Result<EmbedAnswer, BadAnswer> {
    let answer = cut_answer(provider, body, expect).map_err(|error| explain(error, body))?;
    if answer.member("error").is_some_and(|raw| is_error(raw)) {
        return Err(hidden_error());
    }
    let usage = usage(provider, &answer, headers);
    let model = answer.member("model").and_then(|raw| json::text(raw).map(|model| model.into_owned()));
    let embeddings = pair(answer.items, expect.count).map_err(|error| bad(error.to_string()))?;
    let width = match expect.dtype {
        Dtype::Binary | Dtype::Ubinary => expect.width.map(|width| width.div_ceil(8)),
        Dtype::Float | Dtype::Int8 | Dtype::Uint8 => expect.width,
    };
    let mut vectors = Vec::with_capacity(embeddings.len());
    for (at, embedding) in embeddings.into_iter().enumerate() {
        vectors.push(vector(embedding, width, expect.dtype).map_err(|why| bad(format!("vector {at}: {why}")))?);
    }
    // A slice keeps all of the answer. Where that is mostly vectors nothing is lost by it while the request lasts, and a
    // copy of tens of megabytes is saved.
    let bytes = vectors.iter().map(Vector::bytes).sum::<usize>();
    if body.len() > 2 * bytes + SLACK {
        vectors.iter_mut().for_each(|vector| *vector = vector.detached());
    } else if vectors.len() == 1 && body.len() <= bytes + bytes / ROOM_PART {
        vectors = vectors.into_iter().map(Vector::standing_alone).collect();
    }
    Ok(EmbedAnswer { vectors, usage, model })
}

fn bad(reason: String) -> BadAnswer {
    BadAnswer { reason }
}

fn hidden_error() -> BadAnswer {
    bad("the provider's answer has a good status but is an error".to_owned())
}

fn is_error(raw: &[u8]) -> bool {
    !matches!(raw, b"null" | b"false" | b"\"\"" | b"{}")
}

/// Why an answer could not be cut: an error object with a good status is worth a clearer word.
fn explain(error: CutError, body: &Bytes) -> BadAnswer {
    #[derive(serde::Deserialize)]
    struct Failed<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    if body.len() <= SMALL_BODY
        && let Ok(failed) = serde_json::from_slice::<Failed<'_>>(body)
        && is_error(failed.error.get().as_bytes())
    {
        return hidden_error();
    }
    bad(error.to_string())
}

fn cut_answer(provider: Provider, body: &Bytes, expect: &Expect) -> Result<Answer, CutError> {
    match provider {
        Provider::Cohere if expect.dtype != Dtype::Float => cut_typed(body, expect.dtype),
        Provider::Cohere | Provider::Ollama => cut(body, Layout::Embeddings),
        Provider::Tei => cut(body, Layout::Rows),
        Provider::OpenAi
        | Provider::Azure
        | Provider::Vllm
        | Provider::Voyage
        | Provider::Jina
        | Provider::Anthropic
        | Provider::Simulated => cut(body, Layout::Data),
    }
}

/// Cohere's answer with elements that are not floats: rare, so read without haste.
fn cut_typed(body: &Bytes, dtype: Dtype) -> Result<Answer, CutError> {
    #[derive(serde::Deserialize)]
    struct Typed<'a> {
        #[serde(borrow)]
        embeddings: BTreeMap<String, &'a RawValue>,
        #[serde(borrow, default)]
        meta: Option<&'a RawValue>,
    }
    let typed: Typed<'_> = serde_json::from_slice(body).map_err(|_| CutError::NoVectors)?;
    let list = typed.embeddings.get(type_word(dtype)).ok_or(CutError::NoVectors)?;
    let rows: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(|_| CutError::NoVectors)?;
    let slice = |raw: &RawValue| body.slice_ref(raw.get().as_bytes());
    let items = rows.into_iter().map(|raw| CutItem { index: None, embedding: Embedding::Numbers(slice(raw)) });
    let members = typed.meta.map(|meta| ("meta".to_owned(), slice(meta)));
    Ok(Answer { items: items.collect(), members: members.into_iter().collect() })
}

fn vector(embedding: Embedding, width: Option<u32>, dtype: Dtype) -> Result<Vector, String> {
    if dtype != Dtype::Float && matches!(embedding, Embedding::Base64(_)) {
        return Err("base64 where a list of numbers was asked for".to_owned());
    }
    embedding.vector(width).map_err(|error| error.to_string())
}

/// Where each provider says what a call cost.
fn usage(provider: Provider, answer: &Answer, headers: &dyn Fn(&str) -> Option<String>) -> UsageRead {
    match provider {
        Provider::Cohere => answer.member("meta").map(|raw| billed_units(raw)).unwrap_or_default(),
        Provider::Ollama => answer.member("prompt_eval_count").map(|raw| one_count(raw)).unwrap_or_default(),
        Provider::Tei => headers("x-compute-tokens").map(|text| one_count(text.trim().as_bytes())).unwrap_or_default(),
        Provider::OpenAi
        | Provider::Azure
        | Provider::Vllm
        | Provider::Voyage
        | Provider::Jina
        | Provider::Anthropic
        | Provider::Simulated => answer.member("usage").map(|raw| read_usage(raw)).unwrap_or_default(),
    }
}

/// One count that stands for the whole call.
pub(super) fn one_count(raw: &[u8]) -> UsageRead {
    let count = read_count(raw);
    UsageRead { prompt: count.number(), total: count.number(), odd: count == Count::Odd }
}

/// Tokens in Cohere's `meta`: those billed, or, where a look-alike bills nothing, those counted.
pub(super) fn billed_units(meta: &[u8]) -> UsageRead {
    #[derive(serde::Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default)]
        billed_units: Option<&'a RawValue>,
        #[serde(borrow, default)]
        tokens: Option<&'a RawValue>,
    }
    let Ok(meta) = serde_json::from_slice::<Meta<'_>>(meta) else {
        return UsageRead { odd: true, ..UsageRead::default() };
    };
    let read = |raw: Option<&RawValue>| raw.map(|raw| read_usage(raw.get().as_bytes())).unwrap_or_default();
    let billed = read(meta.billed_units);
    if billed.billed().is_some() || billed.odd { billed } else { read(meta.tokens) }
}

#[cfg(test)]
mod tests;
