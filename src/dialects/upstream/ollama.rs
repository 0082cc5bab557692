//! Ollama, by its native route.
//!
//! Knows no other provider and no client.

use super::{Words, may_cut, refuse_unknown, texts_only, wire, write_native_members};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len};
use crate::dialects::{EmbedRequest, Truncate, Unsupported, WireRequest};

const HERE: Provider = Provider::Ollama;

/// One `POST /api/embed`.
///
/// `truncate` is always said: the server's own default cuts over-long texts without a word.
///
/// # Errors
/// See [`super::encode_embed`].
pub(super) fn encode_embed(request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let options = request.options;
    texts_only(request.inputs, HERE)?;
    refuse_unknown(options, Words::default(), request.original.is_some(), HERE)?;
    if options.truncate == Some(Truncate::Start) {
        return Err(super::no_such_value("truncate", "START", HERE, "true and false, and cuts at the end"));
    }

    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 128);
    object.string("model", request.remote_model);
    object.inputs("input", request.inputs);
    object.boolean("truncate", may_cut(options));
    if let Some(width) = request.width {
        object.number("dimensions", width.into());
    }
    write_native_members(&mut object, request, &["keep_alive"]);
    Ok(wire("/api/embed", object.finish()))
}
