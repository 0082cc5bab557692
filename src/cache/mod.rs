//! Vectors and scores that were already paid for. Knows keys and values; refuses to know requests, providers and prices.

pub mod flight;
pub mod memory;
pub mod remote;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::config::plan::{self, CacheBackend};
use crate::ids::{ModelName, TenantId};
use crate::pure::cache_key::CacheKey;
use crate::pure::time::Mono;
use crate::vector::Vector;

use crate::store::redis::link::Link;

use flight::Flights;
use memory::MemoryCache;
use remote::RemoteCache;

/// What an input was answered with.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The vector of a text.
    Vector(Vector),
    /// The score of a document for a query; finite.
    Score(f64),
}

/// A vector or a score that was paid for, and how many tokens of the bill it stands for.
///
/// The tokens are kept so that a hit states the same usage as the miss did; they are never charged again.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// The vector or the score.
    pub value: Value,
    /// Its share of the call's tokens.
    pub tokens: u32,
    /// Whether the tokens are this gateway's own estimate.
    pub estimated: bool,
}

impl Cached {
    /// The vector, if it is one.
    pub fn vector(&self) -> Option<&Vector> {
        match &self.value {
            Value::Vector(vector) => Some(vector),
            Value::Score(_) => None,
        }
    }

    /// The score, if it is one.
    pub fn score(&self) -> Option<f64> {
        match self.value {
            Value::Score(score) => Some(score),
            Value::Vector(_) => None,
        }
    }

    /// Bytes of its own besides the entry that it stands in.
    pub fn bytes(&self) -> usize {
        self.vector().map_or(0, Vector::bytes)
    }

    /// The same in memory of its own.
    pub fn detached(&self) -> Cached {
        let value = match &self.value {
            Value::Vector(vector) => Value::Vector(vector.detached()),
            Value::Score(score) => Value::Score(*score),
        };
        Cached { value, ..*self }
    }
}

/// The cache as the configuration has it, with the calls under way that will fill it.
///
/// Interactive requests and batches have flights of their own: a person's query must never wait for the same text in a
/// batch queue.
#[derive(Debug)]
pub struct Cache {
    memory: ArcSwapOption<MemoryCache>,
    remote: Option<Arc<RemoteCache>>,
    interactive: Flights,
    batch: Flights,
}

/// Where entries live in Redis only, what has just landed is also kept here for a moment: whoever joins right after a
/// flight has ended must find its vector, and the write to Redis may still be under way.
const LANDED_BYTES: u64 = 16 << 20;
/// How long.
const LANDED_TTL: Duration = Duration::from_secs(2);

impl Cache {
    /// An empty cache, with `link` for backends that share entries through Redis.
    pub fn new(plan: &plan::Cache, link: Option<&Arc<Link>>) -> Cache {
        let memory = bounds(plan).map(|(bytes, ttl)| Arc::new(MemoryCache::new(bytes, ttl)));
        let shared = matches!(plan.backend, CacheBackend::Redis | CacheBackend::Tiered);
        let remote = link.filter(|_| shared).map(|link| Arc::new(RemoteCache::new(Arc::clone(link), plan.ttl)));
        let memory = ArcSwapOption::from(memory);
        Cache { memory, remote, interactive: Flights::default(), batch: Flights::default() }
    }

    /// The part in Redis, where there is one.
    pub fn remote(&self) -> Option<&Arc<RemoteCache>> {
        self.remote.as_ref()
    }

    /// What is kept in Redis under each key, in the order of the keys, as far as it fits: others write there too. Found
    /// entries come into memory.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get_far(&self, keys: &[CacheKey], fits: impl Fn(&Cached) -> bool, now: Mono) -> Vec<Option<Cached>> {
        let Some(remote) = &self.remote else { return vec![None; keys.len()] };
        let found = remote.get_many(keys).await;
        let entries = keys.iter().zip(found);
        entries
            .map(|(key, found)| {
                let found = found.filter(|found| fits(&found.cached))?;
                if let Some(memory) = self.memory.load().as_ref() {
                    memory.put_many(&found.tag, [(*key, &found.cached)], now);
                }
                Some(found.cached)
            })
            .collect()
    }

    /// Takes over what a reload says: entries are kept as far as the new bounds go. Whether there is a part in Redis does
    /// not change.
    pub fn reconfigure(&self, plan: &plan::Cache) {
        match (self.memory.load_full(), bounds(plan)) {
            (Some(memory), Some((bytes, ttl))) => memory.resize(bytes, ttl),
            (None, Some((bytes, ttl))) => self.memory.store(Some(Arc::new(MemoryCache::new(bytes, ttl)))),
            (_, None) => self.memory.store(None),
        }
        if let Some(remote) = &self.remote {
            remote.set_ttl(plan.ttl);
        }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.memory.load().is_some()
    }

    /// What is kept in memory under a key.
    pub fn get(&self, key: &CacheKey, now: Mono) -> Option<Cached> {
        self.memory.load().as_ref()?.get(key, now)
    }

    /// Keeps a vector or a score.
    pub fn put(&self, key: CacheKey, cached: &Cached, tag: &EntryTag, now: Mono) {
        if let Some(memory) = self.memory.load().as_ref() {
            memory.put_many(tag, [(key, cached)], now);
        }
        if let Some(remote) = &self.remote {
            remote.put(key, cached, tag);
        }
    }

    /// Drops the entries in memory that match; how many there were. [`RemoteCache::clear`] does it in Redis.
    pub fn clear(&self, filter: &CacheFilter) -> usize {
        self.memory.load().as_ref().map_or(0, |memory| memory.clear(filter))
    }

    /// The calls under way of one kind of traffic.
    pub fn flights(&self, interactive: bool) -> &Flights {
        if interactive { &self.interactive } else { &self.batch }
    }
}

/// Bytes and life of what is kept in memory; `None`: nothing is.
fn bounds(plan: &plan::Cache) -> Option<(u64, Duration)> {
    match plan.backend {
        CacheBackend::Off => None,
        CacheBackend::Memory | CacheBackend::Tiered => Some((plan.max_bytes, plan.ttl)),
        CacheBackend::Redis => Some((LANDED_BYTES.min(plan.max_bytes), LANDED_TTL.min(plan.ttl))),
    }
}

/// Whose entry it is: not part of the key, but what an operator clears the cache by. Where tenants share entries, the
/// tenant that paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryTag {
    /// The tenant.
    pub tenant: TenantId,
    /// The model that made the vector or the score.
    pub model: ModelName,
}

/// Which entries to clear; what is `None` does not matter.
#[derive(Debug, Clone, Default)]
pub struct CacheFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only this model's.
    pub model: Option<ModelName>,
}

impl CacheFilter {
    /// Whether an entry is to be cleared.
    pub fn matches(&self, tag: &EntryTag) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == tag.tenant)
            && self.model.as_ref().is_none_or(|model| *model == tag.model)
    }
}
