//! A process that gets no time for a moment, as on a busy machine.

use std::sync::Arc;
use std::time::Duration;

use super::load::Load;
use super::{config_at, provider};
use crate::support::Gateway;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_takes_that_for_no_want_of_capacity() {
    let provider = provider();
    // Of two places nothing is lent, so each call is asked for, and some ask is on its way whenever it stands still.
    let small = config_at(&provider.base_url()).replace("serves = [", "max_concurrency = 2\nserves = [");
    let gateway = Arc::new(Gateway::start(&small));
    let load = Load::on(&gateway, 2);
    for _ in 0..30 {
        load.some_more().await;
        gateway.freeze();
        // Longer than an interactive request waits for room (0.25 s), shorter than what makes a call a slow one (2 s).
        tokio::time::sleep(Duration::from_millis(350)).await;
        gateway.wake();
    }
    load.some_more().await;
    load.end().await;
}
