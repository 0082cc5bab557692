//! What each event does to grants, queues and refusals, one promise a test.

use super::*;
use crate::config::plan;
use crate::ids::TenantId;
use crate::pure::rate_headers::RateHeaders;
use crate::pure::time::Wall;
use crate::pure::token_bucket::Shares;

fn at(ms: u64) -> Mono {
    Mono::from_millis(ms)
}

fn policy() -> Policy {
    Policy {
        tpm: Some(100_000),
        rpm: Some(1_000),
        max_concurrency: 10,
        count: CountBy::Calls,
        adaptive: false,
        shares: Shares { interactive_reserve: 0.3, batch_floor: 0.05 },
        interactive_max_wait: Duration::from_millis(250),
        batch_max_dwell: Duration::from_secs(300),
        batch_queue_max_items: 1_000,
        breaker: plan::Breaker {
            window: Duration::from_secs(30),
            failure_ratio: 0.05,
            min_requests: 20,
            slow: Duration::from_secs(2),
            cooldown: Duration::from_secs(60),
            probe_ratio: 0.01,
            probe_interval: Duration::from_secs(5),
            probe_successes: 3,
        },
        call_timeout: Duration::from_secs(30),
    }
}

const SEARCH: TrafficClass = TrafficClass::InteractiveSearch;
const BATCH: TrafficClass = TrafficClass::BatchIngestion;
const OK: OutcomeKind = OutcomeKind::Success { latency: Duration::from_millis(20) };

fn ask(n: u64, class: TrafficClass, tokens: u64) -> Ask {
    Ask {
        attempt: AttemptId(n),
        waiter: WaiterId(n),
        tenant: TenantId::from("acme"),
        weight: 1,
        class,
        tokens,
        items: 1,
        may_queue: true,
        begun: false,
        deadline: Mono(u64::MAX),
        waits_until: Mono(u64::MAX),
        roll: 0.5,
    }
}

#[track_caller]
fn granted(state: &mut UpstreamState, n: u64, class: TrafficClass, tokens: u64, now: Mono) {
    let decision = state.ask(ask(n, class, tokens), now);
    assert!(matches!(decision, Decision::Grant(_)), "{decision:?}");
}

#[track_caller]
fn refused(
    state: &mut UpstreamState,
    n: u64,
    class: TrafficClass,
    tokens: u64,
    now: Mono,
    why: Why,
    retry_ms: Option<u64>,
) {
    let decision = state.ask(ask(n, class, tokens), now);
    assert_eq!(decision, Decision::Refuse(Refusal { why, retry_at: retry_ms.map(at) }));
}

#[track_caller]
fn queued(state: &mut UpstreamState, n: u64, class: TrafficClass, tokens: u64, now: Mono) {
    assert_eq!(state.ask(ask(n, class, tokens), now), Decision::Queued);
}

fn finish(state: &mut UpstreamState, n: u64, kind: OutcomeKind, now: Mono) {
    state.finished(AttemptId(n), Outcome::bare(kind), now);
}

fn granted_in(poll: &Poll) -> Vec<u64> {
    poll.answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(waiter, _)| waiter.0).collect()
}

fn refused_in(poll: &Poll) -> Vec<(u64, Why)> {
    poll.answers.iter().filter_map(|(waiter, answer)| Some((waiter.0, answer.err()?.why))).collect()
}

/// A state whose breaker opened at 1 s.
fn broken() -> UpstreamState {
    let mut state = UpstreamState::new(policy());
    for n in 1_000..1_020 {
        granted(&mut state, n, SEARCH, 1, at(1_000));
        finish(&mut state, n, OutcomeKind::ServerError, at(1_000));
    }
    assert_eq!(state.snapshot(at(1_000)).breaker, Phase::Open);
    state
}

#[test]
fn parallel_asks_cannot_slip_under_the_limit() {
    let mut state = UpstreamState::new(Policy { tpm: Some(100), rpm: None, shares: Shares::NONE, ..policy() });
    for n in 0..2 {
        granted(&mut state, n, SEARCH, 40, at(1_000));
    }
    for n in 2..20 {
        refused(&mut state, n, SEARCH, 40, at(1_000), Why::RateLimited, Some(62_000));
    }
    for n in 20..40 {
        granted(&mut state, n, SEARCH, 0, at(1_000));
        finish(&mut state, n, OK, at(1_001));
    }
    refused(&mut state, 40, SEARCH, 0, at(1_000), Why::RateLimited, Some(62_000));
}

#[track_caller]
fn check_fate(kind: OutcomeKind, actual: Option<u64>, left: u64) {
    let mut state = UpstreamState::new(Policy { shares: Shares::NONE, ..policy() });
    granted(&mut state, 1, SEARCH, 40_000, at(0));
    state.finished(AttemptId(1), Outcome { actual_tokens: actual, ..Outcome::bare(kind) }, at(10));
    state.finished(AttemptId(1), Outcome { actual_tokens: actual, ..Outcome::bare(kind) }, at(11));
    let snapshot = state.snapshot(at(12));
    assert_eq!(snapshot.interactive_tokens, Some(left), "{kind:?} {actual:?}");
    // A count of tokens proves that the call was one, however it ended.
    let calls_left = if left == 100_000 && actual.is_none() { 1_000 } else { 999 };
    assert_eq!(snapshot.interactive_requests, Some(calls_left), "{kind:?} {actual:?}");
    assert_eq!(state.in_flight(), 0);
}

#[test]
fn what_a_call_keeps_depends_on_whether_the_work_was_done() {
    check_fate(OK, None, 60_000);
    check_fate(OK, Some(30_000), 70_000);
    check_fate(OK, Some(50_000), 50_000);
    check_fate(OutcomeKind::RateLimited { hint: None }, None, 100_000);
    check_fate(OutcomeKind::ServerError, None, 100_000);
    check_fate(OutcomeKind::Connect, None, 100_000);
    check_fate(OutcomeKind::RequestError, None, 100_000);
    check_fate(OutcomeKind::NotSent, None, 100_000);
    check_fate(OutcomeKind::KeyRejected, None, 100_000);
    check_fate(OutcomeKind::Timeout, None, 60_000);
    check_fate(OutcomeKind::Transport, None, 60_000);
    check_fate(OutcomeKind::ClientGone, None, 60_000);
    check_fate(OutcomeKind::Outrun { after: Duration::from_secs(1) }, None, 60_000);
    check_fate(OutcomeKind::Timeout, Some(0), 100_000);
}

#[test]
fn a_refusal_leaves_everything_as_it_was() {
    let mut state = UpstreamState::new(Policy { rpm: Some(1), ..policy() });
    granted(&mut state, 1, SEARCH, 10, at(0));
    let before = state.snapshot(at(1));
    refused(&mut state, 2, SEARCH, 10, at(1), Why::RateLimited, Some(61_000));
    let after = state.snapshot(at(1));
    assert_eq!((after.interactive_tokens, after.in_flight), (before.interactive_tokens, 1));
}

#[test]
fn a_call_beyond_a_minutes_share_never_waits() {
    let mut state = UpstreamState::new(policy());
    refused(&mut state, 1, BATCH, 70_001, at(0), Why::TooLarge, None);
    refused(&mut state, 1, SEARCH, 95_001, at(0), Why::TooLarge, None);
    granted(&mut state, 1, BATCH, 70_000, at(0));
}

#[test]
fn asking_twice_for_one_call_takes_nothing_twice() {
    let mut state = UpstreamState::new(policy());
    granted(&mut state, 1, SEARCH, 10, at(0));
    granted(&mut state, 1, SEARCH, 10, at(1));
    assert_eq!(state.in_flight(), 1);
    assert_eq!(state.snapshot(at(1)).counters.granted, 1);
}

#[test]
fn batch_never_takes_the_slots_or_the_tokens_reserved_for_interactive() {
    let mut state = UpstreamState::new(Policy { tpm: None, rpm: None, ..policy() });
    for n in 0..7 {
        granted(&mut state, n, BATCH, 1, at(0));
    }
    queued(&mut state, 7, BATCH, 1, at(0));
    for n in 10..13 {
        granted(&mut state, n, SEARCH, 1, at(0));
    }
    queued(&mut state, 13, SEARCH, 1, at(0));
    finish(&mut state, 0, OK, at(10));
    assert_eq!(granted_in(&state.poll(at(10))), vec![13], "interactive first");
    finish(&mut state, 1, OK, at(20));
    assert_eq!(granted_in(&state.poll(at(20))), vec![7]);
}

#[test]
fn interactive_overload_leaves_batch_a_slot() {
    let mut state = UpstreamState::new(Policy { tpm: None, rpm: None, ..policy() });
    for n in 0..10 {
        granted(&mut state, n, SEARCH, 1, at(0));
    }
    queued(&mut state, 20, SEARCH, 1, at(0));
    queued(&mut state, 30, BATCH, 1, at(0));
    queued(&mut state, 31, BATCH, 1, at(0));
    finish(&mut state, 0, OK, at(10));
    assert_eq!(granted_in(&state.poll(at(10))), vec![30], "its floor");
    finish(&mut state, 1, OK, at(11));
    assert_eq!(granted_in(&state.poll(at(11))), vec![20], "and no more while interactive waits");
}

#[test]
fn while_interactive_waits_batch_may_take_no_more_tokens_than_its_floor() {
    for (tokens, first) in [(5_000, 30), (5_001, 20)] {
        let mut state = UpstreamState::new(policy());
        for n in 0..10 {
            granted(&mut state, n, SEARCH, 1, at(0));
        }
        queued(&mut state, 20, SEARCH, 1, at(0));
        queued(&mut state, 30, BATCH, tokens, at(0));
        finish(&mut state, 0, OK, at(10));
        assert_eq!(granted_in(&state.poll(at(10))), vec![first], "batch of {tokens} tokens");
    }
}

#[test]
fn one_call_asked_for_by_two_waiters_is_granted_once() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 1, ..policy() });
    granted(&mut state, 1, SEARCH, 1, at(0));
    for waiter in [10, 11] {
        let twice = Ask { waiter: WaiterId(waiter), ..ask(7, BATCH, 1) };
        assert_eq!(state.ask(twice, at(0)), Decision::Queued);
    }
    finish(&mut state, 1, OK, at(1));
    assert_eq!(granted_in(&state.poll(at(1))), vec![10]);
    finish(&mut state, 7, OK, at(2));
    state.poll(at(2));
    finish(&mut state, 7, OK, at(3));
    assert_eq!(state.snapshot(at(3)).concurrency, 0);
}

#[test]
fn interactive_waits_a_moment_and_then_hears_when_to_come_back() {
    let mut state = UpstreamState::new(Policy { rpm: None, tpm: None, max_concurrency: 1, ..policy() });
    granted(&mut state, 1, SEARCH, 1, at(0));
    queued(&mut state, 2, SEARCH, 1, at(0));
    let poll = state.poll(at(100));
    assert_eq!((poll.answers.len(), poll.wake), (0, Some(at(250))));
    assert_eq!(refused_in(&state.poll(at(250))), vec![(2, Why::QueueTimeout)]);
    let late = Ask { deadline: at(250), ..ask(3, SEARCH, 1) };
    assert_eq!(state.ask(late, at(250)), Decision::Refuse(Refusal { why: Why::Late, retry_at: None }));
    let impatient = Ask { may_queue: false, ..ask(4, SEARCH, 1) };
    assert_eq!(state.ask(impatient, at(250)), Decision::Refuse(Refusal { why: Why::Concurrency, retry_at: None }));
}

#[test]
fn who_was_held_up_on_the_way_goes_if_there_is_room_and_waits_no_longer_if_there_is_none() {
    let mut state = UpstreamState::new(Policy { rpm: None, tpm: None, max_concurrency: 1, ..policy() });
    let held_up = |n| Ask { waits_until: at(250), ..ask(n, SEARCH, 1) };
    assert!(matches!(state.ask(held_up(1), at(900)), Decision::Grant(_)), "it stood still, not the upstream");
    assert_eq!(state.ask(held_up(2), at(900)), Decision::Queued);
    assert_eq!(refused_in(&state.poll(at(900))), vec![(2, Why::QueueTimeout)]);
}

#[test]
fn who_leaves_the_queue_is_never_granted() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 1, ..policy() });
    granted(&mut state, 1, SEARCH, 1, at(0));
    queued(&mut state, 2, SEARCH, 1, at(0));
    queued(&mut state, 3, BATCH, 1, at(0));
    queued(&mut state, 4, BATCH, 1, at(0));
    assert!(state.abandon(WaiterId(2)));
    assert!(state.abandon(WaiterId(3)));
    assert!(!state.abandon(WaiterId(3)));
    finish(&mut state, 1, OK, at(10));
    assert_eq!(granted_in(&state.poll(at(10))), vec![4]);
}

#[test]
fn a_full_queue_refuses_and_a_long_stay_ends() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 1, batch_queue_max_items: 10, ..policy() });
    granted(&mut state, 1, SEARCH, 1, at(0));
    assert_eq!(state.ask(Ask { items: 8, ..ask(2, BATCH, 1) }, at(0)), Decision::Queued);
    let full = state.ask(Ask { items: 3, ..ask(3, BATCH, 1) }, at(0));
    assert_eq!(full, Decision::Refuse(Refusal { why: Why::QueueFull, retry_at: None }));
    // Longer than batch may wait, so that nothing else can end the stay.
    state.cool_until = at(400_000);
    assert!(state.poll(at(299_999)).answers.is_empty());
    let timeout = Refusal { why: Why::QueueTimeout, retry_at: Some(at(400_000)) };
    assert_eq!(state.poll(at(300_000)).answers, vec![(WaiterId(2), Err(timeout))]);
}

#[test]
fn an_open_breaker_empties_the_queues_at_once_and_batch_never_probes() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 21, ..policy() });
    for n in 0..21 {
        granted(&mut state, n, SEARCH, 1, at(0));
    }
    queued(&mut state, 100, BATCH, 1, at(0));
    queued(&mut state, 101, SEARCH, 1, at(0));
    for n in 0..20 {
        finish(&mut state, n, OutcomeKind::Connect, at(5));
    }
    let poll = state.poll(at(5));
    assert_eq!(refused_in(&poll), vec![(101, Why::CircuitOpen), (100, Why::CircuitOpen)]);
    assert!(poll.effects.iter().any(|effect| matches!(effect, Effect::Breaker(change) if change.to == Phase::Open)));
    refused(&mut state, 102, SEARCH, 1, at(60_000), Why::CircuitOpen, Some(60_005));
    refused(&mut state, 103, BATCH, 1, at(70_000), Why::CircuitOpen, Some(70_000));
    let probe = state.ask(ask(104, SEARCH, 1), at(70_000));
    assert_eq!(probe, Decision::Grant(Grant { attempt: AttemptId(104), probe: true, waited: Duration::ZERO }));
    refused(&mut state, 105, SEARCH, 1, at(70_001), Why::CircuitOpen, Some(100_000));
}

#[test]
fn a_probe_never_reported_frees_its_slot_by_itself() {
    let mut state = broken();
    granted(&mut state, 1, SEARCH, 1, at(70_000));
    refused(&mut state, 2, SEARCH, 1, at(99_999), Why::CircuitOpen, Some(100_000));
    assert_eq!(state.poll(at(100_000)).wake, Some(at(105_000)));
    assert_eq!(state.snapshot(at(100_000)).breaker, Phase::Open);
    let poll = state.poll(at(105_000));
    assert!(poll.effects.contains(&Effect::Lost(AttemptId(1))));
    finish(&mut state, 1, OutcomeKind::ServerError, at(106_000));
    assert_eq!(state.snapshot(at(106_000)).counters.unknown_reports, 1);
    granted(&mut state, 3, SEARCH, 1, at(170_000));
}

#[test]
fn after_a_429_nothing_is_sent_until_the_time_it_names() {
    let mut state = UpstreamState::new(policy());
    granted(&mut state, 1, SEARCH, 1, at(0));
    let headers = [("x-ratelimit-reset-tokens", "3s"), ("x-ratelimit-reset-requests", "1s")];
    let headers = RateHeaders::read(headers, Wall(0));
    let kind = OutcomeKind::RateLimited { hint: None };
    state.finished(AttemptId(1), Outcome { headers, ..Outcome::bare(kind) }, at(100));
    assert!(state.poll(at(100)).effects.contains(&Effect::CoolDown(Duration::from_secs(3))));
    assert!(!state.usable(at(3_099)));
    refused(&mut state, 2, SEARCH, 1, at(200), Why::RateLimited, Some(3_100));
    queued(&mut state, 3, BATCH, 1, at(200));
    assert_eq!(state.poll(at(200)).wake, Some(at(3_100)));
    assert_eq!(granted_in(&state.poll(at(3_100))), vec![3]);
}

#[track_caller]
fn check_backoff(adaptive: bool, expected_ms: &[u64]) {
    let mut state = UpstreamState::new(Policy { adaptive, ..policy() });
    let mut now = at(1);
    for (n, expected) in expected_ms.iter().enumerate() {
        // Two at once are one refusal; an adaptive limit soon allows one at a time anyway.
        let pair = [n as u64 * 2, n as u64 * 2 + 1];
        let sent =
            pair.map(|n| matches!(state.ask(Ask { may_queue: false, ..ask(n, SEARCH, 1) }, now), Decision::Grant(_)));
        assert!(sent[0]);
        let answered = now.plus(Duration::from_millis(1));
        for n in pair {
            finish(&mut state, n, OutcomeKind::RateLimited { hint: None }, answered);
        }
        assert_eq!(state.snapshot(answered).cool_down_ms, *expected, "refusal {n}");
        now = state.cool_until;
    }
}

#[test]
fn without_a_hint_the_pause_grows_and_is_bounded() {
    check_backoff(false, &[1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    check_backoff(true, &[50, 100, 200, 400, 800, 1_000]);
}

#[test]
fn the_providers_count_holds_back_a_call_that_would_not_fit() {
    let mut state = UpstreamState::new(policy());
    granted(&mut state, 1, SEARCH, 10, at(0));
    let headers = [("x-ratelimit-remaining-tokens", "50"), ("x-ratelimit-reset-tokens", "5s")];
    let headers = RateHeaders::read(headers, Wall(0));
    state.finished(AttemptId(1), Outcome { headers, ..Outcome::bare(OK) }, at(100));
    refused(&mut state, 2, SEARCH, 60, at(200), Why::RateLimited, Some(5_100));
    granted(&mut state, 3, SEARCH, 40, at(200));
    granted(&mut state, 4, SEARCH, 60, at(5_100));
}

#[test]
fn a_key_without_credit_is_parked_until_a_human_says_otherwise() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 2, ..policy() });
    granted(&mut state, 1, SEARCH, 1, at(0));
    granted(&mut state, 2, SEARCH, 1, at(0));
    queued(&mut state, 3, BATCH, 1, at(0));
    finish(&mut state, 1, OutcomeKind::OutOfQuota, at(1));
    finish(&mut state, 2, OutcomeKind::KeyRejected, at(1));
    let poll = state.poll(at(1));
    assert_eq!(refused_in(&poll), vec![(3, Why::Parked)], "the last word counts");
    assert_eq!(poll.effects.iter().filter(|effect| matches!(effect, Effect::Parked(_))).count(), 1);
    refused(&mut state, 4, SEARCH, 1, at(3_600_000), Why::Parked, None);
    assert_eq!(state.snapshot(at(2)).breaker, Phase::Closed);
    state.resume();
    granted(&mut state, 5, SEARCH, 1, at(3_600_001));
    finish(&mut state, 5, OutcomeKind::OutOfQuota, at(3_600_002));
    refused(&mut state, 6, SEARCH, 1, at(3_600_003), Why::OutOfCredit, None);
}

#[test]
fn operators_close_the_door_and_open_it_again() {
    let mut state = UpstreamState::new(policy());
    state.drain();
    refused(&mut state, 1, SEARCH, 1, at(0), Why::Draining, None);
    state.resume();
    state.quarantine(true);
    refused(&mut state, 1, SEARCH, 1, at(0), Why::Quarantined, None);
    state.quarantine(false);
    state.unverified(true);
    refused(&mut state, 1, SEARCH, 1, at(0), Why::Unverified, None);
    assert!(!state.usable(at(0)));
    state.unverified(false);
    state.force_open();
    refused(&mut state, 1, SEARCH, 1, at(9_999_999), Why::CircuitOpen, None);
    state.force_close();
    granted(&mut state, 1, SEARCH, 1, at(10_000_000));
}

#[test]
fn demand_for_an_upstream_that_is_known_to_be_down_opens_its_breaker() {
    let mut state = UpstreamState::new(policy());
    let volume = policy().breaker.min_requests;
    state.missed(at(0));
    state.unverified(true);
    for _ in 0..volume {
        state.missed(at(1));
    }
    assert_eq!(state.snapshot(at(1)).breaker, Phase::Closed, "not looked at yet, so nothing is known");
    state.check_failed(at(2));
    for _ in 1..volume {
        state.missed(at(2));
    }
    assert_eq!(state.snapshot(at(2)).breaker, Phase::Closed, "too few to tell");
    state.missed(at(2));
    assert_eq!(state.snapshot(at(2)).breaker, Phase::Open);
    let over = at(2).plus(policy().breaker.cooldown);
    refused(&mut state, 1, SEARCH, 1, at(3), Why::Unverified, None);
    state.check_failed(over);
    assert_eq!(state.snapshot(over).breaker, Phase::Open, "it was looked at when the cool-down was over");
    state.unverified(false);
    state.force_close();
    state.check_failed(over);
    assert!(!state.is_down(), "a check that nobody waited for changes nothing");
    granted(&mut state, 1, SEARCH, 1, over);
}

#[test]
fn a_shutdown_turns_away_batch_work_that_only_waits() {
    let mut state = UpstreamState::new(Policy { max_concurrency: 1, ..policy() });
    granted(&mut state, 1, BATCH, 1, at(0));
    assert_eq!(state.ask(ask(2, BATCH, 1), at(0)), Decision::Queued);
    assert_eq!(state.ask(Ask { begun: true, ..ask(3, BATCH, 1) }, at(0)), Decision::Queued);
    state.shutdown();
    state.resume();
    let turned_away = Err(Refusal { why: Why::ShuttingDown, retry_at: None });
    assert_eq!(state.poll(at(1)).answers, [(WaiterId(2), turned_away)]);
    refused(&mut state, 4, BATCH, 1, at(1), Why::ShuttingDown, None);
    assert_eq!(state.ask(ask(5, SEARCH, 1), at(1)), Decision::Queued, "a query waits a moment, as ever");
    state.finished(AttemptId(1), Outcome::bare(OutcomeKind::NotSent), at(2));
    let served: Vec<_> =
        state.poll(at(2)).answers.into_iter().map(|(waiter, verdict)| (waiter, verdict.is_ok())).collect();
    assert_eq!(served, [(WaiterId(5), true)]);
    state.finished(AttemptId(5), Outcome::bare(OutcomeKind::NotSent), at(3));
    let served: Vec<_> =
        state.poll(at(3)).answers.into_iter().map(|(waiter, verdict)| (waiter, verdict.is_ok())).collect();
    assert_eq!(served, [(WaiterId(3), true)], "work that has begun keeps its place");
}

#[test]
fn a_restart_keeps_what_is_known() {
    let mut state = broken();
    state.heal();
    assert_eq!(state.snapshot(at(2_000)).breaker, Phase::Open);
    granted(&mut state, 1, SEARCH, 7, at(70_000));
    state.in_use = [9, 9];
    state.expiries.clear();
    state.heal();
    let snapshot = state.snapshot(at(70_000));
    assert_eq!((snapshot.in_flight, snapshot.concurrency), (1, 1));
    assert_eq!(state.poll(at(70_000)).wake, Some(at(105_000)));
}

#[test]
fn a_server_that_counts_texts_gets_no_more_of_them_than_it_can_take() {
    let texts =
        Policy { tpm: None, rpm: None, max_concurrency: 100, count: CountBy::Texts, adaptive: true, ..policy() };
    let mut state = UpstreamState::new(texts);
    let bulk = |n| Ask { items: 32, ..ask(n, BATCH, 1) };
    assert!(matches!(state.ask(bulk(1), at(1)), Decision::Grant(_)));
    assert!(matches!(state.ask(bulk(2), at(1)), Decision::Grant(_)));
    assert_eq!(state.ask(bulk(3), at(1)), Decision::Queued, "70 of 100 texts are batch's");
    finish(&mut state, 1, OutcomeKind::RateLimited { hint: None }, at(2));
    finish(&mut state, 2, OK, at(3));
    let snapshot = state.snapshot(at(3));
    assert_eq!((snapshot.concurrency_limit, snapshot.cool_down_ms), (50, 49));
    assert_eq!(granted_in(&state.poll(at(60))), vec![3]);
    assert_eq!(state.ask(Ask { items: 500, ..ask(4, BATCH, 1) }, at(60)), Decision::Queued);
    finish(&mut state, 3, OK, at(61));
    assert_eq!(granted_in(&state.poll(at(61))), vec![4], "a call beyond the limit goes alone");
}

#[test]
fn new_settings_change_the_limits_and_keep_what_was_taken() {
    let mut state = UpstreamState::new(policy());
    granted(&mut state, 1, SEARCH, 60_000, at(0));
    state.reconfigure(Policy { tpm: Some(70_000), ..policy() });
    assert_eq!(state.snapshot(at(1)).interactive_tokens, Some(6_500));
    assert_eq!(state.batch_call_tokens(at(1)), Some(3_500));
    let (tokens, requests) = state.allowances(BATCH, at(1));
    assert_eq!((tokens.limit, tokens.remaining), (Some(49_000), Some(10_000)));
    assert_eq!((requests.limit, requests.remaining), (Some(700), Some(700)));
    assert_eq!(tokens.reset, Duration::from_millis(60_999));
}

#[test]
fn a_snapshot_can_be_written_down() {
    let mut state = broken();
    let text = serde_json::to_string(&state.snapshot(at(1_500))).expect("serialises");
    assert!(text.contains(r#""breaker":"open","breaker_reason":"ratio","usable":false"#), "{text}");
    assert!(text.contains(r#""last_error":{"kind":"server_error","ago_ms":500}"#), "{text}");
}

#[test]
fn an_answer_that_has_begun_is_counted_then_and_may_go_on_for_long() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let mut state = UpstreamState::new(policy());
    // Closed: one success when it begins, none when it ends, a failure if it breaks.
    granted(&mut state, 1, TrafficClass::Chat, 10, at(0));
    state.answered(AttemptId(1), Duration::from_millis(300), HOUR, at(300));
    state.answered(AttemptId(1), Duration::from_millis(300), HOUR, at(400));
    assert_eq!(state.breaker.totals(at(400)).all(), 1);
    assert!(state.is_answered(AttemptId(1)) && !state.is_answered(AttemptId(2)));
    // Far beyond the time of a call it is still under way.
    assert!(!state.poll(at(600_000)).effects.contains(&Effect::Lost(AttemptId(1))));
    assert_eq!(state.in_flight(), 1);
    state.finished(AttemptId(1), Outcome::bare(OK), at(600_000));
    assert_eq!((state.breaker.totals(at(600_000)).all(), state.in_flight()), (0, 0));
    granted(&mut state, 2, TrafficClass::Chat, 10, at(600_000));
    state.answered(AttemptId(2), Duration::from_millis(300), HOUR, at(600_300));
    state.finished(AttemptId(2), Outcome::bare(OutcomeKind::Transport), at(600_400));
    let totals = state.breaker.totals(at(600_400));
    assert_eq!((totals.all(), totals.bad), (2, 1));
    // One that is never reported is lost in the end.
    granted(&mut state, 3, TrafficClass::Chat, 10, at(700_000));
    state.answered(AttemptId(3), Duration::from_millis(300), HOUR, at(700_300));
    assert!(state.poll(at(700_300 + 3_606_000)).effects.contains(&Effect::Lost(AttemptId(3))));
}

#[test]
fn a_stream_that_outlives_its_time_as_a_probe_has_proved_the_upstream_well() {
    let mut state = UpstreamState::new(policy());
    for n in 0..20 {
        granted(&mut state, n, TrafficClass::Chat, 10, at(0));
        state.finished(AttemptId(n), Outcome::bare(OutcomeKind::ServerError), at(1));
    }
    assert_eq!(state.breaker.phase(), Phase::Open);
    for (n, ms) in [(100, 66_000), (101, 72_000), (102, 78_000)] {
        granted(&mut state, n, TrafficClass::Chat, 10, at(ms));
        state.answered(AttemptId(n), Duration::from_millis(100), Duration::from_secs(3_600), at(ms + 100));
    }
    assert_eq!(state.breaker.phase(), Phase::Closed, "three first events closed it");
    state.poll(at(200_000));
    state.finished(AttemptId(100), Outcome::bare(OutcomeKind::ClientGone), at(200_000));
    assert_eq!(state.breaker.phase(), Phase::Closed, "and whoever leaves later changes nothing");
}
