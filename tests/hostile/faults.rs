//! What a machine can run out of, and a clock that jumps. After each: no wrong cent, no hang, and back to normal by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use loadtest::provider::Provider;
use serde_json::{Value, json};

use super::{config, provider};
use crate::support::raw::Raw;
use crate::support::{Gateway, assert_signatures};

/// Longest wait for what must come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sets a limit of a running process, as an operator would lift it.
#[track_caller]
fn limit(gateway: &Gateway, what: &str, value: &str) {
    let pid = gateway.pid().to_string();
    let done = Command::new("prlimit").args(["--pid", &pid, &format!("--{what}={value}:")]).status();
    assert!(done.expect("prlimit is not installed: run tests/run").success(), "{what}={value}");
}

async fn until<F: Future<Output = bool>>(what: &str, gateway: &Gateway, mut ready: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !ready().await {
        assert!(Instant::now() < end, "{what}: did not come about: {}", gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A new text each time; its vector is the right one whenever there is one.
async fn embed(gateway: &Gateway, text: &str) -> u16 {
    let answer = gateway.embed(json!(text)).await;
    if answer.status == 200 {
        assert_signatures(&answer.json(), "A", &[text]);
    }
    answer.status
}

/// What the provider billed is what is recorded, to the token, and nothing is held.
async fn check_books(gateway: &mut Gateway, provider: &Provider) {
    until("every hold ends", gateway, async || gateway.tenant("t1").await["held"] == json!("0")).await;
    let spent = gateway.tenant("t1").await["spent"].clone();
    gateway.terminate();
    gateway.restart();
    let records: Vec<Value> = gateway.usage();
    let tokens: u64 = records.iter().map(|record| record["tokens"].as_u64().expect("tokens")).sum();
    assert_eq!(tokens, provider.tokens_billed(), "the records are the provider's bill");
    assert_eq!(gateway.tenant("t1").await["spent"], spent, "and the balance that was shown");
}

#[tokio::test]
async fn a_full_disk_stops_what_costs_money_and_loses_none() {
    let provider = provider();
    // The disk of the log is full as well, which must hurt nobody. The signal is what a limit has and a disk has not.
    let wrapper = "trap '' XFSZ; exec \"$0\" \"$@\"";
    let mut gateway = Gateway::start_under(&config(&provider, ""), &["sh", "-c", wrapper]);
    assert_eq!(embed(&gateway, "before the disk is full").await, 200);
    let journal = std::fs::read_dir(gateway.folder().join("data"))
        .expect("a folder")
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|file| file.len())
        .max()
        .expect("a journal");
    // Room for some more records, and a last one that fits by half.
    limit(&gateway, "fsize", &(journal + 3_001).to_string());
    let mut refused = 0;
    for number in 0..200 {
        match embed(&gateway, &format!("while the disk fills {number}")).await {
            200 => {}
            503 => refused += 1,
            status => panic!("{number}: {status}: {}", gateway.log()),
        }
        if refused >= 5 {
            break;
        }
    }
    assert!(refused >= 5, "the disk was full");
    let paid = provider.tokens_billed();
    let ready = reqwest::get(format!("{}/readyz", gateway.url)).await.expect("an answer");
    assert_eq!(ready.status(), 503, "balancers are told");
    for number in 0..5 {
        assert_eq!(embed(&gateway, &format!("while the disk is full {number}")).await, 503);
    }
    assert_eq!(provider.tokens_billed(), paid, "nothing is bought that cannot be written down");

    limit(&gateway, "fsize", "unlimited");
    until("readiness", &gateway, async || {
        reqwest::get(format!("{}/readyz", gateway.url)).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    assert_eq!(embed(&gateway, "after the disk was full").await, 200);
    assert_eq!(gateway.metric("vectorgate_actor_restarts_total{actor=\"ledger\"}").await, 0.0);
    check_books(&mut gateway, &provider).await;
}

#[tokio::test]
async fn without_file_descriptors_requests_fail_and_come_back() {
    let provider = provider();
    let mut gateway = Gateway::start(&config(&provider, "header_timeout_s = 5\n[retry]\nmax_attempts = 1\n"));
    assert_eq!(embed(&gateway, "before there are none left").await, 200);
    let open = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).expect("a folder").count();
    limit(&gateway, "nofile", &(open + 8).to_string());
    // Far more than it can take; most of them wait in the system's queue.
    let crowd: Vec<Raw> = (0..200).map(|_| Raw::connect(&gateway.url)).collect();
    let mut answered = 0;
    for number in 0..10 {
        let asked = tokio::time::timeout(PATIENCE, embed(&gateway, &format!("with none left {number}"))).await;
        let status = asked.expect("no hang");
        assert!(matches!(status, 200 | 502 | 503), "{status}");
        answered += 1;
    }
    assert_eq!(answered, 10);
    drop(crowd);
    limit(&gateway, "nofile", "4096");
    until("answers", &gateway, async || embed(&gateway, &format!("again {:?}", Instant::now())).await == 200).await;
    check_books(&mut gateway, &provider).await;
}

/// The library that moves the clock of a process that loads it.
#[track_caller]
fn clock_library() -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];
    let found = folders.iter().map(|folder| Path::new(folder).join("libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("faketime is not installed: run tests/run (or tests/hostile/install)")
}

#[tokio::test]
async fn a_clock_that_jumps_neither_refills_twice_nor_loses_a_record() {
    let provider = provider();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clock");
    let jump = |by: &str| {
        let new = folder.path().join("new");
        std::fs::write(&new, by).expect("written");
        std::fs::rename(&new, &file).expect("put in place");
    };
    jump("+0");
    let config = config(&provider, "").replace("budget = \"1.00\"", "budget = \"1.00\"\nbudget_period = \"day\"");
    let library = clock_library();
    let environment = [
        ("LD_PRELOAD", library.to_str().expect("a path")),
        ("FAKETIME_TIMESTAMP_FILE", file.to_str().expect("a path")),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let mut gateway = Gateway::start_with(&config, &environment);
    let started = gateway.tenant("t1").await["period_start"].clone();
    let mut number = 0;
    let mut some = async |gateway: &Gateway| {
        for _ in 0..5 {
            number += 1;
            assert_eq!(embed(gateway, &format!("text number {number}")).await, 200);
        }
    };
    some(&gateway).await;
    let spent = gateway.tenant("t1").await["spent"].clone();
    assert_ne!(spent, "0");

    // A day and an hour ahead: a new period, refilled once.
    jump("+90000");
    some(&gateway).await;
    let ahead = gateway.tenant("t1").await;
    assert_ne!(ahead["period_start"], started, "{ahead}");
    let spent_ahead = ahead["spent"].clone();

    // And back, and behind where it began: the period goes on, nothing is given twice.
    for by in ["+0", "-90000", "+90000"] {
        jump(by);
        some(&gateway).await;
        let tenant = gateway.tenant("t1").await;
        assert_eq!(tenant["period_start"], ahead["period_start"], "{by}: {tenant}");
        let money = |value: &Value| value.as_str().and_then(|text| text.parse::<f64>().ok()).expect("money");
        assert!(money(&tenant["spent"]) > money(&spent_ahead), "{by}: {tenant}");
    }
    check_books(&mut gateway, &provider).await;
}
