//! When requests are due. Pure: the same seed gives the same times.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp};

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Evenly.
    Constant {
        /// Requests per second.
        per_s: f64,
    },
    /// At random and independently, as those of many users do.
    Poisson {
        /// Requests per second on average.
        per_s: f64,
    },
    /// Evenly, at a rate that changes linearly over the phase.
    Ramp {
        /// Requests per second at the start.
        from_per_s: f64,
        /// Requests per second at the end.
        to_per_s: f64,
    },
    /// Many at the same instant, again and again: a cron job, a page that everybody opens at nine.
    Bursts {
        /// Requests in a burst.
        size: f64,
        /// Seconds from one to the next; the first is half of that after the start.
        every_s: f64,
    },
}

/// A span of time with one kind of arrivals.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name in reports.
    pub name: String,
    /// How requests arrive in it.
    pub arrivals: Arrivals,
    /// How long it lasts.
    pub duration: Duration,
}

/// Phases, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    phases: Vec<Phase>,
}

impl Schedule {
    /// A schedule of these phases.
    pub fn new(phases: Vec<Phase>) -> Self {
        Self { phases }
    }

    /// A single phase named `steady`.
    pub fn steady(arrivals: Arrivals, duration: Duration) -> Self {
        Self::new(vec![Phase { name: "steady".to_owned(), arrivals, duration }])
    }

    /// How long it lasts in all.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }

    /// Every arrival in order: when it is due after the start, and in which phase.
    pub fn arrivals(&self, seed: u64) -> impl Iterator<Item = (Duration, &str)> {
        let starts = self.phases.iter().scan(Duration::ZERO, |start, phase| {
            let own = *start;
            *start += phase.duration;
            Some((own, phase))
        });
        starts.enumerate().flat_map(move |(place, (start, phase))| {
            let seed = seed.wrapping_add(place as u64);
            offsets(phase.arrivals, phase.duration, seed).map(move |offset| (start + offset, phase.name.as_str()))
        })
    }
}

/// The arrivals of one phase, as offsets from its start.
fn offsets(arrivals: Arrivals, duration: Duration, seed: u64) -> impl Iterator<Item = Duration> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut number = 0.0;
    let mut clock = 0.0;
    let length = duration.as_secs_f64();
    std::iter::from_fn(move || {
        let at = match arrivals {
            Arrivals::Constant { per_s } => number / per_s,
            Arrivals::Poisson { per_s } => {
                clock += Exp::new(per_s).ok()?.sample(&mut rng);
                clock
            }
            Arrivals::Ramp { from_per_s, to_per_s } => ramp(number, from_per_s, to_per_s, length),
            Arrivals::Bursts { size, every_s } => ((number / size.round()).floor() + 0.5) * every_s,
        };
        number += 1.0;
        // A rate of zero is due at infinity, nonsense is due at NaN: in both cases nothing comes.
        (at < length).then(|| Duration::try_from_secs_f64(at).ok()).flatten()
    })
}

/// When the request of this number is due: where the integral of the rate reaches it.
fn ramp(number: f64, from: f64, to: f64, length: f64) -> f64 {
    let slope = (to - from) / length;
    if slope == 0.0 {
        return number / from;
    }
    // A falling rate may end before the number is reached; the root is then NaN.
    ((from * from + 2.0 * slope * number).sqrt() - from) / slope
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(arrivals: Arrivals, seconds: u64) -> usize {
        offsets(arrivals, Duration::from_secs(seconds), 7).count()
    }

    #[track_caller]
    fn check(arrivals: Arrivals, seconds: u64, expected: std::ops::RangeInclusive<usize>) {
        let seen = count(arrivals, seconds);
        assert!(expected.contains(&seen), "{seen} arrivals of {arrivals:?}");
    }

    #[test]
    fn rates_give_their_number_of_arrivals() {
        check(Arrivals::Constant { per_s: 100.0 }, 10, 1000..=1000);
        check(Arrivals::Constant { per_s: 0.0 }, 10, 0..=0);
        check(Arrivals::Constant { per_s: 0.3 }, 10, 3..=3);
        check(Arrivals::Poisson { per_s: 100.0 }, 100, 9600..=10_400);
        check(Arrivals::Poisson { per_s: 0.0 }, 10, 0..=0);
        check(Arrivals::Ramp { from_per_s: 0.0, to_per_s: 100.0 }, 10, 499..=501);
        check(Arrivals::Ramp { from_per_s: 100.0, to_per_s: 0.0 }, 10, 499..=501);
        check(Arrivals::Ramp { from_per_s: 50.0, to_per_s: 50.0 }, 10, 500..=500);
        check(Arrivals::Bursts { size: 7.0, every_s: 2.0 }, 10, 35..=35);
        check(Arrivals::Bursts { size: 0.0, every_s: 2.0 }, 10, 0..=0);
    }

    #[test]
    fn phases_follow_each_other() {
        let phase = |name: &str, per_s| Phase {
            name: name.to_owned(),
            arrivals: Arrivals::Constant { per_s },
            duration: Duration::from_secs(1),
        };
        let schedule = Schedule::new(vec![phase("calm", 2.0), phase("storm", 4.0)]);
        let seen: Vec<(u128, &str)> = schedule.arrivals(1).map(|(at, phase)| (at.as_millis(), phase)).collect();
        assert_eq!(
            seen,
            [(0, "calm"), (500, "calm"), (1000, "storm"), (1250, "storm"), (1500, "storm"), (1750, "storm")]
        );
        assert_eq!(schedule.duration(), Duration::from_secs(2));
    }

    proptest! {
        #[test]
        fn arrivals_are_in_order_and_in_time(per_s in 1.0_f64..500.0, to in 1.0_f64..500.0, seed: u64, kind in 0..4) {
            let arrivals = match kind {
                0 => Arrivals::Constant { per_s },
                1 => Arrivals::Poisson { per_s },
                2 => Arrivals::Bursts { size: per_s, every_s: 0.7 },
                _ => Arrivals::Ramp { from_per_s: per_s, to_per_s: to },
            };
            let duration = Duration::from_secs(3);
            let seen: Vec<Duration> = offsets(arrivals, duration, seed).collect();
            prop_assert!(seen.is_sorted());
            prop_assert!(seen.iter().all(|at| *at < duration));
            prop_assert_eq!(seen, offsets(arrivals, duration, seed).collect::<Vec<_>>());
        }
    }
}
