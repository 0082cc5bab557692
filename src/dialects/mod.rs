//! How clients and providers speak. Encoding and decoding are pure; [`wire`] alone does IO.
//!
//! A client's body becomes the canonical [`EmbedCall`]; an upstream gets an [`EmbedRequest`] and gives an
//! [`EmbedAnswer`]. No client dialect knows an upstream dialect or the other way round.

pub mod chat;
pub mod client;
pub mod cut;
pub mod json;
pub mod rerank;
pub mod simulated;
pub mod upstream;
pub mod wire;

#[cfg(test)]
mod matrix_tests;

use std::io;
use std::ops::Range;

use bytes::Bytes;

use crate::config::plan::Provider;
use crate::spool::Spooled;

/// Whose words a route speaks. Errors are answered in the dialect of the route entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientDialect {
    /// OpenAI.
    OpenAi,
    /// Azure OpenAI.
    Azure,
    /// Cohere v1.
    CohereV1,
    /// Cohere v2.
    CohereV2,
    /// Voyage AI.
    Voyage,
    /// Jina.
    Jina,
    /// TEI's native routes.
    Tei,
    /// TEI's OpenAI-like route: OpenAI's bodies, TEI's errors.
    TeiOpenAi,
    /// Ollama's `/api/embed`.
    Ollama,
    /// Ollama's `/api/embeddings`.
    OllamaLegacy,
    /// Anthropic.
    Anthropic,
}

/// How float vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    /// JSON numbers.
    #[default]
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// Number type of a vector's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    Float,
    /// Signed bytes.
    Int8,
    /// Unsigned bytes.
    Uint8,
    /// Packed bits, offset by 128.
    Binary,
    /// Packed bits.
    Ubinary,
}

/// What a text is embedded for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum InputType {
    /// A search query.
    Query,
    /// A document to be found.
    Document,
    /// Any other purpose, by the client dialect's own word.
    Other(String),
}

/// What happens to a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Truncate {
    /// An error.
    Never,
    /// Cut, by the upstream's own default side.
    Cut,
    /// The beginning is cut off.
    Start,
    /// The end is cut off.
    End,
}

/// All that changes a vector besides the text, the space and the width.
///
/// Every field is part of the cache key. `None` means that the client did not say.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EmbedOptions {
    /// Query or document.
    pub input_type: Option<InputType>,
    /// Jina's task.
    pub task: Option<String>,
    /// TEI's prompt name.
    pub prompt_name: Option<String>,
    /// Over-long texts.
    pub truncate: Option<Truncate>,
    /// Whether the vector is scaled to unit length.
    pub normalize: Option<bool>,
    /// Element type.
    pub dtype: Dtype,
    /// All inputs form one document: never split, never cached per item.
    pub late_chunking: bool,
    /// Members that no dialect here knows, as (name, raw JSON value), in the body's order: they reach upstreams of the
    /// client's own dialect untouched and may change the vector there.
    pub extra: Vec<(String, Bytes)>,
}

/// One input as it stands in the client's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A JSON string, quotes included.
    Text(Bytes),
    /// A JSON array of token ids, brackets included.
    Tokens(Bytes),
    /// One of these, on disk: [`Input::load`] brings it back.
    Spooled {
        /// Where it is.
        place: Spooled,
        /// Whether it is a list of token ids.
        tokens: bool,
    },
}

impl Input {
    /// The raw JSON value. Nothing for one that is on disk: nobody encodes an input without having loaded it.
    pub fn raw(&self) -> &Bytes {
        static NOTHING: Bytes = Bytes::new();
        match self {
            Input::Text(raw) | Input::Tokens(raw) => raw,
            Input::Spooled { .. } => &NOTHING,
        }
    }

    /// Length of the raw JSON value in bytes.
    pub fn len(&self) -> usize {
        match self {
            Input::Text(raw) | Input::Tokens(raw) => raw.len(),
            Input::Spooled { place, .. } => place.len(),
        }
    }

    /// Whether there is nothing, which no scanner calls an input.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a list of token ids.
    pub fn is_tokens(&self) -> bool {
        matches!(self, Input::Tokens(_) | Input::Spooled { tokens: true, .. })
    }

    fn loaded(tokens: bool, raw: Bytes) -> Input {
        if tokens { Input::Tokens(raw) } else { Input::Text(raw) }
    }

    /// Itself in memory, blocking if it is on disk.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn load_blocking(&self) -> io::Result<Input> {
        match self {
            Input::Spooled { place, tokens } => Ok(Input::loaded(*tokens, place.read()?)),
            here => Ok(here.clone()),
        }
    }

    /// All of `inputs` in memory. Those of one request lie in one spool or in none.
    ///
    /// # Errors
    /// Those of the disk.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn load(inputs: Vec<Input>) -> io::Result<Vec<Input>> {
        let Some(Input::Spooled { place, .. }) = inputs.first() else { return Ok(inputs) };
        let spool = place.place().0.clone();
        let ranges = inputs.iter().map(|input| match input {
            Input::Spooled { place, .. } => place.place().1.clone(),
            Input::Text(_) | Input::Tokens(_) => 0..0,
        });
        let read = spool.read(ranges.collect()).await?;
        let loaded = inputs.into_iter().zip(read).map(|(input, raw)| match input {
            Input::Spooled { tokens, .. } => Input::loaded(tokens, raw),
            here => here,
        });
        Ok(loaded.collect())
    }
}

/// The client's own body, kept so that an upstream of the same dialect gets every member it did not need to change
/// with the same digits in the same order.
#[derive(Debug, Clone)]
pub struct OriginalBody {
    /// The whole body, decoded (no content coding).
    pub body: Bytes,
    /// Top-level members in order: name and range of the value.
    pub members: Vec<(String, Range<usize>)>,
}

/// One upstream call for embeddings, in canonical form.
#[derive(Debug, Clone)]
pub struct EmbedRequest<'a> {
    /// The model's name at the upstream.
    pub remote_model: &'a str,
    /// Inputs of this call, in order.
    pub inputs: &'a [Input],
    /// Whether the client gave one bare input and not a list: kept as it was for upstreams of the same dialect.
    pub single: bool,
    /// Width to ask for; `None`: the upstream's own default.
    pub width: Option<u32>,
    /// Encoding to ask for where the upstream offers it.
    pub encoding: Encoding,
    /// All else that changes the vector.
    pub options: &'a EmbedOptions,
    /// The client's body when client and upstream speak the same dialect.
    pub original: Option<&'a OriginalBody>,
}

/// A request ready for the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRequest {
    /// Path (and query) below the upstream's base URL, starting with `/`.
    pub path: String,
    /// Headers besides `Host`, `Content-Length` and the credential.
    pub headers: Vec<(&'static str, String)>,
    /// JSON body.
    pub body: Bytes,
}

/// How a provider wants its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthStyle {
    /// `Authorization: Bearer`.
    Bearer,
    /// `api-key`.
    ApiKey,
    /// `x-api-key`.
    XApiKey,
}

/// How `provider` wants its key.
pub const fn auth_style(provider: Provider) -> AuthStyle {
    match provider {
        Provider::Azure => AuthStyle::ApiKey,
        Provider::Anthropic => AuthStyle::XApiKey,
        _ => AuthStyle::Bearer,
    }
}

/// A field that an upstream has no word for and that would change the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The field by the client's name for it.
    pub field: String,
    /// What the client can do.
    pub message: String,
    /// Whether it is the kind of input (token ids) that is not supported.
    pub input_kind: bool,
}

/// Why an answer with a good status cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAnswer {
    /// For logs and the client: what was expected, what came; no texts.
    pub reason: String,
}

/// What an error answer means for routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is at fault: no retry, no breaker count, passed on.
    Request,
    /// Too many items, tokens or bytes in one call: smaller and again.
    TooLarge,
    /// The upstream's key is refused.
    Auth,
    /// The key has no credit left.
    Quota,
    /// Too fast.
    RateLimited,
    /// Overloaded or broken.
    Server,
}

/// A provider's error in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderError {
    /// Its status.
    pub status: u16,
    /// What it means.
    pub fault: Fault,
    /// Its code.
    pub code: Option<String>,
    /// Its type.
    pub kind: Option<String>,
    /// Its text: trimmed to 500 characters, keys scrubbed.
    pub message: String,
    /// The field at fault, where it names one.
    pub param: Option<String>,
    /// A limit that the text names ("maximum allowed batch size 32").
    pub limit_hint: Option<u64>,
    /// Whether the request is refused because one of its inputs is too long, whichever it is.
    pub too_long: bool,
    /// A wait that the text names ("try again in 1.2s").
    pub wait_hint: Option<std::time::Duration>,
}
