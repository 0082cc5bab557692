//! A collection that moves from one vector space to another while people search in it.

mod admin;
mod browser;
mod cases;
mod load;
mod real_models;
mod requests;

use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::{Value, json};
use vectorgate::pure::migration::Side;

use crate::support::gateway::{Answer, KEY};
use crate::support::{Gateway, assert_signatures, embedding_config, vectors};

/// One token costs 0.001 with the old model.
const OLD_MODEL: &str = "price_usd_per_million_tokens = \"1000\"\ndimensions = 8";

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The two providers: the old model's vectors have 8 numbers and lie in space `A`, the new one's 12 and in `B`.
struct Providers {
    old: Provider,
    new: Provider,
}

impl Providers {
    fn start() -> Providers {
        Self::with_delay(0.0)
    }

    fn with_delay(ms: f64) -> Providers {
        let of = |space: &str, width| {
            let script = Script::new().space(space).width(width).tokens(TokenRule::PerItem(1)).delay_ms(ms);
            Provider::start(script)
        };
        Providers { old: of("A", 8), new: of("B", 12) }
    }

    /// Models `emb-a` and `emb-b` (at twice the price, cut to 4 on demand); `collection` is the rest of its table,
    /// `extra` goes into the file's head.
    fn config(&self, collection: &str, tenant: &str, extra: &str) -> String {
        let collection =
            format!("[[collections]]\nname = \"handbook\"\nfrom = \"emb-a\"\nto = \"emb-b\"\n{collection}\n");
        self.config_without(tenant, extra) + &collection
    }

    /// The same without a collection.
    fn config_without(&self, tenant: &str, extra: &str) -> String {
        let url = |provider: &Provider| format!("{}/v1", provider.base_url());
        let upstreams = [("one", "openai", url(&self.old)), ("two", "openai", url(&self.new))];
        let upstreams: Vec<(&str, &str, &str)> = upstreams.iter().map(|(a, b, c)| (*a, *b, c.as_str())).collect();
        let text = embedding_config(&upstreams, OLD_MODEL, tenant, &format!("[money]\nper_usd = \"1\"\n{extra}"));
        let (head, last) = text.rsplit_once("{ model = \"emb-a\" }").expect("an upstream");
        format!(
            "{head}{{ model = \"emb-b\" }}{last}[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 12\n\
             matryoshka = [4, 12]\nprice_usd_per_million_tokens = \"2000\"\n"
        )
    }
}

/// What a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Query,
    Documents,
}

/// A body for one text.
fn asking(model: &str, text: &str) -> String {
    json!({ "model": model, "input": text }).to_string()
}

/// A request by tenant `t1` to the collection, by its name.
async fn ask(gateway: &Gateway, kind: Kind, text: &str) -> Answer {
    ask_as(gateway, kind, "handbook", &[], text).await
}

async fn ask_as(gateway: &Gateway, kind: Kind, model: &str, headers: &[(&str, &str)], text: &str) -> Answer {
    let class = if kind == Kind::Query { "interactive-search" } else { "batch-ingestion" };
    let headers = [&[("x-traffic-class", class)], headers].concat();
    gateway.post("/v1/embeddings", KEY, &headers, asking(model, text)).await
}

/// The side that answered: its headers, its body and its vectors must all say the same.
#[track_caller]
fn side_of(answer: &Answer, texts: &[&str]) -> Side {
    let body = answer.expect(200);
    let (side, model, width) = match answer.header("x-embedding-space") {
        "A" => (Side::From, "emb-a", 8),
        "B" => (Side::To, "emb-b", 12),
        other => panic!("a space {other:?}"),
    };
    assert_eq!(answer.header("x-embedding-model"), model);
    assert_eq!(body["model"], model);
    assert!(vectors(&body).iter().all(|vector| vector.len() == width), "{body}");
    assert_signatures(&body, answer.header("x-embedding-space"), texts);
    side
}

/// The side of one request to the collection.
async fn side(gateway: &Gateway, kind: Kind, text: &str) -> Side {
    side_of(&ask(gateway, kind, text).await, &[text])
}

async fn put(gateway: &Gateway, body: Value) -> Answer {
    gateway.admin("PUT", "/admin/collections/handbook", "", Some(body)).await
}

async fn look(gateway: &Gateway) -> Value {
    gateway.admin_get("/admin/collections/handbook").await.expect(200)
}

/// Waits until `enough` is satisfied by what the admin side tells of the collection.
async fn until(gateway: &Gateway, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look(gateway).await;
        if enough(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "{what}: still {seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
