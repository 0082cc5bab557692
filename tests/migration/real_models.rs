//! A move from one real model to another and back while people search: each vector is compared with what the model's own
//! server says of the same text, so no header has to be believed. `tests/sdk/install` brings both models.

use std::collections::BTreeMap;
use std::sync::Arc;

use vectorgate::pure::migration::Stage;

use super::load::{Asked, books_agree, walk};
use super::*;
use crate::sdk::run::EmbeddingServer;

const STEPS: [(Stage, f64); 7] = [
    (Stage::Old, 0.0),
    (Stage::Backfill, 0.0),
    (Stage::Canary, 0.5),
    (Stage::New, 0.0),
    (Stage::Canary, 0.3),
    (Stage::Backfill, 0.0),
    (Stage::Old, 0.0),
];

/// Passages of a handbook and questions about them.
const TEXTS: [&str; 16] = [
    "How do I configure mutual TLS?",
    "The proxy terminates TLS and asks each client for a certificate of its own.",
    "Where is lunch served on Fridays?",
    "The canteen is closed on public holidays.",
    "Who approves travel to a conference?",
    "Expenses are paid back within thirty days of the report.",
    "reset my password",
    "A password has at least sixteen characters and is never sent by mail.",
    "Wie beantrage ich Urlaub?",
    "Urlaub wird im Portal beantragt und von der Teamleitung freigegeben.",
    "on-call rota for the payments team",
    "Whoever is on call answers a page within five minutes.",
    "VPN does not connect from the train",
    "The tunnel prefers UDP and falls back to port 443.",
    "What may I post about customers?",
    "Names of customers are confidential unless they have agreed in writing.",
];

/// What both models' servers say of each text.
struct Truth {
    from: BTreeMap<&'static str, Vec<f64>>,
    to: BTreeMap<&'static str, Vec<f64>>,
}

async fn said_by(server: &EmbeddingServer) -> BTreeMap<&'static str, Vec<f64>> {
    let body = json!({ "model": "any", "input": TEXTS }).to_string();
    let request = reqwest::Client::new().post(format!("{}/embeddings", server.url));
    let answer = request.header("content-type", "application/json").body(body).send().await.expect("an answer");
    let body: Value = answer.json().await.expect("JSON");
    TEXTS.into_iter().zip(vectors(&body)).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

impl Truth {
    /// Whose vectors these are; the headers must say the same.
    #[track_caller]
    fn side_of(&self, answer: &Answer, texts: &[&str]) -> Side {
        let vectors = vectors(&answer.expect(200));
        assert_eq!(vectors.len(), texts.len());
        let (side, truth, said) = match vectors[0].len() {
            384 => (Side::From, &self.from, ("A", "emb-a")),
            256 => (Side::To, &self.to, ("B", "emb-b")),
            other => panic!("{other} numbers"),
        };
        for (vector, text) in vectors.iter().zip(texts) {
            let alike = if vector.len() == truth[text].len() { cosine(vector, &truth[text]) } else { 0.0 };
            assert!(alike > 0.9999, "{text:?}: {alike} to the vector of the model's own server");
        }
        assert_eq!((answer.header("x-embedding-space"), answer.header("x-embedding-model")), said);
        side
    }
}

/// The collection `handbook` between two models, each at its own server.
fn config(from: &EmbeddingServer, to: &EmbeddingServer) -> String {
    const PRICE: &str = "price_usd_per_million_tokens = \"1\"";
    // They are slow where much else runs, which is not what this is about.
    let patient = "[money]\nper_usd = \"1\"\n[breaker]\nslow_ms = 60000";
    let one = embedding_config(
        &[("one", "openai", &from.url)],
        &format!("dimensions = 384\n{PRICE}"),
        "budget = \"1.00\"",
        patient,
    );
    format!(
        "{one}[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 256\n{PRICE}\n\
         [[upstreams]]\nid = \"two\"\nprovider = \"openai\"\nbase_url = \"{}\"\nserves = [{{ model = \"emb-b\" }}]\n\
         [[collections]]\nname = \"handbook\"\nfrom = \"emb-a\"\nto = \"emb-b\"\n",
        to.url
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_one_real_model_to_another_and_back_under_load() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let (from, to) = (EmbeddingServer::start().await, EmbeddingServer::start_words().await);
    let truth = Arc::new(Truth { from: said_by(&from).await, to: said_by(&to).await });
    let gateway = Arc::new(Gateway::start(&config(&from, &to)));
    let asked = Arc::clone(&gateway);
    let ask = move |number: usize, sent: usize| {
        let (gateway, truth) = (Arc::clone(&asked), Arc::clone(&truth));
        async move {
            // One client embeds documents, the others search; half of all that is asked is asked of the models anew.
            let (kind, class, count) = match number {
                0 => (Kind::Documents, "batch-ingestion", 3),
                _ => (Kind::Query, "interactive-search", 1),
            };
            let texts: Vec<&str> = (0..count).map(|n| TEXTS[(number * 5 + sent + n) % TEXTS.len()]).collect();
            let input = if count == 1 { json!(texts[0]) } else { json!(texts) };
            let body = json!({ "model": "handbook", "input": input }).to_string();
            let fresh = if sent.is_multiple_of(2) { "no-cache" } else { "max-age=60" };
            let headers = [("x-traffic-class", class), ("cache-control", fresh)];
            let answer = gateway.post("/v1/embeddings", KEY, &headers, body).await;
            Asked { kind, text: texts[0].to_owned(), side: truth.side_of(&answer, &texts) }
        }
    };
    let sent = walk(&gateway, &STEPS, (4, 24), ask).await;
    books_agree(&gateway, sent).await;
    println!("{sent} requests over {} stages", STEPS.len());
}
