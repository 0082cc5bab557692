//! Voyage AI.
//!
//! Knows no other provider and no client.

use super::cohere::type_word;
use super::rerank::{self, RerankWords};
use super::{Words, may_cut, no_such_value, purpose, refuse_unknown, texts_only, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len};
use crate::dialects::rerank::RerankRequest;
use crate::dialects::{Dtype, EmbedRequest, Encoding, InputType, Truncate, Unsupported, WireRequest};

const HERE: Provider = Provider::Voyage;

/// One `POST /embeddings`.
///
/// `encoding_format` is `base64` or absent, since any other word for floats is refused there; element types other
/// than floats are asked for as numbers, so that an answer means one thing only.
///
/// # Errors
/// See [`super::encode_embed`].
pub(super) fn encode_embed(request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    texts_only(request.inputs, HERE)?;
    let words = Words { input_type: true, task: true, small_dtypes: true, ..Words::default() };
    refuse_unknown(options, words, request.original.is_some(), HERE)?;
    if options.truncate == Some(Truncate::Start) {
        return Err(no_such_value("truncate", "START", HERE, "true and false, and cuts at the end"));
    }

    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 192);
    object.string("model", request.remote_model);
    object.inputs("input", request.inputs);
    match (purpose(options), options.task.as_deref()) {
        (Some(InputType::Query), _) => object.string("input_type", "query"),
        (Some(InputType::Document), _) => object.string("input_type", "document"),
        (Some(InputType::Other(word)), _) => {
            return Err(no_such_value("input_type", &word, HERE, "query and document"));
        }
        (None, Some(task)) => {
            return Err(no_such_value("task", task, HERE, "retrieval.query and retrieval.passage"));
        }
        (None, None) => {}
    }
    object.boolean("truncation", may_cut(options));
    if let Some(width) = request.width {
        object.number("output_dimension", width.into());
    }
    if options.dtype != Dtype::Float {
        object.string("output_dtype", type_word(options.dtype));
    } else if request.encoding == Encoding::Base64 {
        object.string("encoding_format", "base64");
    }
    write_native_members(&mut object, request, &[]);
    Ok(wire("/embeddings", object.finish()))
}

/// One rerank call.
///
/// # Errors
/// See [`super::encode_rerank`].
pub(super) fn encode_rerank(request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    rerank::refuse_unknown(request.options, RerankWords::default(), request.native, HERE)?;
    rerank::texts_only(request.documents, HERE)?;
    let mut object = ObjectWriter::with_capacity(rerank::capacity(request));
    object.string("model", request.remote_model);
    object.raw("query", request.query);
    rerank::write_documents(&mut object, "documents", request.documents);
    rerank::write_top(&mut object, "top_k", request);
    object.boolean("truncation", rerank::may_cut(request.options));
    rerank::write_extra(&mut object, request);
    Ok(wire("/rerank", object.finish()))
}
