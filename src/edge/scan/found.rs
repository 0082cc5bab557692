//! What a scan is told, finds and refuses.

use std::fmt;
use std::ops::Range;

use crate::config::plan::Tokenizer;
use crate::pure::cache_key::ItemDigest;
use crate::pure::token_estimate::{ClassCounts, Estimate, Sample};
use crate::spool::Spool;

/// What a body may hold.
#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    /// Most inputs in one field.
    pub max_items: usize,
    /// Deepest nesting, the body's own object included; at most 128.
    pub max_depth: u32,
    /// Most members of the body itself.
    pub max_members: usize,
    /// Longest key of the body itself, in bytes.
    pub max_key_bytes: usize,
    /// Whether an input may be an empty text (rerank), or may not (embeddings).
    pub allow_empty_texts: bool,
    /// Whether an input may be a JSON object (documents to rerank).
    pub allow_objects: bool,
}

impl Default for ScanLimits {
    fn default() -> Self {
        ScanLimits {
            max_items: 1_000_000,
            max_depth: 128,
            max_members: 1_024,
            max_key_bytes: 1_024,
            allow_empty_texts: false,
            allow_objects: false,
        }
    }
}

/// Whether a body is not JSON, or JSON that makes no sense here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanErrorCode {
    /// Not a JSON object.
    InvalidJson,
    /// A field that carries inputs holds something else.
    InvalidInput,
}

/// Why a body is refused. Holds places and names, never texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanError {
    /// What kind of error it is.
    pub code: ScanErrorCode,
    /// The member it is about, where it is about one.
    pub field: Option<String>,
    /// The input it is about, counted from 0.
    pub item: Option<usize>,
    /// What is wrong, for the person who wrote the client.
    pub message: String,
}

impl ScanError {
    pub(super) fn json(at: usize, what: &str) -> ScanError {
        let message = format!("the body is not valid JSON: {what} at byte {at}");
        ScanError { code: ScanErrorCode::InvalidJson, field: None, item: None, message }
    }

    pub(super) fn input(field: &str, item: Option<usize>, message: String) -> ScanError {
        ScanError { code: ScanErrorCode::InvalidInput, field: Some(field.to_owned()), item, message }
    }
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ScanError {}

/// How the inputs of a field were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One text, without a list.
    Text,
    /// A list of texts.
    Texts,
    /// One list of token ids: a single input.
    Tokens,
    /// A list of lists of token ids.
    TokenLists,
    /// A list with at least one object; the others may be texts.
    Objects,
}

/// What one input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// A text.
    Text,
    /// A list of token ids.
    Tokens,
    /// A JSON object.
    Object,
}

/// One input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its JSON value in the body, quotes or brackets included.
    pub range: Range<usize>,
    /// What it is.
    pub kind: ItemKind,
    /// Its digest: of a text the same as `cache_key::text_digest` of what the JSON string stands for, however it was
    /// escaped; of token ids the same as `cache_key::tokens_digest`; of an object, over its raw bytes, tagged.
    pub digest: ItemDigest,
    /// Characters of the text by class (of an object: of its raw bytes); all zero for token ids.
    pub counts: ClassCounts,
    /// Number of token ids; 0 for other kinds.
    pub tokens: u32,
}

impl Item {
    /// Length of the decoded text in bytes; 0 for token ids.
    pub fn text_bytes(&self) -> u64 {
        self.counts.bytes()
    }

    /// What it will cost in tokens; exact for token ids.
    pub fn estimate(&self, tokenizer: Tokenizer) -> Estimate {
        match self.kind {
            ItemKind::Tokens => Estimate::exact(u64::from(self.tokens)),
            ItemKind::Text | ItemKind::Object => Estimate::of(self.counts, tokenizer),
        }
    }
}

/// The inputs of one field, never none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    /// How they were written.
    pub shape: Shape,
    /// The inputs in the client's order.
    pub items: Vec<Item>,
    /// The file that the ranges of the inputs are in; `None`: they are in the body.
    pub spool: Option<Spool>,
}

/// One member of the body's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its key, decoded.
    pub key: String,
    /// Its key in the body, quotes included.
    pub key_range: Range<usize>,
    /// Its value in the body.
    pub value: Range<usize>,
    /// Its inputs, if it is a field that carries some and is not `null`.
    pub items: Option<Items>,
}

/// What a body was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Its members in the order of the body. Keys may repeat, except `model` and the fields that carry inputs.
    pub members: Vec<Member>,
    /// How the texts of its inputs begin.
    pub sample: Sample,
    /// Its length in bytes.
    pub len: usize,
}

impl Scan {
    /// The member of that name; the last one where a key repeats, as most parsers have it.
    pub fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.key == key)
    }

    /// The inputs of that field; `None` if it is absent or `null`.
    pub fn items(&self, key: &str) -> Option<&Items> {
        self.member(key)?.items.as_ref()
    }

    /// Moves the inputs of the first of `fields` that carries some out of the scan; none if there are none.
    pub fn take_items(&mut self, fields: &[&str]) -> Vec<Item> {
        let carrying = self.members.iter_mut().filter(|member| fields.contains(&member.key.as_str()));
        carrying.rev().find_map(|member| member.items.take()).map(|items| items.items).unwrap_or_default()
    }

    /// The raw JSON of a member's value. `body` must be the bytes that were scanned.
    pub fn raw<'a>(&self, body: &'a [u8], key: &str) -> Option<&'a [u8]> {
        body.get(self.member(key)?.value.clone())
    }
}
