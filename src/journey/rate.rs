//! What a client may still take, for its `x-ratelimit-*` headers.

use std::time::Duration;

use crate::clock;
use crate::pure::class::TrafficClass;
use crate::pure::tenant_limits::Allowances;
use crate::runtime::Fleet;

use super::classify::Context;

/// The tenant's own limit if it has one, else what its class may still take from the upstreams that serve the model.
pub fn allowances(context: &Context, class: TrafficClass, routes: Option<&Fleet>) -> Option<Allowances> {
    if let Some(own) = context.tenant.board.limits(clock::mono()) {
        return Some(own);
    }
    routes?.allowances(class)
}

/// A duration in OpenAI's notation: `0s`, `6ms`, `1.5s`, `6m0s`, `1h2m3s`.
pub fn notation(span: Duration) -> String {
    let millis = span.as_nanos().div_ceil(1_000_000);
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let (seconds, rest) = (millis / 1_000, millis % 1_000);
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:03}").trim_end_matches('0').to_owned() };
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}{fraction}s"),
        (0, m, s) => format!("{m}m{s}{fraction}s"),
        (h, m, s) => format!("{h}h{m}m{s}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(millis: u64, expected: &str) {
        assert_eq!(notation(Duration::from_millis(millis)), expected);
    }

    #[test]
    fn durations_read_as_openai_writes_them() {
        check(0, "0s");
        check(6, "6ms");
        check(1_000, "1s");
        check(1_500, "1.5s");
        check(90_951, "1m30.951s");
        check(360_000, "6m0s");
        check(3_723_000, "1h2m3s");
        assert_eq!(notation(Duration::from_micros(1)), "1ms");
    }
}
