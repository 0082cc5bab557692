//! A scripted provider behind TLS, as public ones are: speaks HTTP/2 to those that want it and hands each call on, or
//! misbehaves as only HTTP/2 can.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What happens to the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// It is refused before anything is done.
    Refuse,
    /// It is broken off before its answer.
    Break,
    /// It is broken off after the first piece of its answer.
    Cut,
    /// It is answered, and its connection takes no further ones.
    Leave,
}

/// The front.
pub struct Front {
    /// Where it listens, `https://…`.
    pub url: String,
    /// The file that an upstream's `ca` names.
    pub ca: String,
    seen: Arc<Seen>,
    _folder: TempDir,
}

#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    open: AtomicU64,
    most_calls: AtomicU64,
    strikes: Mutex<VecDeque<Strike>>,
    at_once: Option<u32>,
    base: String,
    client: reqwest::Client,
}

impl Front {
    /// Before the provider at `base`; offers these protocols.
    #[track_caller]
    pub fn start(base: &str, protocols: &[&str]) -> Front {
        Front::start_with(base, protocols, None)
    }

    /// The same; a connection of HTTP/2 takes so many calls `at_once`.
    #[track_caller]
    pub fn start_with(base: &str, protocols: &[&str], at_once: Option<u32>) -> Front {
        drop(rustls::crypto::ring::default_provider().install_default());
        let folder = tempfile::tempdir().expect("a folder");
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, made.cert.pem()).expect("written");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let mut config = config.with_single_cert(vec![made.cert.der().clone()], key).expect("they fit");
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let seen = Arc::new(Seen { base: base.to_owned(), at_once, ..Seen::default() });
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(listen(listener, TlsAcceptor::from(Arc::new(config)), shared));
        });
        Front { url, ca: ca.to_str().expect("text").to_owned(), seen, _folder: folder }
    }

    /// What happens to the next calls, one after the other.
    pub fn strike(&self, strikes: &[Strike]) {
        self.seen.strikes.lock().expect("no panic").extend(strikes);
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Connections now.
    pub fn open(&self) -> u64 {
        self.seen.open.load(Ordering::SeqCst)
    }

    /// Most calls on one connection.
    pub fn most_calls(&self) -> u64 {
        self.seen.most_calls.load(Ordering::SeqCst)
    }
}

async fn listen(listener: std::net::TcpListener, tls: TlsAcceptor, seen: Arc<Seen>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, seen) = (tls.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            seen.connections.fetch_add(1, Ordering::SeqCst);
            seen.open.fetch_add(1, Ordering::SeqCst);
            let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            if two {
                calls(stream, &seen).await
            } else {
                pass(stream, &seen).await
            }
            seen.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// HTTP/1.1, byte for byte.
async fn pass(mut stream: TlsStream<TcpStream>, seen: &Seen) {
    let address = seen.base.strip_prefix("http://").expect("a plain provider");
    let mut to = TcpStream::connect(address).await.expect("the provider is there");
    // Either side may just leave.
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
}

async fn calls(stream: TlsStream<TcpStream>, seen: &Arc<Seen>) {
    let mut taking = h2::server::Builder::new();
    seen.at_once.map(|at_once| taking.max_concurrent_streams(at_once));
    let Ok(mut connection) = taking.handshake::<_, Bytes>(stream).await else { return };
    let mut count = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        count += 1;
        seen.most_calls.fetch_max(count, Ordering::SeqCst);
        let strike = seen.strikes.lock().expect("no panic").pop_front();
        if strike == Some(Strike::Leave) {
            connection.graceful_shutdown();
        }
        let seen = Arc::clone(seen);
        tokio::spawn(async move {
            // A client may leave at any moment.
            let _ = call(request, respond, strike, &seen).await;
        });
    }
}

async fn call(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    strike: Option<Strike>,
    seen: &Seen,
) -> Result<(), h2::Error> {
    let at_once = match strike {
        Some(Strike::Refuse) => Some(Reason::REFUSED_STREAM),
        Some(Strike::Break) => Some(Reason::INTERNAL_ERROR),
        Some(Strike::Cut | Strike::Leave) | None => None,
    };
    if let Some(reason) = at_once {
        respond.send_reset(reason);
        return Ok(());
    }
    let (head, mut from) = request.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = from.data().await {
        let piece = piece?;
        from.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    let path = head.uri.path_and_query().expect("a path").as_str();
    let mut asking = seen.client.post(format!("{}{path}", seen.base)).body(body);
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != http::header::CONTENT_LENGTH) {
        asking = asking.header(name.as_str(), value.as_bytes());
    }
    let mut answer = asking.send().await.expect("the provider answers");
    let mut telling = http::Response::builder().status(answer.status().as_u16());
    for (name, value) in answer.headers() {
        if !["transfer-encoding", "connection"].contains(&name.as_str()) {
            telling = telling.header(name.as_str(), value.as_bytes());
        }
    }
    let mut to = respond.send_response(telling.body(()).expect("a head"), false)?;
    while let Ok(Some(piece)) = answer.chunk().await {
        to.send_data(piece, false)?;
        if strike == Some(Strike::Cut) {
            // What is still to be sent when a stream is reset never is.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            to.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
    }
    to.send_data(Bytes::new(), true)
}
