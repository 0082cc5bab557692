//! What a sequence of records amounts to. The same fold runs while the gateway writes and when it starts again, so the two
//! cannot differ. Folds facts; never decides whether one should have happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::collections::Collections;
use super::pages::Pages;
use super::record::{HoldRecord, PendingRecord, PeriodRecord, Record, TenantChange, UsageRecord, epoch_ms};
use crate::ids::{HoldId, KeyFingerprint, TenantId};
use crate::pure::ledger::{Standing, credits_used, minus, plus};
use crate::pure::money::Money;
use crate::pure::time::Wall;

/// All tenants' balances, and the counter that makes hold ids unique.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Book {
    /// The largest hold id seen; 0 before the first.
    pub last_hold: u64,
    /// The largest number of a record on its way to or from the shared ledger; 0 before the first.
    #[serde(default)]
    pub last_number: u64,
    /// One page per tenant ever seen: a tenant that is made again must not find its budget refilled by that.
    pub tenants: Pages,
    /// One page per collection that was ever configured.
    #[serde(default)]
    pub collections: Collections,
}

/// What is known of one tenant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Page {
    /// Start of its current budget period; the epoch before the first.
    #[serde(rename = "period_start_ms", with = "epoch_ms")]
    pub period_start: Wall,
    /// Charged in the current period.
    pub spent: Money,
    /// Charges of the current period that no balance covered.
    pub written_off: Money,
    /// Credits on top of the budget, less what earlier periods used of them.
    pub credits: Money,
    /// Amount of each credit by its idempotency key.
    pub credit_keys: BTreeMap<String, Money>,
    /// Holds without an ending.
    pub holds: BTreeMap<HoldId, HoldRecord>,
    /// The period before, for records that reach the journal just after its end.
    pub closed: Option<ClosedPeriod>,
    /// Requests recorded since the journal began.
    pub lifetime_requests: u64,
    /// Input tokens charged since the journal began.
    pub lifetime_tokens: u64,
    /// Charged since the journal began.
    pub lifetime_cost: Money,
    /// Settings of a tenant that was created while running.
    pub created: Option<serde_json::Value>,
    /// SHA-256 and time of the keys added while running.
    pub keys: BTreeMap<KeyFingerprint, AddedKey>,
    /// Keys that were revoked, those of the configuration included, and when.
    pub revoked: BTreeMap<KeyFingerprint, Revoked>,
    /// How far the tenant's shared stream has been read; none before the first entry.
    #[serde(default)]
    pub cursor: Option<String>,
    /// What each replica charged in the current period, as its records in the shared stream say.
    #[serde(default)]
    pub parts: BTreeMap<String, Money>,
    /// Records that the shared ledger is yet to be told, by number.
    #[serde(default)]
    pub pending: BTreeMap<u64, PendingRecord>,
}

/// A key that was added while running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedKey {
    /// SHA-256 of the whole secret, in hex.
    pub sha256: String,
    /// When it was added.
    #[serde(rename = "created_ms", with = "epoch_ms")]
    pub created: Wall,
}

/// When a key was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The instant.
    #[serde(rename = "at_ms", with = "epoch_ms")]
    pub at: Wall,
}

/// A period that is over, kept until the next one is over too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedPeriod {
    /// Its first instant.
    #[serde(rename = "start_ms", with = "epoch_ms")]
    pub start: Wall,
    /// Its budget; null: unlimited.
    pub budget: Option<Money>,
    /// Credits at its end, before what it used of them was taken off.
    pub credits: Money,
    /// Charged in it.
    pub spent: Money,
}

impl Book {
    /// Adds one fact. Facts about holds, credits and periods may come twice; usage records may not.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Usage(usage) => {
                let number = usage.shared.as_ref().map_or(0, |shared| shared.number);
                self.last_number = self.last_number.max(number);
                self.collections.count(usage);
                self.page(&usage.tenant).charge(usage);
            }
            Record::Hold(hold) => {
                self.last_hold = self.last_hold.max(hold.hold.0);
                self.page(&hold.tenant).holds.insert(hold.hold, hold.clone());
            }
            Record::Release(release) => {
                self.page(&release.tenant).holds.remove(&release.hold);
            }
            Record::Credit(credit) => {
                let page = self.page(&credit.tenant);
                if !page.credit_keys.contains_key(&credit.idempotency_key) {
                    page.credits = plus(page.credits, credit.amount.max(Money::ZERO));
                    page.credit_keys.insert(credit.idempotency_key.clone(), credit.amount);
                }
            }
            Record::PeriodStart(period) => self.page(&period.tenant).start_period(period),
            Record::Pending(pending) => {
                self.last_number = self.last_number.max(pending.number);
                self.page(&pending.usage.tenant).pending.insert(pending.number, pending.clone());
            }
            Record::Cursor(cursor) => self.page(&cursor.tenant).advance(&cursor.entry),
            Record::TenantChange(tenant) => self.page(&tenant.tenant).change(&tenant.change, tenant.time),
            Record::Collection(collection) => self.collections.apply(collection),
            // Told for people; what an action changed has records of its own.
            Record::Admin(_) => {}
            // Written over records that were folded long ago.
            Record::RolledUp(_) | Record::Rollup(_) => {}
            Record::Snapshot(snapshot) => self.clone_from(&snapshot.book),
        }
    }

    /// Every hold without an ending, by tenant and age.
    pub fn open_holds(&self) -> impl Iterator<Item = &HoldRecord> {
        let mut open: Vec<&HoldRecord> = self.tenants.under_way().flat_map(|page| page.holds.values()).collect();
        open.sort_unstable_by_key(|hold| (&hold.tenant, hold.hold));
        open.into_iter()
    }

    fn page(&mut self, tenant: &TenantId) -> &mut Page {
        self.tenants.open(tenant)
    }
}

impl Page {
    /// Where the tenant's account resumes after a restart, once its open holds are released.
    pub fn standing(&self) -> Standing {
        Standing {
            period_start: self.period_start,
            spent: self.spent,
            written_off: self.written_off,
            credits: self.credits,
            credit_keys: self.credit_keys.clone(),
        }
    }

    fn charge(&mut self, usage: &UsageRecord) {
        if let Some(hold) = usage.hold {
            self.holds.remove(&hold);
        }
        let cost = usage.cost.max(Money::ZERO);
        if let Some(shared) = &usage.shared {
            // Numbers are this replica's own: those of others are never pending here.
            self.pending.retain(|number, own| {
                let by_number = *number == shared.number && own.usage.request_id == usage.request_id;
                let by_hold = own.hold.is_some() && own.hold == usage.hold;
                !by_number && !by_hold
            });
            self.advance(&shared.entry);
            if usage.period_start >= self.period_start {
                let part = self.parts.entry(shared.replica.clone()).or_default();
                *part = plus(*part, cost);
            }
        }
        self.lifetime_requests = self.lifetime_requests.saturating_add(1);
        self.lifetime_tokens = self.lifetime_tokens.saturating_add(usage.tokens);
        self.lifetime_cost = plus(self.lifetime_cost, cost);
        if usage.period_start >= self.period_start {
            self.spent = plus(self.spent, cost);
            self.written_off = plus(self.written_off, usage.shortfall.max(Money::ZERO));
            return;
        }
        // Settled before the period's end, written after it: what it used of the credits must still come off.
        if let Some(closed) = &mut self.closed
            && closed.start == usage.period_start
        {
            let used_before = credits_used(closed.budget, closed.credits, closed.spent);
            closed.spent = plus(closed.spent, cost);
            let used = credits_used(closed.budget, closed.credits, closed.spent);
            self.credits = minus(self.credits, minus(used, used_before));
        }
    }

    fn advance(&mut self, entry: &str) {
        if self.cursor.as_deref().is_none_or(|known| entry_order(known) < entry_order(entry)) {
            self.cursor = Some(entry.to_owned());
        }
    }

    fn start_period(&mut self, period: &PeriodRecord) {
        if period.start <= self.period_start {
            return;
        }
        let closed = ClosedPeriod {
            start: self.period_start,
            budget: period.budget_before,
            credits: self.credits,
            spent: self.spent,
        };
        self.credits = minus(self.credits, credits_used(closed.budget, closed.credits, closed.spent));
        self.spent = Money::ZERO;
        self.written_off = Money::ZERO;
        self.period_start = period.start;
        self.parts.clear();
        self.closed = Some(closed);
    }

    fn change(&mut self, change: &TenantChange, at: Wall) {
        match change {
            TenantChange::Created(settings) => self.created = Some(settings.clone()),
            TenantChange::KeyAdded { fingerprint, sha256 } => {
                self.revoked.remove(fingerprint);
                self.keys.insert(fingerprint.clone(), AddedKey { sha256: sha256.clone(), created: at });
            }
            TenantChange::KeyRevoked { fingerprint } => {
                self.keys.remove(fingerprint);
                self.revoked.insert(fingerprint.clone(), Revoked { at });
            }
        }
    }
}

/// Ids of stream entries, `<ms>-<n>`, as they are ordered; what is none comes first.
pub(super) fn entry_order(entry: &str) -> (u64, u64) {
    let parse = |text: &str| text.parse().unwrap_or(0);
    entry.split_once('-').map_or((0, 0), |(ms, n)| (parse(ms), parse(n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::utc;
    use crate::store::record::{CreditRecord, ReleaseReason, ReleaseRecord};
    use crate::store::testing::{TENANT, hold, usage};

    fn day(n: i64) -> Wall {
        Wall(n * utc::DAY_MS)
    }

    fn period(n: i64) -> Record {
        let budget_before = Some(Money::from_units(100));
        Record::PeriodStart(PeriodRecord { time: day(n), tenant: TENANT.into(), start: day(n), budget_before })
    }

    fn credit(amount: i128, key: &str) -> Record {
        let (amount, idempotency_key) = (Money::from_units(amount), key.to_owned());
        Record::Credit(CreditRecord { time: day(1), tenant: TENANT.into(), amount, idempotency_key })
    }

    fn charge(id: u64, cost: i128, period: i64) -> Record {
        let mut record = usage(id, cost);
        record.period_start = day(period);
        Record::Usage(Box::new(record))
    }

    /// Asserts (spent, credits, open holds, lifetime cost) after a sequence.
    #[track_caller]
    fn check(records: &[Record], expected: (i128, i128, usize, i128)) {
        let mut book = Book::default();
        for record in records {
            book.apply(record);
        }
        let page = book.tenants.get(&TENANT.into()).expect("page");
        let got = (page.spent.units(), page.credits.units(), page.holds.len(), page.lifetime_cost.units());
        assert_eq!(got, expected, "spent, credits, open holds, lifetime cost");
    }

    #[test]
    fn holds_end_by_a_usage_record_or_a_release() {
        let release =
            ReleaseRecord { time: day(1), hold: HoldId(2), tenant: TENANT.into(), reason: ReleaseReason::Unused };
        check(&[hold(1, 9), hold(2, 9), hold(2, 9)], (0, 0, 2, 0));
        check(&[hold(1, 9), charge(1, 5, 0)], (5, 0, 0, 5));
        check(&[hold(2, 9), Record::Release(release.clone()), Record::Release(release)], (0, 0, 0, 0));
    }

    #[test]
    fn credits_and_periods_count_once() {
        check(&[credit(5, "a"), credit(5, "a"), credit(5, "b")], (0, 10, 0, 0));
        check(&[period(2), charge(1, 30, 2), period(2), period(1)], (30, 0, 0, 30));
        check(&[period(2), charge(1, 30, 2), period(3)], (0, 0, 0, 30));
    }

    #[test]
    fn a_record_written_after_its_period_ended_still_uses_up_credits() {
        let before = [period(2), credit(50, "a"), charge(1, 90, 2), charge(2, 30, 2), period(3)];
        check(&before, (0, 30, 0, 120));
        let after = [period(2), credit(50, "a"), charge(1, 90, 2), period(3), charge(2, 30, 2)];
        check(&after, (0, 30, 0, 120));
        let far_too_late = [period(2), charge(1, 90, 2), period(3), period(4), charge(2, 30, 2)];
        check(&far_too_late, (0, 0, 0, 120));
    }

    #[test]
    fn a_revoked_key_stays_revoked_until_it_is_added_again() {
        let fingerprint = KeyFingerprint::from("00112233aabbccdd");
        let add = TenantChange::KeyAdded { fingerprint: fingerprint.clone(), sha256: "00".to_owned() };
        let mut page = Page::default();
        page.change(&add, day(1));
        page.change(&TenantChange::KeyRevoked { fingerprint: fingerprint.clone() }, day(2));
        assert!(page.keys.is_empty() && page.revoked.contains_key(&fingerprint));
        page.change(&add, day(3));
        assert!(page.keys.contains_key(&fingerprint) && page.revoked.is_empty());
    }
}
