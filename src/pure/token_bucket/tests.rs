//! Tables for the provider's word and the shares; properties for the bound over any minute.

use proptest::prelude::*;

use super::*;

const SHARES: Shares = Shares { interactive_reserve: 0.3, batch_floor: 0.05 };

fn at(ms: u64) -> Mono {
    Mono::from_millis(ms)
}

fn bucket(limit: u64) -> TokenBucket {
    TokenBucket::new(Some(limit), SHARES, 110)
}

fn word(remaining: u64, reset_ms: u64) -> Word {
    Word { remaining: Some(remaining), limit: None, reset: Some(Duration::from_millis(reset_ms)) }
}

#[track_caller]
fn check_shares(limit: u64, shares: Shares, interactive_cap: u64, batch_cap: u64) {
    let bucket = TokenBucket::new(Some(limit), shares, 100);
    assert_eq!(bucket.cap(Tier::Interactive, at(0)), Some(interactive_cap), "interactive of {limit}");
    assert_eq!(bucket.cap(Tier::Batch, at(0)), Some(batch_cap), "batch of {limit}");
}

#[test]
fn each_tier_has_a_share_that_the_other_cannot_take() {
    check_shares(1_000_000, SHARES, 950_000, 700_000);
    check_shares(10, SHARES, 10, 7);
    check_shares(3, SHARES, 3, 2);
    check_shares(1, SHARES, 1, 1);
    check_shares(0, SHARES, 0, 0);
    check_shares(100, Shares::NONE, 100, 100);
    check_shares(100, Shares { interactive_reserve: 1.0, batch_floor: 0.0 }, 100, 0);
}

#[test]
fn nothing_passes_twice_at_the_windows_edge() {
    let mut bucket = TokenBucket::new(Some(600), Shares::NONE, 110);
    assert!(bucket.take(600, Tier::Batch, at(59_000)));
    assert!(!bucket.take(1, Tier::Batch, at(60_500)), "the edge of a fixed window");
    assert!(!bucket.take(1, Tier::Batch, at(119_900)));
    assert_eq!(bucket.when(1, Tier::Batch, at(60_500)), When::At(at(120_000)));
    assert!(bucket.take(600, Tier::Batch, at(120_000)));
}

#[test]
fn a_failed_take_changes_nothing_and_a_returned_one_is_there_again() {
    let mut bucket = TokenBucket::new(Some(100), Shares::NONE, 100);
    assert!(bucket.take(40, Tier::Interactive, at(0)));
    assert!(bucket.take(40, Tier::Interactive, at(0)));
    assert!(!bucket.take(40, Tier::Interactive, at(0)));
    assert_eq!(bucket.available(Tier::Interactive, at(0)), 20);
    bucket.give_back(40, Tier::Interactive, at(0));
    assert_eq!(bucket.available(Tier::Interactive, at(1)), 60);
    bucket.give_back(40, Tier::Batch, at(0));
    assert_eq!(bucket.available(Tier::Interactive, at(1)), 60, "what was never taken cannot be given back");
    assert!(bucket.take(60, Tier::Interactive, at(1_000)));
    bucket.give_back(40, Tier::Interactive, at(0));
    bucket.give_back(40, Tier::Interactive, at(0));
    assert_eq!(bucket.available(Tier::Interactive, at(1_000)), 40, "nor given back twice, nor out of another take");
}

#[test]
fn an_estimate_is_corrected_and_may_leave_a_debt() {
    let mut bucket = TokenBucket::new(Some(100), Shares::NONE, 100);
    assert!(bucket.take(50, Tier::Interactive, at(0)));
    bucket.correct(50, 30, Tier::Interactive, at(0), at(500));
    assert_eq!(bucket.available(Tier::Interactive, at(500)), 70);
    bucket.correct(30, 150, Tier::Interactive, at(0), at(600));
    assert_eq!(bucket.available(Tier::Interactive, at(600)), 0);
    assert_eq!(bucket.available(Tier::Interactive, at(61_000)), 100);
    bucket.correct(30, 150, Tier::Interactive, at(0), at(61_000));
    assert_eq!(bucket.available(Tier::Interactive, at(61_000)), 100, "it has aged out at the provider too");
}

#[test]
fn the_providers_count_lowers_the_allowance_until_its_reset() {
    let mut bucket = bucket(100_000);
    assert!(bucket.take(10, Tier::Interactive, at(0)));
    bucket.observe(word(50, 5_000), at(0), at(100));
    assert!(!bucket.take(60, Tier::Interactive, at(200)));
    assert_eq!(bucket.when(60, Tier::Interactive, at(200)), When::At(at(5_100)));
    assert!(bucket.take(60, Tier::Interactive, at(5_100)));
}

#[test]
fn a_tenth_of_headroom_is_kept_by_the_providers_count() {
    let mut bucket = bucket(100_000);
    bucket.observe(word(109, 5_000), at(0), at(0));
    assert!(!bucket.take(100, Tier::Interactive, at(0)));
    bucket.observe(word(110, 5_000), at(0), at(0));
    assert!(bucket.take(100, Tier::Interactive, at(0)));
    assert!(!bucket.take(10, Tier::Interactive, at(0)), "10 are left, 11 needed");
}

#[test]
fn a_word_never_loosens_the_configured_limit() {
    let mut bucket = TokenBucket::new(Some(100), Shares::NONE, 100);
    assert!(bucket.take(90, Tier::Interactive, at(0)));
    bucket.observe(Word { remaining: Some(5_000), limit: Some(10_000), reset: None }, at(0), at(10));
    assert_eq!(bucket.available(Tier::Interactive, at(10)), 10);
}

#[test]
fn a_lower_stated_limit_holds_for_a_minute_and_a_missing_one_changes_nothing() {
    let mut bucket = TokenBucket::new(Some(100), Shares::NONE, 100);
    bucket.observe(Word { limit: Some(40), ..Word::default() }, at(0), at(0));
    assert_eq!(bucket.available(Tier::Interactive, at(10)), 40);
    bucket.observe(Word::default(), at(20), at(30));
    assert_eq!(bucket.available(Tier::Interactive, at(30)), 40);
    assert_eq!(bucket.when(60, Tier::Interactive, at(30)), When::At(at(60_000)));
    assert_eq!(bucket.when(101, Tier::Interactive, at(30)), When::Never);
    assert_eq!(bucket.available(Tier::Interactive, at(60_000)), 100);
}

#[test]
fn overlapping_answers_may_only_lower_and_a_later_call_is_believed() {
    let mut bucket = bucket(100_000);
    bucket.observe(word(500, 10_000), at(0), at(1_000));
    bucket.observe(word(9_000, 10_000), at(900), at(1_100));
    assert_eq!(bucket.provider_remaining(at(1_100)), Some(500), "begun before the last word was heard");
    bucket.observe(word(300, 10_000), at(900), at(1_200));
    assert_eq!(bucket.provider_remaining(at(1_200)), Some(300));
    bucket.observe(word(9_000, 10_000), at(1_300), at(1_400));
    assert_eq!(bucket.provider_remaining(at(1_400)), Some(9_000));
    assert_eq!(bucket.provider_remaining(at(11_400)), None);
}

#[test]
fn takes_since_the_answers_call_began_are_not_in_its_count() {
    let mut bucket = bucket(100_000);
    assert!(bucket.take(100, Tier::Interactive, at(0)));
    assert!(bucket.take(400, Tier::Interactive, at(1_000)));
    bucket.observe(word(1_000, 10_000), at(0), at(1_500));
    assert_eq!(bucket.provider_remaining(at(1_500)), Some(600));
    bucket.give_back(400, Tier::Interactive, at(1_000));
    assert_eq!(bucket.provider_remaining(at(1_500)), Some(1_000));
}

#[test]
fn without_a_limit_only_the_providers_word_counts() {
    let mut bucket = TokenBucket::new(None, SHARES, 110);
    assert!(bucket.take(1_000_000_000, Tier::Batch, at(0)));
    assert_eq!(bucket.when(u64::MAX, Tier::Batch, at(0)), When::At(at(0)));
    bucket.observe(word(0, 2_000), at(0), at(100));
    assert!(!bucket.take(1, Tier::Interactive, at(100)));
    assert!(bucket.take(1, Tier::Interactive, at(2_100)));
}

/// Two minutes of batch that always wants more, beside interactive calls; returns what batch got.
fn saturate(limit: u64, call: u64, interactive_per_s: u64) -> u64 {
    let mut bucket = bucket(limit);
    let mut got = 0;
    // The first two minutes fill the window; the next ten are measured.
    for ms in (0..720_000).step_by(50) {
        if ms % 1_000 == 0 {
            bucket.take(interactive_per_s, Tier::Interactive, at(ms));
        }
        while bucket.take(call, Tier::Batch, at(ms)) {
            got += if ms >= 120_000 { call } else { 0 };
        }
    }
    got
}

#[test]
fn under_load_batch_uses_what_it_may() {
    let minutes = 10.0;
    let got = saturate(1_000_000, 1_000, 400) as f64 / minutes;
    assert!(got >= 0.95 * 700_000.0, "{got} a minute");
    assert!(got <= 700_000.0, "{got} a minute");
}

#[test]
fn interactive_overload_leaves_batch_its_floor() {
    let mut bucket = bucket(100_000);
    let mut batch = 0;
    for ms in (0..600_000).step_by(50) {
        while bucket.take(100, Tier::Interactive, at(ms)) {}
        if bucket.take(500, Tier::Batch, at(ms)) {
            batch += 500;
        }
    }
    assert!(batch >= 9 * 5_000, "{batch} in ten minutes");
}

#[derive(Debug, Clone)]
struct Step {
    gap_ms: u64,
    n: u64,
    tier: Tier,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tier = prop_oneof![Just(Tier::Interactive), Just(Tier::Batch)];
    let gap = prop_oneof![4 => 0_u64..300, 1 => 0_u64..30_000];
    let step = (gap, 1_u64..400, tier).prop_map(|(gap_ms, n, tier)| Step { gap_ms, n, tier });
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn no_sliding_minute_exceeds_the_limit_or_a_share(steps in steps(), limit in 1_u64..2_000) {
        let mut bucket = bucket(limit);
        let (interactive_cap, batch_cap) = (bucket.cap(Tier::Interactive, at(0)), bucket.cap(Tier::Batch, at(0)));
        let mut taken: Vec<(u64, u64, Tier)> = Vec::new();
        let mut now = 0;
        for step in steps {
            now += step.gap_ms;
            let promised = bucket.when(step.n, step.tier, at(now));
            let took = bucket.take(step.n, step.tier, at(now));
            prop_assert_eq!(took, promised == When::At(at(now)), "when and take agree");
            if took {
                taken.push((now, step.n, step.tier));
                let minute = |tier: Option<Tier>| -> u64 {
                    let recent = taken.iter().filter(|(ms, _, t)| *ms + 60_000 > now && tier.is_none_or(|tier| tier == *t));
                    recent.map(|(_, n, _)| n).sum()
                };
                prop_assert!(minute(None) <= limit);
                prop_assert!(Some(minute(Some(Tier::Batch))) <= batch_cap);
                prop_assert!(Some(minute(Some(Tier::Interactive))) <= interactive_cap);
            } else if let When::At(then) = promised {
                prop_assert!(bucket.clone().take(step.n, step.tier, then), "a promised time is kept");
                let just_before = Mono(then.0 - 1);
                prop_assert!(!bucket.clone().take(step.n, step.tier, just_before), "and is the earliest");
            }
        }
    }
}
