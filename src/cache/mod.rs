//! Vectors and scores that were already paid for. Knows keys and values; refuses to know requests, providers and prices.

pub mod flight;
pub mod memory;

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::config::plan::{self, CacheBackend};
use crate::ids::{ModelName, TenantId};
use crate::pure::cache_key::CacheKey;
use crate::pure::time::Mono;
use crate::vector::Vector;

use flight::Flights;
use memory::MemoryCache;

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
    interactive: Flights,
    batch: Flights,
}

impl Cache {
    /// An empty cache.
    pub fn new(plan: &plan::Cache) -> Cache {
        let memory = (plan.backend != CacheBackend::Off).then(|| MemoryCache::new(plan.max_bytes, plan.ttl));
        let memory = ArcSwapOption::from(memory.map(Arc::new));
        Cache { memory, interactive: Flights::default(), batch: Flights::default() }
    }

    /// Takes over what a reload says: entries are kept as far as the new bounds go.
    pub fn reconfigure(&self, plan: &plan::Cache) {
        let wanted = plan.backend != CacheBackend::Off;
        match self.memory.load_full() {
            Some(memory) if wanted => memory.resize(plan.max_bytes, plan.ttl),
            None if wanted => self.memory.store(Some(Arc::new(MemoryCache::new(plan.max_bytes, plan.ttl)))),
            _ => self.memory.store(None),
        }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.memory.load().is_some()
    }

    /// What is kept under a key.
    pub fn get(&self, key: &CacheKey, now: Mono) -> Option<Cached> {
        self.memory.load().as_ref()?.get(key, now)
    }

    /// Keeps a vector or a score.
    pub fn put(&self, key: CacheKey, cached: &Cached, tag: &EntryTag, now: Mono) {
        if let Some(memory) = self.memory.load().as_ref() {
            memory.put_many(tag, [(key, cached)], now);
        }
    }

    /// Drops the entries that match; how many there were.
    pub fn clear(&self, filter: &CacheFilter) -> usize {
        self.memory.load().as_ref().map_or(0, |memory| memory.clear(filter))
    }

    /// The calls under way of one kind of traffic.
    pub fn flights(&self, interactive: bool) -> &Flights {
        if interactive { &self.interactive } else { &self.batch }
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
