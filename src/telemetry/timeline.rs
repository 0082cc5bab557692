//! The last events of the process, in memory, for the page that on-call reads. Owns the ring and the events' shape;
//! does not decide what is an event.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::ids::{TenantId, UpstreamId};
use crate::pure::money::Money;
use crate::pure::time::Wall;

use super::labels::{ActorName, StoreName};

/// How much an event wants to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For the record.
    Info,
    /// Something is worse than it should be.
    Warning,
    /// Someone should look now.
    Critical,
}

/// What happened. Holds names and numbers only: no key, no text of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A breaker stopped sending.
    BreakerOpened {
        /// Whose.
        upstream: UpstreamId,
        /// Why, in a few words.
        reason: String,
    },
    /// A breaker lets probes through.
    BreakerHalfOpened {
        /// Whose.
        upstream: UpstreamId,
    },
    /// A breaker lets traffic flow again.
    BreakerClosed {
        /// Whose.
        upstream: UpstreamId,
    },
    /// A provider refused a key, which is set aside.
    KeyParked {
        /// Whose key.
        upstream: UpstreamId,
        /// The provider's status.
        status: u16,
    },
    /// An upstream's vectors differ from its space's reference.
    Quarantined {
        /// Which.
        upstream: UpstreamId,
        /// The lowest cosine seen, in thousandths.
        cosine_milli: i32,
    },
    /// An upstream's vectors agree again.
    QuarantineLifted {
        /// Which.
        upstream: UpstreamId,
    },
    /// An actor was rebuilt after a fault.
    ActorRestarted {
        /// Which.
        actor: ActorName,
        /// The cause, in a few words.
        cause: String,
    },
    /// A new configuration holds.
    ReloadApplied {
        /// Its version.
        version: String,
    },
    /// A new configuration was not valid and changed nothing.
    ReloadRefused {
        /// How many problems it has.
        problems: usize,
    },
    /// A start-up released holds whose calls' results nobody saw.
    HoldsRecovered {
        /// Whose.
        tenant: TenantId,
        /// How many.
        count: u64,
        /// Their sum.
        amount: Money,
    },
    /// A settlement cost more than was held.
    Shortfall {
        /// Whose.
        tenant: TenantId,
        /// By how much.
        amount: Money,
    },
    /// A provider stated a usage that cannot be right.
    UsageOdd {
        /// Who.
        upstream: UpstreamId,
        /// What it stated.
        stated: u64,
        /// What was expected at most.
        bound: u64,
    },
    /// A store failed an operation.
    StoreFailed {
        /// Which.
        store: StoreName,
        /// The cause, in a few words, without addresses.
        cause: String,
    },
    /// A store answers again.
    StoreRecovered {
        /// Which.
        store: StoreName,
    },
    /// A collection moved to another stage.
    StageChanged {
        /// Which.
        collection: String,
        /// From where.
        from: String,
        /// To where.
        to: String,
    },
    /// Someone used the admin side.
    AdminAction {
        /// The name of the token or session.
        actor: String,
        /// The action, such as `drain`.
        action: String,
        /// On what.
        subject: String,
    },
    /// The process started or is going away.
    Lifecycle {
        /// What it does, in a few words.
        what: String,
    },
}

impl Event {
    /// How much it wants to be read.
    pub const fn severity(&self) -> Severity {
        match self {
            Event::BreakerOpened { .. }
            | Event::KeyParked { .. }
            | Event::Quarantined { .. }
            | Event::StoreFailed { .. } => Severity::Critical,
            Event::BreakerHalfOpened { .. }
            | Event::ActorRestarted { .. }
            | Event::ReloadRefused { .. }
            | Event::HoldsRecovered { .. }
            | Event::Shortfall { .. }
            | Event::UsageOdd { .. } => Severity::Warning,
            Event::BreakerClosed { .. }
            | Event::QuarantineLifted { .. }
            | Event::ReloadApplied { .. }
            | Event::StoreRecovered { .. }
            | Event::StageChanged { .. }
            | Event::AdminAction { .. }
            | Event::Lifecycle { .. } => Severity::Info,
        }
    }

    /// Whether `other` tells of the same trouble, so that a storm of them takes one line.
    fn repeats(&self, other: &Event) -> bool {
        match (self, other) {
            (Event::UsageOdd { upstream: a, .. }, Event::UsageOdd { upstream: b, .. }) => a == b,
            (Event::KeyParked { upstream: a, .. }, Event::KeyParked { upstream: b, .. }) => a == b,
            (Event::Shortfall { tenant: a, .. }, Event::Shortfall { tenant: b, .. }) => a == b,
            (Event::StoreFailed { store: a, .. }, Event::StoreFailed { store: b, .. }) => a == b,
            (Event::ActorRestarted { actor: a, .. }, Event::ActorRestarted { actor: b, .. }) => a == b,
            _ => false,
        }
    }
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Ascending without gaps; a repeated event gets a new one, so that a reader who asks for what is new sees it.
    pub seq: u64,
    /// When it first happened, Unix milliseconds.
    pub at_ms: i64,
    /// When it last happened.
    pub last_ms: i64,
    /// How often.
    pub count: u64,
    /// How much it wants to be read.
    pub severity: Severity,
    /// What happened, as it was the last time.
    #[serde(flatten)]
    pub event: Event,
}

/// Equal trouble within this span is one entry.
const REPEAT_WITHIN: Duration = Duration::from_secs(60);

/// How far back a repeat is looked for.
const REPEAT_SCAN: usize = 32;

/// A bounded ring of entries; cheap to append, copied out when read.
#[derive(Debug)]
pub struct Timeline {
    capacity: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    entries: VecDeque<Entry>,
}

impl Timeline {
    /// An empty timeline that keeps the last `capacity` entries (at least one).
    pub fn new(capacity: usize) -> Timeline {
        Timeline { capacity: capacity.max(1), ring: Mutex::default() }
    }

    /// Appends an event, or counts it onto an equal one of the last minute. Returns whether an old entry fell off.
    pub fn push(&self, at: Wall, event: Event) -> bool {
        let mut ring = self.ring.lock();
        let seq = ring.next;
        ring.next += 1;
        let oldest = at.0.saturating_sub(i64::try_from(REPEAT_WITHIN.as_millis()).unwrap_or(i64::MAX));
        let from = ring.entries.len().saturating_sub(REPEAT_SCAN);
        let repeated = (from..ring.entries.len())
            .rev()
            .find(|index| ring.entries.get(*index).is_some_and(|e| e.last_ms >= oldest && e.event.repeats(&event)));
        if let Some(mut entry) = repeated.and_then(|index| ring.entries.remove(index)) {
            entry.seq = seq;
            entry.last_ms = at.0;
            entry.count += 1;
            entry.event = event;
            ring.entries.push_back(entry);
            return false;
        }
        let full = ring.entries.len() == self.capacity;
        if full {
            ring.entries.pop_front();
        }
        let severity = event.severity();
        ring.entries.push_back(Entry { seq, at_ms: at.0, last_ms: at.0, count: 1, severity, event });
        full
    }

    /// The entries with a number of at least `seq`, oldest first, at most the last `limit`.
    pub fn since(&self, seq: u64, limit: usize) -> Vec<Entry> {
        let ring = self.ring.lock();
        let first = ring.entries.partition_point(|entry| entry.seq < seq);
        let first = first.max(ring.entries.len().saturating_sub(limit));
        ring.entries.iter().skip(first).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn closed(name: &str) -> Event {
        Event::BreakerClosed { upstream: UpstreamId::from(name) }
    }

    fn odd(name: &str, stated: u64) -> Event {
        Event::UsageOdd { upstream: UpstreamId::from(name), stated, bound: 10 }
    }

    #[test]
    fn a_storm_takes_one_line_that_moves_to_the_end() {
        let timeline = Timeline::new(10);
        timeline.push(Wall(0), odd("a", 1));
        timeline.push(Wall(1_000), closed("a"));
        timeline.push(Wall(2_000), odd("a", 7));
        timeline.push(Wall(2_000), odd("b", 1));
        let entries = timeline.since(0, 10);
        assert_eq!(entries.iter().map(|e| (e.seq, e.count)).collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 1)]);
        assert_eq!((entries[1].at_ms, entries[1].last_ms), (0, 2_000));
        assert_eq!(entries[1].event, odd("a", 7));
    }

    #[test]
    fn trouble_that_comes_back_later_is_a_line_of_its_own() {
        let timeline = Timeline::new(10);
        timeline.push(Wall(0), odd("a", 1));
        timeline.push(Wall(60_001), odd("a", 1));
        assert_eq!(timeline.since(0, 10).len(), 2);
    }

    #[test]
    fn entries_are_flat_json_without_surprises() {
        let timeline = Timeline::new(10);
        timeline.push(Wall(5), odd("openai-eu-1", 3));
        let json = serde_json::to_value(&timeline.since(0, 1)[0]).expect("serialises");
        let expected = serde_json::json!({
            "seq": 0, "at_ms": 5, "last_ms": 5, "count": 1, "severity": "warning",
            "kind": "usage_odd", "upstream": "openai-eu-1", "stated": 3, "bound": 10,
        });
        assert_eq!(json, expected);
    }

    proptest! {
        #[test]
        fn the_ring_is_bounded_ordered_and_loses_only_the_oldest(
            events in proptest::collection::vec((0_u8..4, 0_i64..40_000), 0..80),
            capacity in 1_usize..12,
        ) {
            let timeline = Timeline::new(capacity);
            let (mut at, mut dropped) = (0, 0_u64);
            for (name, step) in &events {
                at += step;
                let event = if *name < 2 { odd(&name.to_string(), 1) } else { closed(&name.to_string()) };
                dropped += u64::from(timeline.push(Wall(at), event));
            }
            let entries = timeline.since(0, usize::MAX);
            prop_assert!(entries.len() <= capacity);
            prop_assert!(entries.windows(2).all(|pair| pair[0].seq < pair[1].seq));
            prop_assert!(entries.windows(2).all(|pair| pair[0].last_ms <= pair[1].last_ms));
            prop_assert_eq!(entries.last().map(|e| e.seq + 1).unwrap_or(0), events.len() as u64);
            let counted: u64 = entries.iter().map(|e| e.count).sum();
            prop_assert!(counted <= events.len() as u64);
            prop_assert!(dropped > 0 || counted == events.len() as u64);
        }
    }
}
