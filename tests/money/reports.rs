//! The command line: reports that agree with the records, made while the gateway runs; and checks and keys.

use std::collections::BTreeMap;
use std::process::Command;

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::{Value, json};
use sha2::Digest as _;
use vectorgate::pure::money::Money;

use super::*;
use crate::support::gateway::binary;
use crate::support::{Gateway, embedding_config, gateway::KEY_TWO};

/// Requests of two tenants, two classes, hits and refusals.
async fn some_traffic(gateway: &Gateway) -> usize {
    let batch: (&str, &str) = ("x-traffic-class", "batch-ingestion");
    let body = |input: Value| json!({ "model": "emb-a", "input": input }).to_string();
    for number in 0..5 {
        gateway.embed(json!(format!("query {number}"))).await.expect(200);
        gateway.embed(json!("query 0")).await.expect(200);
        let list = json!([format!("document {number}"), "document 0", "and one more"]);
        gateway.post("/v1/embeddings", KEY, &[batch], body(list.clone())).await.expect(200);
        gateway.post("/v1/embeddings", KEY_TWO, &[batch, ("x-collection", "handbook")], body(list)).await.expect(200);
    }
    gateway.post("/v1/embeddings", KEY_TWO, &[], body(json!("only"))).await.expect(200);
    21
}

/// Figures of one group.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    requests: u64,
    items: u64,
    cached_items: u64,
    tokens: u64,
    cost: Money,
}

impl Figures {
    fn add(&mut self, requests: u64, row: &Value) {
        let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
        self.requests += requests;
        self.items += number("items");
        self.cached_items += number("cached_items");
        self.tokens += number("tokens");
        self.cost = sum([self.cost, amount(&row["cost"])]);
    }
}

/// A record's or a row's group, `groups` separated by commas.
fn group(row: &Value, groups: &str) -> String {
    let part = |name: &str| match name {
        "day" if row["day"].is_null() => row["time"].as_str().expect("a time")[..10].to_owned(),
        name => row[name].to_string().trim_matches('"').to_owned(),
    };
    groups.split(',').map(part).collect::<Vec<String>>().join(" ")
}

fn summed(records: &[Value], by: &str) -> BTreeMap<String, Figures> {
    let mut groups: BTreeMap<String, Figures> = BTreeMap::new();
    for record in records {
        groups.entry(group(record, by)).or_default().add(1, record);
    }
    groups
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_summing_agrees_with_the_records_of_a_running_gateway() {
    let provider = Provider::start(Script::new().space("A").width(8).tokens(TokenRule::Words));
    let url = format!("{}/v1", provider.base_url());
    let price = "price_usd_per_million_tokens = \"0.1234567\"\ndimensions = 8\ntokenizer = \"cl100k\"";
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], price, "budget = \"5\"", ""));
    let requests = some_traffic(&gateway).await;
    let listed = records(&gateway, requests).await;
    assert_eq!(listed.len(), requests);
    assert_eq!(
        listed.iter().map(|record| record["tokens"].as_u64().expect("tokens")).sum::<u64>(),
        provider.tokens_billed()
    );
    for by in ["tenant", "model", "class", "day", "tenant,class", "collection,upstream,key"] {
        let rows = gateway.command(&["usage", "--by", by, "--format", "jsonl"]);
        let mut reported: BTreeMap<String, Figures> = BTreeMap::new();
        for row in rows.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row")) {
            let requests = row["requests"].as_u64().expect("requests");
            reported.entry(group(&row, by)).or_default().add(requests, &row);
        }
        assert_eq!(reported, summed(&listed, by), "by {by}");
    }
    let total = sum(listed.iter().map(|record| amount(&record["cost"])));
    let table = gateway.command(&["usage", "--by", "tenant,class"]);
    let last = table.lines().last().expect("a line");
    assert!(last.starts_with("total") && last.ends_with(&total.to_string()), "{table}");
    let one = gateway.command(&["usage", "--tenant", "t2", "--format", "jsonl"]);
    assert_eq!(one.lines().count(), 6);
    let none = gateway.command(&["usage", "--until", "2020-01-01", "--format", "csv"]);
    assert_eq!(none.lines().count(), 1, "{none}");
    // The account says the same as the report.
    let spent: Vec<Money> =
        listed.iter().filter(|record| record["tenant"] == "t1").map(|record| amount(&record["cost"])).collect();
    assert_eq!(amount(&settled_account(&gateway).await["spent"]), sum(spent));
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_made_under_load_are_whole_and_only_grow() {
    let provider = Provider::start(Script::new().space("A").width(8).tokens(TokenRule::PerItem(2)));
    let url = format!("{}/v1", provider.base_url());
    let extra = format!("{ONE_TO_ONE}\n[quota]\ninteractive_max_wait_ms = 10000\n");
    let config = embedding_config(&[("one", "openai", &url)], PRICE, "budget = \"1000\"", &extra);
    let gateway = std::sync::Arc::new(Gateway::start(&config));
    let load = tokio::spawn({
        let gateway = std::sync::Arc::clone(&gateway);
        async move {
            for round in 0..20 {
                let texts = (0..10).map(|number| format!("text {round} {number}")).collect();
                for answer in all_at_once(&gateway, texts).await {
                    answer.expect(200);
                }
            }
        }
    });
    let mut seen = 0;
    while !load.is_finished() {
        let records = gateway.usage();
        assert!(records.len() >= seen, "{} after {seen}", records.len());
        seen = records.len();
    }
    load.await.expect("no request failed");
    assert_eq!(gateway.usage().len(), 200);
}

fn run(folder: &std::path::Path, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(binary()).args(arguments).current_dir(folder).output().expect("runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn check_names_every_problem_and_accepts_what_is_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |text: &str| std::fs::write(folder.path().join("gateway.toml"), text).expect("written");
    let good = embedding_config(&[("one", "openai", "http://127.0.0.1:9/v1")], PRICE, "budget = \"1\"", "");
    write(&good);
    let (valid, plan, _) = run(folder.path(), &["check", "--config", "gateway.toml"]);
    assert!(valid && plan.contains("emb-a") && plan.contains("one"), "{plan}");
    assert!(!plan.contains("upstream-secret"), "a secret is never shown");
    write(&good.replace("workers = 2", "workerz = 2").replace("budget = \"1\"", "budget = \"much\""));
    let (valid, _, problems) = run(folder.path(), &["check", "--config", "gateway.toml"]);
    assert!(!valid);
    for part in ["workerz", "workers", "budget", "2 problems"] {
        assert!(problems.contains(part), "{part:?} in {problems}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_opens_once_its_hash_is_in_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let (made, text, _) = run(folder.path(), &["key", "new", "--tenant", "t1"]);
    assert!(made);
    let secret = text.split_whitespace().find(|word| word.starts_with("vg-")).expect("a secret");
    let line = text.lines().find(|line| line.contains("key_sha256")).expect("a line").trim();
    assert_eq!(line, format!("key_sha256 = [\"{}\"]", hex::encode(sha2::Sha256::digest(secret.as_bytes()))));
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], PRICE, "", ONE_TO_ONE);
    let old = format!("key_sha256 = [\"{}\"]", hex::encode(sha2::Sha256::digest(KEY.as_bytes())));
    assert!(config.contains(&old));
    let gateway = Gateway::start(&config.replace(&old, line));
    let body = json!({ "model": "emb-a", "input": "text" }).to_string();
    gateway.post("/v1/embeddings", secret, &[], body.clone()).await.expect(200);
    gateway.post("/v1/embeddings", KEY, &[], body).await.expect(401);
}
