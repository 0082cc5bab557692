//! Where an HTTP/1 answer begins and ends. Owns the rules of framing, on bytes alone; knows no connection and no clock.
//!
//! Lines are taken apart by `httparse`. What is decided here is strict where two readers could disagree about the end of
//! an answer: such an answer is refused, because the next one on its connection would begin somewhere else.

use std::mem::MaybeUninit;

use actix_web::http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use bytes::{Buf as _, Bytes, BytesMut};

use super::Headers;

/// Most headers of an answer: as many as are taken of a request of a client.
const MOST_HEADERS: usize = 96;

/// Longest head, bytes: the same.
pub const LONGEST_HEAD: usize = 128 << 10;

/// Longest line that states a chunk's size, extensions included.
const LONGEST_SIZE_LINE: usize = 4 << 10;

/// It is not HTTP, or no two readers need agree on what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Status.
    pub status: u16,
    /// Headers, in the order in which they came.
    pub headers: Headers,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the connection may be used again once the body has ended.
    pub reusable: bool,
}

/// How a body ends, and what is still to come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// After so many more bytes.
    Length(u64),
    /// With its last chunk.
    Chunked(Chunks),
    /// When the connection is closed.
    UntilClose,
}

/// What comes next of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunks {
    /// The size of a chunk.
    Size,
    /// So many more bytes of a chunk.
    Data(u64),
    /// The end of a chunk's line.
    DataEnd,
    /// Trailers, of which so many bytes have come; nobody reads them.
    Trailers(usize),
    /// Nothing.
    Done,
}

/// Takes a head off the beginning of `buf`, which is not touched before all of it is there. `seen` is 0 for a new
/// answer and the reader's own between two calls: each byte is looked at once, however finely they are cut.
///
/// # Errors
/// It is no head, or one that does not say plainly where its body ends.
pub fn head(buf: &mut BytesMut, seen: &mut usize) -> Result<Option<Head>, Malformed> {
    const START: &[u8] = b"HTTP/1.";
    let begun = buf.len().min(START.len());
    if buf.get(..begun) != START.get(..begun) {
        return Err(Malformed);
    }
    match end_of_head(buf, seen) {
        Some(end) if end <= LONGEST_HEAD => {
            let head = buf.split_to(end).freeze();
            read(&head).map(Some)
        }
        None if buf.len() < LONGEST_HEAD => Ok(None),
        _ => Err(Malformed),
    }
}

/// Behind the first empty line; `seen` becomes the start of the last line that has not ended.
fn end_of_head(buf: &[u8], seen: &mut usize) -> Option<usize> {
    while let Some(length) = buf.get(*seen..).and_then(|rest| memchr::memchr(b'\n', rest)) {
        let line = buf.get(*seen..*seen + length).unwrap_or_default();
        let next = *seen + length + 1;
        if matches!(line, b"" | b"\r") {
            return Some(next);
        }
        *seen = next;
    }
    None
}

fn read(head: &Bytes) -> Result<Head, Malformed> {
    let mut room = [const { MaybeUninit::uninit() }; MOST_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let mut rules = httparse::ParserConfig::default();
    rules.allow_spaces_after_header_name_in_responses(true);
    match rules.parse_response_with_uninit_headers(&mut parsed, head, &mut room) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        _ => return Err(Malformed),
    }
    let (Some(status @ 100..=999), Some(minor)) = (parsed.code, parsed.version) else { return Err(Malformed) };
    let mut headers = Headers::with_capacity(parsed.headers.len());
    let mut said = Said::default();
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Malformed)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(header.value)).map_err(|_| Malformed)?;
        said.hear(&name, value.as_bytes())?;
        headers.push((name, value));
    }
    let framing = said.framing(status, minor)?;
    let reusable = minor == 1 && !said.closes && framing != Framing::UntilClose;
    Ok(Head { status, headers, framing, reusable })
}

/// What the headers say of the body's end.
#[derive(Default)]
struct Said {
    length: Option<u64>,
    coding: Option<bool>,
    closes: bool,
}

impl Said {
    fn hear(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Malformed> {
        if *name == CONTENT_LENGTH {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(value).ok().filter(|_| digits && self.length.is_none());
            self.length = Some(text.and_then(|text| text.parse().ok()).ok_or(Malformed)?);
        } else if *name == TRANSFER_ENCODING {
            let chunked = value.eq_ignore_ascii_case(b"chunked");
            if self.coding.is_some() || !(chunked || value.eq_ignore_ascii_case(b"identity")) {
                return Err(Malformed);
            }
            self.coding = Some(chunked);
        } else if *name == CONNECTION {
            let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            self.closes |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
        }
        Ok(())
    }

    fn framing(&self, status: u16, minor: u8) -> Result<Framing, Malformed> {
        let chunked = self.coding == Some(true);
        // A length beside it is how answers are split; HTTP/1.0 has no chunks.
        if chunked && (self.length.is_some() || minor == 0) {
            return Err(Malformed);
        }
        Ok(match (status, chunked, self.length) {
            (100..=199 | 204 | 304, ..) => Framing::Length(0),
            (_, true, _) => Framing::Chunked(Chunks::Size),
            (_, false, Some(length)) => Framing::Length(length),
            (_, false, None) => Framing::UntilClose,
        })
    }
}

impl Framing {
    /// Takes what is there of the body off the beginning of `buf`; `None` when more has to come first, or nothing will.
    ///
    /// # Errors
    /// It is not the framing that the head announced.
    pub fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Bytes>, Malformed> {
        match self {
            Framing::Length(left) | Framing::Chunked(Chunks::Data(left)) => {
                let piece = take(buf, left);
                if *self == Framing::Chunked(Chunks::Data(0)) {
                    *self = Framing::Chunked(Chunks::DataEnd);
                }
                Ok(piece)
            }
            Framing::UntilClose => {
                let mut all = u64::MAX;
                Ok(take(buf, &mut all))
            }
            Framing::Chunked(chunks) => {
                while chunks.step(buf)? {}
                if matches!(chunks, Chunks::Data(_)) { self.take(buf) } else { Ok(None) }
            }
        }
    }

    /// Whether all of the body has been taken.
    pub fn is_done(&self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunks::Done))
    }
}

fn take(buf: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buf.len());
    *left -= length as u64;
    (length > 0).then(|| buf.split_to(length).freeze())
}

impl Chunks {
    /// Reads what stands around the data; whether it got further and may get further still.
    fn step(&mut self, buf: &mut BytesMut) -> Result<bool, Malformed> {
        *self = match *self {
            Chunks::Size => {
                // The library takes an empty line for a size of 0.
                if buf.first().is_some_and(|first| !first.is_ascii_hexdigit()) {
                    return Err(Malformed);
                }
                match httparse::parse_chunk_size(buf) {
                    Ok(httparse::Status::Complete((length, size))) => {
                        buf.advance(length);
                        if size == 0 { Chunks::Trailers(0) } else { Chunks::Data(size) }
                    }
                    Ok(httparse::Status::Partial) if buf.len() < LONGEST_SIZE_LINE => return Ok(false),
                    _ => return Err(Malformed),
                }
            }
            Chunks::DataEnd => match buf.get(..buf.len().min(2)) {
                Some(b"\r\n") => {
                    buf.advance(2);
                    Chunks::Size
                }
                Some(b"" | b"\r") => return Ok(false),
                _ => return Err(Malformed),
            },
            Chunks::Trailers(seen) => match memchr::memchr(b'\n', buf) {
                Some(at) if seen + at < LONGEST_HEAD => {
                    let line = buf.split_to(at + 1);
                    match line.strip_suffix(b"\r\n") {
                        Some(b"") => Chunks::Done,
                        Some(_) => Chunks::Trailers(seen + at + 1),
                        None => return Err(Malformed),
                    }
                }
                None if seen + buf.len() < LONGEST_HEAD => return Ok(false),
                _ => return Err(Malformed),
            },
            Chunks::Data(_) | Chunks::Done => return Ok(false),
        };
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
