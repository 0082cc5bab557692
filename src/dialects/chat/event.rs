//! Server-sent events out of the pieces in which they come. Owns where one event ends and the next begins, byte for byte;
//! refuses to know what events mean.
//!
//! Works on bytes, so that a character or a line end cut by the network is whole again before anybody looks at it.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// Longest event, bytes: beyond what any model says at once, an upstream that never ends its event.
pub const LONGEST_EVENT: usize = 64 << 20;

/// An event longer than [`LONGEST_EVENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Cuts a stream into events.
#[derive(Debug, Default)]
pub struct Splitter {
    buffer: BytesMut,
    /// Where the line begins that is being looked at.
    line: usize,
    /// Up to where that line has been looked at.
    seen: usize,
}

impl Splitter {
    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole event with the empty line that ends it, exactly as it came; `None` until more has come.
    ///
    /// # Errors
    /// The event that has begun is too long.
    pub fn take(&mut self) -> Result<Option<Bytes>, TooLong> {
        while let Some(at) = memchr::memchr2(b'\n', b'\r', self.buffer.get(self.seen..).unwrap_or_default()) {
            let end = self.seen + at;
            let after = match (self.buffer.get(end), self.buffer.get(end + 1)) {
                (Some(b'\r'), Some(b'\n')) => end + 2,
                // Whether a line feed follows is not known yet.
                (Some(b'\r'), None) => {
                    self.seen = end;
                    break;
                }
                _ => end + 1,
            };
            let empty = end == self.line;
            (self.line, self.seen) = (after, after);
            if empty {
                (self.line, self.seen) = (0, 0);
                return Ok(Some(self.buffer.split_to(after).freeze()));
            }
        }
        if self.buffer.get(self.seen) != Some(&b'\r') {
            self.seen = self.buffer.len();
        }
        if self.buffer.len() > LONGEST_EVENT { Err(TooLong) } else { Ok(None) }
    }

    /// What stands after the last whole event once the stream has ended: nothing, or an event that its sender did not
    /// end.
    pub fn rest(&mut self) -> Bytes {
        (self.line, self.seen) = (0, 0);
        self.buffer.split().freeze()
    }
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its name; empty without one.
    pub name: &'a [u8],
    /// Its data, lines joined; empty where it has none, as comments do.
    pub data: Cow<'a, [u8]>,
}

/// Reads an event.
pub fn read(event: &[u8]) -> Event<'_> {
    let event = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    let (mut name, mut data): (&[u8], Option<Cow<'_, [u8]>>) = (b"", None);
    for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => name = value,
            b"data" => {
                data = Some(match data {
                    None => Cow::Borrowed(value),
                    Some(lines) => {
                        let mut lines = lines.into_owned();
                        lines.push(b'\n');
                        lines.extend_from_slice(value);
                        Cow::Owned(lines)
                    }
                });
            }
            _ => {}
        }
    }
    Event { name, data: data.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What comes out of `stream` given in pieces that end at `cuts`.
    fn split(stream: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        let mut from = 0;
        for &to in cuts.iter().chain([&stream.len()]) {
            splitter.push(&stream[from..to]);
            from = to;
            while let Some(event) = splitter.take().expect("short") {
                events.push(event.to_vec());
            }
        }
        (events, splitter.rest().to_vec())
    }

    #[track_caller]
    fn check(stream: &str, events: &[&str], rest: &str) {
        // Whole, and byte by byte.
        let every: Vec<usize> = (0..stream.len()).collect();
        for cuts in [&[][..], &every] {
            let (found, left) = split(stream.as_bytes(), cuts);
            let found: Vec<&str> = found.iter().map(|event| std::str::from_utf8(event).expect("text")).collect();
            assert_eq!((found.as_slice(), left.as_slice()), (events, rest.as_bytes()), "{stream:?}");
        }
    }

    #[test]
    fn events_end_with_an_empty_line_of_any_kind() {
        check("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"], "");
        check("data: a\r\n\r\ndata: b\r\n\r\nda", &["data: a\r\n\r\n", "data: b\r\n\r\n"], "da");
        check("event: x\ndata: ä\n\n: note\n\n", &["event: x\ndata: ä\n\n", ": note\n\n"], "");
        check("a\n\r\nb\r\n\nc", &["a\n\r\n", "b\r\n\n"], "c");
        check("a\r\rb\r\rc", &["a\r\r", "b\r\r"], "c");
        check("data: half", &[], "data: half");
    }

    #[test]
    fn an_event_has_a_name_and_the_lines_of_its_data() {
        let of = |text: &'static str| {
            let event = read(text.as_bytes());
            (String::from_utf8_lossy(event.name).into_owned(), String::from_utf8_lossy(&event.data).into_owned())
        };
        let pair = |name: &str, data: &str| (name.to_owned(), data.to_owned());
        assert_eq!(of("event: ping\ndata: {\"a\":1}\n\n"), pair("ping", "{\"a\":1}"));
        assert_eq!(of("data:one\r\ndata: two\r\n\r\n"), pair("", "one\ntwo"));
        assert_eq!(of(": comment\n\n"), pair("", ""));
        assert_eq!(of("id: 3\nretry: 5\ndata\n\n"), pair("", ""));
        assert_eq!(of("\u{feff}data: x\n\n"), pair("", "x"));
    }

    proptest! {
        /// However a stream is cut, the same events come out, and no byte is lost.
        #[test]
        fn cuts_change_nothing(text in "[ab:é \r\n]{0,60}", mut cuts in prop::collection::vec(0_usize..60, 0..8)) {
            let bytes = text.as_bytes();
            cuts.retain(|cut| *cut <= bytes.len());
            cuts.sort_unstable();
            let whole = split(bytes, &[]);
            let cut = split(bytes, &cuts);
            prop_assert_eq!(&whole, &cut);
            let mut joined = whole.0.concat();
            joined.extend_from_slice(&whole.1);
            prop_assert_eq!(joined, bytes);
        }
    }
}
