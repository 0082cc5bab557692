//! The built-in provider: vectors and scores without a model, for a first look and for tests.
//!
//! A text becomes the bag of its character trigrams, each hashed to one axis and a sign ("feature hashing", Weinberger
//! et al., 2009), scaled to unit length. Equal texts get equal vectors and similar spellings near ones, which is enough
//! to see a search work; meaning plays no part, and the start-up text says so.

use super::rerank::RerankOptions;
use super::{Dtype, EmbedOptions, Input, Unsupported};

/// Longest run of characters that is hashed as one feature.
const GRAM: usize = 3;

/// The vector of `text`, `width` wide. An empty text has the first axis.
pub fn embed(text: &str, width: u32) -> Vec<f32> {
    let width = width.max(1) as usize;
    let mut sums = vec![0.0_f32; width];
    for word in text.split_whitespace() {
        let mut folded: Vec<char> = Vec::with_capacity(word.len() + 2);
        folded.push('^');
        folded.extend(word.chars().flat_map(char::to_lowercase));
        folded.push('$');
        for gram in folded.windows(GRAM.min(folded.len())) {
            let hash = fnv1a(gram);
            let axis = (hash >> 1) % width as u64;
            sums[axis as usize] += if hash & 1 == 0 { 1.0 } else { -1.0 };
        }
    }
    let norm = sums.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if norm == 0.0 {
        sums[0] = 1.0;
    } else {
        for x in &mut sums {
            *x = (f64::from(*x) / norm) as f32;
        }
    }
    sums
}

/// A score between 0 and 1: the cosine of query and document, moved to that range.
pub fn relevance(query: &str, document: &str) -> f64 {
    const WIDTH: u32 = 512;
    let (a, b) = (embed(query, WIDTH), embed(document, WIDTH));
    let cosine: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    f64::midpoint(cosine, 1.0).clamp(0.0, 1.0)
}

fn refuse(field: &str, message: &str, input_kind: bool) -> Unsupported {
    Unsupported { field: field.to_owned(), message: message.to_owned(), input_kind }
}

/// Whether it has words for these inputs and options: it knows texts and widths, nothing else.
///
/// # Errors
/// Names the field it has no word for.
pub fn takes(inputs: &[Input], options: &EmbedOptions) -> Result<(), Unsupported> {
    if inputs.iter().any(Input::is_tokens) {
        let message = "the simulated provider takes texts only, not token ids (with LangChain: \
                       check_embedding_ctx_length=False)";
        return Err(refuse("input", message, true));
    }
    if options.dtype != Dtype::Float {
        return Err(refuse("output_dtype", "the simulated provider makes float vectors only", false));
    }
    Ok(())
}

/// Whether it has words for these options.
///
/// # Errors
/// Names the field it has no word for.
pub fn takes_rerank(options: &RerankOptions) -> Result<(), Unsupported> {
    if options.raw_scores {
        return Err(refuse("raw_scores", "the simulated provider has no raw_scores", false));
    }
    if !options.rank_fields.is_empty() {
        return Err(refuse("rank_fields", "the simulated provider ranks whole documents, without rank_fields", false));
    }
    Ok(())
}

/// FNV-1a over UTF-32: tiny, stable over versions and platforms. The vectors are no secret, so no keyed hash is needed.
fn fnv1a(gram: &[char]) -> u64 {
    gram.iter()
        .flat_map(|c| u32::from(*c).to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(a: &str, b: &str) -> f64 {
        let (a, b) = (embed(a, 384), embed(b, 384));
        a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    #[test]
    fn vectors_are_unit_length_and_stable() {
        for text in ["", " ", "a", "how do I configure mutual TLS?", "見出し語"] {
            let vector = embed(text, 384);
            let norm: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert!((norm - 1.0).abs() < 1e-6, "{text:?}: {norm}");
            assert_eq!(vector, embed(text, 384));
        }
    }

    #[test]
    fn similar_texts_are_nearer_than_others() {
        let near = cosine("configure mutual TLS on the proxy", "configuring mutual TLS for a proxy");
        let far = cosine("configure mutual TLS on the proxy", "opening hours of the canteen");
        assert!(near > 0.5 && far < 0.3, "near {near}, far {far}");
        assert!(relevance("mutual TLS", "how mutual TLS works") > relevance("mutual TLS", "canteen"));
    }
}
