//! The metrics of upstreams.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::ids::UpstreamId;
use crate::pure::class::TrafficClass;

use super::departed::Series;
use super::labels::{
    BreakerLevel, BucketUnit, ByTrace, ByUpstream, ByUpstreamClass, ByUpstreamStatus, ByUpstreamUnit, CallStatus,
    LabelPlan, OTHER, TraceId,
};
use super::names;
use super::tenants::FloatGauge;

/// Upper bounds of a histogram's buckets, seconds, ascending.
#[derive(Debug, Clone)]
pub(super) struct Buckets(pub(super) Arc<[f64]>);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl MetricConstructor<HistogramWithExemplars<ByTrace>> for Buckets {
    fn new_metric(&self) -> HistogramWithExemplars<ByTrace> {
        HistogramWithExemplars::new(self.0.iter().copied())
    }
}

/// Queues: from a moment to the longest stay that the default configuration allows, and twice that.
const DWELL_BUCKETS: [f64; 12] = [0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0];

/// The families that carry an `upstream` label.
#[derive(Debug)]
pub(super) struct UpstreamFamilies {
    requests: Family<ByUpstreamStatus, Counter>,
    duration: Family<ByUpstream, HistogramWithExemplars<ByTrace>, Buckets>,
    dwell: Family<ByUpstreamClass, Histogram, Buckets>,
    depth: Family<ByUpstreamClass, Gauge>,
    in_flight: Family<ByUpstream, Gauge>,
    breaker: Family<ByUpstream, Gauge>,
    bucket: Family<ByUpstreamUnit, FloatGauge>,
    quarantined: Family<ByUpstream, Gauge>,
    cooldown: Family<ByUpstream, FloatGauge>,
    keys_parked: Family<ByUpstream, Counter<u64, AtomicU64>>,
    usage_odd: Family<ByUpstream, Counter>,
    hedges: Family<ByUpstream, Counter>,
}

impl UpstreamFamilies {
    pub(super) fn new(latency: &Buckets) -> UpstreamFamilies {
        UpstreamFamilies {
            requests: Family::default(),
            duration: Family::new_with_constructor(latency.clone()),
            dwell: Family::new_with_constructor(Buckets(Arc::from(DWELL_BUCKETS))),
            depth: Family::default(),
            in_flight: Family::default(),
            breaker: Family::default(),
            bucket: Family::default(),
            quarantined: Family::default(),
            cooldown: Family::default(),
            keys_parked: Family::default(),
            usage_odd: Family::default(),
            hedges: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        names::UPSTREAM_REQUESTS.register(registry, self.requests.clone());
        names::UPSTREAM_DURATION.register(registry, self.duration.clone());
        names::QUEUE_DWELL.register(registry, self.dwell.clone());
        names::QUEUE_DEPTH.register(registry, self.depth.clone());
        names::UPSTREAM_IN_FLIGHT.register(registry, self.in_flight.clone());
        names::BREAKER_STATE.register(registry, self.breaker.clone());
        names::BUCKET_AVAILABLE.register(registry, self.bucket.clone());
        names::QUARANTINED.register(registry, self.quarantined.clone());
        names::COOLDOWN.register(registry, self.cooldown.clone());
        names::KEYS_PARKED.register(registry, self.keys_parked.clone());
        names::USAGE_ODD.register(registry, self.usage_odd.clone());
        names::HEDGES.register(registry, self.hedges.clone());
    }

    fn cells(&self, upstream: &UpstreamId) -> UpstreamCells {
        let label = ByUpstream { upstream: upstream.clone() };
        let by_class = |class| ByUpstreamClass { upstream: upstream.clone(), class };
        let by_status = |status: CallStatus| {
            let label = ByUpstreamStatus { upstream: upstream.clone(), status: status.as_str() };
            self.requests.get_or_create_owned(&label)
        };
        UpstreamCells {
            id: upstream.clone(),
            ok: by_status(CallStatus::Http(200)),
            duration: self.duration.get_or_create_owned(&label),
            dwell: TrafficClass::ALL.map(|class| self.dwell.get_or_create_owned(&by_class(class))),
            depth: TrafficClass::ALL.map(|class| self.depth.get_or_create_owned(&by_class(class))),
            in_flight: self.in_flight.get_or_create_owned(&label),
            breaker: self.breaker.get_or_create_owned(&label),
            bucket: std::array::from_fn(|at| {
                let label = ByUpstreamUnit { upstream: upstream.clone(), unit: BucketUnit::ALL[at] };
                self.bucket.get_or_create_owned(&label)
            }),
            quarantined: self.quarantined.get_or_create_owned(&label),
            cooldown: self.cooldown.get_or_create_owned(&label),
            keys_parked: self.keys_parked.get_or_create_owned(&label),
            usage_odd: self.usage_odd.get_or_create_owned(&label),
            hedges: self.hedges.get_or_create_owned(&label),
        }
    }

    /// Takes an upstream's totals off the page.
    pub(super) fn forget(&self, upstream: &UpstreamId) {
        let label = ByUpstream { upstream: upstream.clone() };
        self.duration.remove(&label);
        for family in [&self.keys_parked, &self.usage_odd, &self.hedges] {
            family.remove(&label);
        }
        for class in TrafficClass::ALL {
            self.dwell.remove(&ByUpstreamClass { upstream: upstream.clone(), class });
        }
        for status in CallStatus::texts() {
            self.requests.remove(&ByUpstreamStatus { upstream: upstream.clone(), status });
        }
    }

    /// Gauges of an upstream that the configuration no longer has would stay at their last value for ever.
    fn forget_gauges(&self, upstream: &UpstreamId) {
        let label = ByUpstream { upstream: upstream.clone() };
        for family in [&self.in_flight, &self.breaker, &self.quarantined] {
            family.remove(&label);
        }
        self.cooldown.remove(&label);
        for unit in BucketUnit::ALL {
            self.bucket.remove(&ByUpstreamUnit { upstream: upstream.clone(), unit: *unit });
        }
        for class in TrafficClass::ALL {
            self.depth.remove(&ByUpstreamClass { upstream: upstream.clone(), class });
        }
    }
}

/// One upstream's resolved metrics.
#[derive(Debug)]
pub(super) struct UpstreamCells {
    id: UpstreamId,
    ok: Counter,
    duration: HistogramWithExemplars<ByTrace>,
    dwell: [Histogram; TrafficClass::ALL.len()],
    depth: [Gauge; TrafficClass::ALL.len()],
    in_flight: Gauge,
    breaker: Gauge,
    bucket: [FloatGauge; BucketUnit::ALL.len()],
    quarantined: Gauge,
    cooldown: FloatGauge,
    keys_parked: Counter,
    usage_odd: Counter,
    hedges: Counter,
}

impl UpstreamCells {
    pub(super) fn call(&self, families: &UpstreamFamilies, status: CallStatus, took: Duration, trace: Option<TraceId>) {
        if status == CallStatus::Http(200) {
            self.ok.inc();
        } else {
            let label = ByUpstreamStatus { upstream: self.id.clone(), status: status.as_str() };
            families.requests.get_or_create(&label).inc();
        }
        self.duration.observe(took.as_secs_f64(), trace.map(ByTrace), None);
    }

    pub(super) fn dwell(&self, class: TrafficClass, waited: Duration) {
        self.dwell[class as usize].observe(waited.as_secs_f64());
    }

    pub(super) fn depth(&self, class: TrafficClass, items: usize) {
        self.depth[class as usize].set(i64::try_from(items).unwrap_or(i64::MAX));
    }

    pub(super) fn in_flight(&self, calls: usize) {
        self.in_flight.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    pub(super) fn breaker(&self, level: BreakerLevel) {
        self.breaker.set(level.gauge());
    }

    pub(super) fn bucket(&self, unit: BucketUnit, available: f64) {
        if available.is_finite() {
            self.bucket[unit as usize].set(available);
        }
    }

    pub(super) fn quarantined(&self, out: bool) {
        self.quarantined.set(i64::from(out));
    }

    pub(super) fn cooldown(&self, left: Duration) {
        self.cooldown.set(left.as_secs_f64());
    }

    pub(super) fn key_parked(&self) {
        self.keys_parked.inc();
    }

    pub(super) fn hedged(&self) {
        self.hedges.inc();
    }

    pub(super) fn usage_odd(&self) {
        self.usage_odd.inc();
    }
}

/// The configured upstreams' cells.
#[derive(Debug)]
pub(super) struct UpstreamTable {
    cells: HashMap<UpstreamId, UpstreamCells>,
    other: OnceLock<UpstreamCells>,
}

impl UpstreamTable {
    /// The table of `plan`; gauges of upstreams that only `earlier` had are taken off the page.
    pub(super) fn new(families: &UpstreamFamilies, plan: &LabelPlan, earlier: Option<&UpstreamTable>) -> UpstreamTable {
        let cells: HashMap<_, _> = plan.upstreams.iter().map(|id| (id.clone(), families.cells(id))).collect();
        for gone in earlier.iter().flat_map(|old| old.cells.keys()).filter(|id| !cells.contains_key(*id)) {
            families.forget_gauges(gone);
        }
        UpstreamTable { cells, other: OnceLock::new() }
    }

    pub(super) fn has(&self, upstream: &UpstreamId) -> bool {
        self.cells.contains_key(upstream)
    }

    /// Upstreams that `next` does not have.
    pub(super) fn departed(&self, next: &UpstreamTable) -> impl Iterator<Item = Series> {
        self.cells.keys().filter(|id| !next.has(id)).cloned().map(Series::Upstream)
    }

    pub(super) fn of(&self, families: &UpstreamFamilies, upstream: &UpstreamId) -> &UpstreamCells {
        self.cells.get(upstream).unwrap_or_else(|| self.other.get_or_init(|| families.cells(&UpstreamId::from(OTHER))))
    }
}
