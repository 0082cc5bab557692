//! OpenAI's embeddings as OpenAI, Azure, vLLM and every look-alike speak them.
//!
//! A client of the same dialect gets its own body sent on with only what must change changed. Knows no other provider
//! and no client.

use super::rerank::{self, RerankWords};
use super::splice::{Edit, edits, splice};
use super::{Words, refuse_unknown, wire};
use crate::config::plan::Provider;
use crate::dialects::json::{ObjectWriter, inputs_len, is_null, string, text, write_inputs};
use crate::dialects::rerank::RerankRequest;
use crate::dialects::{EmbedRequest, Encoding, Input, OriginalBody, Truncate, Unsupported, WireRequest};

/// Azure's stable API version. The classic form is used because token ids are known to work there.
const AZURE_API_VERSION: &str = "2024-10-21";

/// Optional members whose explicit `null` is the same as their absence. SDKs of other dialects send some of them.
const OPTIONAL: [&str; 10] = [
    "dimensions",
    "encoding_format",
    "user",
    "input_type",
    "task",
    "prompt_name",
    "truncate",
    "truncation",
    "output_dtype",
    "output_dimension",
];

/// One embeddings call.
///
/// # Errors
/// See [`super::encode_embed`].
pub(super) fn encode_embed(provider: Provider, request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    let path = path(provider, request.remote_model, "embeddings");
    let body = match request.original {
        Some(original) => changed(original, request),
        None => {
            refuse_unknown(request.options, Words::default(), false, provider)?;
            built(provider, request).into()
        }
    };
    Ok(wire(path, body))
}

/// The path of `operation`: a deployment's own at Azure, the plain one elsewhere.
pub fn path(provider: Provider, remote_model: &str, operation: &str) -> String {
    if provider != Provider::Azure {
        return format!("/{operation}");
    }
    let mut path = String::from("/openai/deployments/");
    for byte in remote_model.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path.push_str(&format!("/{operation}?api-version={AZURE_API_VERSION}"));
    path
}

const fn format_word(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Float => "float",
        Encoding::Base64 => "base64",
    }
}

/// The client's body with the model, the inputs of this part, the encoding and the width put right.
fn changed(original: &OriginalBody, request: &EmbedRequest<'_>) -> bytes::Bytes {
    let (mut has_format, mut has_width) = (false, false);
    let edits = edits(original, |name: &str, value: &[u8]| {
        if OPTIONAL.contains(&name) && is_null(value) {
            return Edit::Drop;
        }
        match name {
            "model" => {
                same_or_replace(text(value).as_deref() == Some(request.remote_model), || string(request.remote_model))
            }
            "input" => same_or_replace(holds_exactly(original, value, request), || {
                let mut list = Vec::with_capacity(inputs_len(request.inputs));
                write_inputs(&mut list, request.inputs);
                list
            }),
            "encoding_format" => {
                has_format = true;
                let word = format_word(request.encoding);
                same_or_replace(text(value).as_deref() == Some(word), || string(word))
            }
            "dimensions" => match request.width {
                None => Edit::Drop,
                Some(width) => {
                    has_width = true;
                    let digits = width.to_string().into_bytes();
                    if value == digits { Edit::Keep } else { Edit::Replace(digits) }
                }
            },
            _ => Edit::Keep,
        }
    });
    let mut added = Vec::new();
    if !has_format && request.encoding == Encoding::Base64 {
        added.push(("encoding_format", string(format_word(request.encoding))));
    }
    if let (false, Some(width)) = (has_width, request.width) {
        added.push(("dimensions", width.to_string().into_bytes()));
    }
    splice(original, &edits, &added)
}

fn same_or_replace(same: bool, json: impl FnOnce() -> Vec<u8>) -> Edit {
    if same { Edit::Keep } else { Edit::Replace(json()) }
}

/// Whether the raw `value` of the client's `input` is exactly the inputs of this part, so that it can stay as it is.
///
/// Inputs that are slices of the body are recognised by their place, without reading them again.
fn holds_exactly(original: &OriginalBody, value: &[u8], request: &EmbedRequest<'_>) -> bool {
    if request.single {
        return matches!(request.inputs, [only] if only.raw().as_ref() == value);
    }
    let place = |bytes: &[u8]| bytes.as_ptr().addr();
    let body = original.body.as_ref();
    let mut at = 1;
    let skip_space = |at: usize| {
        let space = value.get(at..).unwrap_or_default();
        at + space.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    };
    for (nth, input) in request.inputs.iter().enumerate() {
        if nth > 0 {
            at = skip_space(at);
            if value.get(at) != Some(&b',') {
                return false;
            }
            at += 1;
        }
        at = skip_space(at);
        let raw = input.raw().as_ref();
        let Some(here) = value.get(at..).and_then(|rest| rest.get(..raw.len())) else { return false };
        let inside = place(raw) >= place(body) && place(raw) < place(body) + body.len();
        if !(inside && place(here) == place(raw)) && here != raw {
            return false;
        }
        at += raw.len();
    }
    at = skip_space(at);
    value.first() == Some(&b'[') && value.get(at..) == Some(b"]")
}

/// A body for a client of another dialect.
fn built(provider: Provider, request: &EmbedRequest<'_>) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(inputs_len(request.inputs) + 160);
    object.string("model", request.remote_model);
    match request.inputs {
        [Input::Tokens(ids)] if request.single => object.raw("input", ids),
        inputs => object.inputs("input", inputs),
    }
    object.string("encoding_format", format_word(request.encoding));
    if let Some(width) = request.width {
        object.number("dimensions", width.into());
    }
    // OpenAI answers an over-long text with an error and cannot be told otherwise, so a wish to cut changes no vector
    // there. vLLM can.
    if provider == Provider::Vllm {
        let side = match request.options.truncate {
            None | Some(Truncate::Never) => return object.finish(),
            Some(Truncate::Cut) => None,
            Some(Truncate::Start) => Some("left"),
            Some(Truncate::End) => Some("right"),
        };
        object.raw("truncate_prompt_tokens", b"-1");
        if let Some(side) = side {
            object.string("truncation_side", side);
        }
    }
    object.finish()
}

/// One rerank call. OpenAI has none; its look-alikes that do (vLLM and others) share a form near to Cohere's.
///
/// # Errors
/// See [`super::encode_rerank`].
pub(super) fn encode_rerank(provider: Provider, request: &RerankRequest<'_>) -> Result<WireRequest, Unsupported> {
    rerank::refuse_unknown(request.options, RerankWords::default(), request.native, provider)?;
    rerank::texts_only(request.documents, provider)?;
    let mut object = ObjectWriter::with_capacity(rerank::capacity(request));
    object.string("model", request.remote_model);
    object.raw("query", request.query);
    rerank::write_documents(&mut object, "documents", request.documents);
    rerank::write_top(&mut object, "top_n", request);
    match provider {
        // vLLM answers an over-long pair with an error unless it is told its own limit.
        Provider::Vllm if rerank::may_cut(request.options) => object.raw("truncate_prompt_tokens", b"-1"),
        Provider::Vllm => {}
        _ => object.boolean("return_documents", false),
    }
    rerank::write_extra(&mut object, request);
    Ok(wire("/rerank", object.finish()))
}
