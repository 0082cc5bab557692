//! What the way through the gateway adds to the time until a stream's first event: the same streams straight from the
//! provider and through the gateway, in turns, so that whatever else the machine does is felt by both.

use std::time::Duration;

use loadtest::provider::{Delay, Record};

use super::*;

/// Streams of each kind at each load.
const STREAMS: usize = 640;

/// Times of streams that ran at the same moments.
#[derive(Default)]
struct Times {
    direct: Vec<Duration>,
    through: Vec<Duration>,
}

/// From sending to the first event.
async fn first_event(client: &reqwest::Client, url: &str, body: &str) -> Duration {
    let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(KEY);
    let request = request.header("content-type", "application/json").body(body.to_owned());
    let sent = Instant::now();
    let mut response = request.send().await.expect("an answer");
    let mut text = response.chunk().await.expect("a piece").expect("a first event").to_vec();
    let first = sent.elapsed();
    assert!(text.starts_with(b"data: {"), "{}", String::from_utf8_lossy(&text));
    while let Some(piece) = response.chunk().await.expect("a whole stream") {
        text.extend_from_slice(&piece);
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
    first
}

async fn in_turns(direct: String, through: String, pairs: usize) -> Times {
    let client = reqwest::Client::new();
    let body = ask(true).to_string();
    let mut times = Times::default();
    for pair in 0..pairs {
        // Whoever goes second finds caches warm: so both do, in turns.
        for second in [false, true] {
            let of_gateway = (pair % 2 == 0) == second;
            let (url, times) = match of_gateway {
                true => (&through, &mut times.through),
                false => (&direct, &mut times.direct),
            };
            times.push(first_event(&client, url, &body).await);
        }
    }
    times
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: name a release build in VECTORGATE_TEST_BINARY"]
async fn what_the_gateway_adds_to_the_first_event() {
    let mut script = talking(Chat { pieces: 20, gap_ms: 3.0, ..Chat::default() });
    script.delay = Delay::FixedMs(20.0);
    script.record = Record::Counts;
    let provider = Provider::start(script);
    let gateway = before(&provider, "budget = \"1000000.00\"", "");
    in_turns(provider.base_url(), gateway.url.clone(), 20).await;
    for clients in [1, 8, 32] {
        let running: Vec<_> = (0..clients)
            .map(|_| tokio::spawn(in_turns(provider.base_url(), gateway.url.clone(), STREAMS / clients)))
            .collect();
        let mut all = Times::default();
        for times in running {
            let times = times.await.expect("no stream failed");
            all.direct.extend(times.direct);
            all.through.extend(times.through);
        }
        all.direct.sort_unstable();
        all.through.sort_unstable();
        let added = |share| quantile(&all.through, share).saturating_sub(quantile(&all.direct, share));
        for share in [0.5, 0.9, 0.99] {
            let (direct, through) = (quantile(&all.direct, share), quantile(&all.through, share));
            println!(
                "{clients} at once, {} each: p{} direct {direct:.2?}, through {through:.2?}, added {:.2?}",
                all.direct.len(),
                share * 100.0,
                added(share)
            );
        }
        assert!(added(0.5) < Duration::from_millis(20), "half of the streams begin so much later");
    }
}
