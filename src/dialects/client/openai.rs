//! OpenAI's embedding requests, Azure's, and those of TEI's OpenAI-like route.
//!
//! Besides OpenAI's own members it takes the other dialects' words for what changes a vector, so that an OpenAI SDK can
//! say them in its extra body: without them some upstreams could not be reached through this route at all.

use super::fields::Fields;
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::{ClientDialect, EmbedOptions};
use crate::error::ApiError;

/// Members that are read here. Any other goes to the upstream of the same dialect as it is.
const KNOWN: [&str; 15] = [
    "model",
    "input",
    "encoding_format",
    "dimensions",
    "input_type",
    "task",
    "prompt_name",
    "truncate",
    "truncation",
    "normalize",
    "normalized",
    "late_chunking",
    "output_dtype",
    "stream",
    "stream_options",
];

/// Reads an embedding request.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(dialect: ClientDialect, fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    let model = fields.model(dialect == ClientDialect::OpenAi)?;
    let inputs = fields.inputs("input")?;
    let encoding = fields.encoding("encoding_format")?;
    let dimensions = fields.width("dimensions")?;
    if dialect == ClientDialect::TeiOpenAi {
        // That server ignores every other member, so they change nothing.
        let options = EmbedOptions::default();
        let form = AnswerForm::one(encoding, options.dtype);
        return Ok(fields.request(model, inputs, dimensions, form, options));
    }
    let task = fields.text("task")?.map(|task| task.into_owned());
    let prompt_name = fields.text("prompt_name")?.map(|name| name.into_owned());
    let options = EmbedOptions {
        input_type: fields.input_type()?,
        task,
        prompt_name,
        truncate: fields.truncate("truncate")?.or(fields.truncate("truncation")?),
        normalize: fields.boolean("normalize")?.or(fields.boolean("normalized")?),
        dtype: fields.dtype("output_dtype")?,
        late_chunking: fields.boolean("late_chunking")?.unwrap_or(false),
        extra: fields.extra(&KNOWN),
    };
    let form = AnswerForm::one(encoding, options.dtype);
    Ok(fields.request(model, inputs, dimensions, form, options))
}
