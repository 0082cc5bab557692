//! The cache inside the process, bounded by bytes. Owns its entries' memory and their expiry; refuses to read a clock.
//!
//! Expiry is looked at when an entry is read: an expired entry is a miss and is dropped then, and until then it costs
//! no more than any other entry that nobody asks for.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::{CacheFilter, Cached, EntryTag};
use crate::pure::cache_key::CacheKey;
use crate::pure::time::Mono;

/// What an entry costs apart from its vector's bytes: key, tags, expiry, and the cache's own bookkeeping.
const ENTRY_OVERHEAD: u64 = 200;

/// Bytes of a typical vector; decides only how many parts the cache is split into.
const TYPICAL_ENTRY: u64 = 6 * 1024;

#[derive(Clone)]
struct Entry {
    cached: Cached,
    expires: Mono,
    tag: EntryTag,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<CacheKey, Entry> for ByBytes {
    fn weight(&self, _: &CacheKey, entry: &Entry) -> u64 {
        entry.cached.bytes() as u64 + ENTRY_OVERHEAD
    }
}

/// A bounded cache of vectors, shared by all threads.
#[derive(Debug)]
pub struct MemoryCache {
    entries: Cache<CacheKey, Entry, ByBytes>,
    /// Life of new entries in nanoseconds.
    ttl: AtomicU64,
}

impl MemoryCache {
    /// An empty cache of at most `max_bytes` bytes, whose entries live for `ttl`.
    pub fn new(max_bytes: u64, ttl: Duration) -> MemoryCache {
        let typical = usize::try_from(max_bytes / TYPICAL_ENTRY).unwrap_or(usize::MAX).max(1);
        let options = OptionsBuilder::new().estimated_items_capacity(typical).weight_capacity(max_bytes).build();
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let entries = match options {
            Ok(options) => Cache::with_options(options, ByBytes, hasher, lifecycle),
            Err(_) => Cache::with(typical, max_bytes, ByBytes, hasher, lifecycle),
        };
        MemoryCache { entries, ttl: AtomicU64::new(nanoseconds(ttl)) }
    }

    /// New bounds. Entries keep the life they were given; those beyond the bound are evicted.
    pub fn resize(&self, max_bytes: u64, ttl: Duration) {
        self.ttl.store(nanoseconds(ttl), Ordering::Relaxed);
        self.entries.set_capacity(max_bytes);
    }

    /// What is kept under each key, in the order of the keys. Copies no vector.
    pub fn get_many(&self, keys: &[CacheKey], now: Mono) -> Vec<Option<Cached>> {
        keys.iter().map(|key| self.get(key, now)).collect()
    }

    /// What is kept under a key.
    pub fn get(&self, key: &CacheKey, now: Mono) -> Option<Cached> {
        let entry = self.entries.get(key)?;
        if entry.expires > now {
            return Some(entry.cached);
        }
        // Somebody may have renewed it meanwhile.
        self.entries.remove_if(key, |entry| entry.expires <= now);
        None
    }

    /// Keeps vectors. Each is copied into memory of its own.
    pub fn put_many<'a>(&self, tag: &EntryTag, entries: impl IntoIterator<Item = (CacheKey, &'a Cached)>, now: Mono) {
        let expires = now.plus(Duration::from_nanos(self.ttl.load(Ordering::Relaxed)));
        for (key, cached) in entries {
            self.entries.insert(key, Entry { cached: cached.detached(), expires, tag: tag.clone() });
        }
    }

    /// Drops the entries that match; how many there were. Visits every entry.
    pub fn clear(&self, filter: &CacheFilter) -> usize {
        let dropped = Cell::new(0);
        self.entries.retain(|_, entry| {
            let drop = filter.matches(&entry.tag);
            dropped.set(dropped.get() + usize::from(drop));
            !drop
        });
        dropped.get()
    }

    /// Entries kept, expired ones that nobody has asked for included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes kept, overhead included.
    pub fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::Value;
    use crate::pure::cache_key::text_digest;
    use crate::vector::Vector;

    const HOUR: Duration = Duration::from_secs(3600);

    fn key(name: &str) -> CacheKey {
        CacheKey(text_digest(name))
    }

    fn tag(tenant: &str, model: &str) -> EntryTag {
        EntryTag { tenant: tenant.into(), model: model.into() }
    }

    fn cached(vector: Vector) -> Cached {
        Cached { value: Value::Vector(vector), tokens: 1, estimated: false }
    }

    fn vector(value: f32) -> Cached {
        cached(Vector::from_floats(&[value; 8]).expect("finite"))
    }

    fn at(hours: u64) -> Mono {
        Mono::ZERO.plus(HOUR * u32::try_from(hours).expect("small"))
    }

    #[test]
    fn keeps_in_order_and_until_expiry() {
        let cache = MemoryCache::new(1 << 20, HOUR * 2);
        let (a, b) = (vector(1.0), vector(2.0));
        cache.put_many(&tag("t", "m"), [(key("a"), &a), (key("b"), &b)], at(0));
        let keys = [key("b"), key("x"), key("a")];
        assert_eq!(cache.get_many(&keys, at(1)), [Some(b.clone()), None, Some(a.clone())]);
        cache.put_many(&tag("t", "m"), [(key("a"), &a)], at(1));
        assert_eq!(cache.get_many(&keys, at(2)), [None, None, Some(a)], "expired exactly at its end");
        assert_eq!(cache.len(), 1, "an expired entry is dropped when it is read");
        cache.resize(1 << 20, HOUR);
        cache.put_many(&tag("t", "m"), [(key("b"), &b)], at(2));
        assert_eq!(cache.get(&key("b"), at(3)), None);
    }

    #[test]
    fn bytes_are_bounded() {
        let cache = MemoryCache::new(1 << 20, HOUR);
        let big = cached(Vector::from_floats(&[0.5; 1024]).expect("finite"));
        for number in 0..2_000 {
            cache.put_many(&tag("t", "m"), [(key(&number.to_string()), &big)], at(0));
        }
        assert!(cache.bytes() <= 1 << 20, "{}", cache.bytes());
        assert!(cache.len() > 150, "most of the room is used: {}", cache.len());
        cache.resize(1 << 18, HOUR);
        assert!(cache.bytes() <= 1 << 18, "{}", cache.bytes());
    }

    #[test]
    fn entries_share_no_memory_with_the_answer() {
        let answer = Bytes::from(b"[1,2],[3,4]".to_vec());
        let slice = cached(Vector::from_text(answer.slice(0..5), Some(2)).expect("valid"));
        let cache = MemoryCache::new(1 << 20, HOUR);
        cache.put_many(&tag("t", "m"), [(key("a"), &slice)], at(0));
        drop(slice);
        assert!(answer.is_unique(), "only the answer itself holds its memory");
    }

    #[test]
    fn clears_by_tenant_and_model() {
        let check = |tenant: Option<&str>, model: Option<&str>, left: [bool; 3]| {
            let cache = MemoryCache::new(1 << 20, HOUR);
            let value = vector(1.0);
            for (name, tag) in [("a", tag("t1", "m1")), ("b", tag("t1", "m2")), ("c", tag("t2", "m1"))] {
                cache.put_many(&tag, [(key(name), &value)], at(0));
            }
            let filter = CacheFilter { tenant: tenant.map(TenantId::from), model: model.map(ModelName::from) };
            let dropped = cache.clear(&filter);
            let found =
                cache.get_many(&[key("a"), key("b"), key("c")], at(0)).iter().map(Option::is_some).collect::<Vec<_>>();
            assert_eq!(found, left);
            assert_eq!(dropped, left.iter().filter(|left| !**left).count());
        };
        use crate::ids::{ModelName, TenantId};
        check(None, None, [false, false, false]);
        check(Some("t1"), None, [false, false, true]);
        check(None, Some("m1"), [false, true, false]);
        check(Some("t1"), Some("m1"), [false, true, true]);
        check(Some("t3"), None, [true, true, true]);
    }
}
