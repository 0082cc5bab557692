//! Requests whose end two servers might see at different places: nothing hidden in one is ever served as another, alone
//! and behind a proxy that keeps its connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};
use serde_json::json;
use tempfile::TempDir;

use super::{config, provider};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures};

/// A whole request by a tenant that has a key, for a text that nobody ever asks for openly. Whoever serves it calls the
/// provider, and closes the connection.
fn hidden() -> String {
    let body = json!({ "model": "emb-a", "input": "smuggled" }).to_string();
    format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Cache-Control: no-cache, no-store\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The ways in: each is a name, the lines that state the length, and whether it is HTTP/1.0.
fn ways(length: usize) -> Vec<(&'static str, String, bool)> {
    let both = |coding: &str| format!("Content-Length: {length}\r\n{coding}\r\n");
    vec![
        ("a length, then chunks", both("Transfer-Encoding: chunked"), false),
        ("chunks, then a length", format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), false),
        ("chunks in capitals", both("TRANSFER-ENCODING: CHUNKED"), false),
        ("chunks with a space before the colon", both("Transfer-Encoding : chunked"), false),
        ("chunks after a tab", both("Transfer-Encoding:\tchunked"), false),
        ("chunks after a vertical tab", both("Transfer-Encoding:\x0bchunked"), false),
        ("a coding that nobody knows", both("Transfer-Encoding: xchunked"), false),
        ("no coding", both("Transfer-Encoding: identity"), false),
        ("two codings", both("Transfer-Encoding: gzip, chunked"), false),
        ("a coding twice", both("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), false),
        ("a folded coding", both("Transfer-Encoding:\r\n chunked"), false),
        ("a folded header before it", both("X-A: b\r\n c\r\nTransfer-Encoding: chunked"), false),
        ("a coding behind a bare line feed", both("X-A: b\nTransfer-Encoding: chunked"), false),
        ("a coding behind a bare carriage return", both("X-A: b\rTransfer-Encoding: chunked"), false),
        ("a coding behind a zero byte", both("X-A: b\0\r\nTransfer-Encoding: chunked"), false),
        ("two lengths", format!("Content-Length: 5\r\nContent-Length: {length}\r\n"), false),
        ("a list of lengths", format!("Content-Length: 5, {length}\r\n"), false),
        ("a length with a sign", "Content-Length: +5\r\n".to_owned(), false),
        ("a negative length", "Content-Length: -1\r\n".to_owned(), false),
        ("a length in hex", "Content-Length: 0x5\r\n".to_owned(), false),
        ("a length beyond all numbers", "Content-Length: 18446744073709551621\r\n".to_owned(), false),
        ("a length with a space before the colon", "Content-Length : 5\r\n".to_owned(), false),
        ("chunks in HTTP/1.0", "Transfer-Encoding: chunked\r\n".to_owned(), true),
        ("chunks and a length in HTTP/1.0", both("Transfer-Encoding: chunked"), true),
    ]
}

/// Bodies whose chunks state a size that cannot be right; each is followed by the hidden request.
const CHUNKS: [(&str, &str); 8] = [
    ("a size that is none", "zz\r\n"),
    ("a size with a sign", "+0\r\n\r\n"),
    ("a negative size", "-1\r\n"),
    ("a size beyond all numbers", "fffffffffffffffff\r\n"),
    ("a size with 0x", "0x0\r\n\r\n"),
    ("a size that ends in a line feed", "0\n\n"),
    ("a chunk longer than its size", "1\r\n{}\r\n0\r\n\r\n"),
    ("no size", "\r\n\r\n"),
];

/// Every attack as bytes.
fn attacks() -> Vec<(String, Vec<u8>)> {
    let hidden = hidden();
    // By the one header the body ends at once; by the other it goes on over the hidden request.
    let body = format!("0\r\n\r\n{hidden}");
    let head = |version: &str, lines: &str| {
        format!(
            "POST /v1/embeddings HTTP/1.{version}\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\n{lines}\r\n"
        )
    };
    let lengths = ways(body.len()).into_iter().map(|(name, lines, old)| {
        let version = if old { "0" } else { "1" };
        (name.to_owned(), format!("{}{body}", head(version, &lines)).into_bytes())
    });
    let chunks = CHUNKS.iter().map(|(name, chunk)| {
        let bytes = format!("{}{chunk}{hidden}", head("1", "Transfer-Encoding: chunked\r\n"));
        ((*name).to_owned(), bytes.into_bytes())
    });
    lengths.chain(chunks).collect()
}

/// Sends `bytes`, and reads until the other side closes.
#[track_caller]
fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket option");
    // A connection that is closed before all was sent is an answer too.
    let _sent = stream.write_all(bytes);
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("neither answered nor closed: {error}"),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// How often the hidden request was served.
fn served(provider: &Provider) -> usize {
    provider.calls().iter().filter(|call| String::from_utf8_lossy(&call.body).contains("smuggled")).count()
}

#[tokio::test]
async fn what_is_not_plainly_one_request_is_refused_and_the_connection_closed() {
    let provider = provider();
    let gateway = Gateway::start(&config(&provider, ""));
    let address = gateway.url.strip_prefix("http://").expect("an address").to_owned();
    for (what, bytes) in attacks() {
        let answer = exchange(&address, &bytes);
        let statuses: Vec<&str> = answer.match_indices("HTTP/1.1 ").map(|(at, _)| &answer[at + 9..at + 12]).collect();
        assert!(statuses.len() <= 1, "{what}: more answers than requests: {answer}");
        assert!(statuses.iter().all(|status| *status == "400"), "{what}: {answer}");
        assert_eq!(served(&provider), 0, "{what}: the hidden request was served");
    }
    // The same on the admin side, where the hidden request would be an order.
    let admin = gateway.admin.strip_prefix("http://").expect("an address").to_owned();
    let order = "POST /admin/upstreams/one/drain HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
                 Content-Length: 0\r\n\r\n";
    let body = format!("0\r\n\r\n{order}");
    for (what, lines, old) in ways(body.len()) {
        let version = if old { "0" } else { "1" };
        let bytes = format!("POST /admin/nothing HTTP/1.{version}\r\nHost: 127.0.0.1\r\n{lines}\r\n{body}");
        let answer = exchange(&admin, bytes.as_bytes());
        assert!(!answer.contains("HTTP/1.1 200"), "{what}: {answer}");
    }
    let state = gateway.admin_get("/admin/upstreams").await.expect(200)["upstreams"][0]["state"].clone();
    assert_eq!(state["draining"], false, "{state}");
    gateway.embed(json!("afterwards")).await.expect(200);
}

/// nginx in front of a gateway. Ended when dropped.
struct Front {
    child: Child,
    folder: TempDir,
    address: String,
}

impl Front {
    #[track_caller]
    fn of(gateway: &Gateway, buffering: bool) -> Front {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let at = folder.path().to_str().expect("a path");
        let behind = gateway.url.strip_prefix("http://").expect("an address");
        let buffering = if buffering { "on" } else { "off" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|of| format!("{of}_temp_path {at}/{of};\n"))
            .collect();
        let text = format!(
            "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\n\
             events {{ worker_connections 64; }}\nhttp {{\n{temporary}access_log off;\n\
             upstream gateway {{ server {behind}; keepalive 1; }}\n\
             keepalive_timeout 1s;\nserver {{\nlisten {address};\nignore_invalid_headers off;\nunderscores_in_headers on;\n\
             location / {{ proxy_pass http://gateway; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             proxy_request_buffering {buffering}; }}\n}}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text).expect("written");
        let child = Command::new("nginx")
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(&file)
            .args(["-e", "stderr"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx is not installed: run tests/run (or tests/hostile/install)");
        let front = Front { child, folder, address };
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&front.address).is_err() {
            let log = std::fs::read_to_string(front.folder.path().join("error.log")).unwrap_or_default();
            assert!(Instant::now() < until, "nginx does not listen: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        front
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn behind_nginx_nobody_gets_anothers_answer() {
    let provider = provider();
    let gateway = Gateway::start(&config(&provider, ""));
    for buffering in [true, false] {
        let front = Front::of(&gateway, buffering);
        let clients = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        for (turn, (what, bytes)) in attacks().into_iter().enumerate() {
            // Where nginx itself takes it for two requests of this client, both are answered here, to it.
            let before = served(&provider);
            let answers = exchange(&front.address, &bytes).matches("HTTP/1.1 200").count();
            assert_eq!(served(&provider) - before, answers, "{what}: served, and answered to nobody who asked");
            for other in 0..2 {
                let text = format!("honest {buffering} {turn} {other}");
                let body = json!({ "model": "emb-a", "input": text });
                let sent = clients.post(format!("http://{}/v1/embeddings", front.address)).bearer_auth(KEY).json(&body);
                let answer = sent.send().await.expect("an answer");
                let (status, body) = (answer.status(), answer.text().await.expect("a body"));
                assert_eq!(status, 200, "{what}: {body}");
                assert_signatures(&serde_json::from_str(&body).expect("JSON"), "A", &[&text]);
            }
        }
    }
}

/// What this file hides is a request that would be served: else it would show nothing.
#[tokio::test]
async fn the_hidden_request_alone_is_served() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = Gateway::start(&config(&provider, ""));
    let address = gateway.url.strip_prefix("http://").expect("an address").to_owned();
    assert!(exchange(&address, hidden().as_bytes()).starts_with("HTTP/1.1 200"));
    assert_eq!(provider.call_count(), 1);
}
