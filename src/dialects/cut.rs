//! Cuts the vectors out of a provider's answer without parsing a number: what comes out are slices of the answer.
//!
//! Owns the layouts in which providers put vectors, and the pairing of items with inputs. Refuses to judge vectors:
//! a slice is a vector only once `vector.rs` has checked it, and that check is what makes the quick walk here safe. The
//! walk gives up at anything unusual, and serde_json then decides what the answer says.

mod slow;
mod usage;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;

use crate::vector::{Vector, VectorError};

pub use usage::{Count, UsageRead, read_count, read_usage};

/// Where a provider puts its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `{"data":[{"index":0,"embedding":…},…]}`: OpenAI and its look-alikes, Voyage, Jina.
    Data,
    /// `{"embeddings":[…]}` or `{"embeddings":{"float":[…]}}` or `{"embedding":[…]}`: Cohere, Ollama.
    Embeddings,
    /// `[[…],[…]]`: TEI.
    Rows,
}

/// One vector as it stands in an answer, not checked yet.
#[derive(Clone, PartialEq, Eq)]
pub enum Embedding {
    /// A JSON array, brackets included.
    Numbers(Bytes),
    /// What a JSON string holds, without quotes and escapes.
    Base64(Bytes),
}

impl Embedding {
    /// Checks it. The result still shares the answer's memory.
    ///
    /// # Errors
    /// If it is not a vector of finite numbers, or not `width` wide (`None`: any but 0).
    pub fn vector(self, width: Option<u32>) -> Result<Vector, VectorError> {
        match self {
            Embedding::Numbers(array) => Vector::from_text(array, width),
            Embedding::Base64(text) => Vector::from_base64(&text, width),
        }
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Embedding::Numbers(raw) => write!(f, "Numbers({} bytes)", raw.len()),
            Embedding::Base64(raw) => write!(f, "Base64({} bytes)", raw.len()),
        }
    }
}

/// One item of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutItem {
    /// The input it says it belongs to.
    pub index: Option<u64>,
    /// Its vector.
    pub embedding: Embedding,
}

/// An answer in pieces.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its items in the order of the answer.
    pub items: Vec<CutItem>,
    /// The other members of its object, as (key, raw JSON), in the order of the answer.
    pub members: Vec<(String, Bytes)>,
}

impl Answer {
    /// The raw JSON of another member such as `model` or `usage`.
    pub fn member(&self, key: &str) -> Option<&Bytes> {
        self.members.iter().rev().find(|(name, _)| name == key).map(|(_, raw)| raw)
    }
}

impl fmt::Debug for Answer {
    /// Shows the shape only: some providers repeat the texts in their answers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.members.iter().map(|(key, _)| key).collect();
        f.debug_struct("Answer").field("items", &self.items.len()).field("members", &keys).finish()
    }
}

/// Why no vectors could be cut out of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutError {
    /// Not JSON, or cut short.
    NotJson,
    /// JSON, but there is no list of vectors where it should be.
    NoVectors,
    /// A member that may stand once stands twice.
    Repeated,
    /// An item without a vector.
    NoVector {
        /// Which item of the answer, from 0.
        item: usize,
    },
    /// An item whose `index` is not a whole number.
    BadIndex {
        /// Which item of the answer, from 0.
        item: usize,
    },
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutError::NotJson => f.write_str("the provider's answer is not complete JSON"),
            CutError::NoVectors => f.write_str("the provider's answer has no vectors"),
            CutError::Repeated => f.write_str("the provider's answer gives a member twice"),
            CutError::NoVector { item } => write!(f, "item {item} of the provider's answer has no vector"),
            CutError::BadIndex { item } => write!(f, "item {item} of the provider's answer has a malformed index"),
        }
    }
}

impl std::error::Error for CutError {}

/// Cuts an answer apart.
///
/// # Errors
/// If the answer is not complete JSON of that layout.
pub fn cut(answer: &Bytes, layout: Layout) -> Result<Answer, CutError> {
    match walk::cut(answer, layout) {
        Ok(answer) => Ok(answer),
        Err(walk::Odd) => slow::cut(answer, layout),
    }
}

/// The number of an `index` member; `Ok(None)` for `null`.
fn parse_index(raw: &[u8]) -> Result<Option<u64>, ()> {
    match read_count(raw) {
        Count::Absent => Ok(None),
        Count::Number(index) => Ok(Some(index)),
        Count::Odd => Err(()),
    }
}

/// Why the items of an answer cannot be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairError {
    /// Not one item for each input.
    Number {
        /// Inputs sent.
        expected: usize,
        /// Items in the answer.
        found: usize,
    },
    /// An index beyond the inputs.
    OutOfRange {
        /// The index.
        index: u64,
    },
    /// Two items with one index.
    Duplicate {
        /// The index.
        index: u64,
    },
    /// Some items have an index and others none.
    PartlyLabelled,
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairError::Number { expected, found } => {
                write!(f, "the provider's answer has {found} items for {expected} inputs")
            }
            PairError::OutOfRange { index } => write!(f, "the provider's answer has an item with index {index}"),
            PairError::Duplicate { index } => write!(f, "the provider's answer has two items with index {index}"),
            PairError::PartlyLabelled => f.write_str("only some items of the provider's answer have an index"),
        }
    }
}

impl std::error::Error for PairError {}

/// Puts the items of an answer to `inputs` inputs in the order of the inputs: by index, or by position where no item
/// has an index. Anything else is a faulty answer: guessing would store a vector under the wrong text.
///
/// # Errors
/// If there is not exactly one item for each input.
pub fn pair(items: Vec<CutItem>, inputs: usize) -> Result<Vec<Embedding>, PairError> {
    if items.len() != inputs {
        return Err(PairError::Number { expected: inputs, found: items.len() });
    }
    if items.iter().all(|item| item.index.is_none()) {
        return Ok(items.into_iter().map(|item| item.embedding).collect());
    }
    let mut places: Vec<Option<Embedding>> = vec![None; inputs];
    for item in items {
        let index = item.index.ok_or(PairError::PartlyLabelled)?;
        let place = usize::try_from(index).ok().and_then(|place| places.get_mut(place));
        let place = place.ok_or(PairError::OutOfRange { index })?;
        if place.replace(item.embedding).is_some() {
            return Err(PairError::Duplicate { index });
        }
    }
    // As many items as places, none twice: every place is taken.
    Ok(places.into_iter().flatten().collect())
}
