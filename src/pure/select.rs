//! Owns the order in which the upstreams of one vector space are tried. Refuses to know spaces and models: whoever calls
//! hands in upstreams that may answer for each other, and no other can come out.

use std::time::Duration;

use super::time::Mono;

/// How fast an old latency is forgotten: after this long about a third of its weight is left.
const DECAY: Duration = Duration::from_secs(10);

/// How fast a failure is forgotten: sooner than a latency, because a failed call helped nobody and whoever failed must
/// be tried again to be seen well.
const FORGIVEN: Duration = Duration::from_secs(3);

/// A latency average that believes bad news at once and good news slowly: one slow answer is enough to prefer the
/// neighbour, and it takes [`DECAY`] to come back, whether of fast answers or of none: who is never asked could not
/// show that it has become fast again.
///
/// A failure counts as a very slow answer for a while. Failing is often quick, and without this the upstream that
/// refuses everything would look like the fastest of all and draw the traffic to itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PeakEwma {
    average_ns: f64,
    updated: Mono,
    penalty_ns: f64,
    failed: Mono,
}

impl PeakEwma {
    /// Counts a latency at `now`.
    pub fn record(&mut self, latency: Duration, now: Mono) {
        let latency_ns = latency.as_nanos() as f64;
        if latency_ns >= self.average_ns {
            self.average_ns = latency_ns;
        } else {
            let weight = faded(self.updated, DECAY, now);
            self.average_ns = self.average_ns * weight + latency_ns * (1.0 - weight);
        }
        self.updated = self.updated.max(now);
    }

    /// Counts a call that failed as one that took `as_slow_as`.
    pub fn failed(&mut self, as_slow_as: Duration, now: Mono) {
        self.penalty_ns = self.penalty(now).max(as_slow_as.as_nanos() as f64);
        self.failed = self.failed.max(now);
    }

    /// Forgets failures: it was looked at and is well.
    pub fn forgive(&mut self) {
        self.penalty_ns = 0.0;
    }

    /// The average at `now` in nanoseconds; 0 before the first latency, so that an unknown upstream is tried soon.
    pub fn nanos(&self, now: Mono) -> u64 {
        (self.average_ns * faded(self.updated, DECAY, now) + self.penalty(now)) as u64
    }

    fn penalty(&self, now: Mono) -> f64 {
        self.penalty_ns * faded(self.failed, FORGIVEN, now)
    }
}

/// What is left at `now` of something that was whole at `since`.
fn faded(since: Mono, decay: Duration, now: Mono) -> f64 {
    (-now.since(since).as_secs_f64() / decay.as_secs_f64()).exp()
}

/// One upstream that could answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<Id> {
    /// Its id.
    pub id: Id,
    /// Lower tiers are tried first.
    pub tier: u32,
    /// Calls in flight there.
    pub in_flight: u64,
    /// Its latency, [`PeakEwma::nanos`].
    pub latency_ns: u64,
    /// Whether its breaker is half-open: it is asked first, whatever its tier and cost, and takes a single query now and
    /// then. Whoever is never asked could not show that it is back.
    pub probing: bool,
    /// Whether it would take a call now (breaker not open, not parked, not cooling down). An unusable one is kept as a
    /// last resort, since what is known here may be a moment old.
    pub usable: bool,
}

impl<Id> Candidate<Id> {
    /// What comes before any cost; lower is tried first.
    pub fn rank(&self) -> (bool, bool, u32) {
        (!self.usable, !self.probing, self.tier)
    }

    /// Expected cost of one more call: the latency of all that are in flight and this one.
    fn cost(&self) -> u128 {
        u128::from(self.latency_ns.max(1)) * (u128::from(self.in_flight) + 1)
    }
}

/// Orders all candidates: usable ones first, of those the half-open ones, then by tier, and within a tier the cheaper of two picked by `rolls` (random numbers
/// in 0..1) before the others by cost. Two choices instead of the cheapest of all, or every worker would send to the same
/// upstream until its figures change.
pub fn order<Id>(mut candidates: Vec<Candidate<Id>>, rolls: [f64; 2]) -> Vec<Candidate<Id>> {
    candidates.sort_by_key(|candidate| (candidate.rank(), candidate.cost()));
    let mut start = 0;
    while start < candidates.len() {
        let rest = candidates.get_mut(start..).unwrap_or_default();
        let Some(rank) = rest.first().map(Candidate::rank) else { break };
        let group = rest.iter().take_while(|candidate| candidate.rank() == rank).count();
        let one = pick(rolls[0], group);
        // The second pick is among the others, so that it is a choice.
        let other = if group > 1 { (one + 1 + pick(rolls[1], group - 1)) % group } else { one };
        // Sorted by cost, so the lower position is the cheaper one.
        if let Some(ahead) = rest.get_mut(..=one.min(other)) {
            ahead.rotate_right(1);
        }
        start += group;
    }
    candidates
}

/// Of a larger group so many are looked at for a choice.
pub const WINDOW: usize = 32;

/// A window lasts at most this long: some hundred calls of a busy gateway ...
const LOOKED_AT: Duration = Duration::from_millis(200);

/// ... and at most as long as lets the whole group have its turn within this: half of what a latency is remembered for.
const ROUND: Duration = Duration::from_secs(4);

/// Who has so many calls under way while others have their turn only later, has enough.
const BUSY: u64 = 4;

/// Upstreams of one rank. Of more than [`WINDOW`] only as many are looked at for a moment, then the next: what has to be known of
/// an upstream for a call is some kilobytes in a dozen places, and of a thousand of them it would be in no processor's cache.
///
/// A window is a sample of the group as any two picks of it are, so that it holds slow and fast ones as the group does, whatever
/// the order of the configuration means; and it is looked beyond as soon as the calls are more than it can carry.
#[derive(Debug, Clone, Default)]
pub struct Group<Id> {
    all: Vec<Id>,
    /// All of a large group, mixed, and its beginning again, so that each window is one piece; else nothing.
    ring: Vec<Id>,
}

impl<Id: Copy> Group<Id> {
    /// The group of `all`.
    pub fn new(all: Vec<Id>) -> Group<Id> {
        let n = all.len();
        if n <= WINDOW {
            return Group { all, ring: Vec::new() };
        }
        // Steps of the golden section: neighbours in the ring are far apart in the list, and no rhythm of it is met.
        let golden = (n as f64 * 0.618_033_988_75) as usize;
        let step = (1..=golden).rev().find(|step| gcd(*step, n) == 1).unwrap_or(1);
        let ring = (0..n + WINDOW - 1).filter_map(|at| all.get(at * step % n).copied()).collect();
        Group { all, ring }
    }

    /// All of them.
    pub fn all(&self) -> &[Id] {
        &self.all
    }

    /// Those that are looked at now.
    pub fn window(&self, now: Mono) -> &[Id] {
        if self.ring.is_empty() {
            return &self.all;
        }
        let n = self.all.len() as u64;
        let lasts = (ROUND.as_nanos() as u64 / n.div_ceil(WINDOW as u64)).min(LOOKED_AT.as_nanos() as u64).max(1);
        let start = (now.0 / lasts).wrapping_mul(WINDOW as u64) % n;
        self.ring.get(start as usize..start as usize + WINDOW).unwrap_or(&self.all)
    }

    /// Who is tried first: the [`first`] of the window; of all, where that one is busy.
    pub fn first(&self, rolls: [f64; 2], now: Mono, candidate: impl Fn(Id) -> Candidate<Id>) -> Option<Id> {
        let of_window = first(self.window(now), rolls, &candidate)?;
        let enough = self.ring.is_empty() || candidate(of_window).in_flight < BUSY;
        if enough { Some(of_window) } else { self.beyond(rolls, candidate) }
    }

    /// The [`first`] of all, where there are more than a window shows: for a call that who was tried first did not take.
    pub fn beyond(&self, rolls: [f64; 2], candidate: impl Fn(Id) -> Candidate<Id>) -> Option<Id> {
        if self.ring.is_empty() { None } else { first(&self.all, rolls, candidate) }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Which of a `group` of one rank comes first: the cheaper of two picked by `rolls`, as in [`order`], without putting the
/// others in order. Of two that cost the same it is the earlier in the group.
pub fn first<Id: Copy>(group: &[Id], rolls: [f64; 2], candidate: impl Fn(Id) -> Candidate<Id>) -> Option<Id> {
    let one = pick(rolls[0], group.len());
    if group.len() < 2 {
        return group.get(one).copied();
    }
    let other = (one + 1 + pick(rolls[1], group.len() - 1)) % group.len();
    let (earlier, later) = (*group.get(one.min(other))?, *group.get(one.max(other))?);
    Some(if candidate(later).cost() < candidate(earlier).cost() { later } else { earlier })
}

fn pick(roll: f64, n: usize) -> usize {
    let roll = if roll.is_finite() { roll.clamp(0.0, 1.0) } else { 0.0 };
    ((roll * n as f64) as usize).min(n.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(id: u32, tier: u32, in_flight: u64, latency_ns: u64) -> Candidate<u32> {
        Candidate { id, tier, in_flight, latency_ns, probing: false, usable: true }
    }

    #[track_caller]
    fn check(candidates: &[Candidate<u32>], rolls: [f64; 2], expected: &[u32]) {
        let ids: Vec<u32> = order(candidates.to_vec(), rolls).iter().map(|candidate| candidate.id).collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn lower_tiers_come_first_and_the_unusable_last() {
        let far = candidate(1, 1, 0, 1);
        let near = candidate(2, 0, 50, 1_000);
        let down = Candidate { usable: false, ..candidate(3, 0, 0, 1) };
        check(&[down, far, near], [0.0, 0.0], &[2, 1, 3]);
        let back = Candidate { probing: true, ..candidate(4, 1, 9, 1_000_000) };
        check(&[near, back, far], [0.0, 0.0], &[4, 2, 1]);
        check(&[], [0.0, 0.0], &[]);
        check(&[down], [0.9, 0.9], &[3]);
    }

    #[test]
    fn of_two_picked_the_cheaper_goes_first() {
        let fast = candidate(1, 0, 1, 100);
        let slow = candidate(2, 0, 1, 900);
        let busy = candidate(3, 0, 8, 150);
        check(&[slow, fast], [0.0, 0.0], &[1, 2]);
        check(&[slow, fast], [0.99, 0.99], &[1, 2]);
        check(&[slow, fast, busy], [0.4, 0.0], &[3, 1, 2]);
        check(&[slow, fast, busy], [0.4, 0.9], &[1, 3, 2]);
    }

    #[test]
    fn the_first_of_many_is_chosen_as_often_as_in_an_order_of_all() {
        let costs = [300, 100, 100, 700, 200, 100, 900];
        let candidate =
            |id: usize| Candidate { id, tier: 0, in_flight: 0, latency_ns: costs[id], probing: false, usable: true };
        let all: Vec<usize> = (0..costs.len()).collect();
        let (mut by_first, mut by_order) = ([0; 7], [0; 7]);
        for (a, b) in (0..70).flat_map(|a| (0..60).map(move |b| (a, b))) {
            let rolls = [f64::from(a) / 70.0 + 1e-9, f64::from(b) / 60.0 + 1e-9];
            by_first[first(&all, rolls, candidate).expect("one of them")] += 1;
            by_order[order(all.iter().map(|id| candidate(*id)).collect(), rolls)[0].id] += 1;
        }
        assert_eq!(by_first, by_order);
        assert_eq!((first(&[], [0.5; 2], candidate), first(&[3], [0.9; 2], candidate)), (None, Some(3)));
    }

    #[test]
    fn bad_news_counts_at_once_and_good_news_slowly() {
        let mut ewma = PeakEwma::default();
        ewma.record(Duration::from_millis(10), Mono::from_millis(0));
        ewma.record(Duration::from_millis(500), Mono::from_millis(100));
        assert_eq!(ewma.nanos(Mono::from_millis(100)), 500_000_000);
        ewma.record(Duration::from_millis(10), Mono::from_millis(200));
        assert!(ewma.nanos(Mono::from_millis(200)) > 480_000_000);
        for s in 1..60 {
            ewma.record(Duration::from_millis(10), Mono::from_millis(s * 1_000));
        }
        assert!(ewma.nanos(Mono::from_millis(60_000)) < 15_000_000);
    }

    #[test]
    fn who_is_not_asked_any_more_comes_back_into_the_choice() {
        let at = Mono::from_millis;
        let mut ewma = PeakEwma::default();
        ewma.record(Duration::from_millis(500), at(0));
        assert!(ewma.nanos(at(5_000)) > 300_000_000);
        assert!(ewma.nanos(at(60_000)) < 2_000_000);
    }

    #[test]
    fn failing_fast_is_not_being_fast() {
        let at = Mono::from_millis;
        let mut ewma = PeakEwma::default();
        ewma.record(Duration::from_millis(10), at(0));
        ewma.failed(Duration::from_secs(2), at(100));
        assert!(ewma.nanos(at(100)) > 2_000_000_000);
        assert!(ewma.nanos(at(3_100)) > 700_000_000, "still far behind a neighbour that answers in 10 ms");
        assert!(ewma.nanos(at(20_000)) < 10_000_000, "tried again in the end");
        ewma.failed(Duration::from_secs(2), at(20_000));
        ewma.forgive();
        assert!(ewma.nanos(at(20_000)) < 10_000_000, "looked at and well");
    }

    fn idle(id: usize) -> Candidate<usize> {
        Candidate { id, tier: 0, in_flight: 0, latency_ns: 1_000, probing: false, usable: true }
    }

    #[test]
    fn a_group_that_fits_into_a_window_is_looked_at_whole() {
        let all: Vec<usize> = (0..WINDOW).collect();
        let group = Group::new(all.clone());
        for ms in [0, 150, 450, 9_000] {
            assert_eq!(group.window(Mono::from_millis(ms)), all);
            let rolls = [0.3, 0.8];
            assert_eq!(group.first(rolls, Mono::from_millis(ms), idle), first(&all, rolls, idle));
        }
        assert_eq!(group.beyond([0.3, 0.8], idle), None, "there is nobody else");
        assert_eq!(Group::<usize>::default().first([0.5; 2], Mono::ZERO, idle), None);
    }

    #[test]
    fn a_window_stays_for_a_moment_and_is_a_sample_of_the_whole() {
        let group = Group::new((0..1_000).collect());
        let at = |ms| group.window(Mono::from_millis(ms)).to_vec();
        assert_eq!(at(10_000), at(10_100));
        assert_ne!(at(10_000), at(10_200));
        for ms in (0..8_000).step_by(125) {
            // A hundred neighbours in the file that are slow, and one of four that is.
            let slow = at(ms).iter().filter(|id| (300..400).contains(*id)).count();
            let regional = at(ms).iter().filter(|id| **id % 4 == 1).count();
            assert!((2..=5).contains(&slow) && (6..=10).contains(&regional), "{slow} and {regional} at {ms}");
        }
    }

    #[test]
    fn the_only_one_with_room_is_found_wherever_it_is() {
        let group = Group::new((0..1_000).collect());
        let free = 777;
        let candidate = |id| Candidate { in_flight: if id == free { 0 } else { BUSY }, ..idle(id) };
        for ms in (0..4_000).step_by(125) {
            let now = Mono::from_millis(ms);
            let chosen = group.first([0.7775, 0.1], now, candidate);
            let in_window = group.window(now).contains(&free);
            assert!(chosen == Some(free) || in_window, "{chosen:?} at {ms}");
        }
        assert_eq!(group.beyond([0.7775, 0.1], candidate), Some(free));
        assert_eq!(group.all().len(), 1_000);
    }

    proptest! {
        #[test]
        fn all_of_a_group_have_their_turn(n in 1_usize..3_000, start in 0_u64..1_000_000) {
            let group = Group::new((0..n).collect::<Vec<usize>>());
            let mut turns = vec![0_u32; n];
            // Six milliseconds are less than the shortest window of so many.
            let samples = (start..start + ROUND.as_millis() as u64 + 200).step_by(6);
            for ms in samples {
                let window = group.window(Mono::from_millis(ms));
                prop_assert_eq!(window.len(), n.min(WINDOW));
                for id in window {
                    turns[*id] += 1;
                }
            }
            prop_assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
        }

        #[test]
        fn over_time_all_of_a_group_have_the_same(n in 33_usize..300) {
            let group = Group::new((0..n).collect::<Vec<usize>>());
            let lasts = (ROUND / n.div_ceil(WINDOW) as u32).min(LOOKED_AT).as_nanos() as u64;
            let mut turns = vec![0_usize; n];
            for turn in 0..n as u64 {
                group.window(Mono(turn * lasts)).iter().for_each(|id| turns[*id] += 1);
            }
            prop_assert_eq!(turns, vec![WINDOW; n]);
        }

        #[test]
        fn every_candidate_comes_out_once_and_tiers_stay_in_order(
            parts in prop::collection::vec((0_u32..3, 0_u64..9, 0_u64..1_000, any::<[bool; 2]>()), 0..12),
            rolls in [0.0_f64..1.0, 0.0_f64..1.0],
        ) {
            let candidates: Vec<Candidate<usize>> = parts.iter().enumerate().map(|(id, (tier, in_flight, latency_ns, [probing, usable]))| {
                let (probing, usable) = (*probing, *usable);
                Candidate { id, tier: *tier, in_flight: *in_flight, latency_ns: *latency_ns, probing, usable }
            }).collect();
            let ordered = order(candidates.clone(), rolls);
            let mut ids: Vec<usize> = ordered.iter().map(|candidate| candidate.id).collect();
            prop_assert!(ordered.is_sorted_by_key(Candidate::rank));
            // The most expensive of a group of two or more is never first in it.
            for group in ordered.chunk_by(|a, b| a.rank() == b.rank()) {
                let worst = group.iter().map(Candidate::cost).max();
                let alone = group.iter().filter(|candidate| Some(candidate.cost()) == worst).count() == 1;
                prop_assert!(!alone || group.len() == 1 || group.first().map(Candidate::cost) != worst);
            }
            ids.sort_unstable();
            prop_assert_eq!(ids, (0..candidates.len()).collect::<Vec<_>>());
        }
    }
}
