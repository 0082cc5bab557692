//! Vectors and scores in Redis, for all replicas: pipelined look-ups and writes, each step limited in time, and a server
//! that does not answer is a miss.
//!
//! Owns the form of an entry there. Writes set out with the answer, which never waits for them; many of them are gathered
//! into batches. What cannot be written in time is dropped, because it can be had again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use deadpool_redis::redis::{Pipeline, RedisResult, cmd, pipe};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use super::{CacheFilter, Cached, EntryTag, Value};
use crate::clock;
use crate::ids::{ModelName, TenantId};
use crate::pure::cache_key::CacheKey;
use crate::pure::time::Mono;
use crate::store::redis::link::{Lane, Link, StoreDown};
use crate::telemetry::labels::StoreName;
use crate::vector::Vector;

/// What every entry's key begins with.
const PREFIX: &str = "vectorgate:cache:";

/// Stream in which replicas tell each other what an operator has cleared.
const CLEARS_KEY: &str = "vectorgate:cache-clears";

/// Clears that a replica may miss before it knows nothing of them.
const CLEARS_KEPT: usize = 1_000;

/// Version of an entry's form; others are misses.
const VERSION: u8 = 1;

/// Keys in one look-up.
const READ: usize = 256;

/// Bytes in one write.
const WRITE_BYTES: usize = 1 << 20;

/// Bytes that wait to be written; beyond it what comes is dropped.
const WAITING_BYTES: usize = 32 << 20;

/// So many writes in each [`GATHER`] set out at once, because whoever was just answered may ask another replica next; from
/// then on they are gathered until it is over.
const AT_ONCE: u32 = 4;
const GATHER: Duration = Duration::from_millis(5);

/// Clears of other replicas are looked for this often.
const CLEARS_EVERY: Duration = Duration::from_millis(500);

/// Bytes of an entry in which its tags lie, for clearing without reading vectors.
const HEAD: isize = 600;

/// The cache that replicas share.
#[derive(Debug)]
pub struct RemoteCache {
    link: Arc<Link>,
    /// Life of new entries, milliseconds.
    ttl: AtomicU64,
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: Vec<(CacheKey, Vec<u8>)>,
    bytes: usize,
}

/// An entry that was read.
pub struct Found {
    /// What is kept.
    pub cached: Cached,
    /// Whose it is.
    pub tag: EntryTag,
}

impl RemoteCache {
    /// The cache over `link`; its entries live for `ttl`.
    pub fn new(link: Arc<Link>, ttl: Duration) -> RemoteCache {
        let cache = RemoteCache { link, ttl: AtomicU64::new(0), waiting: Mutex::default(), wake: Notify::new() };
        cache.set_ttl(ttl);
        cache
    }

    /// Life of entries from now on.
    pub fn set_ttl(&self, ttl: Duration) {
        self.ttl.store(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// What is kept under each key, in the order of the keys; nothing for those that could not be looked up in time.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get_many(&self, keys: &[CacheKey]) -> Vec<Option<Found>> {
        let mut found = Vec::with_capacity(keys.len());
        for part in keys.chunks(READ) {
            let names: Vec<String> = part.iter().map(name).collect();
            let read = self
                .link
                .step(Lane::Bulk, StoreName::RedisCache, async |mut connection| -> RedisResult<Vec<Option<Bytes>>> {
                    cmd("MGET").arg(&names).query_async(&mut connection).await
                })
                .await;
            // A server that fails one part will not be asked for the others.
            let Ok(entries) = read else { break };
            found.extend(entries.into_iter().map(|entry| entry.and_then(decode)));
        }
        found.resize_with(keys.len(), || None);
        found
    }

    /// Keeps an entry, a moment later.
    pub fn put(&self, key: CacheKey, cached: &Cached, tag: &EntryTag) {
        if !self.link.is_up() {
            return;
        }
        let entry = encode(cached, tag);
        let mut waiting = self.waiting.lock();
        if waiting.bytes + entry.len() > WAITING_BYTES {
            return;
        }
        waiting.bytes += entry.len();
        waiting.entries.push((key, entry));
        let first_or_full = waiting.entries.len() == 1 || waiting.bytes >= WRITE_BYTES;
        drop(waiting);
        if first_or_full {
            self.wake.notify_one();
        }
    }

    /// Drops the entries in Redis that match, and tells all replicas to clear their memory; how many there were. Visits
    /// every entry.
    ///
    /// # Errors
    /// The server does not answer; some may be dropped.
    pub async fn clear(&self, filter: &CacheFilter) -> Result<usize, StoreDown> {
        let tenant = filter.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        let model = filter.model.as_ref().map_or("", |model| model.as_str());
        let tell = async |mut connection| {
            let mut add = cmd("XADD");
            add.arg(CLEARS_KEY).arg("MAXLEN").arg("~").arg(CLEARS_KEPT).arg("*");
            add.arg("tenant").arg(tenant).arg("model").arg(model).query_async::<()>(&mut connection).await
        };
        self.link.step(Lane::Bulk, StoreName::RedisCache, tell).await?;
        let (mut dropped, mut cursor) = (0, 0_u64);
        loop {
            let (next, part) = self.clear_part(filter, cursor).await?;
            dropped += part;
            cursor = next;
            if cursor == 0 {
                return Ok(dropped);
            }
        }
    }

    async fn clear_part(&self, filter: &CacheFilter, cursor: u64) -> Result<(u64, usize), StoreDown> {
        let scan = async |mut connection| -> RedisResult<(u64, Vec<String>)> {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{PREFIX}*")).arg("COUNT").arg(500);
            scan.query_async(&mut connection).await
        };
        let (next, names) = self.link.step(Lane::Bulk, StoreName::RedisCache, scan).await?;
        if names.is_empty() {
            return Ok((next, 0));
        }
        let read = async |mut connection| -> RedisResult<Vec<Bytes>> {
            let mut heads = pipe();
            for name in &names {
                heads.cmd("GETRANGE").arg(name).arg(0).arg(HEAD);
            }
            heads.query_async(&mut connection).await
        };
        let heads = self.link.step(Lane::Bulk, StoreName::RedisCache, read).await?;
        let matching = names.iter().zip(heads);
        let matching = matching.filter(|(_, head)| tag_of(head.clone()).is_none_or(|tag| filter.matches(&tag)));
        let names: Vec<&String> = matching.map(|(name, _)| name).collect();
        if names.is_empty() {
            return Ok((next, 0));
        }
        let unlink = async |mut connection| cmd("UNLINK").arg(&names).query_async::<usize>(&mut connection).await;
        Ok((next, self.link.step(Lane::Bulk, StoreName::RedisCache, unlink).await?))
    }

    /// Writes what waits, and calls `cleared` for what other replicas have cleared. Runs until it is dropped.
    ///
    /// # Cancel safety
    /// What waits is lost.
    pub async fn keep(&self, cleared: impl Fn(&CacheFilter) -> usize) {
        let mut clears = Clears::default();
        // A clock of its own: writing that never pauses must not keep a replica from hearing of clears.
        let mut look = tokio::time::interval(CLEARS_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pace = Pace::default();
        loop {
            tokio::select! {
                () = self.wake.notified() => {
                    if let Some(pause) = pace.pause(clock::mono()) {
                        tokio::time::sleep(pause).await;
                    }
                    self.write().await;
                }
                _ = look.tick() => clears.read(&self.link, &cleared).await,
            }
        }
    }

    async fn write(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let ttl = self.ttl.load(Ordering::Relaxed);
        let (mut batch, mut bytes) = (pipe(), 0);
        for (key, entry) in waiting.entries {
            bytes += entry.len();
            batch.cmd("SET").arg(name(&key)).arg(entry).arg("PX").arg(ttl).ignore();
            if bytes >= WRITE_BYTES {
                self.write_batch(&batch).await;
                (batch, bytes) = (pipe(), 0);
            }
        }
        if bytes > 0 {
            self.write_batch(&batch).await;
        }
    }

    async fn write_batch(&self, batch: &Pipeline) {
        let write = async |mut connection| batch.query_async::<()>(&mut connection).await;
        // Counted as an error of the store by the link; the entries can be had again.
        let _dropped = self.link.step(Lane::Bulk, StoreName::RedisCache, write).await;
    }
}

/// How often is written.
#[derive(Default)]
struct Pace {
    since: Mono,
    writes: u32,
}

impl Pace {
    /// How long the next write has to wait, if at all.
    fn pause(&mut self, now: Mono) -> Option<Duration> {
        let passed = now.since(self.since);
        if passed >= GATHER {
            *self = Pace { since: now, writes: 1 };
            return None;
        }
        self.writes += 1;
        (self.writes > AT_ONCE).then(|| GATHER.saturating_sub(passed))
    }
}

/// How far the clears of other replicas were read: at first, not at all. Those from before this replica's start cost it
/// the few entries that it has by then; to note only where they end would miss one that comes before the first look.
struct Clears {
    last: String,
}

impl Default for Clears {
    fn default() -> Clears {
        Clears { last: "0-0".to_owned() }
    }
}

impl Clears {
    async fn read(&mut self, link: &Link, cleared: &impl Fn(&CacheFilter) -> usize) {
        if !link.is_up() {
            return;
        }
        type Entries = Vec<(String, Vec<String>)>;
        let from = format!("({}", self.last);
        let newer = async |mut connection| -> RedisResult<Entries> {
            cmd("XRANGE").arg(CLEARS_KEY).arg(&from).arg("+").query_async(&mut connection).await
        };
        let Ok(entries) = link.step(Lane::Bulk, StoreName::RedisCache, newer).await else { return };
        for (id, fields) in entries {
            let field = |name: &str| {
                let value = fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
                value.filter(|value| !value.is_empty())
            };
            let filter =
                CacheFilter { tenant: field("tenant").map(TenantId::from), model: field("model").map(ModelName::from) };
            // Not inside the event: what nobody listens to is not evaluated.
            let entries = cleared(&filter);
            tracing::debug!(entries, "another replica's order cleared entries in memory");
            self.last = id;
        }
    }
}

fn name(key: &CacheKey) -> String {
    format!("{PREFIX}{}", hex::encode(key.0))
}

/// An entry: version, flags, tokens, tenant and model with their lengths, kind, value.
fn encode(cached: &Cached, tag: &EntryTag) -> Vec<u8> {
    let mut out = Vec::with_capacity(cached.bytes() + 96);
    out.extend([VERSION, u8::from(cached.estimated)]);
    out.extend(cached.tokens.to_le_bytes());
    for word in [tag.tenant.as_str(), tag.model.as_str()] {
        // A name of 64 KiB is in no configuration; its entries are cleared with everybody's.
        let length = u16::try_from(word.len()).unwrap_or(0);
        out.extend(length.to_le_bytes());
        out.extend(word.bytes().take(usize::from(length)));
    }
    match &cached.value {
        Value::Vector(vector) => {
            out.push(b'V');
            out.extend(vector.to_stored());
        }
        Value::Score(score) => {
            out.push(b'S');
            out.extend(score.to_le_bytes());
        }
    }
    out
}

/// Reads an entry; `None` if it is none that this version wrote. Checks everything again: others write there too.
pub fn decode(mut entry: Bytes) -> Option<Found> {
    let (estimated, tokens, tag) = head(&mut entry)?;
    let value = match entry.try_get_u8().ok()? {
        b'V' => Value::Vector(Vector::from_stored(&entry, None).ok()?),
        b'S' => Value::Score(entry.try_get_f64_le().ok().filter(|score| score.is_finite() && entry.is_empty())?),
        _ => return None,
    };
    Some(Found { cached: Cached { value, tokens, estimated }, tag })
}

fn head(entry: &mut Bytes) -> Option<(bool, u32, EntryTag)> {
    if entry.try_get_u8().ok()? != VERSION {
        return None;
    }
    let estimated = entry.try_get_u8().ok()? == 1;
    let tokens = entry.try_get_u32_le().ok()?;
    let tenant = TenantId::from(word(entry)?);
    let model = ModelName::from(word(entry)?);
    Some((estimated, tokens, EntryTag { tenant, model }))
}

fn word(entry: &mut Bytes) -> Option<String> {
    let length = usize::from(entry.try_get_u16_le().ok()?);
    let bytes = (entry.len() >= length).then(|| entry.split_to(length))?;
    String::from_utf8(bytes.to_vec()).ok()
}

/// Whose entry begins like this.
fn tag_of(mut begin: Bytes) -> Option<EntryTag> {
    head(&mut begin).map(|(_, _, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag() -> EntryTag {
        EntryTag { tenant: "t1".into(), model: "m".into() }
    }

    #[track_caller]
    fn check(cached: &Cached) {
        let found = decode(Bytes::from(encode(cached, &tag()))).expect("reads back");
        assert_eq!((&found.cached, &found.tag), (cached, &tag()));
    }

    #[test]
    fn entries_read_back_as_written() {
        let text = Vector::from_text(Bytes::from_static(b"[0.10, -2e-3]"), None).expect("valid");
        let floats = Vector::from_floats(&[0.5, 1.5]).expect("finite");
        for vector in [text, floats] {
            check(&Cached { value: Value::Vector(vector), tokens: 7, estimated: false });
        }
        check(&Cached { value: Value::Score(0.25), tokens: 0, estimated: true });
    }

    #[test]
    fn a_write_now_and_then_sets_out_at_once_and_a_stream_of_them_is_gathered() {
        let mut pace = Pace::default();
        let mut pauses = |times: &[u64]| times.iter().map(|at| pace.pause(Mono::from_millis(*at))).collect::<Vec<_>>();
        assert_eq!(pauses(&[100, 102, 110, 113, 120]), [None; 5], "now and then");
        assert_eq!(pauses(&[200, 200, 201, 202, 203]), [None, None, None, None, Some(Duration::from_millis(2))]);
        assert_eq!(pauses(&[205]), [None], "the next has begun");
    }

    proptest! {
        #[test]
        fn whatever_lies_there_is_an_entry_or_a_miss(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(found) = decode(Bytes::from(bytes)) {
                prop_assert!(found.cached.score().is_none_or(f64::is_finite));
            }
        }

        #[test]
        fn a_cut_entry_is_a_miss(keep in 0_usize..30) {
            let whole = encode(&Cached { value: Value::Score(0.5), tokens: 3, estimated: false }, &tag());
            prop_assume!(keep < whole.len());
            prop_assert!(decode(Bytes::from(whole[..keep].to_vec())).is_none());
        }
    }
}
