//! One function per event that people should hear of: each logs it, counts it and puts it on the timeline, so that the
//! three never disagree. Says nothing about ordinary traffic.

use std::sync::Arc;

use tracing::{error, info, warn};

use crate::clock;
use crate::ids::{TenantId, UpstreamId};
use crate::pure::money::Money;

use super::labels::{ActorName, BreakerLevel, MachineName, ReloadResult, StoreName};
use super::metrics::Metrics;
use super::timeline::{Event, Timeline};

/// Where events go.
#[derive(Debug, Clone)]
pub struct Events {
    metrics: Arc<Metrics>,
    timeline: Arc<Timeline>,
}

impl Events {
    /// Events that are counted in `metrics` and kept in `timeline`.
    pub fn new(metrics: Arc<Metrics>, timeline: Arc<Timeline>) -> Events {
        Events { metrics, timeline }
    }

    /// The metrics behind the events.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The timeline behind the events.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    fn keep(&self, event: Event) {
        if self.timeline.push(clock::wall(), event) {
            self.metrics.event_dropped();
        }
    }

    /// A breaker stopped sending to `upstream`. `reason` in a few words, such as `12 of 40 calls failed`.
    pub fn breaker_opened(&self, upstream: &UpstreamId, reason: &str) {
        error!(%upstream, reason, "breaker opened");
        self.metrics.breaker_state(upstream, BreakerLevel::Open);
        self.keep(Event::BreakerOpened { upstream: upstream.clone(), reason: reason.to_owned() });
    }

    /// A breaker lets probes through.
    pub fn breaker_half_opened(&self, upstream: &UpstreamId) {
        info!(%upstream, "breaker half-open");
        self.metrics.breaker_state(upstream, BreakerLevel::HalfOpen);
        self.keep(Event::BreakerHalfOpened { upstream: upstream.clone() });
    }

    /// A breaker lets traffic flow again.
    pub fn breaker_closed(&self, upstream: &UpstreamId) {
        info!(%upstream, "breaker closed");
        self.metrics.breaker_state(upstream, BreakerLevel::Closed);
        self.keep(Event::BreakerClosed { upstream: upstream.clone() });
    }

    /// The provider refused an upstream's key with `status`.
    pub fn key_parked(&self, upstream: &UpstreamId, status: u16) {
        error!(%upstream, status, "upstream key parked");
        self.metrics.key_parked(upstream);
        self.keep(Event::KeyParked { upstream: upstream.clone(), status });
    }

    /// An upstream's vectors differ from its space's reference; `cosine` is the lowest one measured.
    pub fn quarantined(&self, upstream: &UpstreamId, cosine: f64) {
        error!(%upstream, cosine, "upstream quarantined");
        self.metrics.quarantined(upstream, true);
        let cosine_milli = (cosine * 1_000.0).round() as i32;
        self.keep(Event::Quarantined { upstream: upstream.clone(), cosine_milli });
    }

    /// An upstream's vectors agree again.
    pub fn quarantine_lifted(&self, upstream: &UpstreamId) {
        info!(%upstream, "upstream quarantine lifted");
        self.metrics.quarantined(upstream, false);
        self.keep(Event::QuarantineLifted { upstream: upstream.clone() });
    }

    /// An actor was rebuilt after a fault. `cause` is ours, never a text of a request.
    pub fn actor_restarted(&self, actor: ActorName, cause: &str) {
        error!(actor = actor.as_str(), cause, "actor restarted");
        self.metrics.actor_restarted(actor);
        self.keep(Event::ActorRestarted { actor, cause: cause.to_owned() });
    }

    /// A state machine saw an event that its state excludes. A defect: logged and counted, not on the timeline.
    pub fn impossible_transition(&self, machine: MachineName) {
        error!(machine = machine.as_str(), "impossible transition");
        self.metrics.impossible_transition(machine);
    }

    /// A new configuration holds.
    pub fn reload_applied(&self, version: &str) {
        info!(version, "configuration reloaded");
        self.metrics.reloaded(ReloadResult::Applied);
        self.keep(Event::ReloadApplied { version: version.to_owned() });
    }

    /// A new configuration has `problems` problems and changed nothing.
    pub fn reload_refused(&self, problems: usize) {
        warn!(problems, "configuration refused");
        self.metrics.reloaded(ReloadResult::Refused);
        self.keep(Event::ReloadRefused { problems });
    }

    /// A start-up released `count` holds of `tenant`, `amount` together, whose calls' results nobody saw.
    pub fn holds_recovered(&self, tenant: &TenantId, count: u64, amount: Money) {
        warn!(%tenant, count, %amount, "holds recovered");
        self.metrics.holds_recovered(count);
        self.keep(Event::HoldsRecovered { tenant: tenant.clone(), count, amount });
    }

    /// A settlement of `tenant` cost `amount` more than was held.
    pub fn shortfall(&self, tenant: &TenantId, amount: Money) {
        warn!(%tenant, %amount, "settlement exceeds its hold");
        self.metrics.shortfall();
        self.keep(Event::Shortfall { tenant: tenant.clone(), amount });
    }

    /// A provider stated `stated` tokens where at most `bound` are possible; the estimate was charged.
    pub fn usage_odd(&self, upstream: &UpstreamId, stated: u64, bound: u64) {
        warn!(%upstream, stated, bound, "stated usage cannot be right");
        self.metrics.usage_odd(upstream);
        self.keep(Event::UsageOdd { upstream: upstream.clone(), stated, bound });
    }

    /// A store failed an operation. `cause` in a few words, without addresses or keys.
    pub fn store_failed(&self, store: StoreName, cause: &str) {
        error!(store = store.as_str(), cause, "store failed");
        self.metrics.store_error(store);
        self.keep(Event::StoreFailed { store, cause: cause.to_owned() });
    }

    /// A store answers again.
    pub fn store_recovered(&self, store: StoreName) {
        info!(store = store.as_str(), "store recovered");
        self.keep(Event::StoreRecovered { store });
    }

    /// A collection moved from one stage to another.
    pub fn stage_changed(&self, collection: &str, from: &str, to: &str) {
        info!(collection, from, to, "collection stage changed");
        self.keep(Event::StageChanged { collection: collection.to_owned(), from: from.to_owned(), to: to.to_owned() });
    }

    /// Someone used the admin side. `actor` names a token or session, never shows it.
    pub fn admin_action(&self, actor: &str, action: &str, subject: &str) {
        info!(actor, action, subject, "admin action");
        self.keep(Event::AdminAction {
            actor: actor.to_owned(),
            action: action.to_owned(),
            subject: subject.to_owned(),
        });
    }

    /// The process started, is draining, or the like; `what` in a few words.
    pub fn lifecycle(&self, what: &str) {
        info!(what, "lifecycle");
        self.keep(Event::Lifecycle { what: what.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::exposition::tests::support;

    #[test]
    fn an_event_is_counted_and_kept() {
        let events = Events::new(support::metrics(), Arc::new(Timeline::new(2)));
        let upstream = UpstreamId::from("u1");
        events.breaker_opened(&upstream, "3 of 4 calls failed");
        events.quarantined(&upstream, 0.9874);
        events.actor_restarted(ActorName::Ledger, "panicked");
        let page = support::page(events.metrics());
        assert_eq!(page.value("vectorgate_breaker_state", &[("upstream", "u1")]), Some(2.0));
        assert_eq!(page.value("vectorgate_upstream_quarantined", &[("upstream", "u1")]), Some(1.0));
        assert_eq!(page.value("vectorgate_actor_restarts_total", &[("actor", "ledger")]), Some(1.0));
        assert_eq!(page.value("vectorgate_timeline_events_dropped_total", &[]), Some(1.0));
        let kept = events.timeline().since(0, 10);
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[0].event, Event::Quarantined { upstream, cosine_milli: 987 });
    }

    #[test]
    fn a_closed_breaker_shows_as_zero_again() {
        let events = Events::new(support::metrics(), Arc::new(Timeline::new(8)));
        let upstream = UpstreamId::from("u1");
        events.breaker_opened(&upstream, "x");
        events.breaker_half_opened(&upstream);
        events.breaker_closed(&upstream);
        let page = support::page(events.metrics());
        assert_eq!(page.value("vectorgate_breaker_state", &[("upstream", "u1")]), Some(0.0));
        assert_eq!(events.timeline().since(0, 10).len(), 3);
    }
}
