//! The dashboard in a real browser during an outage.
//!
//! `tests/run` installs Chromium and the library that drives it (`tests/observe/install`); without them this test fails
//! and says so. Screenshots are left in `target/dashboard/`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadtest::provider::{Effect, Provider, Script};
use serde_json::json;

use crate::support::{Gateway, embedding_config};

/// The admin token of gateways whose dashboard is driven.
pub const TOKEN: &str = "an-admin-token-for-tests";

fn target() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder").to_owned()
}

/// The script that drives the browser, ended with the test.
pub struct Driver {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Driver {
    /// Starts the script at that path of the repository for the admin side at `admin`.
    #[track_caller]
    pub fn start(script: &str, admin: &str) -> Driver {
        let library = target().join("node/node_modules/playwright-core");
        assert!(library.exists(), "the browser's driver is not installed: run tests/run (or tests/observe/install)");
        let pictures = target().join("dashboard");
        std::fs::create_dir_all(&pictures).expect("a folder for pictures");
        let mut child = Command::new("node")
            .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(script))
            .args([admin, TOKEN])
            .arg(&library)
            .arg(&pictures)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("node is not installed: run tests/run");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        Driver { child, said }
    }

    /// Reads on until the script says `word`.
    #[track_caller]
    pub fn hear(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            if self.said.read_line(&mut line).expect("readable") == 0 {
                let mut problem = String::new();
                let stderr = self.child.stderr.as_mut().expect("piped");
                stderr.read_to_string(&mut problem).expect("text");
                panic!("the browser ended before {word:?}: {problem}");
            }
            if line.trim() == word {
                return;
            }
        }
    }

    #[track_caller]
    fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{word}").expect("the script reads");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The script ends its browser when its input ends.
        drop(self.child.stdin.take());
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_call_sees_an_outage_and_drains_an_upstream_by_keyboard() {
    let healthy = || Script::new().space("A").width(8).delay_ms(10.0);
    let (one, two) = (Provider::start(healthy()), Provider::start(healthy()));
    let urls = [&one, &two].map(|provider| format!("{}/v1", provider.base_url()));
    let extra = format!(
        "admin_token = {{ value = \"{TOKEN}\" }}\n[slo]\nwindow_s = 5\n\
         [breaker]\nwindow_s = 1\nmin_requests = 1\ncooldown_s = 600\n[retry]\nbase_ms = 5\n"
    );
    let upstreams = [("one", "openai", urls[0].as_str()), ("two", "openai", urls[1].as_str())];
    let model = "dimensions = 8\nprice_usd_per_million_tokens = \"0.02\"";
    let gateway = Arc::new(Gateway::start(&embedding_config(&upstreams, model, "budget = \"1.00\"", &extra)));

    let ended = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (gateway, ended) = (Arc::clone(&gateway), Arc::clone(&ended));
        async move {
            let mut number = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                let batch = (0..4).map(|part| gateway.embed(json!(format!("text {number} {part}"))));
                futures_util::future::join_all(batch).await;
                number += 1;
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
        }
    });

    let mut driver = Driver::start("tests/observe/browser.mjs", &gateway.admin);
    let watched = tokio::task::spawn_blocking(move || {
        driver.hear("calm");
        one.set_script(Script::new().always(Effect::status(503)));
        two.set_script(Script::new().space("A").width(8).delay_ms(180.0));
        driver.tell("outage");
        driver.hear("drained");
        two.set_script(Script::new().space("A").width(8).delay_ms(10.0));
        driver.tell("end");
        driver.hear("done");
        (one, two)
    });
    let providers = watched.await;
    ended.store(true, Ordering::Relaxed);
    load.await.expect("the load ends");
    drop(providers.expect("the browser saw all of it"));

    let bearer = format!("Bearer {TOKEN}");
    let view = gateway.admin_get_with("/admin/upstreams", &[("authorization", &bearer)]).await.expect(200);
    let upstreams = view["upstreams"].as_array().expect("upstreams");
    let drained: Vec<bool> =
        upstreams.iter().map(|upstream| upstream["state"]["draining"].as_bool().expect("a state")).collect();
    assert_eq!(drained, [false, true], "{view}");
}
