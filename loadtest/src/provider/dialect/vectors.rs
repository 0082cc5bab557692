//! Writing vectors: lists of numbers with a chosen number of digits, base64, and packed integers.

use serde_json::{Value, json};

use crate::provider::script::Digits;

/// A vector as `[0.1,…]`.
pub(in crate::provider) fn list(vector: &[f32], digits: Digits, out: &mut Vec<u8>) {
    out.push(b'[');
    for (place, number) in vector.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        let written = match digits {
            Digits::F32 => serde_json::to_writer(&mut *out, number),
            Digits::F64 => serde_json::to_writer(&mut *out, &f64::from(*number)),
        };
        // Writing to memory cannot fail; a number that is not finite is written as null.
        debug_assert!(written.is_ok());
    }
    out.push(b']');
}

/// The base64 text of a vector's little-endian f32 bytes.
pub(in crate::provider) fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// A vector as one of the integer types; anything else is `null`.
pub(in crate::provider) fn packed(vector: &[f32], kind: &str) -> Value {
    let bits = || {
        vector.chunks(8).map(|group| {
            group.iter().enumerate().fold(0_u8, |byte, (place, number)| byte | (u8::from(*number > 0.0) << (7 - place)))
        })
    };
    match kind {
        "int8" => vector.iter().map(|number| (number * 127.0).round() as i8).collect(),
        "uint8" => vector.iter().map(|number| ((number + 1.0) * 127.5).round() as u8).collect(),
        "ubinary" => bits().collect(),
        "binary" => bits().map(|byte| i16::from(byte) - 128).collect(),
        _ => json!(null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(vector: &[f32], digits: Digits) -> String {
        let mut out = Vec::new();
        list(vector, digits, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lists_have_the_digits_asked_for() {
        assert_eq!(written(&[0.1, -0.0, 1.0], Digits::F32), "[0.1,-0.0,1.0]");
        assert_eq!(written(&[0.1], Digits::F64), "[0.10000000149011612]");
        assert_eq!(written(&[], Digits::F32), "[]");
    }

    #[test]
    fn base64_is_little_endian_with_padding() {
        assert_eq!(base64(&[1.0, 2.0]), "AACAPwAAAEA=");
    }

    #[test]
    fn bits_are_packed_from_the_most_significant() {
        let vector = [1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 0.5];
        assert_eq!(packed(&vector, "ubinary"), json!([0b1010_0001]));
        assert_eq!(packed(&vector, "binary"), json!([0b1010_0001 - 128]));
        assert_eq!(packed(&[0.5, -1.0], "int8"), json!([64, -127]));
    }
}
