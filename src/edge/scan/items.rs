//! What counts as an input: one text, a list of texts, one list of token ids, or a list of such lists.
//!
//! Owns the rules and their messages. Refuses to know JSON's grammar: it is told what begins and ends where.

use super::text::{Staged, TextDigest};
use super::{Item, ItemKind, Items, ScanError, ScanLimits, Shape};
use crate::pure::cache_key::{OBJECT_TAG, TOKENS_TAG};
use crate::pure::token_estimate::ClassCounts;

/// How deep inside a field a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The field's own value.
    Member,
    /// An element of the field's list.
    Element,
    /// An element of an element that is a list.
    Inner,
}

/// Reads the value of one field that carries inputs.
pub(super) struct ItemReader {
    limits: ScanLimits,
    field: &'static str,
    shape: Option<Shape>,
    items: Vec<Item>,
    /// Where the item being read begins.
    start: usize,
    pub(super) text: TextDigest,
    tokens: Staged,
    token_count: u32,
    token: u64,
    in_object: bool,
}

impl ItemReader {
    pub(super) fn new(limits: ScanLimits) -> ItemReader {
        ItemReader {
            limits,
            field: "",
            shape: None,
            items: Vec::new(),
            start: 0,
            text: TextDigest::new(),
            tokens: Staged::new(),
            token_count: 0,
            token: 0,
            in_object: false,
        }
    }

    /// A field's value is about to begin.
    pub(super) fn begin(&mut self, field: &'static str) {
        self.field = field;
    }

    /// The inputs read; `None` if the value was `null`.
    pub(super) fn end(&mut self) -> Option<Items> {
        let items = std::mem::take(&mut self.items);
        self.shape.take().map(|shape| Items { shape, items, spool: None })
    }

    /// Whether an input that is an object is being read: what is inside does not matter.
    pub(super) fn in_object(&self) -> bool {
        self.in_object
    }

    pub(super) fn string(&mut self, level: Level, at: usize) -> Result<(), ScanError> {
        match level {
            Level::Member => {
                self.shape = Some(Shape::Text);
                self.text.begin();
                self.item_begins(at)
            }
            Level::Element => {
                self.expect_shape(Shape::Texts)?;
                self.text.begin();
                self.item_begins(at)
            }
            Level::Inner => Err(self.not_a_token()),
        }
    }

    pub(super) fn string_ends(&mut self, end: usize) -> Result<(), ScanError> {
        if self.text.is_empty() && !self.limits.allow_empty_texts {
            return Err(self.error(format!("{} is an empty string", self.place())));
        }
        let (digest, counts) = self.text.take();
        self.push(Item { range: self.start..end, kind: ItemKind::Text, digest, counts, tokens: 0 });
        Ok(())
    }

    pub(super) fn list(&mut self, level: Level, at: usize) -> Result<(), ScanError> {
        match level {
            Level::Member => self.start = at,
            Level::Element => {
                self.expect_shape(Shape::TokenLists)?;
                self.item_begins(at)?;
                self.tokens.push(TOKENS_TAG);
            }
            Level::Inner => return Err(self.not_a_token()),
        }
        Ok(())
    }

    pub(super) fn list_ends(&mut self, level: Level, end: usize) -> Result<(), ScanError> {
        match (level, self.shape) {
            (Level::Member, None) => {
                return Err(ScanError::input(self.field, None, format!("{} is an empty list", self.field)));
            }
            (Level::Member, Some(Shape::Tokens)) => self.tokens_end(end),
            (Level::Member, Some(_)) => {}
            _ if self.token_count == 0 => return Err(self.error(format!("{} is an empty list", self.place()))),
            _ => self.tokens_end(end),
        }
        Ok(())
    }

    pub(super) fn object(&mut self, level: Level, at: usize) -> Result<(), ScanError> {
        match level {
            Level::Member => Err(self.wrong_member("an object")),
            Level::Element if self.limits.allow_objects => {
                self.expect_shape(Shape::Objects)?;
                self.item_begins(at)?;
                self.text.tag(OBJECT_TAG);
                self.in_object = true;
                Ok(())
            }
            Level::Element => Err(self.wrong_element("an object")),
            Level::Inner => Err(self.not_a_token()),
        }
    }

    /// More raw bytes of the object being read.
    pub(super) fn object_bytes(&mut self, raw: &[u8]) {
        self.text.raw(raw);
    }

    pub(super) fn object_ends(&mut self, end: usize) {
        self.in_object = false;
        let (digest, counts) = self.text.take();
        self.push(Item { range: self.start..end, kind: ItemKind::Object, digest, counts, tokens: 0 });
    }

    pub(super) fn literal(&mut self, level: Level, first: u8) -> Result<(), ScanError> {
        let what = match first {
            b'n' => "null",
            b't' => "true",
            _ => "false",
        };
        match level {
            Level::Member if first == b'n' => Ok(()),
            Level::Member => Err(self.wrong_member(what)),
            Level::Element => Err(self.wrong_element(what)),
            Level::Inner => Err(self.not_a_token()),
        }
    }

    /// A number begins: it must be a token id.
    pub(super) fn number(&mut self, level: Level) -> Result<(), ScanError> {
        match level {
            Level::Member => return Err(self.wrong_member("a number")),
            Level::Element => {
                if self.shape.is_none() {
                    self.tokens.push(TOKENS_TAG);
                }
                self.expect_shape(Shape::Tokens)?;
            }
            Level::Inner => {}
        }
        Ok(())
    }

    /// The next byte of a token id, one that JSON allows in a number.
    pub(super) fn token_byte(&mut self, byte: u8) -> Result<(), ScanError> {
        match byte {
            b'0'..=b'9' => self.token = self.token * 10 + u64::from(byte - b'0'),
            b'-' => return Err(self.error(format!("{} is negative", self.token_place()))),
            _ => return Err(self.not_a_token()),
        }
        if self.token > u64::from(u32::MAX) {
            return Err(self.error(format!("{} is larger than {}", self.token_place(), u32::MAX)));
        }
        Ok(())
    }

    pub(super) fn token_ends(&mut self) {
        let token = u32::try_from(self.token).unwrap_or(u32::MAX);
        let [a, b, c, d] = token.to_le_bytes();
        self.tokens.push_word([a, b, c, d, 0, 0, 0, 0], 4);
        self.token = 0;
        self.token_count = self.token_count.saturating_add(1);
    }

    /// The string being read holds half a surrogate pair.
    pub(super) fn lone_surrogate(&self) -> ScanError {
        self.error(format!("{} holds half of a surrogate pair (an escape \\uD800 to \\uDFFF alone)", self.place()))
    }

    fn tokens_end(&mut self, end: usize) {
        let digest = self.tokens.take();
        let tokens = std::mem::take(&mut self.token_count);
        let counts = ClassCounts::default();
        self.push(Item { range: self.start..end, kind: ItemKind::Tokens, digest, counts, tokens });
    }

    fn push(&mut self, item: Item) {
        self.items.push(item);
    }

    fn item_begins(&mut self, at: usize) -> Result<(), ScanError> {
        if self.items.len() >= self.limits.max_items {
            let (field, max) = (self.field, self.limits.max_items);
            return Err(self.error(format!("{field} has more than {max} items")));
        }
        self.start = at;
        Ok(())
    }

    /// The first element decides what the list holds. Texts and objects may stand in one list where objects may
    /// stand at all.
    fn expect_shape(&mut self, found: Shape) -> Result<(), ScanError> {
        let shape = match (self.shape, found) {
            (None, found) => found,
            (Some(shape), found) if shape == found => found,
            (Some(Shape::Texts | Shape::Objects), Shape::Texts | Shape::Objects) => Shape::Objects,
            (Some(shape), found) => {
                let (mut one, mut other) = (contents(shape), contents(found));
                if one > other {
                    std::mem::swap(&mut one, &mut other);
                }
                let at = self.elements();
                let message = format!("{0} mixes {one} and {other} at {0}[{at}]", self.field);
                return Err(ScanError::input(self.field, Some(at), message));
            }
        };
        self.shape = Some(shape);
        Ok(())
    }

    fn wrong_member(&self, what: &str) -> ScanError {
        let message = format!("{} is {what}; expected a text, a list of texts or token ids", self.field);
        ScanError::input(self.field, None, message)
    }

    fn wrong_element(&self, what: &str) -> ScanError {
        let at = self.elements();
        let message = format!("{}[{at}] is {what}; expected a text or token ids", self.field);
        ScanError::input(self.field, Some(at), message)
    }

    fn not_a_token(&self) -> ScanError {
        self.error(format!("{} is not a whole number", self.token_place()))
    }

    /// Elements read so far.
    fn elements(&self) -> usize {
        if self.shape == Some(Shape::Tokens) { self.token_count as usize } else { self.items.len() }
    }

    /// Names the item being read.
    fn place(&self) -> String {
        match self.shape {
            Some(Shape::Text | Shape::Tokens) | None => self.field.to_owned(),
            Some(_) => format!("{}[{}]", self.field, self.items.len()),
        }
    }

    fn token_place(&self) -> String {
        format!("{}[{}]", self.place(), self.token_count)
    }

    fn error(&self, message: String) -> ScanError {
        ScanError::input(self.field, Some(self.items.len()), message)
    }
}

fn contents(shape: Shape) -> &'static str {
    match shape {
        Shape::Text | Shape::Texts => "texts",
        Shape::Tokens => "token ids",
        Shape::TokenLists => "token lists",
        Shape::Objects => "objects",
    }
}
