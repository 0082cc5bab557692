//! TEI's sentence similarity, which is embeddings with a comparison at the end.
//!
//! A request becomes an ordinary embedding request of the same dialect, so that everything that holds for those
//! (cache, budget, spaces) holds here; the vectors become scores.

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::dialects::json::ObjectWriter;
use crate::error::{ApiError, Code};
use crate::vector::Vector;

#[derive(serde::Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    inputs: Sentences<'a>,
    #[serde(borrow, default)]
    parameters: Option<Parameters<'a>>,
}

#[derive(serde::Deserialize)]
struct Sentences<'a> {
    #[serde(borrow)]
    source_sentence: &'a RawValue,
    #[serde(borrow)]
    sentences: Vec<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct Parameters<'a> {
    #[serde(borrow, default)]
    truncate: Option<&'a RawValue>,
    #[serde(borrow, default)]
    truncation_direction: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt_name: Option<&'a RawValue>,
}

/// The body of TEI's `/embed` that gives the vectors of a similarity request: the source sentence first, then the
/// others. The root path takes both; what has an object as `inputs` is a similarity request.
///
/// # Errors
/// If the body is not such a request, naming the field. What is inside is checked when the new body is scanned.
pub fn similarity_as_embed(body: &[u8]) -> Result<Bytes, ApiError> {
    let wrong = |_| {
        let message =
            "`inputs` must be an object with `source_sentence` (a string) and `sentences` (a list of strings)";
        ApiError::new(Code::InvalidInput, message).param("inputs")
    };
    let Body { inputs, parameters } = serde_json::from_slice(body).map_err(wrong)?;
    if inputs.sentences.is_empty() {
        let message = "`sentences` is an empty list";
        return Err(ApiError::new(Code::InvalidInput, message).param("sentences"));
    }
    let mut object = ObjectWriter::with_capacity(body.len() + 32);
    let list = object.key("inputs");
    list.push(b'[');
    list.extend_from_slice(inputs.source_sentence.get().as_bytes());
    for sentence in inputs.sentences {
        list.push(b',');
        list.extend_from_slice(sentence.get().as_bytes());
    }
    list.push(b']');
    if let Some(parameters) = parameters {
        let members = [
            ("truncate", parameters.truncate),
            ("truncation_direction", parameters.truncation_direction),
            ("prompt_name", parameters.prompt_name),
        ];
        for (key, raw) in members {
            if let Some(raw) = raw {
                object.raw(key, raw.get().as_bytes());
            }
        }
    }
    Ok(Bytes::from(object.finish()))
}

/// The answer to a similarity request: the cosine of the first vector with each of the others, in their order.
pub fn render_similarity(vectors: &[Vector]) -> Bytes {
    let mut out = vec![b'['];
    let mut number = zmij::Buffer::new();
    if let Some((source, others)) = vectors.split_first() {
        let source = source.floats();
        for (nth, other) in others.iter().enumerate() {
            if nth > 0 {
                out.push(b',');
            }
            out.extend_from_slice(number.format_finite(cosine(&source, &other.floats())).as_bytes());
        }
    }
    out.push(b']');
    Bytes::from(out)
}

/// The cosine of two vectors, 0 where one has no direction.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { (dot(a, b) / norms) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_become_inputs() {
        let body = r#"{"inputs":{"source_sentence":"a","sentences":["\u0062","c"]},"parameters":{"truncate":true,"prompt_name":"p","truncation_direction":null}}"#;
        let made = similarity_as_embed(body.as_bytes()).expect("good");
        assert_eq!(&made[..], br#"{"inputs":["a","\u0062","c"],"truncate":true,"prompt_name":"p"}"#);
        for bad in [r#"{"inputs":"a"}"#, r#"{"inputs":{"source_sentence":"a"}}"#, "{", "[]"] {
            let error = similarity_as_embed(bad.as_bytes()).expect_err(bad);
            assert_eq!((error.status(), error.param.as_deref()), (400, Some("inputs")));
        }
        let none = similarity_as_embed(br#"{"inputs":{"source_sentence":"a","sentences":[]}}"#).expect_err("empty");
        assert_eq!(none.param.as_deref(), Some("sentences"));
    }

    #[test]
    fn scores_are_cosines() {
        let vector = |values: &[f32]| Vector::from_floats(values).expect("a vector");
        let vectors = [vector(&[2.0, 0.0]), vector(&[5.0, 0.0]), vector(&[0.0, 3.0]), vector(&[0.0, 0.0])];
        assert_eq!(&render_similarity(&vectors)[..], b"[1.0,0.0,0.0]");
        assert_eq!(&render_similarity(&[])[..], b"[]");
    }
}
