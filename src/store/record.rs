//! The facts that the journal keeps. Names and types of what is on disk, and nothing about where or when it is written.
//!
//! Every record carries its time, so that reading a journal needs no clock. Keys of secrets never appear, only their
//! fingerprints and hashes; texts never appear at all.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::book::Book;
use super::collections::CollectionRecord;
use crate::ids::{HoldId, KeyFingerprint, ModelName, RequestId, SpaceId, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::pure::utc;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At least one upstream call contributed to a complete answer.
    Answered,
    /// Every item came from the cache.
    Cached,
    /// Turned away before any call.
    Refused,
    /// Called, but without a complete answer; parts that a provider billed are charged.
    Failed,
    /// The client left before its answer.
    Abandoned,
}

/// One request, as cost reports see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// When the request arrived.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Its id.
    pub request_id: RequestId,
    /// Who pays.
    pub tenant: TenantId,
    /// The key it came with; null where there is none.
    pub key: Option<KeyFingerprint>,
    /// The class applied.
    pub class: TrafficClass,
    /// Its collection, if it named one.
    pub collection: Option<String>,
    /// The model that was asked for.
    pub model: ModelName,
    /// The vector space of the answer, where it has one.
    pub space: Option<SpaceId>,
    /// The upstream that answered; null on a full cache hit and on a refusal.
    pub upstream: Option<UpstreamId>,
    /// Inputs, documents or messages in the request.
    pub items: u64,
    /// Items answered from the cache.
    pub cached_items: u64,
    /// Input tokens charged: those of fresh work only.
    pub tokens: u64,
    /// Output tokens charged; generative models only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_tokens: u64,
    /// Searches charged; rerankers billed by search only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub search_units: u64,
    /// Whether the quantities are ours because the provider named none.
    pub estimated: bool,
    /// Price of one input token, or of one search where `search_units` is given.
    pub unit_price: Money,
    /// Price of one output token; generative models only.
    #[serde(default, skip_serializing_if = "is_free")]
    pub output_unit_price: Money,
    /// What the tenant paid.
    pub cost: Money,
    /// What the provider billed beyond `cost` and no balance covered.
    #[serde(default, skip_serializing_if = "is_free")]
    pub shortfall: Money,
    /// Status of the answer.
    pub status: u16,
    /// How the request ended.
    pub outcome: Outcome,
    /// First byte of the request to head of the answer; kept to the microsecond.
    #[serde(rename = "latency_ms", with = "millis")]
    pub latency: Duration,
    /// Time spent waiting in our queues; kept to the microsecond.
    #[serde(rename = "dwell_ms", with = "millis")]
    pub dwell: Duration,
    /// The hold that this record resolves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldId>,
    /// Start of the budget period that the cost counts in, as the settlement said; absent without periods.
    #[serde(default, rename = "period_start_ms", skip_serializing_if = "is_epoch", with = "epoch_ms")]
    pub period_start: Wall,
    /// Where it stands in the stream that replicas share; absent with a ledger of our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedEntry>,
}

/// A record's place in the stream that replicas share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedEntry {
    /// The replica that served the request.
    pub replica: String,
    /// That replica's own number of the record; 0 if it was never pending.
    pub number: u64,
    /// The stream's id of it.
    pub entry: String,
}

/// A usage record that the shared ledger does not have yet. It counts once it comes back out of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingRecord {
    /// When it was set aside.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// This replica's number of it: ascending, never used twice.
    pub number: u64,
    /// The hold that it settles, by its shared id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldId>,
    /// The record.
    pub usage: Box<UsageRecord>,
}

/// A tenant's shared stream has been read this far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Whose stream.
    pub tenant: TenantId,
    /// The id of the last entry read.
    pub entry: String,
}

/// Money was held for a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Names the hold.
    pub hold: HoldId,
    /// Whose money.
    pub tenant: TenantId,
    /// For which request.
    pub request_id: RequestId,
    /// How much.
    pub amount: Money,
}

/// Why a hold ended without a usage record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    /// Nothing was called, or nothing was billed.
    Unused,
    /// Nobody resolved it in time.
    Expired,
    /// The process ended before the call's result was seen.
    Crash,
}

/// A hold ended without a charge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Which hold.
    pub hold: HoldId,
    /// Whose.
    pub tenant: TenantId,
    /// Why.
    pub reason: ReleaseReason,
}

/// Money was added on top of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// To whom.
    pub tenant: TenantId,
    /// How much; above zero.
    pub amount: Money,
    /// The same key is never applied twice.
    pub idempotency_key: String,
}

/// A budget was refilled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodRecord {
    /// When this was noticed; the period may have started earlier.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Whose.
    pub tenant: TenantId,
    /// First instant of the new period.
    #[serde(with = "utc::stamp")]
    pub start: Wall,
    /// Budget at the end of the period before; null: unlimited.
    pub budget_before: Option<Money>,
}

/// A tenant or one of its keys changed while running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Whose.
    pub tenant: TenantId,
    /// What.
    pub change: TenantChange,
}

/// What changed about a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantChange {
    /// It was created, with its settings as JSON in the form of the configuration. The store does not read them.
    Created(serde_json::Value),
    /// A key was added.
    KeyAdded {
        /// Its name in records.
        fingerprint: KeyFingerprint,
        /// SHA-256 of the whole secret, in hex.
        sha256: String,
    },
    /// A key was revoked, be it from the file or added while running.
    KeyRevoked {
        /// Its name in records.
        fingerprint: KeyFingerprint,
    },
}

/// Somebody used the admin side: who, when, what. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdminRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// By which right: `token`, `loopback` or `signal`.
    pub who: String,
    /// What was done, such as `credit`.
    pub action: String,
    /// To what, such as a tenant's id.
    pub subject: String,
    /// How it was; null where nothing was.
    pub before: serde_json::Value,
    /// How it is; null where nothing is.
    pub after: serde_json::Value,
}

/// The first line of a segment whose usage records were replaced by sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledUpRecord {
    /// When the segment began.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Usage records that it had.
    pub records: u64,
}

/// Many usage records of one day, as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollupRecord {
    /// 00:00 UTC of the day.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Who paid.
    pub tenant: TenantId,
    /// The key; null where there was none.
    pub key: Option<KeyFingerprint>,
    /// The class.
    pub class: String,
    /// The collection, if one was named.
    pub collection: Option<String>,
    /// The model that was asked for.
    pub model: ModelName,
    /// The upstream that answered; null where none did.
    pub upstream: Option<UpstreamId>,
    /// Requests.
    pub requests: u64,
    /// Items asked for.
    pub items: u64,
    /// Items answered from the cache.
    pub cached_items: u64,
    /// Input tokens charged.
    pub tokens: u64,
    /// Output tokens charged.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_tokens: u64,
    /// Searches charged.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub search_units: u64,
    /// Paid.
    pub cost: Money,
}

/// All that earlier records amount to; the first line of every segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// The sum of everything before.
    pub book: Book,
}

/// One line of the journal: its kind first, then its fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// A request ended.
    Usage(Box<UsageRecord>),
    /// Money was held.
    Hold(HoldRecord),
    /// A hold ended without a charge.
    Release(ReleaseRecord),
    /// Money was added.
    Credit(CreditRecord),
    /// A budget was refilled.
    PeriodStart(PeriodRecord),
    /// A tenant or key changed.
    TenantChange(TenantRecord),
    /// Something happened to a collection.
    Collection(Box<CollectionRecord>),
    /// Somebody used the admin side.
    Admin(AdminRecord),
    /// A segment's records were replaced by sums.
    RolledUp(RolledUpRecord),
    /// A sum.
    Rollup(Box<RollupRecord>),
    /// A request ended, and the shared ledger is yet to be told.
    Pending(PendingRecord),
    /// The shared stream was read.
    Cursor(CursorRecord),
    /// All that came before.
    Snapshot(SnapshotRecord),
}

/// How every line begins. The kind is always written first, so a line is recognised before it is parsed.
const KIND_PREFIX: &[u8] = br#"{"kind":""#;

fn kind(json: &[u8]) -> Option<&[u8]> {
    let rest = json.strip_prefix(KIND_PREFIX)?;
    rest.get(..memchr::memchr(b'"', rest)?)
}

impl Record {
    /// When it happened.
    pub fn time(&self) -> Wall {
        match self {
            Record::Usage(record) => record.time,
            Record::Hold(record) => record.time,
            Record::Release(record) => record.time,
            Record::Credit(record) => record.time,
            Record::PeriodStart(record) => record.time,
            Record::TenantChange(record) => record.time,
            Record::Collection(record) => record.time,
            Record::Admin(record) => record.time,
            Record::RolledUp(record) => record.time,
            Record::Rollup(record) => record.time,
            Record::Pending(record) => record.time,
            Record::Cursor(record) => record.time,
            Record::Snapshot(record) => record.time,
        }
    }

    /// Reads one line's JSON.
    ///
    /// # Errors
    /// When it is no record that this version knows.
    pub fn from_json(json: &[u8]) -> serde_json::Result<Record> {
        match kind(json) {
            Some(b"usage") => serde_json::from_slice(json).map(Record::Usage),
            Some(b"hold") => serde_json::from_slice(json).map(Record::Hold),
            Some(b"release") => serde_json::from_slice(json).map(Record::Release),
            Some(b"credit") => serde_json::from_slice(json).map(Record::Credit),
            Some(b"period_start") => serde_json::from_slice(json).map(Record::PeriodStart),
            Some(b"tenant_change") => serde_json::from_slice(json).map(Record::TenantChange),
            Some(b"collection") => serde_json::from_slice(json).map(Record::Collection),
            Some(b"pending") => serde_json::from_slice(json).map(Record::Pending),
            Some(b"cursor") => serde_json::from_slice(json).map(Record::Cursor),
            Some(b"admin") => serde_json::from_slice(json).map(Record::Admin),
            Some(b"rolled_up") => serde_json::from_slice(json).map(Record::RolledUp),
            Some(b"rollup") => serde_json::from_slice(json).map(Record::Rollup),
            Some(b"snapshot") => serde_json::from_slice(json).map(Record::Snapshot),
            _ => Err(serde::de::Error::custom("a record of a kind that this version does not know")),
        }
    }
}

impl UsageRecord {
    /// Reads one line's JSON if it is a usage record; other kinds cost no parsing.
    pub fn from_json(json: &[u8]) -> Option<serde_json::Result<UsageRecord>> {
        (kind(json) == Some(b"usage")).then(|| serde_json::from_slice(json))
    }
}

impl RollupRecord {
    /// Reads one line's JSON if it is a sum; other kinds cost no parsing.
    pub fn from_json(json: &[u8]) -> Option<serde_json::Result<RollupRecord>> {
        (kind(json) == Some(b"rollup")).then(|| serde_json::from_slice(json))
    }
}

impl CollectionRecord {
    /// Reads one line's JSON if it is about a collection; other kinds cost no parsing.
    pub fn from_json(json: &[u8]) -> Option<serde_json::Result<CollectionRecord>> {
        (kind(json) == Some(b"collection")).then(|| serde_json::from_slice(json))
    }
}

impl AdminRecord {
    /// Reads one line's JSON if it is about the admin side; other kinds cost no parsing.
    pub fn from_json(json: &[u8]) -> Option<serde_json::Result<AdminRecord>> {
        (kind(json) == Some(b"admin")).then(|| serde_json::from_slice(json))
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_free(amount: &Money) -> bool {
    *amount == Money::ZERO
}

fn is_epoch(wall: &Wall) -> bool {
    *wall == Wall(0)
}

/// Spans as milliseconds with up to three decimals.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = u32::try_from(span.as_micros()).map_or(span.as_micros() as f64, f64::from);
        serializer.serialize_f64(micros / 1000.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        let micros = (millis * 1000.0).round();
        if !(0.0..1e15).contains(&micros) {
            return Err(serde::de::Error::custom("expected a span in milliseconds"));
        }
        Ok(Duration::from_micros(micros as u64))
    }
}

/// Instants that only the gateway reads, as milliseconds since the epoch.
pub(super) mod epoch_ms {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::pure::time::Wall;

    pub(in crate::store) fn serialize<S: Serializer>(wall: &Wall, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(wall.0)
    }

    pub(in crate::store) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Wall, D::Error> {
        i64::deserialize(deserializer).map(Wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{any_record, usage};
    use proptest::prelude::*;

    #[test]
    fn a_usage_record_has_the_keys_that_reports_promise() {
        let mut record = usage(7, 1);
        record.latency = Duration::from_micros(12_345);
        let json = serde_json::to_string(&Record::Usage(Box::new(record))).expect("json");
        assert_eq!(
            json,
            r#"{"kind":"usage","time":"2026-11-30T00:00:00.007Z","request_id":"r-7","tenant":"acme","key":"00112233aabbccdd","class":"interactive-search","collection":"handbook","model":"m","space":"s","upstream":"u","items":1,"cached_items":0,"tokens":1,"estimated":false,"unit_price":"0.000000000000000001","cost":"0.000000000000000001","status":200,"outcome":"answered","latency_ms":12.345,"dwell_ms":0.0,"hold":7}"#
        );
    }

    #[test]
    fn a_record_of_an_unknown_kind_is_refused() {
        assert!(Record::from_json(br#"{"kind":"dividend","time":"2026-11-30T00:00:00.000Z"}"#).is_err());
        assert!(Record::from_json(br#"{"kind":"usage","time":"yesterday"}"#).is_err());
    }

    proptest! {
        #[test]
        fn every_record_reads_back_as_written(record in any_record()) {
            let json = serde_json::to_vec(&record).expect("json");
            prop_assert_eq!(Record::from_json(&json).expect("read"), record);
        }
    }
}
