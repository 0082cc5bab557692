//! Which requests are recorded as traces: decided from the head of a request, before anything is made for it. Owns what
//! the `OTEL_TRACES_SAMPLER` variables mean; reads no clock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pure::time::Mono;
use crate::telemetry::labels::TraceId;

use super::parent::TraceParent;

/// The variable that names a sampler.
const NAME: &str = "OTEL_TRACES_SAMPLER";

/// The variable with the sampler's number.
const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";

/// Traces a second that nobody asked for, unless the variables say otherwise: every request of a quiet gateway, and so
/// few of a busy one that it does not feel them.
const USUAL_RATE: f64 = 100.0;

/// Nanoseconds for which an unused rate is saved up.
const SAVED: u64 = 1_000_000_000;

/// Chooses the requests that are recorded.
#[derive(Debug)]
pub struct Sampler {
    /// Where the client says whether it records its own part, that decides.
    obeys_client: bool,
    own: Own,
}

/// What decides where the client does not.
#[derive(Debug)]
enum Own {
    All,
    None,
    /// Traces whose id, seen as a random number of 63 bits, is below this.
    Share(u64),
    Rate(Rate),
}

/// So many a second.
#[derive(Debug)]
struct Rate {
    /// Nanoseconds from one to the next.
    each: u64,
    /// Up to when it is used up, in nanoseconds since [`SAVED`] before the process's start.
    used: AtomicU64,
}

impl Rate {
    /// `None`: never.
    fn new(per_second: f64) -> Option<Rate> {
        let each = (1e9 / per_second).clamp(1.0, u64::MAX as f64 / 4.0) as u64;
        (per_second > 0.0).then_some(Rate { each, used: AtomicU64::new(0) })
    }

    fn take(&self, now: Mono) -> bool {
        // One that lasts longer than what is saved would never be had otherwise.
        let saved = SAVED.max(self.each);
        let now = now.0.saturating_add(saved);
        let next = |used: u64| Some(used.max(now - saved) + self.each).filter(|next| *next <= now);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { obeys_client: true, own: rated(USUAL_RATE) }
    }
}

impl Sampler {
    /// Reads the variables through `get`; also what of them cannot be used and was left aside.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> (Sampler, Option<String>) {
        let get = |name| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let Some(name) = get(NAME) else { return (Sampler::default(), None) };
        let argument = get(ARGUMENT).map(|text| text.parse::<f64>().ok().filter(|number| *number >= 0.0));
        let unclear = matches!(argument, Some(None)).then(|| format!("{ARGUMENT} must be a number from 0"));
        let number = |otherwise: f64| argument.flatten().unwrap_or(otherwise);
        let (obeys_client, own) = match name.strip_prefix("parentbased_") {
            Some(own) => (true, own),
            None => (false, name.as_str()),
        };
        let own = match own {
            "always_on" => Own::All,
            "always_off" => Own::None,
            "traceidratio" => shared(number(1.0)),
            "rate_limited" => rated(number(USUAL_RATE)),
            _ => return (Sampler::default(), Some(format!("{NAME} names no sampler that is known here"))),
        };
        (Sampler { obeys_client, own }, unclear)
    }

    /// Whether the request of trace `trace`, begun at `now` under the client's `parent`, is recorded.
    pub fn takes(&self, parent: Option<TraceParent>, trace: TraceId, now: Mono) -> bool {
        match (parent.filter(|_| self.obeys_client), &self.own) {
            (Some(parent), _) => parent.sampled(),
            (None, Own::All) => true,
            (None, Own::None) => false,
            (None, Own::Share(below)) => (trace.0 as u64) >> 1 < *below,
            (None, Own::Rate(rate)) => rate.take(now),
        }
    }
}

fn shared(share: f64) -> Own {
    if share >= 1.0 { Own::All } else { Own::Share((share * (1_u64 << 63) as f64) as u64) }
}

fn rated(per_second: f64) -> Own {
    Rate::new(per_second).map_or(Own::None, Own::Rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(name: &str, argument: &str) -> (Sampler, Option<String>) {
        let variables = [(NAME, name), (ARGUMENT, argument)];
        Sampler::from_env(|asked| variables.iter().find(|(name, _)| *name == asked).map(|(_, v)| (*v).to_owned()))
    }

    fn parent(flags: u8) -> Option<TraceParent> {
        Some(TraceParent { trace: TraceId(1), span: 2, flags })
    }

    /// What is taken: of a client that records, of one that does not, and without one.
    #[track_caller]
    fn check(name: &str, argument: &str, expected: (bool, bool, bool)) {
        let (sampler, complaint) = sampler(name, argument);
        assert_eq!(complaint, None, "{name} {argument}");
        let takes = |parent| sampler.takes(parent, TraceId(u128::MAX / 3), Mono::ZERO);
        assert_eq!((takes(parent(1)), takes(parent(0)), takes(None)), expected, "{name} {argument}");
    }

    #[test]
    fn samplers_decide_as_the_specification_says() {
        check("", "", (true, false, true));
        check("always_on", "", (true, true, true));
        check("always_off", "", (false, false, false));
        check("parentbased_always_on", "", (true, false, true));
        check(" parentbased_always_off", "", (true, false, false));
        check("traceidratio", "1", (true, true, true));
        check("traceidratio", "0", (false, false, false));
        check("traceidratio", "", (true, true, true));
        check("parentbased_traceidratio", "0", (true, false, false));
        check("parentbased_rate_limited", "5", (true, false, true));
        check("rate_limited", "0", (false, false, false));
        // The id's lower half is a third of what it could be.
        check("traceidratio", "0.34", (true, true, true));
        check("traceidratio", "0.33", (false, false, false));
    }

    #[test]
    fn what_cannot_be_used_is_named_and_left_aside() {
        let (unknown, complaint) = sampler("parentbased_jaeger_remote", "");
        assert!(complaint.expect("a complaint").starts_with(NAME));
        assert!(unknown.takes(None, TraceId(1), Mono::ZERO) && !unknown.takes(parent(0), TraceId(1), Mono::ZERO));
        for argument in ["much", "-1", "NaN"] {
            let (all, complaint) = sampler("traceidratio", argument);
            assert!(complaint.expect("a complaint").starts_with(ARGUMENT), "{argument}");
            assert!(all.takes(None, TraceId(u128::MAX), Mono::ZERO));
        }
    }

    #[track_caller]
    fn check_rate(per_second: f64, asked_at_ms: impl IntoIterator<Item = u64>, taken: usize) {
        let rate = Rate::new(per_second).expect("a rate");
        let times = asked_at_ms.into_iter().map(Mono::from_millis);
        assert_eq!(times.filter(|now| rate.take(*now)).count(), taken, "{per_second}");
    }

    #[test]
    fn a_rate_is_kept_and_saved_up_for_a_second() {
        check_rate(100.0, [0; 250], 100);
        check_rate(100.0, (0..10_000).map(|tenth| tenth / 10), 100 + 99);
        check_rate(100.0, [0, 3_600_000].into_iter().flat_map(|hour| [hour; 250]), 200);
        check_rate(0.5, (0..10).map(|second| second * 1_000), 5);
        check_rate(f64::INFINITY, [0; 500], 500);
    }
}
