//! The `traceparent` header of W3C's trace context, read and written. Knows nothing of what is done with it.

use std::fmt;

use crate::pure::digits;
use crate::telemetry::labels::TraceId;

/// A valid `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace, never zero.
    pub trace: TraceId,
    /// The caller's span, never zero.
    pub span: u64,
    /// The caller's flags; bit 0: sampled.
    pub flags: u8,
}

impl TraceParent {
    /// Reads a header; `None` for anything the W3C recommendation calls invalid, which then starts a new trace.
    pub fn parse(header: &str) -> Option<TraceParent> {
        let header = header.trim();
        let hex = |part: &str, length: usize| {
            let lower = part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            lower.then_some(()).and_then(|()| u128::from_str_radix(part, 16).ok())
        };
        let mut parts = header.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        // Version 0 has exactly four parts; a later one may append more; 255 is forbidden.
        let shape = version < 255 && (version > 0 || parts.next().is_none());
        (shape && trace != 0 && span != 0).then_some(TraceParent {
            trace: TraceId(trace),
            span: span as u64,
            flags: flags as u8,
        })
    }

    /// Whether the caller records the trace.
    pub const fn sampled(self) -> bool {
        self.flags & 1 == 1
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let [trace, span, flags] = [self.trace.0, self.span.into(), self.flags.into()].map(digits::hex);
        text[3..35].copy_from_slice(trace.as_str().as_bytes());
        text[36..52].copy_from_slice(&span.as_str().as_bytes()[16..]);
        text[53..].copy_from_slice(&flags.as_str().as_bytes()[30..]);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[track_caller]
    fn check(header: &str, valid: bool) {
        assert_eq!(TraceParent::parse(header).is_some(), valid, "{header}");
    }

    #[test]
    fn headers_are_read_as_the_recommendation_says() {
        assert_eq!(TraceParent::parse(CLIENT).expect("valid").to_string(), CLIENT);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true);
        check("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-holds", true);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false);
        check("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("00-00000000000000000000000000000000-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false);
        check("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false);
        check("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("", false);
    }
}
