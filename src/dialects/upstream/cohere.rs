//! Cohere, by version 2 of its API.
//!
//! Knows no other provider and no client.

use super::rerank::{self, RerankWords};
use super::{Words, no_such_value, purpose, refuse_unknown, texts_only, unsupported, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len, string};
use crate::dialects::rerank::{Document, RerankRequest};
use crate::dialects::{Dtype, EmbedRequest, InputType, Truncate, Unsupported, WireRequest};

const HERE: Provider = Provider::Cohere;

/// One `POST /v2/embed`.
///
/// # Errors
/// See [`super::encode_embed`]. A request that does not say what its texts are for is refused, because Cohere's
/// models since v3 make another vector for a query than for a document and a wrong guess would go unnoticed.
pub(super) fn encode_embed(request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    texts_only(request.inputs, HERE)?;
    let words = Words { input_type: true, task: true, small_dtypes: true, ..Words::default() };
    refuse_unknown(options, words, request.original.is_some(), HERE)?;

    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 192);
    object.string("model", request.remote_model);
    object.inputs("texts", request.inputs);
    object.string("input_type", &input_type(request)?);
    object.raw("embedding_types", format!("[\"{}\"]", type_word(options.dtype)).as_bytes());
    if let Some(width) = request.width {
        object.number("output_dimension", width.into());
    }
    let truncate = match options.truncate {
        None | Some(Truncate::Never) => "NONE",
        Some(Truncate::Start) => "START",
        Some(Truncate::Cut | Truncate::End) => "END",
    };
    object.string("truncate", truncate);
    write_native_members(&mut object, request, &["priority"]);
    Ok(wire("/v2/embed", object.finish()))
}

/// Cohere's word for an element type, in requests and answers.
pub(super) const fn type_word(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float => "float",
        Dtype::Int8 => "int8",
        Dtype::Uint8 => "uint8",
        Dtype::Binary => "binary",
        Dtype::Ubinary => "ubinary",
    }
}

fn input_type(request: &EmbedRequest<'_>) -> Result<String, Unsupported> {
    const KNOWN: &str = "search_query, search_document, classification and clustering";
    match (purpose(request.options), request.options.task.as_deref()) {
        (Some(InputType::Query), _) => Ok("search_query".to_owned()),
        (Some(InputType::Document), _) => Ok("search_document".to_owned()),
        (Some(InputType::Other(word)), _) if matches!(word.as_str(), "classification" | "clustering") => Ok(word),
        (Some(InputType::Other(word)), _) => Err(no_such_value("input_type", &word, HERE, KNOWN)),
        (None, Some("classification")) => Ok("classification".to_owned()),
        (None, Some(task)) => {
            Err(no_such_value("task", task, HERE, "retrieval.query, retrieval.passage and classification"))
        }
        (None, None) => Err(unsupported(
            "input_type",
            "this model's upstream makes different vectors for queries and for documents: say `input_type` = \
             \"search_query\" or \"search_document\""
                .to_owned(),
        )),
    }
}

/// One rerank call: version 2, or version 1 where the request has what only that one knows.
///
/// # Errors
/// See [`super::encode_rerank`].
pub(super) fn encode_rerank(request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    let objects = request.documents.iter().any(|document| matches!(document, Document::Object(_)));
    let first_version = objects || options.max_chunks_per_doc.is_some() || !options.rank_fields.is_empty();
    let words = RerankWords {
        raw_scores: false,
        max_tokens_per_doc: !first_version,
        max_chunks_per_doc: first_version,
        rank_fields: first_version,
    };
    rerank::refuse_unknown(options, words, request.native, HERE)?;

    let mut object = ObjectWriter::with_capacity(rerank::capacity(request));
    object.string("model", request.remote_model);
    object.raw("query", request.query);
    rerank::write_documents(&mut object, "documents", request.documents);
    rerank::write_top(&mut object, "top_n", request);
    if let Some(tokens) = options.max_tokens_per_doc {
        object.number("max_tokens_per_doc", tokens);
    }
    if let Some(chunks) = options.max_chunks_per_doc {
        object.number("max_chunks_per_doc", chunks);
    }
    if !options.rank_fields.is_empty() {
        let names: Vec<String> = options.rank_fields.iter().map(|name| json_string(name)).collect();
        object.raw("rank_fields", format!("[{}]", names.join(",")).as_bytes());
    }
    rerank::write_extra(&mut object, request);
    Ok(wire(if first_version { "/v1/rerank" } else { "/v2/rerank" }, object.finish()))
}

fn json_string(text: &str) -> String {
    String::from_utf8_lossy(&string(text)).into_owned()
}
