//! systemd's side of the conversation, played by a socket of the test.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use loadtest::provider::{Provider, Script};
use serde_json::json;

use crate::support::{Gateway, embedding_config};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// The next message, as its lines.
#[track_caller]
fn hear(socket: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).expect("the gateway tells its manager");
    String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned).collect()
}

#[track_caller]
fn hear_ready(socket: &UnixDatagram) {
    let message = hear(socket);
    assert_eq!(message.first().map(String::as_str), Some("READY=1"), "{message:?}");
}

#[track_caller]
fn hear_reload(socket: &UnixDatagram) {
    let message = hear(socket);
    assert_eq!(message.first().map(String::as_str), Some("RELOADING=1"), "{message:?}");
    let stamp = message.get(1).and_then(|line| line.strip_prefix("MONOTONIC_USEC=")).map(str::parse::<u64>);
    assert!(matches!(stamp, Some(Ok(_))), "a manager tells reloads apart by their time: {message:?}");
    hear_ready(socket);
}

#[tokio::test]
async fn the_manager_hears_ready_reloading_and_stopping() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", "");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    let mut gateway = Gateway::start_with(&config, &[("NOTIFY_SOCKET", path.to_str().expect("a path"))]);
    hear_ready(&socket);
    assert_eq!(gateway.embed(json!("alpha")).await.status, 200, "it is ready when it says so");

    gateway.hang_up();
    hear_reload(&socket);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    hear_reload(&socket);
    gateway.configure("not toml");
    gateway.admin_post("/admin/reload", json!({})).await.expect(400);
    hear_reload(&socket);

    gateway.terminate();
    let message = hear(&socket);
    assert_eq!(message.first().map(String::as_str), Some("STOPPING=1"), "{message:?}");
    assert!(gateway.wait().success());
    socket.set_nonblocking(true).expect("a socket option");
    assert!(socket.recv(&mut [0; 16]).is_err(), "nothing is said after it");
}
