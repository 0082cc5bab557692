//! Embedding requests of Hugging Face Text Embeddings Inference, by its native routes.

use super::fields::{Fields, unknown_value};
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::{Dtype, EmbedOptions, Encoding, Truncate};
use crate::error::ApiError;

/// Reads an embedding request. Members that TEI does not know it ignores, and so they are ignored here.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let inputs = fields.inputs("inputs")?;
    let options = EmbedOptions {
        prompt_name: fields.text("prompt_name")?.map(|name| name.into_owned()),
        truncate: truncate(fields)?,
        normalize: fields.boolean("normalize")?,
        ..EmbedOptions::default()
    };
    let form = AnswerForm::one(Encoding::Float, Dtype::Float);
    Ok(fields.request(fields.model(false)?, inputs, fields.width("dimensions")?, form, options))
}

/// `truncate` and the side at which it cuts.
pub(super) fn truncate(fields: &Fields<'_>) -> Result<Option<Truncate>, ApiError> {
    let side = match fields.text("truncation_direction")?.as_deref() {
        None => Truncate::Cut,
        Some("left" | "Left") => Truncate::Start,
        Some("right" | "Right") => Truncate::End,
        Some(other) => return Err(unknown_value("truncation_direction", other, "\"left\" or \"right\"")),
    };
    Ok(fields.boolean("truncate")?.map(|cut| if cut { side } else { Truncate::Never }))
}
