//! Clients that go on sending while something happens to the gateway, and notice every failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;

use super::until;
use crate::support::Gateway;

/// Sends requests until told to stop, each for a text of its own. None may fail.
pub struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// So many clients, one request after the other each.
    pub fn on(gateway: &Arc<Gateway>, clients: u64) -> Load {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..clients).map(|client| {
            let (gateway, stop, sent) = (Arc::clone(gateway), Arc::clone(&stop), Arc::clone(&sent));
            tokio::spawn(async move {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = gateway.embed(json!(format!("text {client} {n}"))).await;
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    n += 1;
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks = tasks.collect();
        Load { stop, sent, tasks }
    }

    /// Waits until some more requests were answered.
    pub async fn some_more(&self) {
        let from = self.sent.load(Ordering::Relaxed);
        until("requests", async || {
            let failed = self.tasks.iter().any(tokio::task::JoinHandle::is_finished);
            failed || self.sent.load(Ordering::Relaxed) > from + 20
        })
        .await;
    }

    /// Ends it; how many requests there were.
    pub async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no request failed");
        }
        self.sent.load(Ordering::Relaxed)
    }
}
