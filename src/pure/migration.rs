//! Which of its two models a collection's request gets, while the collection moves from one vector space to another.
//!
//! Knows stages, classes and the place of a query on the line from 0 to 1; refuses to know models, and who may change a
//! stage.
//!
//! **M1.** A request is wholly on one side. **M2.** No query is on the new side before `canary`. **M3.** While only the
//! share grows, no query goes back: its place on the line never changes, and the share is a mark on that line.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::class::TrafficClass;

/// Stage of a collection's move from one space to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Everything to the old model.
    Old,
    /// Documents to the new model, queries to the old.
    Backfill,
    /// A share of queries to the new model.
    Canary,
    /// Everything to the new model.
    New,
}

impl Stage {
    /// Every stage, in the order of a move.
    pub const ALL: [Stage; 4] = [Stage::Old, Stage::Backfill, Stage::Canary, Stage::New];

    /// The name in the configuration and on the admin side.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Old => "old",
            Stage::Backfill => "backfill",
            Stage::Canary => "canary",
            Stage::New => "new",
        }
    }

    /// The stage of that name, if there is one.
    pub fn parse(text: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.as_str() == text)
    }
}

/// One of the two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The old one.
    From,
    /// The new one.
    To,
}

/// Where a move stands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The stage.
    pub stage: Stage,
    /// Share of queries to the new model in `canary`, 0 to 1; 0 in every other stage.
    pub canary: f64,
}

impl Position {
    /// A position whose share is kept only where it has a meaning.
    pub fn new(stage: Stage, canary: f64) -> Position {
        let canary = if stage == Stage::Canary { canary.clamp(0.0, 1.0) } else { 0.0 };
        Position { stage, canary }
    }

    /// The side of a request. Everything that is not ingestion is asked by somebody who searches, and counts as a query.
    pub fn side(self, class: TrafficClass, spot: Spot) -> Side {
        let is_new = match (self.stage, class) {
            (Stage::Old, _) => false,
            (Stage::New, _) | (Stage::Backfill | Stage::Canary, TrafficClass::BatchIngestion) => true,
            (Stage::Backfill, _) => false,
            (Stage::Canary, _) => spot.is_below(self.canary),
        };
        if is_new { Side::To } else { Side::From }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.stage.as_str())?;
        if self.stage == Stage::Canary { write!(f, " {}", self.canary) } else { Ok(()) }
    }
}

/// A query's place on the line from 0 to 1. It depends on the collection's name and on the digest of the query's folded
/// text, and on nothing else: the same question has the same place for every tenant, on every replica, after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot(u64);

/// Bits of a hash that a float between 0 and 1 keeps apart.
const BITS: u32 = 53;

impl Spot {
    /// The place of a query in a collection.
    pub fn of(collection: &str, query: &[u8; 32]) -> Spot {
        let mut hasher = Sha256::new();
        hasher.update((collection.len() as u64).to_le_bytes());
        hasher.update(collection.as_bytes());
        hasher.update(query);
        let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = hasher.finalize().into();
        Spot(u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> (u64::BITS - BITS))
    }

    /// Whether it lies among the first `share` of all places: never with 0, always with 1.
    fn is_below(self, share: f64) -> bool {
        (self.0 as f64) < share * (1_u64 << BITS) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TrafficClass::{BatchIngestion, InteractiveSearch, Rerank};
    use super::*;

    fn spot(query: u32) -> Spot {
        Spot::of("handbook", &Sha256::digest(query.to_le_bytes()).into())
    }

    #[track_caller]
    fn check(stage: Stage, canary: f64, class: TrafficClass, expected: Side) {
        for query in 0..50 {
            assert_eq!(Position::new(stage, canary).side(class, spot(query)), expected, "{stage:?} {canary} {class}");
        }
    }

    #[test]
    fn stages_say_who_gets_which_model() {
        for (stage, documents, queries) in [
            (Stage::Old, Side::From, Side::From),
            (Stage::Backfill, Side::To, Side::From),
            (Stage::New, Side::To, Side::To),
        ] {
            for canary in [0.0, 0.5, 1.0] {
                check(stage, canary, BatchIngestion, documents);
                check(stage, canary, InteractiveSearch, queries);
                check(stage, canary, Rerank, queries);
            }
        }
        check(Stage::Canary, 0.0, BatchIngestion, Side::To);
        check(Stage::Canary, 0.0, InteractiveSearch, Side::From);
        check(Stage::Canary, 1.0, InteractiveSearch, Side::To);
    }

    #[test]
    fn a_share_is_that_share_of_queries() {
        let position = Position::new(Stage::Canary, 0.25);
        let new = (0..10_000).filter(|query| position.side(InteractiveSearch, spot(*query)) == Side::To).count();
        assert!((2_300..2_700).contains(&new), "{new}");
    }

    #[test]
    fn the_place_is_the_same_for_ever() {
        // Another value would move running canaries over an update.
        assert_eq!(spot(1), Spot(230_537_658_813_169));
        assert_ne!(spot(1), Spot::of("other", &Sha256::digest(1_u32.to_le_bytes()).into()));
    }

    #[test]
    fn names_read_back() {
        for stage in Stage::ALL {
            assert_eq!(Stage::parse(stage.as_str()), Some(stage));
        }
        assert_eq!(Stage::parse("half"), None);
        assert_eq!(Position::new(Stage::Canary, 0.05).to_string(), "canary 0.05");
        assert_eq!(Position::new(Stage::New, 0.05), Position { stage: Stage::New, canary: 0.0 });
    }

    proptest! {
        #[test]
        fn a_growing_share_never_moves_a_query_back(query: u32, one in 0.0_f64..=1.0, other in 0.0_f64..=1.0) {
            let (less, more) = (one.min(other), one.max(other));
            let side = |share| Position::new(Stage::Canary, share).side(InteractiveSearch, spot(query));
            prop_assert!(side(less) == Side::From || side(more) == Side::To);
        }

        #[test]
        fn no_step_of_a_move_takes_anything_back(query: u32, share in 0.0_f64..=1.0, batch: bool) {
            let class = if batch { BatchIngestion } else { InteractiveSearch };
            let sides = Stage::ALL.map(|stage| Position::new(stage, share).side(class, spot(query)) == Side::To);
            prop_assert!(sides.is_sorted());
            prop_assert!(!sides[0] && sides[3]);
            prop_assert!(batch || !sides[1], "a query in the new space before canary");
        }
    }
}
