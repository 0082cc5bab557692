//! Commands that a system calls: health, completions, manual pages.

use std::net::TcpListener;
use std::process::{Command, Output};

use loadtest::provider::{Provider, Script};

use crate::support::gateway::binary;
use crate::support::{Gateway, embedding_config};

fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn health_is_the_readiness_of_the_gateway_asked() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let mut gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", ""));
    let address = gateway.admin.strip_prefix("http://").expect("an address").to_owned();
    let healthy = run(&["health", "--address", &address]);
    assert!(healthy.status.success(), "{healthy:?}");
    assert_eq!(text(&healthy.stdout), "ready\n");
    gateway.terminate();
    assert!(gateway.wait().success());
    let gone = run(&["health", "--address", &address]);
    assert!(!gone.status.success() && text(&gone.stderr).contains("no answer from"), "{gone:?}");
}

#[test]
fn health_finds_the_gateway_by_its_configuration() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // Accepts nothing and says nothing: only that it was the one asked is of interest.
    drop(listener);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, format!("[server]\nadmin_listen = \"{address}\"\n")).expect("written");
    let gone = run(&["health", "--config", file.to_str().expect("a path")]);
    assert!(!gone.status.success() && text(&gone.stderr).contains(&address.to_string()), "{gone:?}");
}

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{shell}: {output:?}");
        let script = text(&output.stdout);
        for word in ["serve", "ledger", "restore", "config"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert!(!run(&["completions", "dos"]).status.success());
}

#[test]
fn every_command_has_a_manual_page() {
    let page = run(&["man"]);
    let shown = text(&page.stdout);
    assert!(page.status.success() && shown.contains(".TH vectorgate 1"), "{shown}");
    for command in ["serve", "check", "usage", "ledger"] {
        assert!(shown.contains(command), "{command}: {shown}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    assert!(run(&["man", "--folder", folder.path().to_str().expect("a path")]).status.success());
    for name in ["vectorgate.1", "vectorgate-usage.1", "vectorgate-ledger-restore.1"] {
        let page = std::fs::read_to_string(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH NAME"), "{name}");
    }
}
