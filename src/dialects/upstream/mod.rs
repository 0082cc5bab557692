//! The providers' side: canonical requests to wire bytes, answers and errors back to canonical form.
//!
//! Everything is a pure function of its arguments. Nothing here knows a client dialect, sends a byte or decides what
//! happens after an error.

mod cohere;
mod decode;
pub mod error;
mod jina;
mod ollama;
mod openai;
mod rerank;
pub mod scrub;
pub mod splice;
mod tei;
mod voyage;

use super::json::ObjectWriter;
use super::{Dtype, EmbedOptions, EmbedRequest, Input, InputType, Truncate, Unsupported, WireRequest};
use crate::config::plan::Provider;

pub use decode::{EmbedAnswer, Expect, decode_embed};
pub use error::{decode_error, names_fewer_items};
pub use openai::path as openai_path;
pub use rerank::{decode_rerank, encode_rerank};
pub use scrub::scrub;

/// `request` in the words of `provider`. The same request gives the same bytes each time.
///
/// # Errors
/// Names the field that the provider has no word for and that would change the vectors, or says that the provider
/// takes no token ids.
pub fn encode_embed(provider: Provider, request: &EmbedRequest<'_>) -> Result<WireRequest, Unsupported> {
    match provider {
        Provider::OpenAi | Provider::Azure | Provider::Vllm => openai::encode_embed(provider, request),
        Provider::Cohere => cohere::encode_embed(request),
        Provider::Voyage => voyage::encode_embed(request),
        Provider::Jina => jina::encode_embed(request),
        Provider::Tei => tei::encode_embed(request),
        Provider::Ollama => ollama::encode_embed(request),
        Provider::Anthropic | Provider::Simulated => Err(unsupported(
            "model",
            format!("an upstream of provider `{}` takes no embedding requests over the wire", name(provider)),
        )),
    }
}

/// Whether `provider` takes texts about which nothing else is said.
pub const fn takes_bare_texts(provider: Provider) -> bool {
    // Its models make another vector for a query than for a document, so it insists on knowing.
    !matches!(provider, Provider::Cohere)
}

/// The provider's name as configuration writes it.
pub const fn name(provider: Provider) -> &'static str {
    provider.as_str()
}

/// A JSON request to `path`.
fn wire(path: impl Into<String>, body: impl Into<bytes::Bytes>) -> WireRequest {
    // That it is JSON is said of every call that is answered whole.
    WireRequest { path: path.into(), headers: Vec::new(), body: body.into() }
}

fn unsupported(field: &str, message: String) -> Unsupported {
    Unsupported { field: field.to_owned(), message, input_kind: false }
}

/// The refusal of one field by name.
fn no_word_for(field: &str, provider: Provider) -> Unsupported {
    let message = format!(
        "`{field}` changes the vectors and the {} upstream of this model has no such option; leave it out, or ask for \
         a model whose upstream has it",
        name(provider)
    );
    unsupported(field, message)
}

/// The refusal of one value of a field that the provider does have.
fn no_such_value(field: &str, value: &str, provider: Provider, known: &str) -> Unsupported {
    let message = format!(
        "`{field}` = \"{value}\" is not known to the {} upstream of this model; it takes {known}",
        name(provider)
    );
    unsupported(field, message)
}

/// Refuses token ids: they are of one tokenizer, and a text-only upstream would read them with its own or not at all.
fn texts_only(inputs: &[Input], provider: Provider) -> Result<(), Unsupported> {
    match inputs.iter().position(Input::is_tokens) {
        None => Ok(()),
        Some(at) => Err(Unsupported {
            field: "input".to_owned(),
            message: format!(
                "input[{at}] is a list of token ids, and the {} upstream of this model takes texts only; send strings \
                 (with LangChain: check_embedding_ctx_length=False)",
                name(provider)
            ),
            input_kind: true,
        }),
    }
}

/// Which of the options a provider has words for; the others are refused where they change the vectors.
#[derive(Debug, Clone, Copy, Default)]
struct Words {
    input_type: bool,
    task: bool,
    prompt_name: bool,
    unnormalized: bool,
    small_dtypes: bool,
    late_chunking: bool,
}

/// Refuses every option that changes the vectors and that the provider has no word for.
///
/// Members that no dialect here knows travel only inside their own dialect (`native`): to any other they cannot be
/// translated, and whether they change the vectors nobody here can know.
fn refuse_unknown(options: &EmbedOptions, words: Words, native: bool, provider: Provider) -> Result<(), Unsupported> {
    let refused = [
        ("input_type", !words.input_type && options.input_type.is_some()),
        ("task", !words.task && options.task.is_some()),
        ("prompt_name", !words.prompt_name && options.prompt_name.is_some()),
        ("normalize", !words.unnormalized && options.normalize == Some(false)),
        ("output_dtype", !words.small_dtypes && options.dtype != Dtype::Float),
        ("late_chunking", !words.late_chunking && options.late_chunking),
    ];
    if let Some((field, _)) = refused.iter().find(|(_, refused)| *refused) {
        return Err(no_word_for(field, provider));
    }
    match options.extra.first() {
        Some((field, _)) if !native => Err(no_word_for(field, provider)),
        _ => Ok(()),
    }
}

/// What the texts are for: the client's input type, or what a task of the retrieval kind says of it.
fn purpose(options: &EmbedOptions) -> Option<InputType> {
    options.input_type.clone().or(match options.task.as_deref() {
        Some("retrieval.query") => Some(InputType::Query),
        Some("retrieval.passage") => Some(InputType::Document),
        _ => None,
    })
}

/// Whether over-long texts may be cut. Never unless the client said so: a vector of a text's first page, kept as the
/// vector of the whole, is found by nobody.
fn may_cut(options: &EmbedOptions) -> bool {
    !matches!(options.truncate, None | Some(Truncate::Never))
}

/// Appends what the client's own dialect carried and no dialect here knows, then the named harmless members of its
/// body: both reach only upstreams of that dialect.
fn write_native_members(object: &mut ObjectWriter, request: &EmbedRequest<'_>, harmless: &[&str]) {
    let Some(original) = request.original else { return };
    for (key, value) in &request.options.extra {
        object.raw(key, value);
    }
    for (key, range) in &original.members {
        let value = original.body.get(range.clone()).unwrap_or(b"null");
        if harmless.contains(&key.as_str()) && value != b"null" {
            object.raw(key, value);
        }
    }
}

#[cfg(test)]
mod encode_tests;
