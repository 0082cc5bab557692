//! Bodies of requests in each dialect, and what is in the answers to them. Pure.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::provider::{rerank_score, signature};
use crate::scenario::{Dialect, Route};

/// What a request asks, before it is put into a dialect.
#[derive(Clone, Debug)]
pub struct Question {
    /// The model.
    pub model: String,
    /// The texts to embed, or the one query of a rerank.
    pub texts: Vec<String>,
    /// Documents of a rerank.
    pub documents: Vec<String>,
    /// `encoding_format`; empty: not said.
    pub encoding: String,
}

/// The path of a call.
pub fn path(dialect: Dialect, route: Route, model: &str) -> String {
    match (dialect, route) {
        (Dialect::Openai, Route::Embed) => "/v1/embeddings".to_owned(),
        (Dialect::Openai, Route::Rerank) => "/v1/rerank".to_owned(),
        (Dialect::Cohere, Route::Embed) => "/v2/embed".to_owned(),
        (Dialect::Cohere, Route::Rerank) => "/v2/rerank".to_owned(),
        (Dialect::Voyage, Route::Embed) => "/voyage/v1/embeddings".to_owned(),
        (Dialect::Voyage, Route::Rerank) => "/voyage/v1/rerank".to_owned(),
        (Dialect::Jina, Route::Embed) => "/jina/v1/embeddings".to_owned(),
        (Dialect::Jina, Route::Rerank) => "/jina/v1/rerank".to_owned(),
        (Dialect::Tei, Route::Embed) => format!("/tei/{model}/embed"),
        (Dialect::Tei, Route::Rerank) => format!("/tei/{model}/rerank"),
        (Dialect::Ollama, _) => "/api/embed".to_owned(),
    }
}

/// The body of a call.
pub fn body(dialect: Dialect, route: Route, question: &Question) -> Bytes {
    let Question { model, texts, documents, encoding } = question;
    if (dialect, route) == (Dialect::Openai, Route::Embed) {
        return openai(model, texts, encoding);
    }
    let query = texts.first();
    let body = match (dialect, route) {
        (Dialect::Cohere, Route::Embed) => {
            json!({"model": model, "texts": texts, "input_type": "search_document", "embedding_types": ["float"]})
        }
        (Dialect::Tei, Route::Embed) => json!({"inputs": texts}),
        (_, Route::Embed) => json!({"model": model, "input": texts}),
        (Dialect::Tei, Route::Rerank) => json!({"query": query, "texts": documents}),
        (_, Route::Rerank) => json!({"model": model, "query": query, "documents": documents}),
    };
    Bytes::from(body.to_string())
}

/// Written by hand: bodies of tens of megabytes are made while others are being sent.
fn openai(model: &str, texts: &[String], encoding: &str) -> Bytes {
    let length: usize = texts.iter().map(|text| text.len() + 3).sum();
    let mut body = String::with_capacity(length + model.len() + encoding.len() + 80);
    // Writing to a string cannot fail, and a string is always JSON.
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let _ = write!(body, "{{\"model\":{},\"input\":", quoted(model));
    match texts {
        [single] => body.push_str(&quoted(single)),
        many => {
            for (place, text) in many.iter().enumerate() {
                body.push(if place == 0 { '[' } else { ',' });
                body.push_str(&quoted(text));
            }
            body.push(']');
        }
    }
    if !encoding.is_empty() {
        let _ = write!(body, ",\"encoding_format\":{}", quoted(encoding));
    }
    body.push('}');
    Bytes::from(body)
}

/// The texts that a body asked for.
pub fn texts_of(body: &Value) -> Vec<&str> {
    let texts = ["input", "texts", "inputs"].iter().find_map(|name| body.get(name));
    match texts {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The vectors of an answer in the order of its list, whatever the dialect. Empty where there are none.
pub fn vectors_of(answer: &Value) -> Vec<Vec<f32>> {
    let list = |list: &Value| -> Vec<Vec<f32>> {
        list.as_array().map(|list| list.iter().map(numbers).collect()).unwrap_or_default()
    };
    if let Some(data) = answer.get("data").and_then(Value::as_array) {
        let in_place = data.iter().enumerate().all(|(place, item)| item["index"].as_u64() == Some(place as u64));
        return if in_place { data.iter().map(|item| numbers(&item["embedding"])).collect() } else { Vec::new() };
    }
    match answer.get("embeddings") {
        Some(Value::Object(by_type)) => by_type.get("float").map(list).unwrap_or_default(),
        Some(embeddings) => list(embeddings),
        None => list(answer),
    }
}

fn numbers(vector: &Value) -> Vec<f32> {
    match vector {
        Value::Array(numbers) => numbers.iter().filter_map(Value::as_f64).map(|number| number as f32).collect(),
        Value::String(text) => {
            let bytes = base64_simd::STANDARD.decode_to_vec(text).unwrap_or_default();
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        _ => Vec::new(),
    }
}

/// What is wrong with an answer to a request; `None`: nothing is.
pub fn mistake(route: Route, space: &str, asked: &[u8], answered: &[u8]) -> Option<String> {
    let (Ok(asked), Ok(answer)) = (serde_json::from_slice::<Value>(asked), serde_json::from_slice::<Value>(answered))
    else {
        return Some("the answer is not JSON".to_owned());
    };
    match route {
        Route::Embed => wrong_vectors(space, &texts_of(&asked), &vectors_of(&answer)),
        Route::Rerank => wrong_scores(space, &asked, &answer),
    }
}

fn wrong_vectors(space: &str, texts: &[&str], vectors: &[Vec<f32>]) -> Option<String> {
    if texts.len() != vectors.len() {
        return Some(format!("{} vectors for {} texts", vectors.len(), texts.len()));
    }
    let wrong = texts
        .iter()
        .zip(vectors)
        .position(|(text, vector)| vector.is_empty() || *vector != signature(space, text, vector.len()))?;
    Some(format!("vector {wrong} of {} is not that of its text", texts.len()))
}

fn wrong_scores(space: &str, asked: &Value, answer: &Value) -> Option<String> {
    let documents = ["documents", "texts"].iter().find_map(|name| asked[name].as_array())?;
    let query = asked["query"].as_str().unwrap_or_default();
    let results = ["results", "data"].iter().find_map(|name| answer[name].as_array()).or(answer.as_array());
    let Some(results) = results else { return Some("the answer has no results".to_owned()) };
    if results.len() != documents.len() {
        return Some(format!("{} results for {} documents", results.len(), documents.len()));
    }
    let mut last = f64::INFINITY;
    for result in results {
        let score = result.get("relevance_score").or(result.get("score")).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let place = result["index"].as_u64().and_then(|place| usize::try_from(place).ok()).unwrap_or(usize::MAX);
        let document = documents.get(place).and_then(Value::as_str);
        let right = document.map(|document| rerank_score(space, query, document));
        if right.is_none_or(|right| (right - score).abs() > 1e-6) {
            return Some(format!("the score of document {place} is not its own"));
        }
        if score > last {
            return Some("the results are not in order".to_owned());
        }
        last = score;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(texts: &[&str]) -> Question {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Question { model: "m".to_owned(), texts, documents: vec!["d\"1".to_owned()], encoding: "float".to_owned() }
    }

    #[test]
    fn bodies_are_json_in_every_dialect() {
        for dialect in [Dialect::Openai, Dialect::Cohere, Dialect::Voyage, Dialect::Jina, Dialect::Tei, Dialect::Ollama]
        {
            let made = body(dialect, Route::Embed, &question(&["a \"quoted\" text", "ü"]));
            let value: Value = serde_json::from_slice(&made).expect("JSON");
            assert_eq!(texts_of(&value), ["a \"quoted\" text", "ü"], "{dialect:?}");
            let value: Value = serde_json::from_slice(&body(dialect, Route::Rerank, &question(&["q"]))).expect("JSON");
            assert_eq!(value["query"], "q");
        }
        let single: Value =
            serde_json::from_slice(&body(Dialect::Openai, Route::Embed, &question(&["x"]))).expect("JSON");
        assert_eq!(single, json!({"model": "m", "input": "x", "encoding_format": "float"}));
    }

    #[track_caller]
    fn check(answer: Value, expected: Option<&str>) {
        let asked = json!({"input": ["one", "two"]}).to_string();
        let seen = mistake(Route::Embed, "A", asked.as_bytes(), answer.to_string().as_bytes());
        match (&seen, expected) {
            (None, None) => {}
            (Some(seen), Some(part)) => assert!(seen.contains(part), "{seen}"),
            _ => panic!("{seen:?}"),
        }
    }

    #[test]
    fn vectors_are_compared_with_what_their_texts_must_give() {
        let (one, two) = (signature("A", "one", 4), signature("A", "two", 4));
        let item = |index: u64, vector: &[f32]| json!({"index": index, "embedding": vector});
        check(json!({"data": [item(0, &one), item(1, &two)]}), None);
        check(json!({"data": [item(0, &two), item(1, &one)]}), Some("vector 0 of 2"));
        check(json!({"data": [item(1, &one), item(0, &two)]}), Some("0 vectors for 2"));
        check(json!({"data": [item(0, &one)]}), Some("1 vectors for 2"));
        check(json!({"embeddings": {"float": [one, two]}}), None);
        check(json!({"embeddings": [one, two]}), None);
        check(json!([one, two]), None);
        let bytes: Vec<u8> = one.iter().flat_map(|number| number.to_le_bytes()).collect();
        let text = base64_simd::STANDARD.encode_to_string(bytes);
        check(json!({"data": [{"index": 0, "embedding": text}, item(1, &two)]}), None);
    }

    #[test]
    fn scores_are_compared_with_those_of_their_documents() {
        let asked = json!({"query": "q", "documents": ["a", "b"]}).to_string();
        let score = |document: &str| rerank_score("A", "q", document);
        let mut order = [(0, score("a")), (1, score("b"))];
        order.sort_by(|one, other| other.1.total_cmp(&one.1));
        let results = |order: &[(i32, f64)]| {
            let list = order.iter().map(|(index, score)| json!({"index": index, "relevance_score": score}));
            json!({"results": list.collect::<Vec<_>>()}).to_string()
        };
        let seen = |answer: String| mistake(Route::Rerank, "A", asked.as_bytes(), answer.as_bytes());
        assert_eq!(seen(results(&order)), None);
        order.reverse();
        assert!(seen(results(&order)).is_some_and(|why| why.contains("order")));
        assert!(seen(results(&[(0, 2.0), (1, 0.0)])).is_some());
        assert!(seen("{}".to_owned()).is_some_and(|why| why.contains("no results")));
    }
}
