//! A gateway as a real process with a configuration of its own, and clients that speak to it.

pub mod front;
pub mod gateway;
pub mod raw;
pub mod redis;
pub mod secrets;

pub use gateway::{Gateway, KEY, embedding_config};
pub use raw::Raw;

use serde_json::Value;

/// The vectors of an OpenAI-like answer, in the order of the list; panics with the body if it is none.
#[track_caller]
pub fn vectors(body: &Value) -> Vec<Vec<f64>> {
    let data = body["data"].as_array().unwrap_or_else(|| panic!("no data: {body}"));
    data.iter()
        .enumerate()
        .map(|(position, item)| {
            assert_eq!(item["index"], position, "index: {body}");
            let numbers = item["embedding"].as_array().unwrap_or_else(|| panic!("no numbers: {item}"));
            numbers.iter().map(|number| number.as_f64().expect("a number")).collect()
        })
        .collect()
}

/// Asserts that each vector is the scripted provider's signature of its text.
#[track_caller]
pub fn assert_signatures(body: &Value, space: &str, texts: &[&str]) {
    let vectors = vectors(body);
    assert_eq!(vectors.len(), texts.len());
    for (vector, text) in vectors.iter().zip(texts) {
        let expected = loadtest::provider::signature(space, text, vector.len());
        let got: Vec<f32> = vector.iter().map(|number| *number as f32).collect();
        assert_eq!(got, expected, "the vector of {text:?}");
    }
}
