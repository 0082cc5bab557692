//! Vectors and scores that can be traced back to the texts they were made from.
//!
//! Owns the one deterministic function text → vector. It knows no dialect: a test computes the same value and compares.

use serde::{Deserialize, Serialize};

/// One text to embed, as a client may give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// Plain text.
    Text(String),
    /// Token ids of the model's own tokenizer.
    Tokens(Vec<u64>),
}

/// FNV-1a over length-prefixed fields, so that `("ab", "c")` and `("a", "bc")` differ.
struct Fields(u64);

impl Fields {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in [0, 1) with 53 random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Spaces whose name starts with this hold vectors in which similar texts are near each other: hashed words and
/// character trigrams. They are no model's vectors, but a search over them finds what it should.
pub const NGRAMS: &str = "ngrams";

/// The hashed words and trigrams of a text, each with a sign of its own.
fn ngrams(space: &str, text: &str, width: usize) -> Vec<f32> {
    let mut raw = vec![0.0; width];
    let mut add = |kind: &[u8], piece: &str, weight: f64| {
        let mut state = Fields::new().bytes(space.as_bytes()).bytes(kind).bytes(piece.as_bytes()).0;
        let bits = next(&mut state);
        let sign = if bits >> 63 == 0 { weight } else { -weight };
        let place = usize::try_from(bits % (width.max(1) as u64)).unwrap_or(0);
        if let Some(number) = raw.get_mut(place) {
            *number += sign;
        }
    };
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let word = word.to_lowercase();
        add(b"word", &word, 2.0);
        let marked: Vec<char> = std::iter::once('^').chain(word.chars()).chain(std::iter::once('$')).collect();
        for gram in marked.windows(3) {
            add(b"gram", &gram.iter().collect::<String>(), 1.0);
        }
    }
    if raw.iter().all(|number| *number == 0.0) {
        raw.iter_mut().take(1).for_each(|number| *number = 1.0);
    }
    normalise(&raw)
}

/// The vector of `text` in `space`, `width` numbers long and of unit length; no request option was sent.
pub fn signature(space: &str, text: &str, width: usize) -> Vec<f32> {
    signature_of(space, "", &Item::Text(text.to_owned()), width)
}

/// The vector of a token list in `space`; never equal to that of any text.
pub fn signature_tokens(space: &str, tokens: &[u64], width: usize) -> Vec<f32> {
    signature_of(space, "", &Item::Tokens(tokens.to_vec()), width)
}

/// The vector of an item when the request carried `options`: the members that change a vector, as `name=value` joined
/// by `;` in the order of [`super::Script`]'s documentation (for example `input_type=query`). Empty: none were sent.
pub fn signature_of(space: &str, options: &str, item: &Item, width: usize) -> Vec<f32> {
    if let (true, Item::Text(text)) = (space.starts_with(NGRAMS), item) {
        return ngrams(space, text, width);
    }
    let fields = Fields::new().bytes(space.as_bytes()).bytes(options.as_bytes());
    let fields = match item {
        Item::Text(text) => fields.bytes(b"text").bytes(text.as_bytes()),
        Item::Tokens(tokens) => {
            tokens.iter().fold(fields.bytes(b"tokens"), |fields, token| fields.bytes(&token.to_le_bytes()))
        }
    };
    let mut state = fields.0;
    let raw: Vec<f64> = (0..width).map(|_| unit(next(&mut state)) * 2.0 - 1.0).collect();
    normalise(&raw)
}

fn normalise(raw: &[f64]) -> Vec<f32> {
    let norm = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    raw.iter().map(|x| (x * scale) as f32).collect()
}

/// The first `width` numbers of a vector, scaled back to unit length. A zero prefix stays zero.
pub fn shorten(vector: &[f32], width: usize) -> Vec<f32> {
    let raw: Vec<f64> = vector.iter().take(width).map(|x| f64::from(*x)).collect();
    normalise(&raw)
}

/// A vector turned slightly aside: `amount` of another direction is mixed in and the length restored. 0 changes
/// nothing; the cosine to the original is about `1 / sqrt(1 + amount²)`.
pub fn disturb(vector: &[f32], amount: f32) -> Vec<f32> {
    let aside = signature("noise", "noise", vector.len());
    let raw: Vec<f64> =
        vector.iter().zip(&aside).map(|(x, y)| f64::from(*x) + f64::from(amount) * f64::from(*y)).collect();
    normalise(&raw)
}

/// The relevance of `document` for `query` in `space`: in [0, 1), with six decimals.
pub fn rerank_score(space: &str, query: &str, document: &str) -> f64 {
    let fields = Fields::new().bytes(space.as_bytes()).bytes(query.as_bytes()).bytes(document.as_bytes());
    let mut state = fields.0;
    (next(&mut state) % 1_000_000) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn norm(vector: &[f32]) -> f64 {
        vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
    }

    proptest! {
        #[test]
        fn a_signature_has_its_width_and_unit_length(text in ".{0,40}", width in 1_usize..200) {
            let vector = signature("A", &text, width);
            prop_assert_eq!(vector.len(), width);
            prop_assert!((norm(&vector) - 1.0).abs() < 1e-6);
        }

        #[test]
        fn a_shortened_vector_has_unit_length_and_the_same_direction(text in ".{1,20}", width in 1_usize..16) {
            let whole = signature("A", &text, 16);
            let short = shorten(&whole, width);
            prop_assert_eq!(short.len(), width);
            prop_assert!((norm(&short) - 1.0).abs() < 1e-6);
            prop_assert!(short.iter().zip(&whole).all(|(s, w)| (s.is_sign_positive()) == w.is_sign_positive()));
        }
    }

    #[test]
    fn every_field_changes_the_vector() {
        let base = signature("A", "text", 8);
        assert_eq!(base, signature("A", "text", 8));
        assert_ne!(base, signature("B", "text", 8));
        assert_ne!(base, signature("A", "texT", 8));
        assert_ne!(base, signature_of("A", "input_type=query", &Item::Text("text".to_owned()), 8));
        assert_ne!(signature("A", "[1,2]", 8), signature_tokens("A", &[1, 2], 8));
        assert_ne!(signature_tokens("A", &[1, 23], 8), signature_tokens("A", &[12, 3], 8));
    }

    #[test]
    fn similar_texts_are_near_each_other_in_an_ngram_space() {
        let cosine = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(x, y)| x * y).sum::<f32>();
        let of = |text: &str| signature("ngrams/a", text, 256);
        let question = of("how do i configure mutual tls");
        assert!((norm(&question) - 1.0).abs() < 1e-6);
        let near = cosine(&question, &of("Configure mutual TLS on the proxy"));
        let far = cosine(&question, &of("lunch in the canteen on fridays"));
        assert!(near > 0.4 && near > far + 0.3, "{near} {far}");
        assert_eq!(of("").iter().filter(|number| **number != 0.0).count(), 1);
    }

    #[test]
    fn a_zero_prefix_does_not_divide_by_zero() {
        assert_eq!(shorten(&[0.0, 0.0, 1.0], 2), [0.0, 0.0]);
    }

    #[test]
    fn a_disturbed_vector_keeps_its_length_but_not_its_direction() {
        let vector = signature("A", "x", 64);
        let turned = disturb(&vector, 0.1);
        assert!((norm(&turned) - 1.0).abs() < 1e-6);
        assert_ne!(vector, turned);
        assert_eq!(disturb(&vector, 0.0).len(), 64);
    }

    #[test]
    fn scores_stay_in_range_and_depend_on_both_texts() {
        let score = rerank_score("A", "ab", "c");
        assert!((0.0..1.0).contains(&score));
        assert_ne!(score, rerank_score("A", "a", "bc"));
    }
}
