//! Jina.
//!
//! Knows no other provider and no client.

use super::rerank::{self, RerankWords};
use super::{Words, may_cut, no_such_value, refuse_unknown, texts_only, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len};
use crate::dialects::rerank::RerankRequest;
use crate::dialects::{Dtype, EmbedRequest, Encoding, InputType, Truncate, Unsupported, WireRequest};

const HERE: Provider = Provider::Jina;

/// One `POST /embeddings`.
///
/// `normalized` is always said, because its default is documented in two ways.
///
/// # Errors
/// See [`super::encode_embed`].
pub(super) fn encode_embed(request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    texts_only(request.inputs, HERE)?;
    let words = Words {
        input_type: true,
        task: true,
        unnormalized: true,
        small_dtypes: true,
        late_chunking: true,
        prompt_name: false,
    };
    refuse_unknown(options, words, request.original.is_some(), HERE)?;
    if options.truncate == Some(Truncate::Start) {
        return Err(no_such_value("truncate", "START", HERE, "true and false, and cuts at the end"));
    }

    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 192);
    object.string("model", request.remote_model);
    object.inputs("input", request.inputs);
    object.string("embedding_type", embedding_type(request)?);
    if let Some(task) = task(request)? {
        object.string("task", task);
    }
    if let Some(width) = request.width {
        object.number("dimensions", width.into());
    }
    object.boolean("normalized", options.normalize.unwrap_or(true));
    if options.late_chunking {
        object.boolean("late_chunking", true);
    }
    object.boolean("truncate", may_cut(options));
    write_native_members(&mut object, request, &[]);
    Ok(wire("/embeddings", object.finish()))
}

fn embedding_type(request: &EmbedRequest<'_>) -> Result<&'static str, Unsupported> {
    let known = "float, binary and ubinary";
    match (request.options.dtype, request.encoding) {
        (Dtype::Float, Encoding::Float) => Ok("float"),
        (Dtype::Float, Encoding::Base64) => Ok("base64"),
        (Dtype::Binary, _) => Ok("binary"),
        (Dtype::Ubinary, _) => Ok("ubinary"),
        (Dtype::Int8, _) => Err(no_such_value("output_dtype", "int8", HERE, known)),
        (Dtype::Uint8, _) => Err(no_such_value("output_dtype", "uint8", HERE, known)),
    }
}

/// The client's task, or the retrieval task that its input type means.
fn task<'a>(request: &'a EmbedRequest<'_>) -> Result<Option<&'a str>, Unsupported> {
    match (request.options.task.as_deref(), &request.options.input_type) {
        (Some(task), _) => Ok(Some(task)),
        (None, None) => Ok(None),
        (None, Some(InputType::Query)) => Ok(Some("retrieval.query")),
        (None, Some(InputType::Document)) => Ok(Some("retrieval.passage")),
        (None, Some(InputType::Other(word))) if word == "classification" => Ok(Some("classification")),
        (None, Some(InputType::Other(word))) if word == "clustering" => Ok(Some("separation")),
        (None, Some(InputType::Other(word))) => {
            Err(no_such_value("input_type", word, HERE, "query, document, classification and clustering"))
        }
    }
}

/// One rerank call. Documents are not wanted back, which has to be said.
///
/// # Errors
/// See [`super::encode_rerank`].
pub(super) fn encode_rerank(request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    rerank::refuse_unknown(request.options, RerankWords::default(), request.native, HERE)?;
    if !request.native {
        rerank::texts_only(request.documents, HERE)?;
    }
    let mut object = ObjectWriter::with_capacity(rerank::capacity(request));
    object.string("model", request.remote_model);
    object.raw("query", request.query);
    rerank::write_documents(&mut object, "documents", request.documents);
    rerank::write_top(&mut object, "top_n", request);
    object.boolean("return_documents", false);
    rerank::write_extra(&mut object, request);
    Ok(wire("/rerank", object.finish()))
}
