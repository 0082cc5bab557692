//! The quick walk over an answer: from bracket to bracket and from quote to quote.
//!
//! It looks at what it skips only as far as needed not to lose its way. Whatever it does not expect is [`Odd`], and
//! somebody slower looks again; it never decides that an answer is wrong.

use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr2};

use super::{Answer, CutItem, Embedding, Layout, parse_index};

/// Something unusual. Not a verdict.
#[derive(Debug)]
pub(super) struct Odd;

type Walk<T> = Result<T, Odd>;

/// Cuts an answer that has nothing unusual about it.
pub(super) fn cut(answer: &Bytes, layout: Layout) -> Walk<Answer> {
    let mut cursor = Cursor { answer, at: 0 };
    let mut items = None;
    let mut members = Vec::new();
    if layout == Layout::Rows {
        items = Some(cursor.list(Cursor::row)?);
    } else {
        cursor.object(|cursor, key| {
            let found = match (layout, key, cursor.peek()) {
                (Layout::Data, "data", Some(b'[')) => cursor.list(Cursor::item)?,
                (Layout::Embeddings, "embeddings", Some(b'[')) => cursor.list(Cursor::row)?,
                (Layout::Embeddings, "embeddings", Some(b'{')) => cursor.by_type()?,
                (Layout::Embeddings, "embedding", Some(b'[')) => vec![cursor.row()?],
                _ => {
                    let value = cursor.skip()?;
                    members.push((key.to_owned(), cursor.answer.slice(value)));
                    return Ok(());
                }
            };
            once(&mut items, found)
        })?;
    }
    cursor.space();
    match items {
        Some(items) if cursor.at == answer.len() => Ok(Answer { items, members }),
        _ => Err(Odd),
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Walk<()> {
    if place.replace(value).is_some() { Err(Odd) } else { Ok(()) }
}

/// Deepest nesting of a member that is skipped.
const MAX_DEPTH: u32 = u64::BITS;

struct Cursor<'a> {
    answer: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.answer.get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.answer.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Walk<()> {
        if self.take(byte) { Ok(()) } else { Err(Odd) }
    }

    /// A list, its elements read by `element`.
    fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Walk<T>) -> Walk<Vec<T>> {
        let mut found = Vec::new();
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(found);
        }
        loop {
            self.space();
            found.push(element(self)?);
            if !self.take(b',') {
                self.expect(b']')?;
                return Ok(found);
            }
        }
    }

    /// An object, its values read by `member`, which is called at the value's first byte.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Walk<()>) -> Walk<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.space();
            let key = self.string()?;
            let answer = self.answer;
            let key = answer.get(key).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Odd)?;
            self.expect(b':')?;
            self.space();
            member(self, key)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// `{"index":…,"embedding":…}`
    fn item(&mut self) -> Walk<CutItem> {
        let (mut index, mut embedding) = (None, None);
        self.object(|cursor, key| match key {
            "embedding" => {
                let found = cursor.embedding()?;
                once(&mut embedding, found)
            }
            "index" => {
                let raw = cursor.scalar()?;
                let found = parse_index(cursor.answer.get(raw).unwrap_or_default()).map_err(|()| Odd)?;
                once(&mut index, found)
            }
            _ => cursor.skip().map(drop),
        })?;
        Ok(CutItem { index: index.flatten(), embedding: embedding.ok_or(Odd)? })
    }

    /// A vector without an index.
    fn row(&mut self) -> Walk<CutItem> {
        Ok(CutItem { index: None, embedding: self.embedding()? })
    }

    /// `{"float":[…],"base64":[…]}`: floats if they are there.
    fn by_type(&mut self) -> Walk<Vec<CutItem>> {
        let (mut floats, mut base64) = (None, None);
        self.object(|cursor, key| {
            let place = match key {
                "float" => &mut floats,
                "base64" => &mut base64,
                _ => return cursor.skip().map(drop),
            };
            let found = cursor.list(Cursor::row)?;
            once(place, found)
        })?;
        floats.or(base64).ok_or(Odd)
    }

    fn embedding(&mut self) -> Walk<Embedding> {
        match self.peek() {
            Some(b'[') => {
                let start = self.at;
                self.at += memchr(b']', self.rest()).ok_or(Odd)? + 1;
                Ok(Embedding::Numbers(self.answer.slice(start..self.at)))
            }
            Some(b'"') => Ok(Embedding::Base64(self.answer.slice(self.string()?))),
            _ => Err(Odd),
        }
    }

    /// A string without escapes; the range of what is between its quotes.
    fn string(&mut self) -> Walk<Range<usize>> {
        self.expect(b'"')?;
        let start = self.at;
        let end = start + memchr2(b'"', b'\\', self.rest()).ok_or(Odd)?;
        if self.answer.get(end) != Some(&b'"') {
            return Err(Odd);
        }
        self.at = end + 1;
        Ok(start..end)
    }

    /// Behind the end of any string; the opening quote is already taken.
    fn skip_string(&mut self) -> Walk<()> {
        loop {
            self.at += memchr2(b'"', b'\\', self.rest()).ok_or(Odd)?;
            if self.peek() == Some(b'"') {
                self.at += 1;
                return Ok(());
            }
            self.at += 2;
        }
    }

    /// A number or literal.
    fn scalar(&mut self) -> Walk<Range<usize>> {
        let start = self.at;
        while matches!(self.peek(), Some(b'a'..=b'z' | b'E' | b'0'..=b'9' | b'+' | b'-' | b'.')) {
            self.at += 1;
        }
        if self.at == start { Err(Odd) } else { Ok(start..self.at) }
    }

    /// Any value.
    fn skip(&mut self) -> Walk<Range<usize>> {
        let start = self.at;
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                self.skip_string()?;
            }
            Some(b'[' | b'{') => self.skip_container()?,
            _ => return self.scalar(),
        }
        Ok(start..self.at)
    }

    fn skip_container(&mut self) -> Walk<()> {
        // One bit a level, the innermost lowest: an object or a list.
        let (mut kinds, mut depth) = (0_u64, 0);
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => self.skip_string()?,
                b'[' | b'{' => {
                    if depth == MAX_DEPTH {
                        return Err(Odd);
                    }
                    depth += 1;
                    kinds = kinds << 1 | u64::from(byte == b'{');
                }
                b']' | b'}' => {
                    if (kinds & 1 == 1) != (byte == b'}') {
                        return Err(Odd);
                    }
                    depth -= 1;
                    kinds >>= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err(Odd)
    }
}
