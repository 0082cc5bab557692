//! Voyage AI's embedding requests.

use super::fields::{Fields, unknown_value};
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::{EmbedOptions, InputType};
use crate::error::ApiError;

const KNOWN: [&str; 7] =
    ["model", "input", "input_type", "truncation", "output_dimension", "output_dtype", "encoding_format"];

/// Reads an embedding request. Its Python SDK sends every optional member, mostly as `null`.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let model = fields.model(true)?;
    let inputs = fields.texts("input")?;
    let encoding = fields.encoding("encoding_format")?;
    let input_type = fields.input_type()?;
    if let Some(InputType::Other(word)) = &input_type {
        return Err(unknown_value("input_type", word, "\"query\" or \"document\""));
    }
    let options = EmbedOptions {
        input_type,
        truncate: fields.truncate("truncation")?,
        dtype: fields.dtype("output_dtype")?,
        extra: fields.extra(&KNOWN),
        ..EmbedOptions::default()
    };
    let form = AnswerForm::one(encoding, options.dtype);
    Ok(fields.request(model, inputs, fields.width("output_dimension")?, form, options))
}
