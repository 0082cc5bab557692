//! Owns who waits and who is next: deficit round robin by tokens between tenants, first come first served within one.
//! Refuses to know why anybody waits and when the next may go.
//!
//! Two refinements over the textbook. A tenant's deficit may go below zero (a call goes if its tenant is not in debt),
//! so one visit of the round costs the same whatever the size of calls. And a tenant in debt is remembered after its
//! queue ran empty, until rounds have paid the debt off: otherwise a client that sends one big call at a time, and so
//! always finds an empty queue, would be new each time and pass everybody.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::time::Mono;
use crate::ids::{TenantId, WaiterId};

/// Tokens that a tenant of weight 1 earns a round: about one document, so that shares are right within seconds also where
/// the quota is small. Larger calls run into debt and pay it off in the rounds that follow.
const QUANTUM: i128 = 512;

/// Debts that are remembered of tenants with no request here, about. Where nobody waits no round ever pays them off, so a
/// queue that is never used would know every tenant that ever was.
const DEBTS: usize = 1024;

/// One request in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<T> {
    /// Names it.
    pub waiter: WaiterId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The tenant's share of the queue, at least 1.
    pub weight: u32,
    /// What it costs.
    pub tokens: u64,
    /// Input items it carries.
    pub items: usize,
    /// When it came.
    pub enqueued: Mono,
    /// When waiting longer makes no sense.
    pub expires: Mono,
    /// Whatever its owner needs to go on.
    pub payload: T,
}

/// Why something cannot wait here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushError {
    /// The queue holds as many items as it may.
    Full,
    /// That waiter waits already.
    Duplicate,
}

#[derive(Debug)]
struct Flow {
    /// In order of arrival. Waiters that left are skipped when they come up, and swept when they are the majority.
    order: VecDeque<WaiterId>,
    live: usize,
    deficit: i128,
    weight: u32,
}

/// A bounded queue, fair between tenants.
#[derive(Debug)]
pub struct FairQueue<T> {
    max_items: usize,
    items: usize,
    entries: HashMap<WaiterId, Waiting<T>>,
    expiries: BTreeSet<(Mono, WaiterId)>,
    flows: HashMap<TenantId, Flow>,
    /// Tenants that had neither a request nor a debt: they go first, once, so that a small job is not kept by big ones.
    fresh: VecDeque<TenantId>,
    round: VecDeque<TenantId>,
}

impl<T> FairQueue<T> {
    /// An empty queue for at most `max_items` input items together.
    pub fn new(max_items: usize) -> FairQueue<T> {
        FairQueue {
            max_items,
            items: 0,
            entries: HashMap::new(),
            expiries: BTreeSet::new(),
            flows: HashMap::new(),
            fresh: VecDeque::new(),
            round: VecDeque::new(),
        }
    }

    /// Changes the bound; what waits already may stay.
    pub fn set_max_items(&mut self, max_items: usize) {
        self.max_items = max_items;
    }

    /// Requests waiting.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Input items waiting.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Puts a request at the end of its tenant's line. Always fits into an empty queue, whatever its size.
    ///
    /// # Errors
    /// [`PushError`]; the queue is unchanged.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<(), PushError> {
        if self.entries.contains_key(&waiting.waiter) {
            return Err(PushError::Duplicate);
        }
        if !self.is_empty() && self.items.saturating_add(waiting.items) > self.max_items {
            return Err(PushError::Full);
        }
        let weight = waiting.weight.max(1);
        let flow = self.flows.entry(waiting.tenant.clone()).or_insert_with(|| {
            self.fresh.push_back(waiting.tenant.clone());
            Flow { order: VecDeque::new(), live: 0, deficit: QUANTUM * i128::from(weight), weight }
        });
        flow.weight = weight;
        flow.order.push_back(waiting.waiter);
        flow.live += 1;
        self.items += waiting.items;
        self.expiries.insert((waiting.expires, waiting.waiter));
        self.entries.insert(waiting.waiter, waiting);
        Ok(())
    }

    /// Who is next; asking again without a change gives the same answer.
    pub fn head(&mut self) -> Option<&Waiting<T>> {
        let tenant = self.settle_round()?;
        let flow = self.flows.get_mut(&tenant)?;
        while flow.order.front().is_some_and(|waiter| !self.entries.contains_key(waiter)) {
            flow.order.pop_front();
        }
        self.entries.get(flow.order.front()?)
    }

    /// Takes who is next out of the queue and charges the tenant.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        let waiter = self.head()?.waiter;
        let waiting = self.forget(waiter)?;
        if let Some(flow) = self.flows.get_mut(&waiting.tenant) {
            flow.deficit -= i128::from(waiting.tokens.max(1));
        }
        Some(waiting)
    }

    /// Charges a tenant for a request that did not have to wait. Otherwise whoever comes while the queue is empty would
    /// have a call more than its share each time.
    pub fn charge(&mut self, tenant: &TenantId, weight: u32, tokens: u64) {
        let weight = weight.max(1);
        let flow = self.flows.entry(tenant.clone()).or_insert_with(|| {
            self.round.push_back(tenant.clone());
            Flow { order: VecDeque::new(), live: 0, deficit: QUANTUM * i128::from(weight), weight }
        });
        // An idle tenant owes one call at most: what it took while nobody else wanted anything harmed nobody.
        flow.deficit = (flow.deficit.max(0)) - i128::from(tokens.max(1));
        if self.entries.is_empty() && self.flows.len() > DEBTS {
            self.forgive_oldest();
        }
    }

    /// Forgets the tenants that are in the round longest, none of which waits: what is owed for a call of long ago.
    fn forgive_oldest(&mut self) {
        while self.flows.len() > DEBTS / 2
            && let Some(oldest) = self.round.pop_front()
        {
            self.flows.remove(&oldest);
        }
    }

    /// Takes a request out of the queue without charging anybody: its client has left.
    pub fn remove(&mut self, waiter: WaiterId) -> Option<Waiting<T>> {
        self.forget(waiter)
    }

    /// Takes out all that waited too long.
    pub fn expire(&mut self, now: Mono) -> Vec<Waiting<T>> {
        let mut expired = Vec::new();
        while let Some((_, waiter)) = self.expiries.first().copied().filter(|(expires, _)| *expires <= now) {
            expired.extend(self.forget(waiter));
        }
        expired
    }

    /// When [`FairQueue::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Mono> {
        self.expiries.first().map(|(expires, _)| *expires)
    }

    /// Empties the queue, in the order of expiry.
    pub fn drain(&mut self) -> Vec<Waiting<T>> {
        self.expire(Mono(u64::MAX))
    }

    fn forget(&mut self, waiter: WaiterId) -> Option<Waiting<T>> {
        let waiting = self.entries.remove(&waiter)?;
        self.expiries.remove(&(waiting.expires, waiter));
        self.items -= waiting.items;
        if let Some(flow) = self.flows.get_mut(&waiting.tenant) {
            flow.live -= 1;
            if flow.order.len() > 16 + 2 * flow.live {
                flow.order.retain(|waiter| self.entries.contains_key(waiter));
            }
        }
        Some(waiting)
    }

    /// Turns the round until the tenant at its front may send: it has a request and no debt.
    fn settle_round(&mut self) -> Option<TenantId> {
        if self.entries.is_empty() {
            return None;
        }
        self.skip_rounds();
        loop {
            let from_fresh = !self.fresh.is_empty();
            let list = if from_fresh { &mut self.fresh } else { &mut self.round };
            let tenant = list.front()?.clone();
            let Some(flow) = self.flows.get_mut(&tenant) else {
                list.pop_front();
                continue;
            };
            if flow.live > 0 && flow.deficit > 0 {
                return Some(tenant);
            }
            list.pop_front();
            // An empty line out of the fresh list goes round once before it is forgotten, or coming back at once would
            // make it fresh again. One that still has credit then keeps none: credit is for those who wait.
            if flow.live == 0 && flow.deficit >= 0 && !from_fresh {
                self.flows.remove(&tenant);
                continue;
            }
            if flow.live > 0 || flow.deficit < 0 {
                flow.deficit += QUANTUM * i128::from(flow.weight);
            }
            if flow.live == 0 {
                flow.deficit = flow.deficit.min(0);
            }
            self.round.push_back(tenant);
        }
    }

    /// When every waiting tenant is deep in debt, pays off at once the rounds in which nobody could send.
    fn skip_rounds(&mut self) {
        let rounds_needed =
            |flow: &Flow| if flow.deficit > 0 { 0 } else { 1 + -flow.deficit / (QUANTUM * i128::from(flow.weight)) };
        // Only looked at when the front one is far from able to send, so the usual case costs nothing.
        let front = self.round.front().and_then(|tenant| self.flows.get(tenant));
        if !self.fresh.is_empty() || front.is_none_or(|flow| rounds_needed(flow) < 8) {
            return;
        }
        let needed = self.flows.values().filter(|flow| flow.live > 0).map(rounds_needed).min().unwrap_or(0);
        for flow in self.flows.values_mut() {
            let earned = (needed - 1).max(0) * QUANTUM * i128::from(flow.weight);
            flow.deficit = if flow.live == 0 { (flow.deficit + earned).min(0) } else { flow.deficit + earned };
        }
    }
}

#[cfg(test)]
mod tests;
