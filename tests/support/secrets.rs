//! What no gateway of any test may show: every answer is looked through as it comes, the log and the pages of the admin
//! side and the ledger's files when the gateway ends.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use super::gateway::{KEY, KEY_TWO};

/// How secrets of configurations begin, and the keys of tenants.
const SECRETS: [&str; 4] = ["upstream-secret-", "an-admin-token-for-tests", KEY, KEY_TWO];

/// Pages that tell what goes on.
const PAGES: [&str; 7] = [
    "/metrics",
    "/admin/status",
    "/admin/tenants",
    "/admin/upstreams",
    "/admin/audit",
    "/admin/usage",
    "/dashboard/snapshot",
];

/// Length of a key that the gateway makes.
const MADE_KEY: usize = 46;

/// Larger files are not looked through: their smaller forerunners had the same kinds of lines.
const LARGEST_FILE: u64 = 8 << 20;

/// Texts beyond this many are not remembered.
const MOST_TEXTS: usize = 512;

/// Shorter texts, and single words, may stand somewhere by chance.
const SHORTEST: usize = 8;

/// Keeps the texts of an input.
pub fn remember(texts: &Mutex<BTreeSet<String>>, input: &Value) {
    let mut texts = texts.lock().expect("no test panicked here");
    let list = input.as_array().map_or(std::slice::from_ref(input), Vec::as_slice);
    let telling = |text: &&str| text.len() >= SHORTEST && text.contains(' ') && text.len() <= 4096;
    for text in list.iter().filter_map(Value::as_str).filter(telling) {
        if texts.len() < MOST_TEXTS {
            texts.insert(text.to_owned());
        }
    }
}

/// Panics if `text` shows a secret, or one of `texts`.
#[track_caller]
pub fn check(what: &str, text: &str, texts: &BTreeSet<String>) {
    for secret in SECRETS.into_iter().chain(texts.iter().map(String::as_str)) {
        if let Some(at) = text.find(secret) {
            let around = &text.as_bytes()[at.saturating_sub(200)..(at + 200).min(text.len())];
            panic!("{what} shows {secret:?}: …{}…", String::from_utf8_lossy(around));
        }
    }
}

/// Panics if `text`, which is kept or told again and again, shows the whole of a key that the gateway has made: those are
/// shown once.
#[track_caller]
pub fn check_made_keys(what: &str, text: &str) {
    let within = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    for (at, _) in text.match_indices("vg-") {
        let word = text[at..].split(|c| !within(c)).next().unwrap_or_default();
        assert!(word.len() < MADE_KEY, "{what} shows a key that begins with {:?}", &word[..8]);
    }
}

/// What lies in the ledger's folder.
pub fn files(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder.join("data")).into_iter().flatten().filter_map(Result::ok);
    let small = entries.filter(|entry| entry.metadata().is_ok_and(|file| file.is_file() && file.len() < LARGEST_FILE));
    let read = small.filter_map(|entry| Some((entry.path().display().to_string(), std::fs::read(entry.path()).ok()?)));
    read.map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes).into_owned())).collect()
}

/// The admin side's pages, as far as it shows them without a token.
pub fn pages(admin: &str) -> Vec<(String, String)> {
    PAGES.iter().filter_map(|path| Some(((*path).to_owned(), get(admin, path)?))).collect()
}

/// A page, by the plainest of clients: this runs while a test ends, outside of any runtime.
fn get(admin: &str, path: &str) -> Option<String> {
    let address = admin.strip_prefix("http://")?;
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    // Of a gateway that stops in the middle, what came is looked through.
    drop(stream.read_to_end(&mut answer));
    Some(String::from_utf8_lossy(&answer).into_owned())
}
