//! The real Prometheus against the gateway's page and the rules that are shipped for it.
//!
//! `tests/run` installs it; without it these tests fail and say so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};
use serde_json::{Value, json};

use super::PATIENCE;
use crate::support::{Gateway, embedding_config};

const TOKEN: &str = "an-admin-token-for-tests";

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus")
}

#[track_caller]
fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(rules())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not installed: run tests/run (Debian's package is prometheus)");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("promtool reads");
    child.wait_with_output().expect("promtool ends")
}

#[track_caller]
fn passes(arguments: &[&str], input: &str) {
    let output = promtool(arguments, input);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn the_shipped_rules_are_valid_and_fire_in_their_own_trouble_only() {
    passes(&["check", "rules", "rules.yml", "alerts.yml"], "");
    passes(&["test", "rules", "tests.yml"], "");
}

/// A Prometheus of this test's own, ended with it.
struct Prometheus {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Prometheus {
    async fn start(gateway: &Gateway) -> Prometheus {
        let target = gateway.admin.strip_prefix("http://").expect("an http address");
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["rules.yml", "alerts.yml"] {
            // As shipped, but evaluated each second: a test does not wait for minutes.
            let text = std::fs::read_to_string(rules().join(file)).expect("a rule file");
            let quick = text.replace("interval: 30s", "interval: 1s").replace("interval: 1m", "interval: 1s");
            std::fs::write(folder.path().join(file), quick).expect("written");
        }
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [rules.yml, alerts.yml]\n\
             scrape_configs:\n  - job_name: vectorgate\n    authorization: {{ credentials: {TOKEN} }}\n    \
             static_configs: [ {{ targets: [\"{target}\"] }} ]\n"
        );
        std::fs::write(folder.path().join("prometheus.yml"), config).expect("written");
        let until = Instant::now() + PATIENCE;
        let mut prometheus = Prometheus::spawn(folder);
        while !prometheus.is_ready().await {
            if prometheus.child.try_wait().expect("our own child").is_some() {
                // Somebody else took the port in between.
                let folder = std::mem::replace(&mut prometheus.folder, tempfile::tempdir().expect("a folder"));
                prometheus = Prometheus::spawn(folder);
            }
            assert!(Instant::now() < until, "Prometheus does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        prometheus
    }

    fn spawn(folder: tempfile::TempDir) -> Prometheus {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is not installed: run tests/run (Debian's package is prometheus)");
        Prometheus { child, url: format!("http://{address}"), folder }
    }

    async fn is_ready(&self) -> bool {
        let asked = reqwest::get(format!("{}/-/ready", self.url)).await;
        asked.is_ok_and(|answer| answer.status().is_success())
    }

    async fn api(&self, path: &str) -> Value {
        let answer = reqwest::get(format!("{}/api/v1/{path}", self.url)).await.expect("an answer");
        answer.json::<Value>().await.expect("JSON")["data"].clone()
    }

    /// The first sample of a query without special characters; 0 if there is none.
    async fn value(&self, query: &str) -> f64 {
        let data = self.api(&format!("query?query={query}")).await;
        data["result"][0]["value"][1].as_str().map_or(0.0, |text| text.parse().expect("a number"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_the_gateway_and_evaluates_the_rules_on_it() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let extra = format!("admin_token = {{ value = \"{TOKEN}\" }}\n");
    let model = "dimensions = 8\nprice_usd_per_million_tokens = \"0.02\"";
    let config = embedding_config(&[("one", "openai", &url)], model, "budget = \"1.00\"", &extra);
    let gateway = Gateway::start_with(&config, &[]);
    let prometheus = Prometheus::start(&gateway).await;
    let until = Instant::now() + PATIENCE;
    let mut sent = 0_u32;
    loop {
        // A rate needs a counter that grows from one scrape to the next.
        gateway.embed(json!(format!("text {sent}"))).await.expect(200);
        sent += 1;
        let served = prometheus.value("sum(vectorgate_request_duration_seconds_count)").await;
        let recorded = prometheus.value("max(vectorgate:requests:rate5m)").await;
        if prometheus.value("up").await == 1.0 && recorded > 0.0 && served > 0.0 {
            assert!(served <= f64::from(sent), "{served} of {sent}");
            break;
        }
        assert!(Instant::now() < until, "{served} served, {recorded} recorded: {}", prometheus.api("targets").await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let data = prometheus.api("rules").await;
    let groups = data["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    assert!(rules.len() > 20, "{} rules", rules.len());
    for rule in &rules {
        assert_ne!(rule["health"], "err", "{rule}");
        assert_ne!(rule["state"], "firing", "nothing is wrong: {rule}");
    }
    let bearer = format!("Bearer {TOKEN}");
    let page = gateway.admin_get_with("/metrics", &[("authorization", &bearer)]).await.text;
    passes(&["check", "metrics"], &page);
}
