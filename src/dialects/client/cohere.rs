//! Cohere's embedding requests, version 1 and 2.

use super::fields::{Fields, cannot, dtype, refuse, unknown_value};
use super::{AnswerForm, ParsedEmbed};
use crate::dialects::{ClientDialect, Dtype, EmbedOptions, Encoding, InputType};
use crate::error::{ApiError, Code};

const KNOWN: [&str; 8] =
    ["model", "texts", "images", "inputs", "input_type", "embedding_types", "output_dimension", "truncate"];

/// Most types that can be named.
const MAX_TYPES: usize = 8;

/// Reads an embedding request.
///
/// # Errors
/// See [`super::parse_embed`].
pub(super) fn parse_embed(dialect: ClientDialect, fields: &Fields<'_>) -> Result<ParsedEmbed, ApiError> {
    for field in ["images", "inputs"] {
        if fields.raw(field)?.is_some() {
            return Err(cannot(field, "only `texts` are embedded here"));
        }
    }
    let model = fields.model(true)?;
    let inputs = fields.texts("texts")?;
    let form = form(dialect, fields)?;
    let input_type = fields.input_type()?;
    if let Some(InputType::Other(word)) = &input_type
        && !matches!(word.as_str(), "classification" | "clustering")
    {
        return Err(unknown_value("input_type", word, "search_query, search_document, classification or clustering"));
    }
    let options = EmbedOptions {
        input_type,
        truncate: fields.truncate("truncate")?,
        dtype: form.dtype,
        extra: fields.extra(&KNOWN),
        ..EmbedOptions::default()
    };
    Ok(fields.request(model, inputs, fields.width("output_dimension")?, form, options))
}

/// `embedding_types`: floats as numbers, as base64 or both, or one other type. Absent: floats, flat in version 1.
fn form(dialect: ClientDialect, fields: &Fields<'_>) -> Result<AnswerForm, ApiError> {
    const FIELD: &str = "embedding_types";
    let Some(raw) = fields.raw(FIELD)? else {
        let by_type = dialect == ClientDialect::CohereV2;
        return Ok(AnswerForm { encodings: vec![Encoding::Float], dtype: Dtype::Float, by_type });
    };
    let words: Vec<String> = serde_json::from_slice(raw)
        .map_err(|_| refuse(Code::InvalidInput, FIELD, format!("`{FIELD}` must be a list of strings")))?;
    let (mut encodings, mut dtypes) = (Vec::new(), Vec::new());
    for word in words.iter().take(MAX_TYPES) {
        let known = if word == "base64" { Some(Dtype::Float) } else { dtype(word) };
        let found = known.ok_or_else(|| unknown_value(FIELD, word, "float, base64, int8, uint8, binary or ubinary"))?;
        let encoding = if word == "base64" { Encoding::Base64 } else { Encoding::Float };
        if !encodings.contains(&encoding) {
            encodings.push(encoding);
        }
        if !dtypes.contains(&found) {
            dtypes.push(found);
        }
    }
    match dtypes[..] {
        [dtype] => Ok(AnswerForm { encodings, dtype, by_type: true }),
        [] => Err(refuse(Code::InvalidInput, FIELD, format!("`{FIELD}` is an empty list"))),
        _ => Err(cannot(FIELD, "one element type in a request, or \"float\" together with \"base64\"")),
    }
}
