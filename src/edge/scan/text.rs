//! The inside of a JSON string, fed in pieces cut anywhere: escapes, surrogate pairs, UTF-8 and control characters.
//!
//! Owns what must be remembered between two pieces. Refuses to know where the string stands in the body: what is
//! decoded goes to a [`Sink`].

use memchr::memchr2;
use sha2::{Digest, Sha256};

use crate::pure::cache_key::ItemDigest;
use crate::pure::token_estimate::{ClassCounts, Sample};

/// Why a string is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// An unescaped character below U+0020.
    Control,
    /// A backslash before something that cannot follow it.
    Escape,
    /// Half of a surrogate pair.
    LoneSurrogate,
    /// Bytes that are not UTF-8.
    Utf8,
}

/// Where decoded text goes.
pub(super) trait Sink {
    /// Whether the text must be valid Unicode: JSON's grammar allows half surrogate pairs, texts do not.
    const UNICODE: bool;

    /// Takes the next piece, always whole characters.
    fn push(&mut self, utf8: &[u8]);

    /// Takes the first `len` bytes of `word`, all ASCII.
    fn push_ascii(&mut self, word: [u8; 8], len: usize) {
        self.push(word.get(..len).unwrap_or(&word));
    }
}

/// Looks at the grammar only.
pub(super) struct Skip;

impl Sink for Skip {
    const UNICODE: bool = false;

    fn push(&mut self, _: &[u8]) {}
}

/// Collects a key, up to a bound.
pub(super) struct KeyText {
    bytes: Vec<u8>,
    max: usize,
    overflow: bool,
}

impl KeyText {
    pub(super) fn new(max: usize) -> KeyText {
        KeyText { bytes: Vec::new(), max, overflow: false }
    }

    /// The key, leaving an empty one; `None` if it was longer than the bound.
    pub(super) fn take(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.bytes);
        if std::mem::take(&mut self.overflow) { None } else { String::from_utf8(bytes).ok() }
    }
}

impl Sink for KeyText {
    const UNICODE: bool = true;

    fn push(&mut self, utf8: &[u8]) {
        self.overflow |= self.bytes.len() + utf8.len() > self.max;
        if !self.overflow {
            self.bytes.extend_from_slice(utf8);
        }
    }
}

/// Short pieces are gathered up to this many bytes before they are hashed: a text full of escapes, or a list of token
/// ids, would otherwise pay the hash's overhead for every few bytes.
const STAGE: usize = 512;

/// A digest that is fed in small pieces. Has no `Debug`: it holds parts of the text.
pub(super) struct Staged {
    hasher: Sha256,
    staged: [u8; STAGE],
    len: usize,
}

impl Staged {
    pub(super) fn new() -> Staged {
        Staged { hasher: Sha256::new(), staged: [0; STAGE], len: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.len + bytes.len() > STAGE {
            self.flush();
        }
        match self.staged.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.hasher.update(bytes),
        }
    }

    /// The first `len` bytes of a word; a copy of fixed size is much cheaper than one of a few bytes.
    pub(super) fn push_word(&mut self, word: [u8; 8], len: usize) {
        if self.len + word.len() > STAGE {
            self.flush();
        }
        if let Some(room) = self.staged.get_mut(self.len..self.len + word.len()) {
            room.copy_from_slice(&word);
            self.len += len.min(word.len());
        }
    }

    /// The digest, leaving an empty one.
    pub(super) fn take(&mut self) -> ItemDigest {
        self.flush();
        self.hasher.finalize_reset().into()
    }

    fn flush(&mut self) {
        self.hasher.update(&self.staged[..self.len]);
        self.len = 0;
    }
}

/// Digest and character counts of a text, and a sample of all texts.
pub(super) struct TextDigest {
    digest: Staged,
    counts: ClassCounts,
    sample: Sample,
}

impl TextDigest {
    pub(super) fn new() -> TextDigest {
        TextDigest { digest: Staged::new(), counts: ClassCounts::default(), sample: Sample::default() }
    }

    /// Another text begins.
    pub(super) fn begin(&mut self) {
        self.sample.begin();
    }

    /// Bytes so far are zero.
    pub(super) fn is_empty(&self) -> bool {
        self.counts == ClassCounts::default()
    }

    /// The results, leaving an empty text.
    pub(super) fn take(&mut self) -> (ItemDigest, ClassCounts) {
        (self.digest.take(), std::mem::take(&mut self.counts))
    }

    /// The sample of all texts, leaving an empty one.
    pub(super) fn take_sample(&mut self) -> Sample {
        std::mem::take(&mut self.sample)
    }

    /// Adds bytes to the digest without counting them.
    pub(super) fn tag(&mut self, bytes: &[u8]) {
        self.digest.push(bytes);
    }

    /// Adds bytes that are not a text, and may be cut anywhere.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.counts.add(bytes);
        self.digest.push(bytes);
    }
}

impl Sink for TextDigest {
    const UNICODE: bool = true;

    fn push(&mut self, utf8: &[u8]) {
        self.counts.add(utf8);
        self.sample.add(utf8);
        self.digest.push(utf8);
    }

    fn push_ascii(&mut self, word: [u8; 8], len: usize) {
        self.counts.add_ascii(len);
        self.sample.add(word.get(..len).unwrap_or(&word));
        self.digest.push_word(word, len);
    }
}

/// What the next byte of a string is part of.
#[derive(Debug, Clone, Copy, Default)]
enum Part {
    #[default]
    Plain,
    Backslash,
    Hex {
        value: u16,
        left: u8,
    },
    /// After a high surrogate: its partner must follow.
    High(u16),
    HighBackslash(u16),
    HighHex {
        high: u16,
        value: u16,
        left: u8,
    },
}

/// Reads one string, from behind its opening quote to behind its closing one.
#[derive(Default)]
pub(super) struct StringReader {
    part: Part,
    /// The beginning of a character that was cut by the end of a chunk.
    carry: [u8; 4],
    carried: usize,
}

impl StringReader {
    /// Reads on from `at`. Returns the place behind the closing quote, or `None` if the chunk ended first; on a
    /// fault the place where it shows. Ready for another string after a closing quote.
    pub(super) fn feed<S: Sink>(
        &mut self,
        chunk: &[u8],
        mut at: usize,
        sink: &mut S,
    ) -> Result<Option<usize>, (usize, Fault)> {
        while let Some(&byte) = chunk.get(at) {
            match self.part {
                Part::Plain => {
                    at = self.short(chunk, at, sink);
                    let rest = &chunk[at..];
                    let run = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    self.plain(&rest[..run], sink).map_err(|(offset, fault)| (at + offset, fault))?;
                    at += run;
                    let Some(&stop) = rest.get(run) else { return Ok(None) };
                    if self.carried > 0 {
                        return Err((at, Fault::Utf8));
                    }
                    at += 1;
                    if stop == b'"' {
                        return Ok(Some(at));
                    }
                    self.part = Part::Backslash;
                }
                Part::Backslash => {
                    self.part = Part::Plain;
                    match simple(byte) {
                        Some(byte) => sink.push(&[byte]),
                        None if byte == b'u' => self.part = Part::Hex { value: 0, left: 4 },
                        None => return Err((at, Fault::Escape)),
                    }
                    at += 1;
                }
                Part::Hex { value, left } => {
                    let value = hex(value, byte).ok_or((at, Fault::Escape))?;
                    at += 1;
                    self.part = match left {
                        1 => unit(value, sink).map_err(|fault| (at, fault))?,
                        _ => Part::Hex { value, left: left - 1 },
                    };
                }
                Part::High(high) if byte == b'\\' => {
                    self.part = Part::HighBackslash(high);
                    at += 1;
                }
                Part::HighBackslash(high) if byte == b'u' => {
                    self.part = Part::HighHex { high, value: 0, left: 4 };
                    at += 1;
                }
                Part::High(_) => {
                    lone::<S>().map_err(|fault| (at, fault))?;
                    self.part = Part::Plain;
                }
                Part::HighBackslash(_) => {
                    lone::<S>().map_err(|fault| (at, fault))?;
                    self.part = Part::Backslash;
                }
                Part::HighHex { high, value, left } => {
                    let value = hex(value, byte).ok_or((at, Fault::Escape))?;
                    at += 1;
                    self.part = match left {
                        1 => pair(high, value, sink).map_err(|fault| (at, fault))?,
                        _ => Part::HighHex { high, value, left: left - 1 },
                    };
                }
            }
        }
        Ok(None)
    }

    /// What is cheap to read in small steps: short runs of ASCII, and escapes that are whole in this chunk. The place
    /// of the first byte that needs more care, or at which a longer stride pays.
    fn short<S: Sink>(&mut self, chunk: &[u8], mut at: usize, sink: &mut S) -> usize {
        if self.carried > 0 {
            return at;
        }
        let mut strides = 0;
        while let Some(&word) = chunk.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            let special = special(word);
            if special == 0 {
                sink.push_ascii(word, 8);
                at += 8;
                strides += 1;
                if strides == MAX_STRIDES {
                    return at;
                }
                continue;
            }
            let len = special.trailing_zeros() as usize / 8;
            sink.push_ascii(word, len);
            at += len;
            let taken = chunk.get(at..).map_or(0, |rest| whole_escape(rest, sink));
            if taken == 0 {
                return at;
            }
            at += taken;
            strides = 0;
        }
        at
    }

    /// A run without quotes and backslashes. One pass tells control characters and plain ASCII, so that only text
    /// in other scripts pays for UTF-8 validation.
    fn plain<S: Sink>(&mut self, piece: &[u8], sink: &mut S) -> Result<(), (usize, Fault)> {
        let completed = if self.carried > 0 { self.complete(piece, sink)? } else { 0 };
        let piece = &piece[completed..];
        let (mut low, mut bits) = (u8::MAX, 0_u8);
        for &byte in piece {
            low = low.min(byte);
            bits |= byte;
        }
        if low < 0x20 {
            let place = piece.iter().position(|&byte| byte < 0x20).unwrap_or(0);
            return Err((completed + place, Fault::Control));
        }
        if bits < 0x80 {
            sink.push(piece);
            return Ok(());
        }
        let error = match std::str::from_utf8(piece) {
            Ok(_) => {
                sink.push(piece);
                return Ok(());
            }
            Err(error) => error,
        };
        let (valid, tail) = piece.split_at(error.valid_up_to());
        match self.carry.get_mut(..tail.len()) {
            Some(room) if error.error_len().is_none() => {
                room.copy_from_slice(tail);
                self.carried = tail.len();
                sink.push(valid);
                Ok(())
            }
            _ => Err((completed + valid.len(), Fault::Utf8)),
        }
    }

    /// Ends a character that an earlier chunk began; returns how much of the piece it took.
    fn complete<S: Sink>(&mut self, piece: &[u8], sink: &mut S) -> Result<usize, (usize, Fault)> {
        for (taken, &byte) in piece.iter().enumerate() {
            let room = self.carry.get_mut(self.carried).ok_or((taken, Fault::Utf8))?;
            *room = byte;
            self.carried += 1;
            let so_far = &self.carry[..self.carried];
            match std::str::from_utf8(so_far) {
                Ok(_) => {
                    sink.push(so_far);
                    self.carried = 0;
                    return Ok(taken + 1);
                }
                Err(error) if error.error_len().is_some() => return Err((taken, Fault::Utf8)),
                Err(_) => {}
            }
        }
        Ok(piece.len())
    }
}

/// Strides of eight bytes after which a run counts as long.
const MAX_STRIDES: u32 = 6;

/// Eight bytes, the top bit set in the first that is a quote, a backslash, a control character or not ASCII; what lies
/// behind that one may be set wrongly.
fn special(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let word = u64::from_le_bytes(word);
    let is_zero = |lanes: u64| lanes.wrapping_sub(ONES) & !lanes;
    let quote = is_zero(word ^ (ONES * u64::from(b'"')));
    let backslash = is_zero(word ^ (ONES * u64::from(b'\\')));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control | word) & (ONES * 0x80)
}

/// Takes an escape that is whole and simple; how long it is, 0 if it is something else.
fn whole_escape<S: Sink>(rest: &[u8], sink: &mut S) -> usize {
    match *rest {
        [b'\\', b'u', a, b, c, d, ..] => {
            let value = [a, b, c, d].into_iter().try_fold(0, hex);
            let Some(character) = value.and_then(|value| char::from_u32(u32::from(value))) else { return 0 };
            sink.push(character.encode_utf8(&mut [0; 4]).as_bytes());
            6
        }
        [b'\\', letter, ..] => match simple(letter) {
            Some(byte) => {
                sink.push_ascii([byte; 8], 1);
                2
            }
            None => 0,
        },
        _ => 0,
    }
}

/// What a letter behind a backslash stands for.
fn simple(letter: u8) -> Option<u8> {
    match letter {
        b'"' | b'\\' | b'/' => Some(letter),
        b'b' => Some(0x08),
        b'f' => Some(0x0C),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}

fn hex(value: u16, byte: u8) -> Option<u16> {
    let digit = char::from(byte).to_digit(16)?;
    Some(value << 4 | u16::try_from(digit).ok()?)
}

/// Half a pair: a fault in a text, nothing to JSON's grammar.
fn lone<S: Sink>() -> Result<(), Fault> {
    if S::UNICODE { Err(Fault::LoneSurrogate) } else { Ok(()) }
}

/// Takes one `\u` escape that no high surrogate precedes.
fn unit<S: Sink>(value: u16, sink: &mut S) -> Result<Part, Fault> {
    match char::from_u32(u32::from(value)) {
        Some(character) => {
            sink.push(character.encode_utf8(&mut [0; 4]).as_bytes());
            Ok(Part::Plain)
        }
        None if value < 0xDC00 => Ok(Part::High(value)),
        None => lone::<S>().map(|()| Part::Plain),
    }
}

/// Takes a `\u` escape behind a high surrogate.
fn pair<S: Sink>(high: u16, low: u16, sink: &mut S) -> Result<Part, Fault> {
    match char::decode_utf16([high, low]).next() {
        Some(Ok(character)) => {
            sink.push(character.encode_utf8(&mut [0; 4]).as_bytes());
            Ok(Part::Plain)
        }
        _ => {
            lone::<S>()?;
            unit(low, sink)
        }
    }
}
