//! Telemetry as the rest of the program holds it: metrics, events and the timeline in one value.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::actors::keeper::ActorKind;
use crate::config::plan::Plan;
use crate::ids::{TenantId, UpstreamId};
use crate::pure::admission::{Effect, ParkReason, UpstreamSnapshot};
use crate::pure::breaker::{OpenReason, Phase, Transition};
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::service_levels::Snapshot;
use crate::store::writer::Recovery;

use super::events::Events;
use super::labels::{
    ActorName, BreakerLevel, BucketUnit, BurnWindow, LabelPlan, MachineName, Objective, Quantile, StoreName,
};
use super::logs::{self, RequestLog, TelemetryGuard};
use super::metrics::Metrics;
use super::otlp::metrics::MetricExport;
use super::timeline::Timeline;
use super::traces::{Incoming, Recorder, RequestTrace};

/// Events kept for the dashboard: a bad night's worth.
const TIMELINE_EVENTS: usize = 2_000;

/// Metrics, events and their export, and that of traces, of one process.
#[derive(Debug)]
pub struct Telemetry {
    /// Numbers.
    pub metrics: Arc<Metrics>,
    /// What people should hear of.
    pub events: Events,
    /// There where somebody receives spans.
    recorder: Option<Recorder>,
    pub(super) request_log: RequestLog,
    guard: Mutex<TelemetryGuard>,
    metric_export: Mutex<Option<MetricExport>>,
}

impl Telemetry {
    /// Starts logging and, where the environment names a receiver, the export of traces and metrics.
    pub fn start(plan: &Plan) -> Arc<Telemetry> {
        let mut guard = logs::init();
        let metrics = Metrics::new(&LabelPlan::from_plan(plan), &plan.slo, guard.lost_spans());
        let events = Events::new(Arc::clone(&metrics), Arc::new(Timeline::new(TIMELINE_EVENTS)));
        let (recorder, request_log) = (guard.recorder(), guard.request_log());
        let metric_export = MetricExport::from_env(&metrics).unwrap_or_else(|error| {
            tracing::warn!(%error, "metrics are not exported");
            None
        });
        let (guard, metric_export) = (Mutex::new(guard), Mutex::new(metric_export));
        Arc::new(Telemetry { metrics, events, recorder, request_log, guard, metric_export })
    }

    /// Begins a request's trace, under the client's `traceparent` if it is a valid one. `route` is asked for only if the
    /// request is recorded.
    pub fn begin_trace(&self, incoming: Incoming<'_>, route: impl FnOnce() -> String) -> RequestTrace {
        RequestTrace::begin(self.recorder.as_ref(), incoming, route)
    }

    /// Delivers what is queued; blocks for a few seconds at most.
    pub fn stop(&self) {
        // First, as what it has to say about its end should still be logged.
        drop(self.metric_export.lock().take());
        self.guard.lock().shutdown();
    }

    /// An actor was restarted; `subject` is the upstream or tenant it owns.
    pub fn actor_restarted(&self, kind: ActorKind, subject: &str) {
        let name = match kind {
            ActorKind::Upstream => ActorName::Upstream,
            ActorKind::Ledger => ActorName::Ledger,
            ActorKind::Router => ActorName::Router,
        };
        self.events.actor_restarted(name, subject);
    }

    /// The ledger's store failed.
    pub fn store_failed(&self, operation: &str, error: &io::Error) {
        self.events.store_failed(StoreName::Ledger, &format!("{operation}: {error}"));
    }

    /// A charge exceeded its hold and the balance.
    pub fn shortfall(&self, tenant: &TenantId, amount: Money) {
        self.events.shortfall(tenant, amount);
    }

    /// A provider stated a usage that cannot be right.
    pub fn usage_odd(&self, upstream: &UpstreamId) {
        self.metrics.usage_odd(upstream);
        tracing::warn!(%upstream, "stated usage cannot be right");
    }

    /// What the store found at start: each tenant's released holds, and a torn end.
    pub fn recovered(&self, recovery: &Recovery) {
        if let Some(torn) = &recovery.torn {
            tracing::warn!(?torn, "the journal's end was torn by a crash and has been cut");
        }
        let mut by_tenant = std::collections::BTreeMap::<&TenantId, (u64, Money)>::new();
        for hold in &recovery.released {
            let (count, sum) = by_tenant.entry(&hold.tenant).or_default();
            *count += 1;
            *sum = sum.checked_add(hold.amount).unwrap_or(*sum);
            tracing::warn!(hold = hold.hold.0, tenant = %hold.tenant, request_id = %hold.request_id,
                amount = %hold.amount, "released a hold whose call's result nobody saw");
        }
        for (tenant, (count, amount)) in by_tenant {
            self.events.holds_recovered(tenant, count, amount);
        }
    }

    /// What an upstream's core wants told.
    pub fn upstream_effect(&self, upstream: &UpstreamId, effect: &Effect) {
        match effect {
            Effect::Breaker(Transition { to: Phase::Open, reason, .. }) => {
                let reason = match reason {
                    Some(OpenReason::Probe) => "a probe failed",
                    Some(OpenReason::Told) => "another replica's is open",
                    Some(OpenReason::Forced) => "by order",
                    Some(OpenReason::Ratio) | None => "too large a share of calls failed",
                };
                self.events.breaker_opened(upstream, reason);
            }
            Effect::Breaker(Transition { to: Phase::HalfOpen, .. }) => self.events.breaker_half_opened(upstream),
            Effect::Breaker(Transition { to: Phase::Closed, .. }) => self.events.breaker_closed(upstream),
            Effect::Parked(ParkReason::KeyRejected) => self.events.key_parked(upstream, 401),
            Effect::Parked(ParkReason::OutOfQuota) => self.events.key_parked(upstream, 429),
            Effect::CoolDown(pause) => {
                tracing::warn!(%upstream, pause_ms = pause.as_millis() as u64, "upstream asked for a pause");
            }
            Effect::Dwell { class, waited } => self.metrics.queue_dwell(upstream, *class, *waited),
            Effect::Lost(attempt) => {
                tracing::warn!(%upstream, attempt = attempt.0, "a granted call was never reported")
            }
            Effect::Impossible(rule) => {
                tracing::error!(%upstream, rule, "impossible");
                self.events.impossible_transition(MachineName::Admission);
            }
        }
    }

    /// Sets the gauges of one upstream.
    pub fn upstream_gauges(&self, upstream: &UpstreamId, snapshot: &UpstreamSnapshot) {
        let level = match snapshot.breaker {
            Phase::Closed => BreakerLevel::Closed,
            Phase::HalfOpen => BreakerLevel::HalfOpen,
            Phase::Open => BreakerLevel::Open,
        };
        // Of a thousand upstreams each second: found once for all of them.
        self.metrics.with_upstream(upstream, |gauges| {
            gauges.breaker(level);
            gauges.quarantined(snapshot.quarantined);
            gauges.cooldown(Duration::from_millis(snapshot.cool_down_ms));
            gauges.in_flight(snapshot.in_flight);
            gauges.depth(TrafficClass::InteractiveSearch, snapshot.interactive_waiting);
            gauges.depth(TrafficClass::BatchIngestion, snapshot.batch_waiting_items);
            for (unit, available) in [
                (BucketUnit::Tokens, snapshot.interactive_tokens),
                (BucketUnit::Requests, snapshot.interactive_requests),
            ] {
                if let Some(available) = available {
                    gauges.bucket(unit, available as f64);
                }
            }
        });
    }

    /// Publishes the percentiles of query embedding and of each model, and the objectives, whose levels are in the order
    /// of [`Objective::ALL`].
    pub fn service_levels(&self, levels: &Snapshot) {
        let search = levels.classes[TrafficClass::InteractiveSearch as usize];
        for (quantile, value) in Quantile::ALL.iter().zip(search.total.unwrap_or_default()) {
            self.metrics.query_latency(*quantile, value);
        }
        for (objective, level) in Objective::ALL.iter().zip(&levels.targets) {
            self.metrics.slo_budget_remaining(*objective, level.remaining);
            for (window, rate) in BurnWindow::ALL.iter().zip(level.burn) {
                self.metrics.slo_burn_rate(*objective, *window, rate);
            }
        }
        self.metrics.model_levels(&levels.models);
    }
}
