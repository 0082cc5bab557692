//! Ollama's embedding requests: `/api/embed` and the older `/api/embeddings`.

use bytes::Bytes;

use super::fields::{Fields, refuse};
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::{Dtype, EmbedOptions, Encoding};
use crate::error::{ApiError, Code};

/// Reads a request of `/api/embed`. Members that Ollama does not know it ignores, and so they are ignored here.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let model = fields.model(true)?;
    let inputs = fields.texts("input")?;
    let options =
        EmbedOptions { truncate: fields.truncate("truncate")?, extra: runtime(fields)?, ..EmbedOptions::default() };
    Ok(fields.request(model, inputs, fields.width("dimensions")?, form(), options))
}

/// Reads a request of `/api/embeddings`: one prompt, one vector.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_legacy(fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let model = fields.model(true)?;
    let (inputs, single) = fields.texts("prompt")?;
    if !single {
        return Err(refuse(Code::InvalidInput, "prompt", "`prompt` must be a string".to_owned()));
    }
    let options = EmbedOptions { extra: runtime(fields)?, ..EmbedOptions::default() };
    Ok(fields.request(model, (inputs, single), None, form(), options))
}

fn form() -> AnswerForm {
    AnswerForm::one(Encoding::Float, Dtype::Float)
}

/// Options of the runtime. Some change the vectors (`num_ctx` moves the place where a text is cut), so they travel with
/// the request and are part of what tells vectors apart. LangChain sends the whole object full of nulls.
fn runtime(fields: &Fields<'_>) -> Result<Vec<(String, Bytes)>, ApiError> {
    const FIELD: &str = "options";
    let Some(raw) = fields.raw(FIELD)? else { return Ok(Vec::new()) };
    let options: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(raw)
        .map_err(|_| refuse(Code::InvalidInput, FIELD, format!("`{FIELD}` must be an object")))?;
    if options.values().all(serde_json::Value::is_null) {
        return Ok(Vec::new());
    }
    Ok(vec![(FIELD.to_owned(), Bytes::copy_from_slice(raw))])
}
