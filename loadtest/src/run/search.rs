//! A small search application: an index of vectors, an index of words, and the one decision between them.
//!
//! Owns its documents, both indexes and how good their answers were. Vectors come from the gateway; where an answer says
//! `X-Retrieval-Fallback: lexical-only`, the words decide.

use std::time::Duration;

use bm25::{Document, SearchEngine, SearchEngineBuilder, Tokenizer};
use parking_lot::{Mutex, RwLock};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::request::vectors_of;
use crate::clock;
use crate::engine::{Failure, Reply};
use crate::provider::signature;
use crate::scenario::text::{Language, Texts, mixed};

/// Splits texts into lower-case words. Handbooks in several languages get by without stemming.
#[derive(Clone, Debug, Default)]
pub struct Words;

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
    }
}

/// A query, and the document that it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What is asked.
    pub text: String,
    /// The document that a good answer has in it.
    pub about: usize,
}

/// How often one path answered, and how well.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Path {
    /// Searches answered.
    pub answers: u64,
    /// Sum of the shares of the right answer's documents that were found.
    pub recall: f64,
    /// Answers with the document that the query was made from.
    pub found: u64,
    /// Time from when the query was due to the finished answer, in milliseconds.
    pub took_ms: Vec<f32>,
}

/// How searches went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Answered by vectors.
    pub by_vectors: Path,
    /// Answered by words.
    pub by_words: Path,
    /// Not answered.
    pub unanswered: u64,
}

/// The application.
pub struct SearchApp {
    seed: u64,
    space: String,
    documents: Vec<String>,
    topics: Vec<Vec<&'static str>>,
    k: usize,
    words: SearchEngine<usize, u32, Words>,
    vectors: RwLock<Vec<Vec<f32>>>,
    /// What the vectors must be: the measure for every answer.
    right: Vec<Vec<f32>>,
    tally: Mutex<Tally>,
}

impl SearchApp {
    /// An application with `count` documents whose right vectors are those of `space` at this width.
    pub fn new(seed: u64, count: usize, k: usize, space: &str, width: usize) -> Self {
        let (documents, topics): (Vec<String>, Vec<_>) = (0..count).map(|number| document(seed, number)).unzip();
        let listed = documents.iter().enumerate().map(|(id, text)| Document::new(id, text.clone()));
        let words = SearchEngineBuilder::with_tokenizer_and_documents(Words, listed.collect::<Vec<_>>()).build();
        let right = documents.iter().map(|text| signature(space, text, width)).collect();
        Self {
            seed,
            space: space.to_owned(),
            documents,
            topics,
            k,
            words,
            vectors: RwLock::default(),
            right,
            tally: Mutex::default(),
        }
    }

    /// Its documents, to be embedded.
    pub fn documents(&self) -> &[String] {
        &self.documents
    }

    /// Fills the index of vectors, one for each document in their order.
    pub fn index(&self, vectors: Vec<Vec<f32>>) {
        *self.vectors.write() = vectors;
    }

    /// The query of a number: some words of a document, favourites more often than others.
    pub fn query(&self, number: u64) -> Query {
        let mut rng = SmallRng::seed_from_u64(mixed((self.seed, "query", number)));
        let choice = Texts { pool: self.documents.len(), zipf: Some(0.8), ..Texts::default() };
        let about = usize::try_from(choice.choose(&mut rng, number, 0)).unwrap_or(0);
        let topic = self.topics.get(about).map(Vec::as_slice).unwrap_or_default();
        let count = rng.random_range(2..=4);
        let mut words: Vec<&str> = topic.sample(&mut rng, count).copied().collect();
        words.shuffle(&mut rng);
        Query { text: words.join(" "), about }
    }

    /// Answers a search with what the gateway said about its query.
    pub fn answer(&self, number: u64, outcome: &Result<Reply, Failure>, latency: Duration) {
        let began = clock::now();
        let query = self.query(number);
        let found = match outcome {
            Ok(reply) if reply.status == 200 => {
                let answer = serde_json::from_slice(&reply.body).unwrap_or_default();
                let vector = vectors_of(&answer).into_iter().next().unwrap_or_default();
                Some((true, nearest(&self.vectors.read(), &vector, self.k)))
            }
            // The whole of what an application does when there are no vectors.
            Ok(reply) if reply.headers.get("x-retrieval-fallback").is_some_and(|value| value == "lexical-only") => {
                let results = self.words.search(&query.text, self.k);
                Some((false, results.into_iter().map(|result| result.document.id).collect()))
            }
            _ => None,
        };
        let took_ms = (latency + clock::now().duration_since(began)).as_secs_f32() * 1e3;
        let Some((by_vectors, found)) = found else {
            self.tally.lock().unanswered += 1;
            return;
        };
        let width = self.right.first().map_or(0, Vec::len);
        let right = nearest(&self.right, &signature(&self.space, &query.text, width), self.k);
        let common = right.iter().filter(|id| found.contains(id)).count();
        let mut tally = self.tally.lock();
        let path = if by_vectors { &mut tally.by_vectors } else { &mut tally.by_words };
        path.answers += 1;
        path.recall += common as f64 / right.len().max(1) as f64;
        path.found += u64::from(found.contains(&query.about));
        path.took_ms.push(took_ms);
    }

    /// How searches went so far.
    pub fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }
}

/// The ids of the `k` vectors nearest to `query`, all being of unit length.
fn nearest(vectors: &[Vec<f32>], query: &[f32], k: usize) -> Vec<usize> {
    let score = |vector: &[f32]| vector.iter().zip(query).map(|(x, y)| x * y).sum::<f32>();
    let mut scored: Vec<(f32, usize)> = vectors.iter().enumerate().map(|(id, vector)| (score(vector), id)).collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    scored.into_iter().take(k).map(|(_, id)| id).collect()
}

/// A document about a few things, each named several times among other words, and those things.
fn document(seed: u64, number: usize) -> (String, Vec<&'static str>) {
    let mut rng = SmallRng::seed_from_u64(mixed((seed, "document", number)));
    let language = if number.is_multiple_of(3) { Language::De } else { Language::En };
    let all = language.words();
    let topic: Vec<&'static str> = all.iter().copied().sample(&mut rng, 7);
    let mut words: Vec<&str> = Vec::new();
    for thing in &topic {
        words.extend(std::iter::repeat_n(*thing, rng.random_range(2..=4)));
    }
    words.extend((0..10).filter_map(|_| all.choose(&mut rng).copied()));
    words.shuffle(&mut rng);
    (words.join(" "), topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: String, fallback: bool) -> Result<Reply, Failure> {
        let mut headers = hyper::HeaderMap::new();
        if fallback {
            headers.insert("x-retrieval-fallback", hyper::header::HeaderValue::from_static("lexical-only"));
        }
        Ok(Reply { status, headers, body: body.into(), body_bytes: 0 })
    }

    #[test]
    fn vectors_answer_while_there_are_some_and_words_when_the_gateway_says_so() {
        let app = SearchApp::new(1, 300, 10, "ngrams/test", 256);
        app.index(app.right.clone());
        for number in 0..100 {
            let vector = signature("ngrams/test", &app.query(number).text, 256);
            let body = serde_json::json!({"data": [{"index": 0, "embedding": vector}]}).to_string();
            app.answer(number, &reply(200, body, false), Duration::ZERO);
            app.answer(number, &reply(503, String::new(), true), Duration::ZERO);
            app.answer(number, &reply(503, String::new(), false), Duration::ZERO);
        }
        let tally = app.tally();
        let (vectors, words) = (&tally.by_vectors, &tally.by_words);
        assert_eq!((vectors.answers, words.answers, tally.unanswered), (100, 100, 100));
        assert!((vectors.recall - 100.0).abs() < 1e-6, "{}", vectors.recall);
        assert!(words.recall > 40.0 && words.recall < 100.0, "{}", words.recall);
        assert!(words.found > 70, "{}", words.found);
    }

    #[test]
    fn queries_repeat_by_their_number() {
        let app = SearchApp::new(1, 50, 10, "ngrams/test", 64);
        assert_eq!(app.query(3), app.query(3));
        assert!((0..50).map(|number| app.query(number).about).collect::<std::collections::HashSet<_>>().len() > 10);
    }
}
