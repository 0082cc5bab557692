//! Hugging Face Text Embeddings Inference, by its native routes.
//!
//! Knows no other provider and no client.

use super::rerank::{self, RerankWords};
use super::{Words, may_cut, purpose, refuse_unknown, texts_only, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len};
use crate::dialects::rerank::RerankRequest;
use crate::dialects::{EmbedRequest, InputType, Truncate, Unsupported, WireRequest};

const HERE: Provider = Provider::Tei;

/// One `POST /embed`.
///
/// `truncate` is always said, because a server's default depends on its version. Nothing is ever `null`.
///
/// # Errors
/// See [`super::encode_embed`].
pub(super) fn encode_embed(request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    texts_only(request.inputs, HERE)?;
    let words = Words { input_type: true, task: true, prompt_name: true, unnormalized: true, ..Words::default() };
    refuse_unknown(options, words, request.original.is_some(), HERE)?;

    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 128);
    object.inputs("inputs", request.inputs);
    object.boolean("truncate", may_cut(options));
    write_direction(&mut object, options.truncate);
    if let Some(normalize) = options.normalize {
        object.boolean("normalize", normalize);
    }
    if let Some(prompt) = prompt(request)? {
        object.string("prompt_name", &prompt);
    }
    if let Some(width) = request.width {
        object.number("dimensions", width.into());
    }
    write_native_members(&mut object, request, &[]);
    Ok(wire("/embed", object.finish()))
}

/// The side at which to cut, where the client named one.
fn write_direction(object: &mut ObjectWriter, truncate: Option<Truncate>) {
    match truncate {
        Some(Truncate::Start) => object.string("truncation_direction", "left"),
        Some(Truncate::End) => object.string("truncation_direction", "right"),
        None | Some(Truncate::Never | Truncate::Cut) => {}
    }
}

/// The prompt by which the model tells queries from documents.
///
/// A client that gave an input type means the model's prompt of that kind. A model without such a prompt answers with
/// an error that says so, which is better than a vector made without it.
fn prompt(request: &EmbedRequest<'_>) -> Result<Option<String>, Unsupported> {
    let options = request.options;
    if options.prompt_name.is_some() {
        return Ok(options.prompt_name.clone());
    }
    match (purpose(options), options.task.as_deref()) {
        (Some(InputType::Query), _) => Ok(Some("query".to_owned())),
        (Some(InputType::Document), _) => Ok(Some("document".to_owned())),
        (Some(InputType::Other(word)), _) => {
            Err(super::no_such_value("input_type", &word, HERE, "query and document, or a prompt_name"))
        }
        (None, Some(task)) => {
            Err(super::no_such_value("task", task, HERE, "retrieval.query and retrieval.passage, or a prompt_name"))
        }
        (None, None) => Ok(None),
    }
}

/// One `POST /rerank`. It knows no limit of results: all documents come back and are cut here.
///
/// # Errors
/// See [`super::encode_rerank`].
pub(super) fn encode_rerank(request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    let words = RerankWords { raw_scores: true, ..RerankWords::default() };
    rerank::refuse_unknown(options, words, request.native, HERE)?;
    rerank::texts_only(request.documents, HERE)?;
    let mut object = ObjectWriter::with_capacity(rerank::capacity(request));
    object.raw("query", request.query);
    rerank::write_documents(&mut object, "texts", request.documents);
    object.boolean("truncate", rerank::may_cut(options));
    write_direction(&mut object, options.truncate);
    if options.raw_scores {
        object.boolean("raw_scores", true);
    }
    rerank::write_extra(&mut object, request);
    Ok(wire("/rerank", object.finish()))
}
