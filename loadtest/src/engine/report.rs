//! What was measured: latencies and statuses by label, and whether the generator kept its rate.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::client::{Failure, Reply};

/// Shortest and longest time told apart, in nanoseconds: 1 µs to 10 minutes.
const BOUNDS_NS: (u64, u64) = (1_000, 600_000_000_000);

/// Under what a request is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// Phase of the run.
    pub phase: String,
    /// Traffic class, or another kind of request.
    pub class: String,
    /// Tenant.
    pub tenant: String,
}

/// A histogram of times with three significant digits.
#[derive(Clone, Debug)]
pub struct Times(Option<Histogram<u64>>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(BOUNDS_NS.0, BOUNDS_NS.1, 3).ok())
    }
}

impl Times {
    /// Adds a time; one outside the bounds counts as the bound.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).clamp(BOUNDS_NS.0, BOUNDS_NS.1);
        if let Some(times) = &mut self.0 {
            times.saturating_record(ns);
        }
    }

    /// Adds all of another's times.
    pub fn merge(&mut self, other: &Self) {
        if let (Some(times), Some(other)) = (&mut self.0, &other.0) {
            // Both have the same bounds, for which adding cannot fail.
            let added = times.add(other);
            debug_assert!(added.is_ok());
        }
    }

    /// How many times there are.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The time that this share (0 to 1) does not exceed; zero where there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        let ns = self.0.as_ref().filter(|times| !times.is_empty()).map_or(0, |times| times.value_at_quantile(share));
        Duration::from_nanos(ns)
    }

    /// The same in milliseconds.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        self.quantile(share).as_secs_f64() * 1e3
    }

    /// The longest time.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.as_ref().filter(|times| !times.is_empty()).map_or(0, Histogram::max))
    }

    /// The histogram itself, for plots and files.
    pub fn histogram(&self) -> Option<&Histogram<u64>> {
        self.0.as_ref()
    }
}

/// What was measured under one label.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Latencies of 2xx answers, from when the request was due.
    pub good: Times,
    /// Latencies of all others, failures included: leaving them out would flatter a server that drops slow requests.
    pub bad: Times,
    /// Answers by status.
    pub by_status: BTreeMap<u16, u64>,
    /// Requests without an answer, by cause.
    pub failures: BTreeMap<Failure, u64>,
    /// Bytes of bodies received.
    pub bytes: u64,
}

impl Row {
    fn record(&mut self, outcome: &Result<Reply, Failure>, latency: Duration) {
        match outcome {
            Ok(reply) => {
                *self.by_status.entry(reply.status).or_default() += 1;
                self.bytes += reply.body_bytes;
                if is_good(outcome) { self.good.record(latency) } else { self.bad.record(latency) }
            }
            Err(failure) => {
                *self.failures.entry(*failure).or_default() += 1;
                self.bad.record(latency);
            }
        }
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.good.merge(&other.good);
        self.bad.merge(&other.bad);
        for (status, count) in &other.by_status {
            *self.by_status.entry(*status).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.bytes += other.bytes;
    }
}

/// Whether an outcome is a 2xx answer.
pub(super) fn is_good(outcome: &Result<Reply, Failure>) -> bool {
    outcome.as_ref().is_ok_and(|reply| (200..300).contains(&reply.status))
}

/// What a run measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By label.
    pub rows: BTreeMap<Label, Row>,
    /// Requests that were due.
    pub due: u64,
    /// How long after a request was due the generator came to send it.
    pub lateness: Times,
    /// Requests that found every connection busy and had to wait for one.
    pub waited_for_connection: u64,
    /// From the start to the last answer.
    pub elapsed: Duration,
}

impl Report {
    pub(super) fn record(&mut self, label: &Label, outcome: &Result<Reply, Failure>, latency: Duration) {
        if let Some(row) = self.rows.get_mut(label) {
            row.record(outcome, latency);
        } else {
            let mut row = Row::default();
            row.record(outcome, latency);
            self.rows.insert(label.clone(), row);
        }
    }

    /// All rows together.
    pub fn total(&self) -> Row {
        self.matching(|_| true)
    }

    /// The rows whose label fits, together.
    pub fn matching(&self, fits: impl Fn(&Label) -> bool) -> Row {
        let mut total = Row::default();
        self.rows.iter().filter(|(label, _)| fits(label)).for_each(|(_, row)| total.merge(row));
        total
    }

    /// Why the measurement is not to be trusted, if it is not: the generator fell behind its own schedule.
    pub fn complaint(&self) -> Option<String> {
        let late_ms = self.lateness.quantile_ms(0.99);
        let sent = self.lateness.len();
        if sent < self.due {
            return Some(format!("the generator sent {sent} of {} requests", self.due));
        }
        (late_ms > 2.0).then(|| {
            format!("the generator could not keep its rate: 1 % of requests left {late_ms:.1} ms late or more")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16) -> Result<Reply, Failure> {
        Ok(Reply { status, headers: hyper::HeaderMap::new(), body: bytes::Bytes::new(), body_bytes: 3 })
    }

    fn label(class: &str) -> Label {
        Label { class: class.to_owned(), ..Label::default() }
    }

    #[test]
    fn outcomes_are_kept_apart_by_label_and_kind() {
        let mut report = Report::default();
        let ms = Duration::from_millis;
        report.record(&label("a"), &reply(200), ms(10));
        report.record(&label("a"), &reply(429), ms(1));
        report.record(&label("b"), &Err(Failure::TimedOut), ms(900));
        let a = &report.rows[&label("a")];
        assert_eq!((a.good.len(), a.bad.len(), a.bytes), (1, 1, 6));
        assert!((a.good.quantile_ms(0.5) - 10.0).abs() < 0.1);
        let total = report.total();
        assert_eq!(total.by_status[&429], 1);
        assert_eq!(total.failures[&Failure::TimedOut], 1);
        assert_eq!(report.matching(|label| label.class == "b").bad.len(), 1);
    }

    #[test]
    fn a_generator_that_fell_behind_is_told_on() {
        let mut report = Report { due: 2, ..Report::default() };
        report.lateness.record(Duration::from_micros(50));
        assert!(report.complaint().is_some_and(|why| why.contains("1 of 2")));
        report.lateness.record(Duration::from_micros(50));
        assert_eq!(report.complaint(), None);
        report.lateness.record(Duration::from_millis(30));
        assert!(report.complaint().is_some_and(|why| why.contains("late")));
    }

    #[test]
    fn no_times_are_no_panic() {
        let times = Times::default();
        assert!(times.is_empty());
        assert_eq!((times.quantile(0.99), times.max()), (Duration::ZERO, Duration::ZERO));
    }
}
