//! Small JSON work that needs no tree: writing one object member by member, and reading single scalar members.
//!
//! Raw values stay the bytes they were, so digits and escapes survive. Nothing here knows a field's meaning.

use std::borrow::Cow;

use super::Input;
use crate::pure::digits;

/// Appends `text` as a JSON string, quotes included.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = 0;
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => b"",
            _ => continue,
        };
        out.extend_from_slice(&bytes[rest..at]);
        if escape.is_empty() {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            out.extend_from_slice(escape);
        }
        rest = at + 1;
    }
    out.extend_from_slice(&bytes[rest..]);
    out.push(b'"');
}

/// `text` as a JSON string, quotes included.
pub fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

/// Writes one JSON object in the order of the calls.
#[derive(Debug)]
pub struct ObjectWriter {
    out: Vec<u8>,
    empty: bool,
}

impl ObjectWriter {
    /// An object of about `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> ObjectWriter {
        let mut out = Vec::with_capacity(capacity);
        out.push(b'{');
        ObjectWriter { out, empty: true }
    }

    /// Writes the key and gives the buffer for exactly one value.
    pub fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if !self.empty {
            self.out.push(b',');
        }
        self.empty = false;
        write_string(&mut self.out, key);
        self.out.push(b':');
        &mut self.out
    }

    /// A member whose value is text.
    pub fn string(&mut self, key: &str, value: &str) {
        write_string(self.key(key), value);
    }

    /// A member whose value is JSON already.
    pub fn raw(&mut self, key: &str, value: &[u8]) {
        self.key(key).extend_from_slice(value);
    }

    /// A member whose value is a whole number.
    pub fn number(&mut self, key: &str, value: u64) {
        self.raw(key, digits::decimal(value).as_str().as_bytes());
    }

    /// A member whose value is true or false.
    pub fn boolean(&mut self, key: &str, value: bool) {
        self.raw(key, if value { b"true" } else { b"false" });
    }

    /// A member whose value is the list of `inputs`, each as it stood.
    pub fn inputs(&mut self, key: &str, inputs: &[Input]) {
        write_inputs(self.key(key), inputs);
    }

    /// The finished object.
    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }
}

/// Appends the list of `inputs`, each as it stood.
pub fn write_inputs(out: &mut Vec<u8>, inputs: &[Input]) {
    out.push(b'[');
    for (at, input) in inputs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(input.raw());
    }
    out.push(b']');
}

/// Bytes that a list of `inputs` takes, brackets and commas included.
pub fn inputs_len(inputs: &[Input]) -> usize {
    inputs.iter().map(|input| input.raw().len() + 1).sum::<usize>() + 2
}

/// Whether the raw value is `null`.
pub fn is_null(raw: &[u8]) -> bool {
    raw == b"null"
}

/// The text of a raw JSON string; `None` if the value is anything else.
pub fn text(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr2(b'\\', b'"', inner).is_none() && !inner.iter().any(|&byte| byte < 0x20) {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(raw).ok().map(Cow::Owned)
}

/// The value of a raw `true` or `false`; `None` if the value is anything else.
pub fn boolean(raw: &[u8]) -> Option<bool> {
    match raw {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// A raw whole number of up to 18 digits without sign, fraction or exponent; `None` if the value is anything else.
pub fn whole_number(raw: &[u8]) -> Option<u64> {
    let digits = !raw.is_empty() && raw.len() <= 18 && raw.iter().all(u8::is_ascii_digit);
    let canonical = raw.len() == 1 || raw.first() != Some(&b'0');
    if !(digits && canonical) {
        return None;
    }
    std::str::from_utf8(raw).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_keep_their_order_and_raw_bytes() {
        let mut object = ObjectWriter::with_capacity(64);
        object.string("model", "a \"b\"\n\u{1}é");
        object.raw("x", b"1.10");
        object.number("n", 7);
        object.boolean("t", true);
        let body = String::from_utf8(object.finish()).expect("UTF-8");
        assert_eq!(body, r#"{"model":"a \"b\"\n\u0001é","x":1.10,"n":7,"t":true}"#);
        assert_eq!(ObjectWriter::with_capacity(2).finish(), b"{}");
    }

    #[test]
    fn scalars_are_read_strictly() {
        assert_eq!(text(br#""a\u00e9""#).as_deref(), Some("aé"));
        assert_eq!(text(br#""a"#), None);
        assert_eq!(text(b"\""), None);
        assert_eq!(text(b"3"), None);
        assert_eq!(text(br#""a"b""#), None);
        assert_eq!(whole_number(b"512"), Some(512));
        for bad in ["-1", "1.0", "01", "1e3", "\"5\"", "", "1234567890123456789"] {
            assert_eq!(whole_number(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(boolean(b"true"), Some(true));
        assert_eq!(boolean(b"True"), None);
    }

    proptest! {
        #[test]
        fn strings_come_back(value in any::<String>()) {
            let raw = string(&value);
            prop_assert_eq!(serde_json::from_slice::<String>(&raw).expect("valid JSON"), value.clone());
            prop_assert_eq!(text(&raw).map(Cow::into_owned), Some(value));
        }
    }
}
