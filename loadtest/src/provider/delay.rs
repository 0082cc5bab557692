//! How long an answer takes: the wait before it and the spread of its bytes over time.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, LogNormal};
use serde::{Deserialize, Serialize};

/// A wait before an answer, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delay {
    /// None.
    #[default]
    None,
    /// Always the same.
    FixedMs(f64),
    /// Between the two, all equally likely.
    UniformMs([f64; 2]),
    /// Log-normal around a median, as real providers are.
    Lognormal {
        /// Half of the waits are shorter.
        median_ms: f64,
        /// Standard deviation of the logarithm; 0.5 gives a p99 of 3.2 medians.
        sigma: f64,
        /// No wait is longer.
        max_ms: f64,
    },
}

fn millis(ms: f64) -> Duration {
    // An hour bounds what a mistyped script can do; NaN and negatives are no wait.
    Duration::try_from_secs_f64(ms.min(3_600_000.0) / 1e3).unwrap_or_default()
}

impl Delay {
    /// The wait before one answer to a call of `items` items.
    pub fn draw(self, rng: &mut SmallRng, items: usize, per_item_ms: f64) -> Duration {
        let own = match self {
            Self::None => 0.0,
            Self::FixedMs(ms) => ms,
            Self::UniformMs([low, high]) => low + (high - low) * rng.random::<f64>(),
            Self::Lognormal { median_ms, sigma, max_ms } => match LogNormal::new(median_ms.max(1e-6).ln(), sigma) {
                Ok(waits) => waits.sample(rng).min(max_ms),
                Err(_) => median_ms,
            },
        };
        millis(own + per_item_ms * items as f64)
    }

    /// Whether every wait is zero.
    pub fn is_none(self) -> bool {
        self == Self::None
    }
}

/// How the bytes of an answer are spread over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// Wait before the first byte, after the delay, in milliseconds.
    pub first_byte_ms: f64,
    /// Bytes of the body after which there is one pause; 0: right after the head. Absent: no pause.
    pub stall_after_bytes: Option<usize>,
    /// Length of that pause, in milliseconds.
    pub stall_ms: f64,
    /// Bytes sent at a time; 0: as many as there are.
    pub trickle_bytes: usize,
    /// Wait after each of them, in milliseconds.
    pub trickle_every_ms: f64,
}

impl Pace {
    /// One pause of `ms` milliseconds after `bytes` bytes of the body.
    pub fn stall(bytes: usize, ms: f64) -> Self {
        Self { stall_after_bytes: Some(bytes), stall_ms: ms, ..Self::default() }
    }

    /// `bytes` bytes every `ms` milliseconds.
    pub fn trickle(bytes: usize, ms: f64) -> Self {
        Self { trickle_bytes: bytes, trickle_every_ms: ms, ..Self::default() }
    }

    /// Wait before the first byte.
    pub fn first_byte(&self) -> Duration {
        millis(self.first_byte_ms)
    }

    /// Cuts a body of `length` bytes into pieces: where each ends, and the pause before it is sent.
    pub fn pieces(&self, length: usize) -> Vec<(usize, Duration)> {
        let step = if self.trickle_bytes == 0 { length.max(1) } else { self.trickle_bytes };
        let mut ends = Vec::new();
        let mut start = 0;
        while start < length {
            let mut end = (start + step).min(length);
            if let Some(stall) = self.stall_after_bytes.filter(|stall| *stall > start) {
                end = end.min(stall);
            }
            let mut pause =
                if self.trickle_bytes > 0 && start > 0 { millis(self.trickle_every_ms) } else { Duration::ZERO };
            if self.stall_after_bytes == Some(start) {
                pause += millis(self.stall_ms);
            }
            ends.push((end, pause));
            start = end;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[track_caller]
    fn check(pace: &Pace, length: usize, expected: &[(usize, u64)]) {
        let expected: Vec<(usize, Duration)> = expected.iter().map(|(end, wait)| (*end, ms(*wait))).collect();
        assert_eq!(pace.pieces(length), expected);
    }

    #[test]
    fn pieces_cover_the_body_with_their_pauses() {
        check(&Pace::default(), 10, &[(10, 0)]);
        check(&Pace::default(), 0, &[]);
        check(&Pace::stall(0, 7.0), 10, &[(10, 7)]);
        check(&Pace::stall(4, 7.0), 10, &[(4, 0), (10, 7)]);
        check(&Pace::stall(40, 7.0), 10, &[(10, 0)]);
        check(&Pace::trickle(4, 2.0), 10, &[(4, 0), (8, 2), (10, 2)]);
        let both = Pace { stall_after_bytes: Some(6), stall_ms: 50.0, ..Pace::trickle(4, 2.0) };
        check(&both, 10, &[(4, 0), (6, 2), (10, 52)]);
    }

    #[test]
    fn drawn_waits_stay_in_their_bounds() {
        let mut rng = SmallRng::seed_from_u64(1);
        assert_eq!(Delay::FixedMs(20.0).draw(&mut rng, 10, 0.5), ms(25));
        assert_eq!(Delay::None.draw(&mut rng, 4, 0.0), Duration::ZERO);
        assert_eq!(Delay::FixedMs(-3.0).draw(&mut rng, 1, 0.0), Duration::ZERO);
        let long_tail = Delay::Lognormal { median_ms: 20.0, sigma: 0.5, max_ms: 60.0 };
        let mut below = 0;
        for _ in 0..1000 {
            let uniform = Delay::UniformMs([5.0, 9.0]).draw(&mut rng, 1, 0.0);
            assert!((ms(5)..=ms(9)).contains(&uniform));
            let wait = long_tail.draw(&mut rng, 1, 0.0);
            assert!(wait <= ms(60));
            below += u32::from(wait < ms(20));
        }
        assert!((400..600).contains(&below), "the median is the median, {below} of 1000 below it");
    }
}
