//! A request body read once, as it arrives: is it JSON, which members does it have and where, and what are its inputs.
//!
//! Owns offsets, digests and counts, never the body itself, so that a body of any size costs the scanner some tens of
//! bytes an input. Chunks may be cut anywhere, and a bad body is refused at its first wrong byte. Refuses to know what
//! members mean, apart from the names of those that carry inputs.
//!
//! Stricter than JSON's grammar in one respect only: texts and the keys of the body itself must be valid Unicode, while
//! elsewhere half surrogate pairs pass, as they would through a parser that does not look inside.

mod found;
mod items;
mod number;
mod text;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use items::{ItemReader, Level};
use number::{Number, Step};
use text::{Fault, KeyText, Skip, StringReader};

pub use found::{Item, ItemKind, Items, Member, Scan, ScanError, ScanErrorCode, ScanLimits, Shape};
/// What may stand next outside strings, numbers and literals.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Body,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    ValueOrEnd,
    CommaOrEnd,
    Nothing,
}

/// Whose string is being read.
#[derive(Debug, Clone, Copy)]
enum Role {
    /// A key of the body itself.
    Key,
    /// A key further inside.
    InnerKey,
    /// An input.
    Item,
    /// Any other value.
    Value,
}

/// What the next byte is part of.
#[derive(Debug, Clone, Copy)]
enum Lex {
    Between(Expect),
    Text(Role),
    Digits { state: Number, token: bool },
    Word(&'static [u8]),
}

/// Reads one body.
pub struct Scanner {
    fields: &'static [&'static str],
    limits: ScanLimits,
    lex: Lex,
    /// One bit a level, the innermost lowest: an object, or a list. Bounds the depth at 128 without allocating.
    kinds: u128,
    depth: u32,
    /// Bytes before the current chunk.
    base: usize,
    strings: StringReader,
    key: KeyText,
    key_range: Range<usize>,
    value_start: usize,
    /// The value being read is that of a field that carries inputs.
    active: bool,
    reader: ItemReader,
    /// Bytes of an object input before this place are hashed.
    object_from: usize,
    members: Vec<Member>,
    failed: Option<ScanError>,
}

impl fmt::Debug for Scanner {
    /// Shows how far it is, never what it read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scanner").field("lex", &self.lex).field("depth", &self.depth).field("base", &self.base).finish()
    }
}

impl Scanner {
    /// A scanner for a body whose `fields` carry inputs.
    pub fn new(fields: &'static [&'static str], limits: ScanLimits) -> Scanner {
        Scanner {
            fields,
            limits,
            lex: Lex::Between(Expect::Body),
            kinds: 0,
            depth: 0,
            base: 0,
            strings: StringReader::default(),
            key: KeyText::new(limits.max_key_bytes),
            key_range: 0..0,
            value_start: 0,
            active: false,
            reader: ItemReader::new(limits),
            object_from: 0,
            members: Vec::new(),
            failed: None,
        }
    }

    /// Reads the next chunk. After an error every further call answers the same error.
    ///
    /// # Errors
    /// The first thing that is wrong with the body so far.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), ScanError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.read(chunk);
        self.base += chunk.len();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// The body has ended.
    ///
    /// # Errors
    /// The error that [`Self::feed`] answered, or that the body ended too early.
    pub fn finish(mut self) -> Result<Scan, ScanError> {
        match (self.failed, self.lex) {
            (Some(error), _) => Err(error),
            (None, Lex::Between(Expect::Nothing)) => {
                Ok(Scan { members: self.members, sample: self.reader.text.take_sample(), len: self.base })
            }
            (None, Lex::Between(Expect::Body)) => Err(ScanError::json(self.base, "expected an object, found nothing")),
            (None, _) => Err(ScanError::json(self.base, "it ends too early,")),
        }
    }

    fn read(&mut self, chunk: &[u8]) -> Result<(), ScanError> {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            at = match self.lex {
                Lex::Between(_) if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => at + 1,
                Lex::Between(expect) => {
                    self.structure(expect, byte, self.base + at, chunk)?;
                    at + 1
                }
                Lex::Text(role) => self.text(role, chunk, at)?,
                Lex::Digits { state, token } => self.digits(state, token, chunk, at)?,
                Lex::Word(rest) => self.word(rest, byte, at)?,
            };
        }
        if self.reader.in_object() {
            self.hash_object(chunk, self.base + chunk.len());
        }
        Ok(())
    }

    /// One byte outside strings, numbers and literals, at place `at` of the body.
    fn structure(&mut self, expect: Expect, byte: u8, at: usize, chunk: &[u8]) -> Result<(), ScanError> {
        match (expect, byte) {
            (Expect::Body, b'{') => self.open(true, at),
            (Expect::Body, _) => Err(ScanError::json(at, "expected an object, found something else")),
            (Expect::KeyOrEnd, b'}') | (Expect::ValueOrEnd, b']') => self.close(byte, at, chunk),
            (Expect::KeyOrEnd | Expect::Key, b'"') => {
                let of_body = self.depth == 1;
                if of_body {
                    self.key_range.start = at;
                }
                self.lex = Lex::Text(if of_body { Role::Key } else { Role::InnerKey });
                Ok(())
            }
            (Expect::KeyOrEnd | Expect::Key, _) => Err(ScanError::json(at, "expected a key in double quotes")),
            (Expect::Colon, b':') => {
                self.lex = Lex::Between(Expect::Value);
                Ok(())
            }
            (Expect::Colon, _) => Err(ScanError::json(at, "expected ':'")),
            (Expect::Value | Expect::ValueOrEnd, _) => self.value(byte, at),
            (Expect::CommaOrEnd, b',') => {
                self.lex = Lex::Between(if self.in_object() { Expect::Key } else { Expect::Value });
                Ok(())
            }
            (Expect::CommaOrEnd, b'}' | b']') => self.close(byte, at, chunk),
            (Expect::CommaOrEnd, _) => Err(ScanError::json(at, "expected ',' or the end of the list or object")),
            (Expect::Nothing, _) => Err(ScanError::json(at, "something follows the object")),
        }
    }

    fn value(&mut self, byte: u8, at: usize) -> Result<(), ScanError> {
        if self.depth == 1 {
            self.value_start = at;
        }
        let level = self.level();
        match byte {
            b'"' => {
                if let Some(level) = level {
                    self.reader.string(level, at)?;
                }
                self.lex = Lex::Text(if level.is_some() { Role::Item } else { Role::Value });
            }
            b'{' => {
                if let Some(level) = level {
                    self.reader.object(level, at)?;
                    self.object_from = at;
                }
                self.open(true, at)?;
            }
            b'[' => {
                if let Some(level) = level {
                    self.reader.list(level, at)?;
                }
                self.open(false, at)?;
            }
            b't' | b'f' | b'n' => {
                if let Some(level) = level {
                    self.reader.literal(level, byte)?;
                }
                self.lex = Lex::Word(match byte {
                    b't' => b"rue",
                    b'f' => b"alse",
                    _ => b"ull",
                });
            }
            _ => {
                let Some(state) = Number::first(byte) else {
                    return Err(ScanError::json(at, "expected a value"));
                };
                if let Some(level) = level {
                    self.reader.number(level)?;
                    self.reader.token_byte(byte)?;
                }
                self.lex = Lex::Digits { state, token: level.is_some() };
            }
        }
        Ok(())
    }

    /// Where in a field that carries inputs the next value stands, if it stands in one.
    fn level(&self) -> Option<Level> {
        if !self.active || self.reader.in_object() {
            return None;
        }
        match self.depth {
            1 => Some(Level::Member),
            2 => Some(Level::Element),
            _ => Some(Level::Inner),
        }
    }

    fn in_object(&self) -> bool {
        self.kinds & 1 == 1
    }

    fn open(&mut self, object: bool, at: usize) -> Result<(), ScanError> {
        let max = self.limits.max_depth.min(u128::BITS);
        if self.depth >= max {
            return Err(ScanError::json(at, &format!("nested deeper than {max} levels")));
        }
        self.depth += 1;
        self.kinds = self.kinds << 1 | u128::from(object);
        self.lex = Lex::Between(if object { Expect::KeyOrEnd } else { Expect::ValueOrEnd });
        Ok(())
    }

    fn close(&mut self, byte: u8, at: usize, chunk: &[u8]) -> Result<(), ScanError> {
        if (byte == b'}') != self.in_object() {
            let expected = if self.in_object() { "expected ',' or '}'" } else { "expected ',' or ']'" };
            return Err(ScanError::json(at, expected));
        }
        self.depth = self.depth.saturating_sub(1);
        self.kinds >>= 1;
        if self.active && self.reader.in_object() {
            if self.depth == 2 {
                self.hash_object(chunk, at + 1);
                self.reader.object_ends(at + 1);
            }
        } else if let Some(level) = self.level() {
            self.reader.list_ends(level, at + 1)?;
        }
        self.value_ends(at + 1);
        Ok(())
    }

    /// A value ended before place `end` of the body.
    fn value_ends(&mut self, end: usize) {
        self.lex = Lex::Between(if self.depth == 0 { Expect::Nothing } else { Expect::CommaOrEnd });
        if self.depth != 1 {
            return;
        }
        if let Some(member) = self.members.last_mut() {
            member.value = self.value_start..end;
            member.items = if self.active { self.reader.end() } else { None };
        }
        self.active = false;
    }

    /// Hashes the raw bytes of an object input up to place `to` of the body.
    fn hash_object(&mut self, chunk: &[u8], to: usize) {
        let raw = chunk.get(self.object_from.saturating_sub(self.base)..to - self.base).unwrap_or_default();
        self.reader.object_bytes(raw);
        self.object_from = to;
    }

    fn text(&mut self, role: Role, chunk: &[u8], at: usize) -> Result<usize, ScanError> {
        let read = match role {
            Role::Key => self.strings.feed(chunk, at, &mut self.key),
            Role::Item => self.strings.feed(chunk, at, &mut self.reader.text),
            Role::InnerKey | Role::Value => self.strings.feed(chunk, at, &mut Skip),
        };
        let end = match read {
            Ok(Some(end)) => end,
            Ok(None) => return Ok(chunk.len()),
            Err((_, Fault::LoneSurrogate)) if matches!(role, Role::Item) => return Err(self.reader.lone_surrogate()),
            Err((offset, fault)) => return Err(ScanError::json(self.base + offset, describe(fault))),
        };
        match role {
            Role::Key => self.key_ends(self.base + end)?,
            Role::Item => {
                self.reader.string_ends(self.base + end)?;
                self.value_ends(self.base + end);
            }
            Role::InnerKey => self.lex = Lex::Between(Expect::Colon),
            Role::Value => self.value_ends(self.base + end),
        }
        Ok(end)
    }

    /// A key of the body itself ended: is it new, and does its value carry inputs?
    fn key_ends(&mut self, end: usize) -> Result<(), ScanError> {
        let limits = self.limits;
        let start = self.key_range.start;
        let Some(key) = self.key.take() else {
            return Err(ScanError::json(start, &format!("a key longer than {} bytes", limits.max_key_bytes)));
        };
        if self.members.len() >= limits.max_members {
            return Err(ScanError::json(start, &format!("more than {} members", limits.max_members)));
        }
        let field = self.fields.iter().find(|field| **field == key);
        if (field.is_some() || key == "model") && self.members.iter().any(|member| member.key == key) {
            return Err(ScanError::input(&key, None, format!("{key} is given twice")));
        }
        if let Some(field) = field {
            self.reader.begin(field);
        }
        self.active = field.is_some();
        self.members.push(Member { key, key_range: start..end, value: end..end, items: None });
        self.lex = Lex::Between(Expect::Colon);
        Ok(())
    }

    fn digits(&mut self, mut state: Number, token: bool, chunk: &[u8], mut at: usize) -> Result<usize, ScanError> {
        while let Some(&byte) = chunk.get(at) {
            match state.step(byte) {
                Step::On(next) => state = next,
                Step::Broken => return Err(ScanError::json(self.base + at, "a malformed number")),
                Step::End => {
                    if token {
                        self.reader.token_ends();
                        // Long lists of ids are nothing but ids and commas: stay with them.
                        if let Some(&[b',', next @ b'1'..=b'9']) = chunk.get(at..at + 2) {
                            self.reader.token_byte(next)?;
                            state = Number::Whole;
                            at += 2;
                            continue;
                        }
                    }
                    self.value_ends(self.base + at);
                    return Ok(at);
                }
            }
            if token {
                self.reader.token_byte(byte)?;
            }
            at += 1;
        }
        self.lex = Lex::Digits { state, token };
        Ok(at)
    }

    fn word(&mut self, rest: &'static [u8], byte: u8, at: usize) -> Result<usize, ScanError> {
        match rest.split_first() {
            Some((&expected, rest)) if expected == byte => {
                self.lex = Lex::Word(rest);
                if rest.is_empty() {
                    self.value_ends(self.base + at + 1);
                }
                Ok(at + 1)
            }
            _ => Err(ScanError::json(self.base + at, "expected true, false or null")),
        }
    }
}

fn describe(fault: Fault) -> &'static str {
    match fault {
        Fault::Control => "an unescaped control character",
        Fault::Escape => "an unknown escape",
        Fault::LoneSurrogate => "half of a surrogate pair",
        Fault::Utf8 => "bytes that are not UTF-8",
    }
}
