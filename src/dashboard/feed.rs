//! What the dashboard shows, as plain data. The one who wires the process fills these from its actors' snapshots;
//! nothing here asks anybody anything, and nothing holds a key or a text of a request.
//!
//! Money is a decimal string with all its digits; durations are milliseconds; shares are fractions of 1; rates are per
//! second over the objectives' window unless a field says otherwise; of upstreams, everything is of the last minute.

use serde::Serialize;

use crate::config::plan::Slo;
use crate::pure::class::TrafficClass;
use crate::pure::service_levels::TargetLevel;
use crate::pure::slo::{Burn, History as PointHistory, Point};
use crate::pure::time::{Mono, Wall};
use crate::telemetry::labels::{BreakerLevel, BurnWindow, Objective};
use crate::telemetry::timeline::Entry;

/// Where the dashboard's numbers come from.
pub trait Feed: Send + Sync {
    /// The state of things now. Called at most once a second however many people look; must not block for longer
    /// than a millisecond or so.
    fn snapshot(&self) -> DashboardSnapshot;

    /// The percentiles of the last hours. Called when a page is opened and every ten seconds after.
    fn history(&self) -> History;
}

/// Whether the process takes traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Serving {
    /// It is not ready yet.
    Starting,
    /// It takes traffic.
    Serving,
    /// It finishes what it has.
    Draining,
}

/// Everything the page shows at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct DashboardSnapshot {
    /// When it was taken, Unix milliseconds.
    pub at_ms: i64,
    /// The program's version.
    pub version: String,
    /// The configuration's version.
    pub config_version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Whether the process takes traffic.
    pub status: Serving,
    /// Three letters; the currency of every amount.
    pub currency: String,
    /// Objectives and how they fare.
    pub slo: SloView,
    /// Traffic by class, in the order of [`TrafficClass::ALL`].
    pub classes: Vec<ClassView>,
    /// Traffic by model and class, of models that were asked, in the order of the configuration.
    pub models: Vec<ModelView>,
    /// Cost and cache over all tenants.
    pub totals: TotalsView,
    /// Request bodies in memory, bytes.
    pub buffered_bytes: u64,
    /// Upstreams in the order of the configuration.
    pub upstreams: Vec<UpstreamView>,
    /// Tenants in the order of the configuration, those made at run time last.
    pub tenants: Vec<TenantView>,
    /// Collections in the order of the configuration.
    pub collections: Vec<CollectionView>,
    /// Models that will be retired, the first to go first.
    pub retirements: Vec<RetirementView>,
    /// The latest events, oldest first; a few hundred at most.
    pub events: Vec<Entry>,
}

/// Objectives and how they fare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SloView {
    /// Window of the percentiles, seconds.
    pub window_s: u64,
    /// The line of query embedding's 95th percentile.
    pub p95_line_ms: f64,
    /// The line of its 99th percentile.
    pub p99_line_ms: f64,
    /// Each objective.
    pub objectives: Vec<ObjectiveView>,
}

/// One objective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectiveView {
    /// Its name in metrics.
    pub name: Objective,
    /// Whose requests it is about.
    pub class: TrafficClass,
    /// The time they have.
    pub line_ms: f64,
    /// Share of requests that may miss it.
    pub allowed_bad: f64,
    /// Share of the last six hours' error budget that is left; below 0 when overspent.
    pub budget_remaining: f64,
    /// Burn rates by window, shortest first.
    pub burn: Vec<BurnView>,
    /// How urgent the burn is.
    pub urgency: Urgency,
}

/// A burn rate over one window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BurnView {
    /// The window.
    pub window: BurnWindow,
    /// 1 spends the budget exactly.
    pub rate: f64,
}

/// How urgent a burn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// Within the budget.
    Calm,
    /// Look today.
    Slow,
    /// Look now.
    Fast,
}

impl SloView {
    /// The view of the objectives' levels, which are in the order of [`Objective::ALL`].
    pub fn new(slo: &Slo, levels: &[TargetLevel]) -> SloView {
        SloView {
            window_s: slo.window.as_secs(),
            p95_line_ms: millis(slo.interactive_p95),
            p99_line_ms: millis(slo.interactive_p99),
            objectives: (Objective::ALL.iter().zip(levels))
                .map(|(name, level)| ObjectiveView::new(*name, slo, level))
                .collect(),
        }
    }
}

impl ObjectiveView {
    /// The view of one objective's level, by the lines of `slo`.
    pub fn new(name: Objective, slo: &Slo, level: &TargetLevel) -> ObjectiveView {
        let target = name.target(slo);
        let burn = BurnWindow::ALL.iter().zip(level.burn);
        ObjectiveView {
            name,
            class: target.class,
            line_ms: millis(target.line),
            allowed_bad: target.allowed_bad,
            budget_remaining: level.remaining,
            burn: burn.map(|(window, rate)| BurnView { window: *window, rate }).collect(),
            urgency: match level.urgency {
                Burn::Calm => Urgency::Calm,
                Burn::Slow => Urgency::Slow,
                Burn::Fast => Urgency::Fast,
            },
        }
    }
}

fn millis(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1_000.0
}

/// Cost and cache over all tenants since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TotalsView {
    /// Share of looked-up items that the cache had.
    pub cache_hit_ratio: f64,
    /// Cost of search, rerank included, per answered search query.
    pub cost_per_query: f64,
}

/// Traffic of one class over the objectives' window.
#[derive(Debug, Clone, Serialize)]
pub struct ClassView {
    /// The class.
    pub class: TrafficClass,
    /// Requests that ended.
    pub count: u64,
    /// Requests a second.
    pub rate: f64,
    /// Requests that the service failed (not the client's or the tenant's own fault).
    pub errors: u64,
    /// Requests that were refused by a limit of the tenant's own.
    pub limited: u64,
    /// Median; absent without requests.
    pub p50_ms: Option<f64>,
    /// 95th percentile.
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// 95th percentile of the time spent waiting for upstreams.
    pub upstream_p95_ms: Option<f64>,
    /// 95th percentile of the time spent in queues.
    pub queue_p95_ms: Option<f64>,
    /// 95th percentile of the gateway's own time.
    pub overhead_p95_ms: Option<f64>,
}

/// Traffic of one model in one class over the objectives' window.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    /// The model.
    pub model: String,
    /// The class.
    pub class: TrafficClass,
    /// Requests that ended.
    pub count: u64,
    /// Requests a second.
    pub rate: f64,
    /// Requests that the service failed.
    pub errors: u64,
    /// Requests that were refused by a limit of the tenant's own.
    pub limited: u64,
    /// Median; absent without requests.
    pub p50_ms: Option<f64>,
    /// 95th percentile.
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// The class's objectives as this model's requests fare, by the model's own lines where it has them; none for
    /// batches.
    pub objectives: Vec<ObjectiveView>,
}

/// One upstream.
#[derive(Debug, Clone, Serialize)]
pub struct UpstreamView {
    /// Its id.
    pub id: String,
    /// Its wire format.
    pub provider: String,
    /// Its region; empty: none stated.
    pub region: String,
    /// Lower tiers are tried first.
    pub tier: u32,
    /// Names of the models it serves.
    pub models: Vec<String>,
    /// Where its breaker stands.
    pub breaker: BreakerLevel,
    /// Whether an operator keeps new calls away from it.
    pub drained: bool,
    /// Whether its vectors took it out.
    pub quarantined: bool,
    /// Whether the provider refused its key.
    pub key_parked: bool,
    /// Tokens that would be granted now; absent: no limit known.
    pub tokens: Option<BucketView>,
    /// Requests that would be granted now; absent: no limit known.
    pub requests: Option<BucketView>,
    /// Calls under way.
    pub in_flight: u64,
    /// Most calls under way at once.
    pub max_concurrency: u64,
    /// Input items waiting.
    pub queued: u64,
    /// 95th percentile of the wait of what left the queue lately; absent if nothing did.
    pub dwell_p95_ms: Option<f64>,
    /// 95th percentile of its calls; absent without calls.
    pub p95_ms: Option<f64>,
    /// Calls a second.
    pub rate: f64,
    /// Share of its calls that failed.
    pub failure_ratio: f64,
    /// Its last failure.
    pub last_error: Option<LastError>,
}

/// What a bucket holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BucketView {
    /// What it would grant now.
    pub available: f64,
    /// What it holds when full.
    pub limit: f64,
}

/// The last failure of an upstream.
#[derive(Debug, Clone, Serialize)]
pub struct LastError {
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// A status or what went wrong before there was one, such as `503` or `timeout`.
    pub status: String,
    /// A few words, keys scrubbed.
    pub message: String,
}

/// One tenant. Amounts are decimal strings.
#[derive(Debug, Clone, Serialize)]
pub struct TenantView {
    /// Its id.
    pub id: String,
    /// Its budget; absent: unlimited.
    pub budget: Option<String>,
    /// What it may still spend after all open holds; absent: unlimited.
    pub remaining: Option<String>,
    /// What open holds bind.
    pub held: String,
    /// What it spent in the current period.
    pub spent: String,
    /// Share of the budget that is left, 0 to 1, for sorting and the bar; absent: unlimited.
    pub remaining_share: Option<f64>,
    /// Requests a second.
    pub rate: f64,
    /// Share of its requests that the service failed.
    pub error_ratio: f64,
    /// Share of looked-up items that the cache had.
    pub cache_hit_ratio: f64,
    /// Cost per answered search query, as a float for sorting and display.
    pub cost_per_query: f64,
}

/// One collection's move.
#[derive(Debug, Clone, Serialize)]
pub struct CollectionView {
    /// Its name.
    pub name: String,
    /// The old model.
    pub from: String,
    /// The new model.
    pub to: String,
    /// `old`, `backfill`, `canary` or `new`.
    pub stage: String,
    /// Share of queries to the new model in `canary`.
    pub canary: f64,
    /// Since when it stands there, Unix milliseconds.
    pub since_ms: i64,
    /// What went to the old model, as far back as the ledger knows.
    pub old: ShareView,
    /// What went to the new model.
    pub new: ShareView,
    /// What embedding the rest of the documents will cost, a decimal string; absent without a price.
    pub cost_left: Option<String>,
}

/// A model that will be retired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetirementView {
    /// The model.
    pub model: String,
    /// The upstream at which it ends; absent: everywhere.
    pub upstream: Option<String>,
    /// `2027-01-31`.
    pub on: String,
    /// Whole days until then; below 0 when it is over.
    pub days_left: i64,
}

/// What one model did for a collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShareView {
    /// Input items.
    pub items: u64,
    /// Tokens.
    pub tokens: u64,
    /// Cost, a decimal string.
    pub cost: String,
}

/// Percentiles of the last hours, by class.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct History {
    /// One series a class, in the order of [`TrafficClass::ALL`].
    pub classes: Vec<ClassHistory>,
}

/// One class's percentiles as columns of equal length, oldest first, as charts want them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassHistory {
    /// The class.
    pub class: TrafficClass,
    /// Ends of the intervals, Unix seconds, ascending.
    pub at: Vec<i64>,
    /// Median, ms; absent where nothing was asked.
    pub p50: Vec<Option<f64>>,
    /// 95th percentile, ms.
    pub p95: Vec<Option<f64>>,
    /// 99th percentile, ms.
    pub p99: Vec<Option<f64>>,
    /// Requests a second.
    pub rate: Vec<f64>,
    /// Share of requests that the service failed.
    pub error_ratio: Vec<Option<f64>>,
}

impl ClassHistory {
    /// The columns of `points`, whose monotonic times are told by the wall clock as it is now: a clock that was set
    /// back in between does not fold the chart over itself.
    pub fn new(class: TrafficClass, points: &PointHistory, now: Mono, wall: Wall) -> ClassHistory {
        let mut columns = ClassHistory {
            class,
            at: Vec::new(),
            p50: Vec::new(),
            p95: Vec::new(),
            p99: Vec::new(),
            rate: Vec::new(),
            error_ratio: Vec::new(),
        };
        let mut earlier: Option<Mono> = None;
        for point in points.points() {
            let ago_ms = i64::try_from(now.since(point.at).as_millis()).unwrap_or(i64::MAX);
            let at = wall.0.saturating_sub(ago_ms).div_euclid(1_000);
            if columns.at.last().is_some_and(|last| *last >= at) {
                continue;
            }
            columns.at.push(at);
            columns.push(point, earlier);
            earlier = Some(point.at);
        }
        columns
    }

    fn push(&mut self, point: &Point, earlier: Option<Mono>) {
        let asked = |value: f64| (point.count > 0).then_some(value);
        let ms = |span: std::time::Duration| asked(tenths(span.as_secs_f64() * 1_000.0));
        self.p50.push(ms(point.p50));
        self.p95.push(ms(point.p95));
        self.p99.push(ms(point.p99));
        // The first point's interval is not known; points come every ten seconds at first.
        let seconds = earlier.map_or(10.0, |before| point.at.since(before).as_secs_f64()).clamp(1.0, 60.0);
        self.rate.push(tenths(point.count as f64 / seconds));
        self.error_ratio.push(asked(point.errors as f64 / point.count.max(1) as f64));
    }

    /// Only what ended after `since` (Unix seconds).
    fn after(&self, since: i64) -> ClassHistory {
        let first = self.at.partition_point(|at| *at <= since);
        let tail = |column: &[Option<f64>]| column.get(first..).unwrap_or_default().to_vec();
        ClassHistory {
            class: self.class,
            at: self.at.get(first..).unwrap_or_default().to_vec(),
            p50: tail(&self.p50),
            p95: tail(&self.p95),
            p99: tail(&self.p99),
            rate: self.rate.get(first..).unwrap_or_default().to_vec(),
            error_ratio: tail(&self.error_ratio),
        }
    }
}

impl History {
    /// Only what ended after `since` (Unix seconds).
    pub fn after(&self, since: i64) -> History {
        History { classes: self.classes.iter().map(|class| class.after(since)).collect() }
    }
}

/// One decimal: a chart shows no more, and it halves the bytes.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pure::slo::Budget;

    fn point(at_s: u64, p99_ms: u64, count: u64, errors: u64) -> Point {
        let ms = Duration::from_millis;
        Point { at: Mono::from_millis(at_s * 1_000), p50: ms(1), p95: ms(2), p99: ms(p99_ms), count, errors }
    }

    fn history(points: &[Point]) -> PointHistory {
        let mut history = PointHistory::default();
        points.iter().for_each(|point| history.push(*point));
        history
    }

    #[test]
    fn columns_carry_wall_times_and_gaps() {
        let points = history(&[point(10, 9, 200, 2), point(20, 0, 0, 0), point(30, 7, 50, 0)]);
        let wall = Wall(1_700_000_000_000);
        let columns = ClassHistory::new(TrafficClass::InteractiveSearch, &points, Mono::from_millis(30_000), wall);
        assert_eq!(columns.at, [1_699_999_980, 1_699_999_990, 1_700_000_000]);
        assert_eq!(columns.p99, [Some(9.0), None, Some(7.0)]);
        assert_eq!(columns.rate, [20.0, 0.0, 5.0]);
        assert_eq!(columns.error_ratio, [Some(0.01), None, Some(0.0)]);
        let all = History { classes: vec![columns] };
        assert_eq!(all.after(1_699_999_990).classes[0].at, [1_700_000_000]);
        assert_eq!(all.after(1_699_999_990).classes[0].p99, [Some(7.0)]);
        assert_eq!(all.after(i64::MAX).classes[0].rate, Vec::<f64>::new());
        assert_eq!(all.after(0), all);
    }

    #[test]
    fn objectives_show_their_burn_and_urgency() {
        let slo = Slo {
            window: Duration::from_secs(300),
            interactive_p95: Duration::from_millis(70),
            interactive_p99: Duration::from_micros(120_500),
            rerank_p95: Duration::from_millis(300),
            rerank_p99: Duration::from_millis(600),
            chat_p95: Duration::from_secs(10),
            chat_p99: Duration::from_secs(30),
        };
        let mut budgets = Objective::ALL.iter().map(|name| Budget::new(name.allowed_bad())).collect::<Vec<_>>();
        budgets[1].record(Mono::ZERO, 80, 20);
        let now = Mono::from_millis(1_000);
        let view = SloView::new(&slo, &budgets.iter_mut().map(|b| TargetLevel::of(b, now, 1)).collect::<Vec<_>>());
        assert_eq!((view.p95_line_ms, view.p99_line_ms), (70.0, 120.5));
        assert_eq!((view.objectives[0].urgency, view.objectives[1].urgency), (Urgency::Calm, Urgency::Fast));
        assert!((view.objectives[1].burn[0].rate - 20.0).abs() < 1e-9);
        let json = serde_json::to_value(&view.objectives[1]).expect("serialises");
        assert_eq!(json["name"], "interactive_p99");
        assert_eq!(json["burn"][0]["window"], "5m");
        assert_eq!((&view.objectives[3].class, view.objectives[3].line_ms), (&TrafficClass::Rerank, 600.0));
    }
}
