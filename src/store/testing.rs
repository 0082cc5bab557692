//! Records for tests, and a disk in memory that fails on demand.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Cursor};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::book::Book;
use super::collections::{CollectionChange, CollectionRecord, Configured, Staged, Used};
use super::disk::{Disk, SegmentFile};
use super::record::*;
use crate::ids::{HoldId, KeyFingerprint, ModelName, TenantId};
use crate::pure::class::TrafficClass;
use crate::pure::migration::{Position, Stage};
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::pure::utc;

pub(crate) const TENANT: &str = "acme";

/// 2026-11-30 00:00 UTC and `ms` milliseconds.
pub(crate) fn at(ms: i64) -> Wall {
    Wall(utc::parse_day("2026-11-30").expect("a day").0 + ms)
}

pub(crate) fn hold(id: u64, amount: i128) -> Record {
    Record::Hold(HoldRecord {
        time: at(id as i64),
        hold: HoldId(id),
        tenant: TENANT.into(),
        request_id: format!("r-{id}").into(),
        amount: Money::from_units(amount),
    })
}

/// The record of a call that cost `cost` at one unit a token and resolves hold `id`.
pub(crate) fn usage(id: u64, cost: i128) -> UsageRecord {
    UsageRecord {
        time: at(id as i64),
        request_id: format!("r-{id}").into(),
        tenant: TENANT.into(),
        key: Some("00112233aabbccdd".into()),
        class: TrafficClass::InteractiveSearch,
        collection: Some("handbook".to_owned()),
        model: "m".into(),
        space: Some("s".into()),
        upstream: Some("u".into()),
        items: 1,
        cached_items: 0,
        tokens: u64::try_from(cost).expect("not negative"),
        output_tokens: 0,
        search_units: 0,
        estimated: false,
        unit_price: Money::from_units(1),
        output_unit_price: Money::ZERO,
        cost: Money::from_units(cost),
        shortfall: Money::ZERO,
        status: 200,
        outcome: Outcome::Answered,
        latency: Duration::ZERO,
        dwell: Duration::ZERO,
        hold: Some(HoldId(id)),
        period_start: Wall(0),
        shared: None,
    }
}

pub(crate) fn usage_line(id: u64, cost: i128) -> Record {
    Record::Usage(Box::new(usage(id, cost)))
}

/// Any record but a snapshot.
pub(crate) fn any_fact() -> impl Strategy<Value = Record> {
    let tenant = prop_oneof![Just("acme"), Just("b\u{fc}ro \"7\"\n")].prop_map(TenantId::from);
    let time = (0..172_800_000_i64).prop_map(at);
    let amount = (0..1_000_000_000_000_000_000_000_i128).prop_map(Money::from_units);
    let fingerprint = "[0-9a-f]{16}".prop_map(KeyFingerprint::from);
    (tenant, time, amount, fingerprint, 1..40_u64, 0..9_u8, any::<bool>()).prop_map(
        |(tenant, time, amount, fingerprint, id, kind, flag)| match kind {
            0 | 1 => Record::Usage(Box::new(UsageRecord {
                time,
                tenant,
                cost: amount,
                key: flag.then_some(fingerprint),
                collection: (!flag).then(|| "a,b \"c\"".to_owned()),
                upstream: None,
                shortfall: if flag { amount } else { Money::ZERO },
                search_units: id % 3,
                latency: Duration::from_micros(id * 977),
                dwell: Duration::from_micros(id),
                period_start: Wall(if flag { utc::DAY_MS } else { 0 }),
                shared: None,
                ..usage(id, 3)
            })),
            2 => Record::Hold(HoldRecord { time, hold: HoldId(id), tenant, request_id: "r".into(), amount }),
            3 => {
                let reason = if flag { ReleaseReason::Unused } else { ReleaseReason::Expired };
                Record::Release(ReleaseRecord { time, hold: HoldId(id), tenant, reason })
            }
            4 => Record::Credit(CreditRecord { time, tenant, amount, idempotency_key: format!("k{id}") }),
            5 => Record::PeriodStart(PeriodRecord {
                time,
                tenant,
                start: Wall(id as i64 * utc::DAY_MS),
                budget_before: flag.then_some(amount),
            }),
            6 => Record::Admin(AdminRecord {
                time,
                who: "token".to_owned(),
                action: "drain".to_owned(),
                subject: tenant.to_string(),
                before: serde_json::Value::Null,
                after: serde_json::json!({ "draining": flag }),
            }),
            7 => {
                let position = Position::new(Stage::ALL[id as usize % 4], id as f64 / 64.0);
                let (from, to) = (ModelName::from("m"), ModelName::from("n"));
                let change = match id % 3 {
                    0 => CollectionChange::Configured(Configured { from, to, position }),
                    1 => CollectionChange::Before(
                        [(from, [(TrafficClass::Chat, Used { cost: amount, ..Used::default() })].into())].into(),
                    ),
                    _ => CollectionChange::Staged(Staged {
                        from,
                        to,
                        position,
                        at: time,
                        by: "token".to_owned(),
                        revision: id,
                    }),
                };
                Record::Collection(Box::new(CollectionRecord { time, collection: "handbook".to_owned(), change }))
            }
            _ => {
                let change = match id % 3 {
                    0 => TenantChange::Created(serde_json::json!({"budget": "1.50"})),
                    1 => TenantChange::KeyAdded { fingerprint, sha256: "ab".repeat(32) },
                    _ => TenantChange::KeyRevoked { fingerprint },
                };
                Record::TenantChange(TenantRecord { time, tenant, change })
            }
        },
    )
}

/// Any record; snapshots are those of random histories.
pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    let snapshot = prop::collection::vec(any_fact(), 0..20).prop_map(|facts| {
        let mut book = Book::default();
        facts.iter().for_each(|fact| book.apply(fact));
        Record::Snapshot(SnapshotRecord { time: at(0), book })
    });
    prop_oneof![6 => any_fact(), 1 => snapshot]
}

#[derive(Default)]
struct Platter {
    segments: BTreeMap<u64, Vec<u8>>,
    /// Bytes that are still taken; then every write fails. `None`: no end.
    room: Option<usize>,
    /// The process dies in the write that finds no room; nothing works from then on.
    fatal: bool,
    dead: bool,
    no_truncate: bool,
    no_sync: bool,
    syncs: u64,
}

/// A disk in memory. Clones share their contents.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Platter>>);

fn refused() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

impl MemoryDisk {
    /// A disk that holds what another held, with nothing wrong with it.
    pub(crate) fn after_reboot(&self) -> MemoryDisk {
        let segments = self.0.lock().segments.clone();
        MemoryDisk(Arc::new(Mutex::new(Platter { segments, ..Platter::default() })))
    }

    pub(crate) fn set_room(&self, room: Option<usize>) {
        self.0.lock().room = room;
    }

    pub(crate) fn set_no_truncate(&self, refuses: bool) {
        self.0.lock().no_truncate = refuses;
    }

    pub(crate) fn set_no_sync(&self, refuses: bool) {
        self.0.lock().no_sync = refuses;
    }

    /// Lets the process die in the middle of the write that brings the total to `room` more bytes.
    pub(crate) fn die_after(&self, room: usize) {
        let mut platter = self.0.lock();
        (platter.room, platter.fatal) = (Some(room), true);
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    pub(crate) fn bytes(&self, segment: u64) -> Vec<u8> {
        self.0.lock().segments.get(&segment).cloned().unwrap_or_default()
    }

    pub(crate) fn put(&self, segment: u64, bytes: &[u8]) {
        self.0.lock().segments.insert(segment, bytes.to_vec());
    }

    fn write(&self, segment: u64, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.0.lock();
        if platter.dead {
            return Err(refused());
        }
        let taken = platter.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        platter.room = platter.room.map(|room| room - taken);
        platter.segments.entry(segment).or_default().extend_from_slice(&bytes[..taken]);
        platter.dead = platter.fatal && taken < bytes.len();
        if taken < bytes.len() { Err(refused()) } else { Ok(()) }
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    segment: u64,
}

impl SegmentFile for MemoryFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(self.segment, bytes)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut platter = self.disk.0.lock();
        if platter.dead || platter.no_truncate {
            return Err(refused());
        }
        let len = usize::try_from(len).expect("fits");
        platter.segments.entry(self.segment).or_default().truncate(len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut platter = self.disk.0.lock();
        platter.syncs += 1;
        if platter.dead || platter.no_sync { Err(refused()) } else { Ok(()) }
    }
}

impl Disk for MemoryDisk {
    fn segments(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.lock().segments.keys().copied().collect())
    }

    fn read(&self, segment: u64) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(Cursor::new(self.bytes(segment))))
    }

    fn create(&self, segment: u64, first: &[u8]) -> io::Result<Arc<dyn SegmentFile>> {
        let platter = self.0.lock();
        if platter.dead || platter.room.is_some_and(|room| room < first.len()) {
            return Err(refused());
        }
        drop(platter);
        self.write(segment, first)?;
        self.reopen(segment, first.len() as u64)
    }

    fn reopen(&self, segment: u64, keep: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let file = MemoryFile { disk: self.clone(), segment };
        file.truncate(keep)?;
        Ok(Arc::new(file))
    }

    fn set_aside(&self, segment: u64) -> io::Result<()> {
        self.0.lock().segments.remove(&segment);
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, segment: u64) -> PathBuf {
        PathBuf::from(format!("{segment:08}.jsonl"))
    }
}
