//! Records that the server has not got yet, or that have not come back from it.
//!
//! A record leaves in one of two ways. **Numbered** ones (without a hold) go in the order of their numbers; the server
//! counts none twice, because it remembers the last number of each replica. **Held** ones end a hold; that can be done once.
//! A record is forgotten when it has come back out of the tenant's stream and stands in the journal; until then it can
//! be sent again, and is when the server has lost what it knew.
//!
//! Owns the order of numbers. Knows neither the server nor the journal.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{HoldId, TenantId};
use crate::pure::money::Money;
use crate::store::record::{PendingRecord, UsageRecord};

/// One record on its way.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    pub(super) number: u64,
    /// The hold it ends, if there is one.
    pub(super) hold: Option<HoldId>,
    pub(super) usage: Box<UsageRecord>,
    /// What is to be charged; the record's cost is what was charged.
    pub(super) charge: Money,
    /// Whether the journal has it as pending.
    pub(super) journaled: bool,
    /// Held ones: not before the server's clock shows this, or an earlier try might still be done.
    pub(super) not_before: i64,
}

/// A tenant's records on their way.
#[derive(Debug, Default)]
struct Lane {
    /// To be sent, by number.
    waiting: BTreeMap<u64, Owed>,
    /// Sent, by number; forgotten when they come back.
    sent: BTreeMap<u64, Owed>,
    /// Settled at once by a request of this process, by hold; forgotten when they come back.
    settled: HashMap<HoldId, Owed>,
}

impl Lane {
    fn len(&self) -> usize {
        self.waiting.len() + self.sent.len() + self.settled.len()
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Outbox {
    next: u64,
    /// Records in all lanes.
    count: usize,
    lanes: HashMap<TenantId, Lane>,
}

impl Outbox {
    /// An outbox whose numbers begin above `last`, holding what an earlier process had left.
    pub(super) fn new(last: u64, left: impl IntoIterator<Item = PendingRecord>) -> Outbox {
        let mut outbox = Outbox { next: last + 1, count: 0, lanes: HashMap::new() };
        for pending in left {
            let owed = Owed {
                number: pending.number,
                hold: pending.hold,
                charge: pending.usage.cost,
                usage: pending.usage,
                journaled: true,
                not_before: 0,
            };
            outbox.push(owed);
        }
        outbox
    }

    /// Changes a tenant's lane, and the count with it; an empty one is forgotten.
    fn change<T>(&mut self, tenant: &TenantId, work: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let lane = self.lanes.get_mut(tenant)?;
        let before = lane.len();
        let done = work(lane);
        let after = lane.len();
        self.count = self.count + after - before;
        if after == 0 {
            self.lanes.remove(tenant);
        }
        Some(done)
    }

    fn add(&mut self, owed: Owed, to: impl FnOnce(&mut Lane, Owed)) {
        let tenant = owed.usage.tenant.clone();
        self.lanes.entry(tenant.clone()).or_default();
        self.change(&tenant, |lane| to(lane, owed));
    }

    /// Numbers a record. It must be pushed before the outbox is touched again: numbers leave in order.
    pub(super) fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Takes a record in.
    pub(super) fn push(&mut self, owed: Owed) {
        self.add(owed, |lane, owed| drop(lane.waiting.insert(owed.number, owed)));
    }

    /// Remembers a record that a request has just settled, until it comes back.
    pub(super) fn settled(&mut self, hold: HoldId, owed: Owed) {
        self.add(owed, |lane, owed| drop(lane.settled.insert(hold, owed)));
    }

    /// It could not be settled, as far as is known; it goes on as owed.
    pub(super) fn not_settled(&mut self, tenant: &TenantId, hold: HoldId) {
        self.change(tenant, |lane| lane.settled.remove(&hold));
    }

    /// Whether any record of the tenant is on its way.
    pub(super) fn has(&self, tenant: &TenantId) -> bool {
        self.lanes.contains_key(tenant)
    }

    /// Tenants that have something to send.
    pub(super) fn tenants(&self) -> Vec<TenantId> {
        self.lanes.iter().filter(|(_, lane)| !lane.waiting.is_empty()).map(|(tenant, _)| tenant.clone()).collect()
    }

    /// The next records of a tenant, at most `most`: numbered ones only, or one held one.
    pub(super) fn next(&self, tenant: &TenantId, most: usize) -> Vec<Owed> {
        let Some(lane) = self.lanes.get(tenant) else { return Vec::new() };
        match lane.waiting.values().next() {
            Some(first) if first.hold.is_some() => vec![first.clone()],
            _ => lane.waiting.values().take_while(|owed| owed.hold.is_none()).take(most).cloned().collect(),
        }
    }

    /// They have been sent.
    pub(super) fn sent(&mut self, tenant: &TenantId, numbers: impl IntoIterator<Item = u64>) {
        let Some(lane) = self.lanes.get_mut(tenant) else { return };
        for number in numbers {
            if let Some(owed) = lane.waiting.remove(&number) {
                lane.sent.insert(number, owed);
            }
        }
    }

    /// One came back out of the stream: it is in the journal now.
    pub(super) fn came_back(&mut self, tenant: &TenantId, number: u64, hold: Option<HoldId>) {
        self.change(tenant, |lane| {
            if number > 0 {
                lane.sent.remove(&number);
                lane.waiting.remove(&number);
            }
            if let Some(hold) = hold {
                lane.settled.remove(&hold);
                // The try that had no answer was done after all.
                lane.sent.retain(|_, owed| owed.hold != Some(hold));
                lane.waiting.retain(|_, owed| owed.hold != Some(hold));
            }
        });
    }

    /// The server may have lost what it had: whatever has not come back is sent again.
    pub(super) fn send_again(&mut self, tenant: &TenantId) -> usize {
        let Some(lane) = self.lanes.get_mut(tenant) else { return 0 };
        let lost: Vec<Owed> = lane.settled.drain().map(|(_, owed)| owed).collect();
        let count = lost.len() + lane.sent.len();
        lane.waiting.append(&mut lane.sent);
        for mut owed in lost {
            owed.number = self.next;
            self.next += 1;
            lane.waiting.insert(owed.number, owed);
        }
        count
    }

    /// Records that the journal does not have yet, which it gets while the server is gone.
    pub(super) fn unjournaled(&mut self) -> Vec<PendingRecord> {
        let mut list = Vec::new();
        for owed in self.lanes.values_mut().flat_map(|lane| lane.waiting.values_mut()) {
            if !owed.journaled {
                owed.journaled = true;
                let (time, number, hold) = (owed.usage.time, owed.number, owed.hold);
                list.push(PendingRecord { time, number, hold, usage: owed.usage.clone() });
            }
        }
        list.sort_by_key(|pending| pending.number);
        list
    }

    /// Records on their way: to be sent, and sent but not come back.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is on its way.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        self.lanes.is_empty() && self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{TENANT, usage};

    fn owed(number: u64, hold: Option<u64>) -> Owed {
        let usage = Box::new(usage(number, 1));
        Owed { number, hold: hold.map(HoldId), charge: usage.cost, usage, journaled: false, not_before: 0 }
    }

    fn numbers(list: &[Owed]) -> Vec<u64> {
        list.iter().map(|owed| owed.number).collect()
    }

    #[test]
    fn numbered_records_leave_in_order_and_are_kept_until_they_come_back() {
        let tenant = TenantId::from(TENANT);
        let mut outbox = Outbox::new(4, []);
        assert_eq!(outbox.number(), 5);
        for (number, hold) in [(5, None), (6, None), (7, Some(70)), (8, None)] {
            outbox.push(owed(number, hold));
        }
        assert_eq!(numbers(&outbox.next(&tenant, 10)), [5, 6], "a held one goes by itself");
        outbox.sent(&tenant, [5, 6]);
        assert_eq!(numbers(&outbox.next(&tenant, 10)), [7]);
        outbox.came_back(&tenant, 5, None);
        assert_eq!(outbox.len(), 3);
        assert_eq!(outbox.send_again(&tenant), 1, "6 was sent and has not come back");
        assert_eq!(numbers(&outbox.next(&tenant, 10)), [6]);
        for number in 6..9 {
            outbox.came_back(&tenant, number, None);
        }
        assert!(outbox.is_settled());
    }

    #[test]
    fn what_a_request_settled_is_sent_again_if_the_server_lost_it() {
        let tenant = TenantId::from(TENANT);
        let mut outbox = Outbox::new(0, []);
        outbox.settled(HoldId(1), owed(0, Some(1)));
        outbox.settled(HoldId(2), owed(0, Some(2)));
        outbox.came_back(&tenant, 0, Some(HoldId(1)));
        assert_eq!(outbox.send_again(&tenant), 1);
        assert_eq!(outbox.next(&tenant, 9).first().and_then(|owed| owed.hold), Some(HoldId(2)));
        assert_eq!(outbox.unjournaled().len(), 1);
        assert_eq!(outbox.unjournaled().len(), 0, "once");
    }
}
