//! Typed reading of a scanned body's members, with refusals that name the member.
//!
//! Knows JSON types and the meanings that several dialects share; which members a dialect has is its own file's.

use std::borrow::Cow;

use bytes::Bytes;

use super::ParsedEmbed;
use crate::dialects::client::AnswerForm;
use crate::dialects::json::{boolean, is_null, text, whole_number};
use crate::dialects::rerank::Document;
use crate::dialects::{Dtype, EmbedOptions, Encoding, Input, InputType, OriginalBody, Truncate};
use crate::edge::scan::{ItemKind, Scan, Shape};
use crate::error::{ApiError, Code};

/// Widest vector that can be asked for. No model comes near it, and beyond it a width is a mistake.
const MAX_WIDTH: u64 = 1 << 20;

/// Members that change no vector and ask nothing of an upstream.
const NO_EFFECT: [&str; 7] =
    ["user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "store", "priority"];

/// A scanned body.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    scan: &'a Scan,
    body: &'a Bytes,
}

/// A refusal that names `field`.
pub(super) fn refuse(code: Code, field: &str, message: String) -> ApiError {
    ApiError::new(code, message).param(field.to_owned())
}

fn wrong_type(field: &str, expected: &str) -> ApiError {
    refuse(Code::InvalidInput, field, format!("`{field}` must be {expected}"))
}

/// Refuses a word that is not among `known`.
pub(super) fn unknown_value(field: &str, value: &str, known: &str) -> ApiError {
    let shown: String = value.chars().take(40).collect();
    refuse(Code::UnknownParameterValue, field, format!("`{field}` = \"{shown}\" is not known; expected {known}"))
}

/// Refuses a member that this gateway cannot honour.
pub(super) fn cannot(field: &str, why: &str) -> ApiError {
    refuse(Code::InvalidInput, field, format!("`{field}` is not supported: {why}"))
}

impl<'a> Fields<'a> {
    pub(super) fn new(scan: &'a Scan, body: &'a Bytes) -> Fields<'a> {
        Fields { scan, body }
    }

    fn slice(&self, range: &std::ops::Range<usize>) -> &'a [u8] {
        self.body.get(range.clone()).unwrap_or(b"null")
    }

    /// The raw value of a member; `None` if it is absent or `null`.
    pub(super) fn raw(&self, field: &str) -> Result<Option<&'a [u8]>, ApiError> {
        let mut found = self.scan.members.iter().filter(|member| member.key == field);
        let first = found.next().map(|member| self.slice(&member.value));
        if found.next().is_some() {
            return Err(refuse(Code::InvalidInput, field, format!("`{field}` is given twice")));
        }
        Ok(first.filter(|raw| !is_null(raw)))
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.raw(field)?.map(|raw| read(raw).ok_or_else(|| wrong_type(field, expected))).transpose()
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<Cow<'a, str>>, ApiError> {
        self.read(field, "a string", text)
    }

    pub(super) fn boolean(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "true or false", boolean)
    }

    /// A whole number of at least `min`.
    pub(super) fn number(&self, field: &str, min: u64) -> Result<Option<u64>, ApiError> {
        match self.read(field, "a whole number", whole_number)? {
            Some(number) if number < min => Err(wrong_type(field, &format!("at least {min}"))),
            number => Ok(number),
        }
    }

    /// The width asked for.
    pub(super) fn width(&self, field: &str) -> Result<Option<u32>, ApiError> {
        let Some(number) = self.read(field, "a whole number", whole_number)? else { return Ok(None) };
        match u32::try_from(number) {
            Ok(width) if (1..=MAX_WIDTH).contains(&number) => Ok(Some(width)),
            _ => {
                let message = format!("`{field}` = {number} is no width of a vector; expected 1 to {MAX_WIDTH}");
                Err(refuse(Code::UnsupportedDimensions, field, message))
            }
        }
    }

    /// The model's name.
    ///
    /// # Errors
    /// If it is absent and `required`, or empty.
    pub(super) fn model(&self, required: bool) -> Result<Option<String>, ApiError> {
        match self.text("model")? {
            None if required => Err(refuse(Code::InvalidInput, "model", "`model` is missing".to_owned())),
            Some(name) if name.is_empty() => Err(wrong_type("model", "the name of a model")),
            name => Ok(name.map(Cow::into_owned)),
        }
    }

    /// The inputs of `field`, and whether it is one bare input.
    pub(super) fn inputs(&self, field: &str) -> Result<(Vec<Input>, bool), ApiError> {
        let missing = || refuse(Code::InvalidInput, field, format!("`{field}` is missing"));
        let items = self.scan.items(field).ok_or_else(missing)?;
        let single = matches!(items.shape, Shape::Text | Shape::Tokens);
        if let Some(spool) = &items.spool {
            // Bodies that may hold objects are never spooled, so these are texts and token ids.
            let input = |item: &crate::edge::scan::Item| Input::Spooled {
                place: spool.piece(item.range.clone()),
                tokens: item.kind == ItemKind::Tokens,
            };
            return Ok((items.items.iter().map(input).collect(), single));
        }
        let input = |(at, item): (usize, &crate::edge::scan::Item)| {
            let raw = self.body.slice_ref(self.slice_of(&item.range));
            match item.kind {
                ItemKind::Text => Ok(Input::Text(raw)),
                ItemKind::Tokens => Ok(Input::Tokens(raw)),
                ItemKind::Object => match text_of_object(&raw) {
                    Some(text) if &text[..] == b"\"\"" => {
                        Err(refuse(Code::InvalidInput, field, format!("{field}[{at}] is an empty string")))
                    }
                    Some(text) => Ok(Input::Text(text)),
                    None => {
                        let message = format!("{field}[{at}] is an object without a `text`: only texts are embedded");
                        Err(refuse(Code::InvalidInput, field, message))
                    }
                },
            }
        };
        let inputs: Result<Vec<Input>, ApiError> = items.items.iter().enumerate().map(input).collect();
        Ok((inputs?, single))
    }

    /// The inputs of `field`, texts only.
    pub(super) fn texts(&self, field: &str) -> Result<(Vec<Input>, bool), ApiError> {
        let (inputs, single) = self.inputs(field)?;
        match inputs.iter().position(Input::is_tokens) {
            None => Ok((inputs, single)),
            Some(at) => {
                let message = format!("{field}[{at}] is a list of token ids; this API takes texts only");
                Err(refuse(Code::UnsupportedInputType, field, message))
            }
        }
    }

    /// The documents of `field`: a list of texts, and of objects where the field is one that may hold them. An object
    /// that holds nothing but a text is that text.
    pub(super) fn documents(&self, field: &str) -> Result<Vec<Document>, ApiError> {
        let missing = || refuse(Code::InvalidInput, field, format!("`{field}` is missing"));
        let items = self.scan.items(field).ok_or_else(missing)?;
        let objects = field != "texts";
        if !matches!(items.shape, Shape::Texts | Shape::Objects) || (items.shape == Shape::Objects && !objects) {
            return Err(wrong_type(field, if objects { "a list of strings or objects" } else { "a list of strings" }));
        }
        let document = |item: &crate::edge::scan::Item| {
            let raw = self.body.slice_ref(self.slice_of(&item.range));
            match item.kind {
                ItemKind::Object => text_of_object(&raw).map_or(Document::Object(raw), Document::Text),
                ItemKind::Text | ItemKind::Tokens => Document::Text(raw),
            }
        };
        Ok(items.items.iter().map(document).collect())
    }

    /// The encoding by OpenAI's words.
    pub(super) fn encoding(&self, field: &str) -> Result<Encoding, ApiError> {
        match self.text(field)?.as_deref() {
            None | Some("float") => Ok(Encoding::Float),
            Some("base64") => Ok(Encoding::Base64),
            Some(other) => Err(unknown_value(field, other, "\"float\" or \"base64\"")),
        }
    }

    /// The element type.
    pub(super) fn dtype(&self, field: &str) -> Result<Dtype, ApiError> {
        self.text(field)?.map_or(Ok(Dtype::Float), |word| {
            dtype(&word).ok_or_else(|| unknown_value(field, &word, "float, int8, uint8, binary or ubinary"))
        })
    }

    /// What the texts are for, by the words of Cohere and Voyage alike.
    pub(super) fn input_type(&self) -> Result<Option<InputType>, ApiError> {
        Ok(self.text("input_type")?.map(|word| match word.as_ref() {
            "query" | "search_query" => InputType::Query,
            "document" | "passage" | "search_document" => InputType::Document,
            other => InputType::Other(other.to_owned()),
        }))
    }

    /// Over-long texts, by `true` and `false` or by Cohere's words.
    pub(super) fn truncate(&self, field: &str) -> Result<Option<Truncate>, ApiError> {
        let Some(raw) = self.raw(field)? else { return Ok(None) };
        if let Some(cut) = boolean(raw) {
            return Ok(Some(if cut { Truncate::Cut } else { Truncate::Never }));
        }
        let word = text(raw).ok_or_else(|| wrong_type(field, "true, false or one of NONE, START and END"))?;
        match word.to_ascii_uppercase().as_str() {
            "NONE" => Ok(Some(Truncate::Never)),
            "START" => Ok(Some(Truncate::Start)),
            "END" => Ok(Some(Truncate::End)),
            _ => Err(unknown_value(field, &word, "NONE, START or END")),
        }
    }

    /// Members beside `known` and the harmless ones, as they stand; those that are `null` say nothing.
    pub(super) fn extra(&self, known: &[&str]) -> Vec<(String, Bytes)> {
        let unknown = self.scan.members.iter().filter(|member| {
            let key = member.key.as_str();
            !known.contains(&key) && !NO_EFFECT.contains(&key) && !is_null(self.slice(&member.value))
        });
        unknown.map(|member| (member.key.clone(), self.body.slice_ref(self.slice_of(&member.value)))).collect()
    }

    fn slice_of(&self, range: &std::ops::Range<usize>) -> &'a [u8] {
        self.body.get(range.clone()).unwrap_or_default()
    }

    /// The whole body with the places of its members.
    pub(super) fn original(&self) -> OriginalBody {
        let members = self.scan.members.iter().map(|member| (member.key.clone(), member.value.clone()));
        OriginalBody { body: self.body.clone(), members: members.collect() }
    }

    /// Puts a request together.
    pub(super) fn request(
        &self,
        model: Option<String>,
        (inputs, single): (Vec<Input>, bool),
        dimensions: Option<u32>,
        form: AnswerForm,
        options: EmbedOptions,
    ) -> ParsedEmbed {
        ParsedEmbed { model, single, inputs, dimensions, form, options, original: self.original() }
    }
}

/// The element type of that name.
pub(super) fn dtype(word: &str) -> Option<Dtype> {
    match word {
        "float" => Some(Dtype::Float),
        "int8" => Some(Dtype::Int8),
        "uint8" => Some(Dtype::Uint8),
        "binary" => Some(Dtype::Binary),
        "ubinary" => Some(Dtype::Ubinary),
        _ => None,
    }
}

/// The raw JSON string under `text` of an object that has nothing else; `None` also for what is no text, such as half of a
/// surrogate pair.
pub(super) fn text_of_object(object: &Bytes) -> Option<Bytes> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct OnlyText<'a> {
        #[serde(borrow)]
        text: &'a serde_json::value::RawValue,
    }
    let only: OnlyText<'_> = serde_json::from_slice(object).ok()?;
    let raw = only.text.get().as_bytes();
    text(raw).map(|_| object.slice_ref(raw))
}
