//! RG-zsqs: clients that send or read as slowly as they can.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use loadtest::provider::{Provider, Script};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::body;
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

/// A bound that only a connection which is never ended breaks.
const PATIENCE: Duration = Duration::from_secs(60);

const TIMES: &str = "header_timeout_s = 1\nbody_timeout_s = 1\nwrite_timeout_s = 1\n[cache]\nbackend = \"off\"\n\
                     [breaker]\nslow_ms = 600000";

fn start(width: usize) -> (Provider, Gateway) {
    let provider = Provider::start(Script::new().space("A").width(width));
    let url = format!("{}/v1", provider.base_url());
    let model = format!("dimensions = {width}");
    (provider, Gateway::start(&embedding_config(&[("one", "openai", &url)], &model, "", TIMES)))
}

async fn connect(gateway: &Gateway) -> TcpStream {
    let address = gateway.url.strip_prefix("http://").expect("plain HTTP");
    TcpStream::connect(address).await.expect("connected")
}

fn head(length: usize) -> String {
    format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// Sends the bytes of `slowly` one at a time until the other side ends the connection; what it answered.
async fn trickle(mut stream: TcpStream, at_once: String, slowly: &'static str) -> String {
    stream.write_all(at_once.as_bytes()).await.expect("sent");
    let (mut reading, mut writing) = stream.split();
    let sending = async {
        for byte in slowly.bytes().cycle() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if writing.write_all(&[byte]).await.is_err() {
                break;
            }
        }
    };
    let mut answer = Vec::new();
    let receiving = async {
        // A reset is as good an end as any other.
        let _ended = reading.read_to_end(&mut answer).await;
    };
    timeout(PATIENCE, async {
        tokio::select! { () = sending => {}, () = receiving => {} }
    })
    .await
    .expect("the connection is ended");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_zsqs_slow_senders_are_ended_and_slots_freed() {
    let (_provider, gateway) = start(8);
    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(tokio::spawn(trickle(connect(&gateway).await, String::new(), "")));
        slow.push(tokio::spawn(trickle(
            connect(&gateway).await,
            String::new(),
            "POST /v1/embeddings HTTP/1.1\r\nX-Slow: yes",
        )));
        slow.push(tokio::spawn(trickle(connect(&gateway).await, head(100_000), " ")));
    }
    for number in 0..20 {
        gateway.embed(json!(format!("a normal client, request {number}"))).await.expect(200);
    }
    let mut told = 0;
    for end in slow {
        let answer = timeout(PATIENCE, end).await.expect("in time").expect("no panic");
        told += usize::from(answer.contains("408") && answer.contains("body_timeout"));
    }
    assert_eq!(told, 20, "those with a head read why");
    // Of the others no request is known, and so no error; their connections are counted.
    let count = async |end: &str| {
        gateway.metric(&format!("vectorgate_connections_without_request_total{{end=\"{end}\"}}")).await
    };
    let counted = async {
        while count("slow").await + count("other").await < 40.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, counted).await.expect("all are counted");
    assert!(count("slow").await > 0.0, "half a head is slow");
    assert_eq!(gateway.metric("vectorgate_buffered_bytes").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_zsqs_a_slow_upload_with_progress_passes() {
    let (_provider, gateway) = start(8);
    let body = body(40, 8_000);
    let mut stream = connect(&gateway).await;
    stream.write_all(head(body.len()).as_bytes()).await.expect("sent");
    // Longer than the time-out altogether, but never without progress.
    for piece in body.as_bytes().chunks(20_000) {
        tokio::time::sleep(Duration::from_millis(150)).await;
        stream.write_all(piece).await.expect("sent");
    }
    let mut start = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut start)).await.expect("in time").expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_zsqs_a_client_that_stops_reading_is_ended() {
    let (_provider, gateway) = start(3072);
    let body = body(1_500, 12);
    let mut stream = connect(&gateway).await;
    stream.write_all(head(body.len()).as_bytes()).await.expect("sent");
    stream.write_all(body.as_bytes()).await.expect("sent");
    let mut start = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut start)).await.expect("in time").expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
    // Nothing more is read. The kernel's buffers fill, and then the gateway must let go.
    let ended = async {
        while descriptors(&gateway, stream.local_addr().expect("bound").port()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the connection is ended");
    gateway.embed(json!("a normal client")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_zsqs_over_tls_a_client_that_stops_reading_is_ended() {
    let provider = Provider::start(Script::new().space("A").width(3072));
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let url = format!("{}/v1", provider.base_url());
    let times = format!("tls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n{TIMES}");
    let config = embedding_config(&[("one", "openai", &url)], "dimensions = 3072", "", &times);
    std::fs::write(folder.path().join("gateway.toml"), config).expect("written");
    let gateway = Gateway::start_in(folder);
    let address = gateway.url.strip_prefix("https://").expect("HTTPS").to_owned();
    let certificate = made.cert.der().clone();
    let asking = tokio::task::spawn_blocking(move || {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).expect("a certificate");
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = "127.0.0.1".try_into().expect("a name");
        let session = rustls::ClientConnection::new(Arc::new(config), name).expect("a session");
        let socket = std::net::TcpStream::connect(address).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut stream = rustls::StreamOwned::new(session, socket);
        let body = body(1_500, 12);
        stream.write_all(head(body.len()).as_bytes()).expect("sent");
        stream.write_all(body.as_bytes()).expect("sent");
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        assert_eq!(&start, b"HTTP/1.1 200");
        stream
    });
    let stream = asking.await.expect("no panic");
    let ended = async {
        while descriptors(&gateway, stream.sock.local_addr().expect("bound").port()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the connection is ended");
}

/// Whether the gateway's side of the connection from our `port` is still open.
fn descriptors(gateway: &Gateway, port: u16) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", gateway.pid())).expect("our own child");
    let peer = format!("0100007F:{port:04X}");
    // Columns: slot, local address, remote address, state (01: established).
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(2);
        columns.next() == Some(peer.as_str()) && columns.next() == Some("01")
    })
}
