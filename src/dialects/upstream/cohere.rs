//! Cohere, by version 2 of its API.
//!
//! Knows no other provider and no client.

use super::{Words, no_such_value, purpose, refuse_unknown, texts_only, unsupported, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len};
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
