//! The pages of all tenants that a book ever saw. Owns how they lie in memory: whoever was charged since the start has an
//! open page, all others are at rest, packed into some tens of bytes, so that tenants which left cost next to nothing.
//! Knows no rule about what a page says.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::book::Page;
use crate::ids::TenantId;
use crate::pure::money::Money;
use crate::pure::time::Wall;

/// Pages by tenant.
#[derive(Clone, Default)]
pub struct Pages {
    /// By hash: each record looks its page up, and a tree of ten thousand ids misses the cache at each of its levels.
    open: HashMap<TenantId, Box<Page>>,
    resting: BTreeSet<Packed>,
}

impl Pages {
    /// The tenant's page, if it was ever seen.
    pub fn get(&self, tenant: &TenantId) -> Option<Cow<'_, Page>> {
        if let Some(page) = self.open.get(tenant) {
            return Some(Cow::Borrowed(page.as_ref()));
        }
        self.resting.get(tenant.as_str().as_bytes()).map(|packed| Cow::Owned(packed.page()))
    }

    /// The tenant's page to write on; an empty one at its first sight.
    pub(super) fn open(&mut self, tenant: &TenantId) -> &mut Page {
        match self.open.entry(tenant.clone()) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(place) => {
                let resting = self.resting.take(tenant.as_str().as_bytes());
                place.insert(Box::new(resting.map(|packed| packed.page()).unwrap_or_default()))
            }
        }
    }

    /// Packs the tenant's page, unless something on it is still under way.
    pub(super) fn rest(&mut self, tenant: &TenantId) {
        if let Some(packed) = self.open.get(tenant).and_then(|page| Packed::new(tenant, page)) {
            self.open.remove(tenant);
            self.resting.insert(packed);
        }
    }

    /// Pages on which something may be under way: holds, records that the shared ledger is yet to be told.
    pub fn under_way(&self) -> impl Iterator<Item = &Page> {
        self.open.values().map(Box::as_ref)
    }

    /// All pages, by tenant.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, Cow<'_, Page>)> {
        self.merged(|_| true)
    }

    /// The pages that may say more than sums: settings, keys, credits.
    pub fn with_details(&self) -> impl Iterator<Item = (TenantId, Cow<'_, Page>)> {
        self.merged(Packed::has_details)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open.len() + self.resting.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn merged(&self, wanted: impl Fn(&Packed) -> bool) -> impl Iterator<Item = (TenantId, Cow<'_, Page>)> {
        let mut open: Vec<(&TenantId, &Page)> = self.open.iter().map(|(id, page)| (id, page.as_ref())).collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        let mut open = open.into_iter().peekable();
        let mut resting = self.resting.iter().filter(move |packed| wanted(packed)).peekable();
        std::iter::from_fn(move || {
            let open_is_next = match (open.peek(), resting.peek()) {
                (Some((id, _)), Some(packed)) => id.as_str().as_bytes() < packed.id(),
                (first, _) => first.is_some(),
            };
            if open_is_next {
                return open.next().map(|(id, page)| (id.clone(), Cow::Borrowed(page)));
            }
            resting.next().map(|packed| (packed.tenant(), Cow::Owned(packed.page())))
        })
    }
}

/// What they say counts, not how they lie.
impl PartialEq for Pages {
    fn eq(&self, other: &Pages) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Pages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Pages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pages, D::Error> {
        deserializer.deserialize_map(ReadPages)
    }
}

/// Packs pages as they are read, so that a start never has all of them open.
struct ReadPages;

impl<'de> Visitor<'de> for ReadPages {
    type Value = Pages;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pages by tenant")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Pages, A::Error> {
        let mut pages = Pages::default();
        while let Some((tenant, page)) = entries.next_entry::<TenantId, Page>()? {
            *pages.open(&tenant) = page;
            pages.rest(&tenant);
        }
        Ok(pages)
    }
}

/// A page at rest: the tenant's id, the sums, and as JSON whatever else differs from an empty page. Ordered by the id alone.
#[derive(Clone)]
struct Packed(Box<[u8]>);

impl Packed {
    /// `None` where something is under way, or what would be unpacked again is not this very page.
    fn new(tenant: &TenantId, page: &Page) -> Option<Packed> {
        if !page.holds.is_empty() || !page.pending.is_empty() {
            return None;
        }
        let id = tenant.as_str().as_bytes();
        let mut bytes = Vec::with_capacity(id.len() + 40);
        put(&mut bytes, id.len() as u128);
        bytes.extend_from_slice(id);
        for sum in sums(page) {
            put(&mut bytes, sum);
        }
        let mut details = page.clone();
        set_sums(&mut details, [0; SUMS]);
        if details != Page::default() {
            bytes.extend(serde_json::to_vec(&differing(&details)?).ok()?);
        }
        let packed = Packed(bytes.into_boxed_slice());
        (packed.page() == *page).then_some(packed)
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let (len, rest) = take(&self.0);
        rest.split_at(usize::try_from(len).unwrap_or(0).min(rest.len()))
    }

    fn id(&self) -> &[u8] {
        self.split().0
    }

    fn tenant(&self) -> TenantId {
        TenantId::from(&*String::from_utf8_lossy(self.id()))
    }

    fn unpack(&self) -> ([u128; SUMS], &[u8]) {
        let mut rest = self.split().1;
        let sums = std::array::from_fn(|_| {
            let (sum, left) = take(rest);
            rest = left;
            sum
        });
        (sums, rest)
    }

    fn has_details(&self) -> bool {
        !self.unpack().1.is_empty()
    }

    fn page(&self) -> Page {
        let (sums, details) = self.unpack();
        let mut page = if details.is_empty() { Page::default() } else { with_details(details).unwrap_or_default() };
        set_sums(&mut page, sums);
        page
    }
}

impl Borrow<[u8]> for Packed {
    fn borrow(&self) -> &[u8] {
        self.id()
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Packed) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Packed {}

impl PartialOrd for Packed {
    fn partial_cmp(&self, other: &Packed) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packed {
    fn cmp(&self, other: &Packed) -> Ordering {
        self.id().cmp(other.id())
    }
}

const SUMS: usize = 7;

fn sums(page: &Page) -> [u128; SUMS] {
    // The casts keep every bit, so that the way back is exact.
    [
        page.period_start.0 as u64 as u128,
        page.spent.units() as u128,
        page.written_off.units() as u128,
        page.credits.units() as u128,
        u128::from(page.lifetime_requests),
        u128::from(page.lifetime_tokens),
        page.lifetime_cost.units() as u128,
    ]
}

fn set_sums(page: &mut Page, sums: [u128; SUMS]) {
    let [period_start, spent, written_off, credits, requests, tokens, cost] = sums;
    page.period_start = Wall(period_start as u64 as i64);
    (page.spent, page.written_off) = (Money::from_units(spent as i128), Money::from_units(written_off as i128));
    (page.credits, page.lifetime_cost) = (Money::from_units(credits as i128), Money::from_units(cost as i128));
    (page.lifetime_requests, page.lifetime_tokens) = (requests as u64, tokens as u64);
}

/// The members of a page that are not as on an empty one.
fn differing(page: &Page) -> Option<Value> {
    let (Value::Object(mut members), Value::Object(empty)) = (json(page)?, json(&Page::default())?) else {
        return None;
    };
    members.retain(|name, value| empty.get(name) != Some(value));
    Some(Value::Object(members))
}

fn with_details(details: &[u8]) -> Option<Page> {
    let members: Map<String, Value> = serde_json::from_slice(details).ok()?;
    let Value::Object(mut page) = json(&Page::default())? else { return None };
    page.extend(members);
    serde_json::from_value(Value::Object(page)).ok()
}

fn json(page: &Page) -> Option<Value> {
    serde_json::to_value(page).ok()
}

/// Seven bits a byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &[u8]) -> (u128, &[u8]) {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate() {
        number |= u128::from(byte & 0x7f).checked_shl(7 * at as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return (number, &bytes[at + 1..]);
        }
    }
    (number, &[])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::KeyFingerprint;
    use crate::store::book::{AddedKey, Revoked};
    use crate::store::record::Record;
    use crate::store::testing::{TENANT, hold};

    fn any_page() -> impl Strategy<Value = Page> {
        let money = || (0..1_000_000_000_000_000_000_000_000_000_i128).prop_map(Money::from_units);
        let sums = (any::<i64>(), money(), money(), money(), any::<(u64, u64)>(), money());
        let details = (prop::option::of(0..9_i64), prop::option::of("[0-9]{3}-[0-9]"), 0..3_i64);
        (sums, details).prop_map(|((start, spent, written_off, credits, counts, cost), (key, cursor, parts))| Page {
            period_start: Wall(start),
            spent,
            written_off,
            credits,
            lifetime_requests: counts.0,
            lifetime_tokens: counts.1,
            lifetime_cost: cost,
            keys: key
                .map(|at| (KeyFingerprint::from("ab"), AddedKey { sha256: "00".to_owned(), created: Wall(at) }))
                .into_iter()
                .collect(),
            revoked: key.map(|at| (KeyFingerprint::from("cd"), Revoked { at: Wall(at) })).into_iter().collect(),
            created: key.map(|at| serde_json::json!({ "id": "x", "budget": at })),
            cursor,
            parts: (0..parts).map(|part| (format!("r{part}"), Money::from_units(part.into()))).collect(),
            ..Page::default()
        })
    }

    proptest! {
        #[test]
        fn a_page_is_the_same_after_its_rest(page in any_page(), id in "[a-zA-Zäß€0-9._-]{1,140}") {
            let tenant = TenantId::from(id);
            let mut pages = Pages::default();
            *pages.open(&tenant) = page.clone();
            let before = pages.clone();
            pages.rest(&tenant);
            prop_assert_eq!((pages.open.len(), pages.resting.len()), (0, 1));
            prop_assert_eq!(&pages, &before);
            let rested = pages.get(&tenant).map(Cow::into_owned);
            prop_assert_eq!(rested.as_ref(), Some(&page));
            let json = serde_json::to_string(&pages).expect("json");
            prop_assert_eq!(&serde_json::to_string(&before).expect("json"), &json);
            prop_assert_eq!(&serde_json::from_str::<Pages>(&json).expect("read"), &before);
            prop_assert_eq!(&*pages.open(&tenant), &page);
            prop_assert_eq!((pages.open.len(), pages.resting.len()), (1, 0));
        }
    }

    #[test]
    fn pages_come_in_the_order_of_their_tenants() {
        let mut pages = Pages::default();
        for (id, rests) in [("d", true), ("a", false), ("c", false), ("b", true), ("e", true)] {
            pages.open(&id.into()).lifetime_requests = 1;
            if rests {
                pages.rest(&id.into());
            }
        }
        let ids: Vec<String> = pages.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!((ids.join(""), pages.len()), ("abcde".to_owned(), 5));
        assert_eq!(pages.with_details().count(), 2, "those at rest have none");
        assert!(pages.get(&"f".into()).is_none());
    }

    #[test]
    fn a_page_with_an_open_hold_does_not_rest() {
        let mut pages = Pages::default();
        let Record::Hold(open) = hold(7, 9) else { panic!("a hold") };
        pages.open(&TENANT.into()).holds.insert(open.hold, open);
        pages.rest(&TENANT.into());
        assert_eq!(pages.under_way().map(|page| page.holds.len()).sum::<usize>(), 1);
    }

    #[test]
    fn a_tenant_that_left_costs_some_tens_of_bytes() {
        let page = Page {
            spent: "0.0123456".parse().expect("money"),
            lifetime_requests: 12_345,
            lifetime_tokens: 1_234_567,
            lifetime_cost: "0.0123456".parse().expect("money"),
            ..Page::default()
        };
        let packed = Packed::new(&"department-4711".into(), &page).expect("rests");
        assert!(packed.0.len() <= 48, "{}", packed.0.len());
    }
}
