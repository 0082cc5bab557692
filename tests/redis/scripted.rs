//! Case RG-3mpv: the store stops answering without closing, in every way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// What stands in the store's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Healthy = 0,
    /// Accepts and says nothing.
    Silent = 1,
    /// Answers after five seconds.
    Late = 2,
    /// Closes in mid-reply.
    Cut = 3,
    /// Takes no connection.
    Refuse = 4,
}

struct Scripted {
    port: u16,
    mode: Arc<AtomicU8>,
}

impl Scripted {
    /// A server of its own before `redis`; what it does to a connection is decided when bytes arrive.
    async fn start(redis: &RedisServer) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (mode, behind) = (Arc::new(AtomicU8::new(0)), redis.port());
        let seen = Arc::clone(&mode);
        tokio::spawn(async move {
            let mut listener = Some(listener);
            loop {
                if seen.load(Ordering::SeqCst) == Mode::Refuse as u8 {
                    listener = None;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
                if listener.is_none() {
                    listener = TcpListener::bind(("127.0.0.1", port)).await.ok();
                    continue;
                }
                let Some(open) = &listener else { continue };
                let accepted = tokio::time::timeout(Duration::from_millis(10), open.accept()).await;
                if let Ok(Ok((client, _))) = accepted {
                    tokio::spawn(serve(client, behind, Arc::clone(&seen)));
                }
            }
        });
        Scripted { port, mode }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

async fn serve(mut client: TcpStream, behind: u16, mode: Arc<AtomicU8>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", behind)).await else { return };
    loop {
        let now = mode.load(Ordering::SeqCst);
        let changed = async {
            while mode.load(Ordering::SeqCst) == now {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let work = async {
            let mut buffer = [0; 4096];
            if now == Mode::Healthy as u8 {
                // However the copying ends, this connection is over.
                drop(copy_bidirectional(&mut client, &mut server).await);
                return false;
            }
            if now == Mode::Refuse as u8 || client.read(&mut buffer).await.unwrap_or(0) == 0 {
                return false;
            }
            if now == Mode::Cut as u8 {
                drop(client.write_all(b"$100\r\nabc").await);
                return false;
            }
            if now == Mode::Late as u8 {
                tokio::time::sleep(Duration::from_secs(5)).await;
                return client.write_all(b"+PONG\r\n").await.is_ok();
            }
            std::future::pending().await
        };
        tokio::select! {
            goes_on = work => if !goes_on { return },
            // Bytes may be lost here, as they are with a store that fails: the connection is of no use any more.
            () = changed => if now != Mode::Healthy as u8 { return },
        }
    }
}

async fn status(gateway: &Gateway, key: &str, text: String) -> u16 {
    let body = json!({ "model": "emb-a", "input": text }).to_string();
    gateway.post("/v1/embeddings", key, &[], body).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_3mpv_a_store_that_stops_answering_costs_no_request() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let scripted = Scripted::start(&redis).await;
    let url = format!("{}/v1", provider.base_url());
    let extra = format!(
        "[store]\nledger = \"redis\"\nredis_url = \"{}\"\nredis_timeout_ms = 100\n[cache]\nbackend = \"redis\"\n",
        scripted.url()
    );
    let mut config = embedding_config(&[("one", "openai", &url)], MODEL, "", &extra);
    config.push_str("max_concurrency = 256\n");
    let config = config.replacen("id = \"t2\"", "id = \"t2\"\nrpm = 3", 1);
    let gateway = Arc::new(Gateway::start(&config));
    let ready = async || gateway.admin_get("/readyz").await.text;
    until("the store", ready, |text| text == "ready\n").await;
    let (key, limited) = (crate::support::KEY, crate::support::gateway::KEY_TWO);
    let mut asked = 0;
    for mode in [Mode::Silent, Mode::Late, Mode::Cut, Mode::Refuse] {
        let errors = "vectorgate_store_errors_total{store=\"redis_cache\"}";
        let before = gateway.metric(errors).await;
        scripted.set(mode);
        let requests = (0..100).map(|number| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(20 * number)).await;
                let begun = Instant::now();
                (status(&gateway, key, format!("{mode:?} {number}")).await, begun.elapsed())
            })
        });
        let requests: Vec<_> = requests.collect();
        let mut slowest = Duration::ZERO;
        for request in requests {
            let (status, took) = request.await.expect("no panic");
            assert_eq!(status, 200, "{mode:?}");
            slowest = slowest.max(took);
            asked += 1;
        }
        assert!(slowest < Duration::from_millis(1_500), "{mode:?}: a request took {slowest:?}");
        assert!(gateway.metric(errors).await > before, "{mode:?}: the failures are counted");
        let told = ready().await;
        assert!(told.contains("without redis"), "{mode:?}: {told}");
        if mode == Mode::Silent {
            let mut seen = Vec::new();
            for number in 0..5 {
                seen.push(status(&gateway, limited, format!("limited {number}")).await);
            }
            assert_eq!(seen, [200, 200, 200, 429, 429], "the tenant's own limit holds all the same");
            asked += 3;
        }
        scripted.set(Mode::Healthy);
        until("the store again", ready, |text| text == "ready\n").await;
    }
    let records = paid_records(&gateway, asked).await;
    assert_eq!(records.len(), asked, "every request is in the report, once");
    assert_eq!(provider.call_count() as usize, asked);
}
