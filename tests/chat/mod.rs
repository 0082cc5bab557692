//! Chat through the same door: passed on byte for byte, streamed event by event, held, metered and settled like the rest.

mod aborts;
mod bytes;
mod endings;
mod fallbacks;
mod first_event;
mod money;
mod protocols;
mod shutdown;
mod usage_event;

use std::time::{Duration, Instant};

use loadtest::provider::{Chat, Provider, Script};
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::support::{Gateway, KEY};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// An input token costs 0.001, an output token 0.002.
pub const PRICES: &str = "price_usd_per_million_tokens = \"1000\"\noutput_price_usd_per_million_tokens = \"2000\"";

/// A breaker that never opens, and retries without a share.
const PATIENT: &str = "[breaker]\nfailure_ratio = 1.0\nmin_requests = 1000000\n[retry]\nbudget_ratio = 1.0\n";

/// A configuration with the chat model `talk` at each of the given (id, provider word, base URL), and tenant `t1`. Keys of
/// `[[models]]` go into `model`, of `[[tenants]]` into `tenant`; `extra` comes before both.
pub fn chat_config(upstreams: &[(&str, &str, &str)], model: &str, tenant: &str, extra: &str) -> String {
    let hash = hex::encode(sha2::Sha256::digest(KEY.as_bytes()));
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\n[money]\nper_usd = \"1\"\n{extra}\n\
         [[tenants]]\nid = \"t1\"\nkey_sha256 = [\"{hash}\"]\n{tenant}\n\
         [[models]]\nname = \"talk\"\nkind = \"chat\"\n{PRICES}\n{model}\n"
    );
    for (id, provider, url) in upstreams {
        text.push_str(&upstream(id, provider, url, "talk"));
    }
    text
}

/// One upstream of a model; keys may follow.
pub fn upstream(id: &str, provider: &str, url: &str, model: &str) -> String {
    format!(
        "[[upstreams]]\nid = \"{id}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
         api_key = {{ value = \"upstream-secret-{id}\" }}\nserves = [{{ model = \"{model}\", as = \"{model}-there\" }}]\n"
    )
}

/// A gateway before one OpenAI-like provider.
#[track_caller]
fn before(provider: &Provider, tenant: &str, extra: &str) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    Gateway::start(&chat_config(&[("one", "openai", &url)], "", tenant, extra))
}

/// A provider that answers with this.
fn talking(chat: Chat) -> Script {
    Script { chat, ..Script::new() }
}

/// Three tokens of question.
fn ask(stream: bool) -> Value {
    json!({
        "model": "talk",
        "messages": [{ "role": "user", "content": "one two three" }],
        "max_tokens": 20,
        "stream": stream,
    })
}

/// Sends a request and returns with its answer's head.
async fn open(gateway: &Gateway, path: &str, body: &Value) -> reqwest::Response {
    let request = reqwest::Client::new().post(format!("{}{path}", gateway.url)).bearer_auth(KEY);
    let request = request.header("content-type", "application/json").body(body.to_string());
    request.send().await.expect("the gateway answers")
}

/// The whole text of an answer, however it is cut short.
async fn text_of(mut response: reqwest::Response) -> String {
    let mut all = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        all.extend_from_slice(&piece);
    }
    String::from_utf8(all).expect("text")
}

/// Streams a chat to its end: status and text.
async fn stream(gateway: &Gateway, body: &Value) -> (u16, String) {
    let response = open(gateway, "/v1/chat/completions", body).await;
    (response.status().as_u16(), text_of(response).await)
}

/// The data of each event of a stream.
fn data(text: &str) -> Vec<&str> {
    text.split("\n\n").filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: "))).collect()
}

/// Waits until there are so many usage records, and returns them.
pub async fn records(gateway: &Gateway, count: usize) -> Vec<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        let records = gateway.usage();
        if records.len() >= count {
            assert_eq!(records.len(), count, "{records:?}");
            return records;
        }
        assert!(Instant::now() < until, "only {records:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until tenant `t1` has no open hold, and returns its account.
async fn settled(gateway: &Gateway) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let account = gateway.tenant("t1").await;
        if account["open_holds"] == 0 {
            return account;
        }
        assert!(Instant::now() < until, "still {account}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What a record says of tokens, cost and how sure that is.
pub fn bill(record: &Value) -> (u64, u64, &str, bool) {
    (
        record["tokens"].as_u64().expect("tokens"),
        record["output_tokens"].as_u64().unwrap_or(0),
        record["cost"].as_str().expect("cost"),
        record["estimated"].as_bool().expect("estimated"),
    )
}
