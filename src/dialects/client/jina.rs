//! Jina's embedding requests.

use super::fields::{Fields, cannot, unknown_value};
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::json::text;
use crate::dialects::{Dtype, EmbedOptions, Encoding};
use crate::error::ApiError;

const KNOWN: [&str; 11] = [
    "model",
    "input",
    "embedding_type",
    "encoding_format",
    "encoding_type",
    "task",
    "dimensions",
    "normalized",
    "late_chunking",
    "truncate",
    "return_multivector",
];

/// Reads an embedding request.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let model = fields.model(true)?;
    let inputs = fields.inputs("input")?;
    if fields.boolean("return_multivector")? == Some(true) {
        return Err(cannot("return_multivector", "one vector per input is made here"));
    }
    let form = form(fields)?;
    let options = EmbedOptions {
        task: fields.text("task")?.map(|task| task.into_owned()),
        truncate: fields.truncate("truncate")?,
        normalize: fields.boolean("normalized")?,
        dtype: form.dtype,
        late_chunking: fields.boolean("late_chunking")?.unwrap_or(false),
        extra: fields.extra(&KNOWN),
        ..EmbedOptions::default()
    };
    Ok(fields.request(model, inputs, fields.width("dimensions")?, form, options))
}

/// The element type under Jina's own name or one of those that clients made for OpenAI or by LlamaIndex use.
fn form(fields: &Fields<'_>) -> Result<AnswerForm, ApiError> {
    for field in ["embedding_type", "encoding_format", "encoding_type"] {
        let Some(raw) = fields.raw(field)? else { continue };
        let words: Vec<String> = match text(raw) {
            Some(word) => vec![word.into_owned()],
            None => serde_json::from_slice(raw).unwrap_or_default(),
        };
        let [word] = &words[..] else {
            return Err(cannot(field, "exactly one of float, base64, binary and ubinary in a request"));
        };
        return match word.as_str() {
            "float" => Ok(AnswerForm::one(Encoding::Float, Dtype::Float)),
            "base64" => Ok(AnswerForm::one(Encoding::Base64, Dtype::Float)),
            "binary" => Ok(AnswerForm::one(Encoding::Float, Dtype::Binary)),
            "ubinary" => Ok(AnswerForm::one(Encoding::Float, Dtype::Ubinary)),
            other => Err(unknown_value(field, other, "float, base64, binary or ubinary")),
        };
    }
    Ok(AnswerForm::one(Encoding::Float, Dtype::Float))
}
