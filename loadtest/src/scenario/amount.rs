//! Numbers that a scenario gives as one value, a range or a distribution.

use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, LogNormal};
use serde::Deserialize;

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// Always the same.
    Fixed(usize),
    /// From the first to the last, all equally likely.
    Uniform([usize; 2]),
    /// Log-normal: mostly around the median, a few much longer, as texts of real collections are.
    Lognormal {
        /// Half are smaller.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// None is larger.
        max: usize,
    },
}

impl Amount {
    /// One number, at least 1.
    pub fn draw(self, rng: &mut SmallRng) -> usize {
        let drawn = match self {
            Self::Fixed(number) => number,
            Self::Uniform([low, high]) => rng.random_range(low.min(high)..=high.max(low)),
            Self::Lognormal { median, sigma, max } => match LogNormal::new(median.max(1.0).ln(), sigma) {
                // Far above any `max` that means something, so that the conversion is harmless.
                Ok(sizes) => (sizes.sample(rng).min(1e9) as usize).min(max),
                Err(_) => max,
            },
        };
        drawn.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[track_caller]
    fn check(amount: Amount, low: usize, high: usize) {
        let mut rng = SmallRng::seed_from_u64(3);
        let drawn: Vec<usize> = (0..2000).map(|_| amount.draw(&mut rng)).collect();
        let (least, most) = (drawn.iter().min().expect("some"), drawn.iter().max().expect("some"));
        assert!(*least >= low && *most <= high, "{amount:?}: {least} to {most}");
    }

    #[test]
    fn amounts_stay_within_what_was_said() {
        check(Amount::Fixed(7), 7, 7);
        check(Amount::Fixed(0), 1, 1);
        check(Amount::Uniform([3, 9]), 3, 9);
        check(Amount::Uniform([9, 3]), 3, 9);
        check(Amount::Lognormal { median: 40.0, sigma: 1.0, max: 90 }, 1, 90);
        check(Amount::Lognormal { median: 40.0, sigma: -1.0, max: 90 }, 1, 90);
    }
}
