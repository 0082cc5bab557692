//! What many tenants cost. Times are taken by hand, on a quiet machine, with a release build of the gateway:
//! `VECTORGATE_TEST_BINARY=target/release/vectorgate cargo nextest run --no-capture --run-ignored only --test main redis::sizes`
//! (the path absolute).

use sha2::{Digest as _, Sha256};

use super::*;

/// Requests in each of the interleaved rounds.
const ROUND: usize = 300;

const ROUNDS: usize = 12;

/// A busy machine may stall for longer than queries usually wait.
const PATIENT: &str = "[quota]\ninteractive_max_wait_ms = 10000\n";

/// What two gateways that do the same may differ by.
const TOLERANCE: f64 = 1.10;

struct Sized {
    gateway: Gateway,
    tenants: usize,
    at_start: u64,
    /// Medians and 95th percentiles of the rounds, microseconds.
    medians: Vec<f64>,
    tails: Vec<f64>,
    _redis: Option<RedisServer>,
}

fn key(tenant: usize) -> String {
    format!("key-of-tenant-{tenant}")
}

/// Resident bytes of a process.
fn memory(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).expect("our own child");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kilobytes * 1024
}

/// How often threads of a process have waited for something so far.
fn waits(gateway: &Gateway) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", gateway.pid())).expect("our own child");
    let of_thread = |task: std::fs::DirEntry| -> Option<u64> {
        // A thread may have ended meanwhile.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
    };
    tasks.flatten().filter_map(of_thread).sum()
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl Sized {
    async fn start(provider: &Provider, tenants: usize, shared: bool) -> Sized {
        let redis = shared.then(RedisServer::start);
        let mut text = match &redis {
            Some(redis) => config(provider, &redis.url(), "", "redis_timeout_ms = 2000", PATIENT),
            None => {
                let url = format!("{}/v1", provider.base_url());
                let extra = format!("[cache]\nbackend = \"off\"\n{PATIENT}");
                embedding_config(&[("one", "openai", &url)], MODEL, "", &extra)
            }
        };
        for tenant in 0..tenants {
            let hash = hex::encode(Sha256::digest(key(tenant)));
            text.push_str(&format!(
                "[[tenants]]\nid = \"tenant-{tenant}\"\nkey_sha256 = [\"{hash}\"]\nbudget = \"1000\"\n"
            ));
        }
        let gateway = Gateway::start(&text);
        until("ready", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
        if shared {
            let last = format!("tenant-{}", tenants - 1);
            until("accounts", async || gateway.tenant(&last).await, |account| account["remaining"] == "1000").await;
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let at_start = memory(&gateway);
        Sized { gateway, tenants, at_start, medians: Vec::new(), tails: Vec::new(), _redis: redis }
    }

    /// One request after the other, each of another tenant.
    async fn round(&mut self, round: usize) {
        let mut took = Vec::with_capacity(ROUND);
        for number in 0..ROUND {
            // Steps that visit all tenants before any comes again, as far as there are that many.
            let tenant = (round * ROUND + number).wrapping_mul(7_919) % self.tenants;
            let body = json!({ "model": "emb-a", "input": "hello" }).to_string();
            let begun = Instant::now();
            let answer = self.gateway.post("/v1/embeddings", &key(tenant), &[], body).await;
            took.push(begun.elapsed().as_secs_f64() * 1e6);
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        took.sort_by(f64::total_cmp);
        self.medians.push(took[ROUND / 2]);
        self.tails.push(took[ROUND * 95 / 100]);
    }

    /// Medians of the rounds' medians and tails, microseconds, and bytes that a request has left behind.
    fn figures(&self) -> (f64, f64, f64) {
        let left = memory(&self.gateway).saturating_sub(self.at_start) as f64 / (ROUND * ROUNDS) as f64;
        (middle(&self.medians), middle(&self.tails), left)
    }
}

async fn compare(shared: bool) {
    let provider = provider(0.0);
    let mut few = Sized::start(&provider, 10, shared).await;
    let mut many = Sized::start(&provider, 10_000, shared).await;
    for round in 0..ROUNDS {
        // Who is first in a pair takes turns.
        match round % 2 {
            0 => {
                few.round(round).await;
                many.round(round).await;
            }
            _ => {
                many.round(round).await;
                few.round(round).await;
            }
        }
    }
    let mut medians = Vec::new();
    for sized in [&few, &many] {
        let (median, tail, left) = sized.figures();
        let start = sized.at_start as f64 / 1_048_576.0;
        println!(
            "shared {shared}, {:>6} tenants: median {median:.0} µs, p95 {tail:.0} µs, {start:.1} MiB at the start, \
             {left:.0} bytes left by a request",
            sized.tenants
        );
        medians.push(median);
    }
    let own = (many.at_start.saturating_sub(few.at_start)) as f64 / (many.tenants - few.tenants) as f64;
    println!("shared {shared}: {own:.0} bytes for each tenant");
    assert!(medians[1] <= medians[0] * TOLERANCE, "{medians:?}");
}

/// Whoever must ask an actor wakes its thread, and is woken by it: that is what asking costs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_seldom_wakes_no_other_thread() {
    let provider = provider(0.0);
    let mut few = Sized::start(&provider, 10, false).await;
    // So many that most of them ask for the first or the second time.
    let mut many = Sized::start(&provider, 1_000, false).await;
    let mut waited = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS / 2 {
        for (sized, waited) in [&mut few, &mut many].into_iter().zip(&mut waited) {
            let before = waits(&sized.gateway);
            sized.round(round).await;
            waited.push((waits(&sized.gateway) - before) as f64 / ROUND as f64);
        }
    }
    let [few, many] = waited.map(|waited| middle(&waited));
    // Ticks that come with time and not with requests are among them.
    assert!(many < few * 1.4, "{many} waits a request, {few} with few tenants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn ten_thousand_tenants_slow_nobody_down() {
    compare(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn ten_thousand_tenants_of_a_shared_ledger_slow_nobody_down() {
    compare(true).await;
}
