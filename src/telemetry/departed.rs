//! Series of names that left the configuration. A total that went at once would take its last increments with it unread; one
//! that stayed for ever would cost memory for each name that ever was. Owns when they go; which they are is told by the tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::time::Mono;

/// How long totals stay after their name left: Prometheus takes a series for gone after as long without a sample, so whoever
/// scrapes more seldom cannot follow it anyway.
pub const TOTALS_STAY: Duration = Duration::from_secs(300);

/// What carries a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Series {
    /// A tenant's, but for what it spent.
    Tenant(TenantId),
    /// What a tenant spent on a model.
    Spent { tenant: TenantId, model: ModelName, class: TrafficClass, currency: Arc<str> },
    /// Requests for a model.
    Model(ModelName),
    /// An upstream's.
    Upstream(UpstreamId),
    /// What a model did for a collection.
    Collection { collection: String, model: ModelName },
}

/// Series that will go, the first to go first.
#[derive(Debug, Default)]
pub(super) struct Departed(VecDeque<(Mono, Series)>);

impl Departed {
    /// These have left now.
    pub(super) fn left(&mut self, series: impl IntoIterator<Item = Series>, now: Mono) {
        let until = now.plus(TOTALS_STAY);
        self.0.extend(series.into_iter().map(|series| (until, series)));
    }

    /// Takes out what goes now.
    pub(super) fn due(&mut self, now: Mono) -> Vec<Series> {
        let due = self.0.partition_point(|(until, _)| *until <= now);
        let due = self.0.drain(..due).map(|(_, series)| series).collect();
        if self.0.capacity() / 4 > self.0.len() {
            self.0.shrink_to_fit();
        }
        due
    }
}
