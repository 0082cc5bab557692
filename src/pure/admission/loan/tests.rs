//! What is lent, what comes back, and when nothing is lent. The simulation has the invariants.

use super::*;
use crate::config::plan;
use crate::ids::{TenantId, WaiterId};
use crate::pure::admission::{Ask, Decision, Outcome, OutcomeKind, Policy, Why};
use crate::pure::token_bucket::Shares;

fn at(ms: u64) -> Mono {
    Mono::from_millis(ms)
}

fn policy() -> Policy {
    Policy {
        tpm: Some(8_000),
        rpm: None,
        max_concurrency: 10,
        count: CountBy::Calls,
        adaptive: false,
        shares: Shares::NONE,
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

fn lending(policy: Policy) -> (UpstreamState, CallLoan<OutcomeKind>) {
    let (mut state, mut loan) = (UpstreamState::new(policy), CallLoan::default());
    state.lend(&mut loan, at(1));
    (state, loan)
}

fn ask(n: u64, class: TrafficClass) -> Ask {
    Ask {
        attempt: AttemptId(n),
        waiter: WaiterId(n),
        tenant: TenantId::from("acme"),
        weight: 1,
        class,
        tokens: 1,
        items: 1,
        may_queue: true,
        begun: false,
        deadline: Mono(u64::MAX),
        waits_until: Mono(u64::MAX),
        roll: 0.5,
    }
}

/// As the owner does it.
fn gather(state: &mut UpstreamState, loan: &mut CallLoan<OutcomeKind>, now: Mono) {
    for (id, kind) in state.gather(loan, now) {
        state.finished(id, Outcome::bare(kind), now);
    }
}

/// A provider that says nothing of what is left.
const UNTOLD: [Option<u64>; 2] = [None; 2];

const OK: OutcomeKind = OutcomeKind::Success { latency: Duration::from_millis(20) };

#[test]
fn half_of_the_slots_and_an_eighth_of_the_tokens() {
    let (mut state, mut loan) = lending(policy());
    assert!(!loan.begin(AttemptId(1), 1_001, 1, at(2)), "more tokens than are lent");
    for n in 0..5 {
        assert!(loan.begin(AttemptId(n), 200, 1, at(2)), "{n}");
    }
    assert!(!loan.begin(AttemptId(5), 1, 1, at(2)), "slots");
    assert_eq!(loan.end(AttemptId(0), OK, UNTOLD, Look::InTurn), Ending::See(Look::InTurn));
    assert_eq!(
        (loan.end(AttemptId(1), OK, UNTOLD, Look::InTurn), loan.end(AttemptId(1), OK, UNTOLD, Look::InTurn)),
        (Ending::Noted, Ending::NotHere(OK))
    );
    assert!(!loan.begin(AttemptId(6), 1, 1, at(2)), "tokens do not come back with the slot");
    assert_eq!(loan.spent(), [1_000, 5]);
    gather(&mut state, &mut loan, at(3));
    let seen = state.snapshot(at(3));
    assert_eq!((seen.in_flight, seen.concurrency, seen.interactive_tokens), (3, 3, Some(7_000)));
    assert_eq!((seen.counters.granted, seen.counters.finished), (5, 2));
    state.lend(&mut loan, at(4));
    assert!(loan.begin(AttemptId(7), 875, 1, at(4)));
    assert!(!loan.begin(AttemptId(8), 1, 1, at(4)));
}

#[test]
fn an_unused_loan_costs_nothing_and_ends() {
    let (mut state, mut loan) = lending(policy());
    assert!(!loan.begin(AttemptId(1), 1, 1, at(2_001)));
    gather(&mut state, &mut loan, at(2_001));
    let seen = state.snapshot(at(2_001));
    assert_eq!((seen.concurrency, seen.interactive_tokens), (0, Some(8_000)));
}

#[test]
fn without_limits_only_slots_count() {
    let (_, mut loan) = lending(Policy { tpm: None, max_concurrency: 4, ..policy() });
    assert!(loan.begin(AttemptId(1), 1 << 40, 1, at(2)) && loan.begin(AttemptId(2), 1 << 40, 1, at(2)));
    let (_, mut loan) = lending(Policy { max_concurrency: 1, ..policy() });
    assert!(!loan.begin(AttemptId(1), 1, 1, at(2)), "half of one is none");
    let (_, mut loan) = lending(Policy { count: CountBy::Texts, ..policy() });
    assert!(!loan.begin(AttemptId(1), 1, 6, at(2)) && loan.begin(AttemptId(2), 1, 5, at(2)));
}

#[test]
fn nothing_is_lent_while_any_rule_could_have_a_say() {
    let lends = |prepare: fn(&mut UpstreamState)| {
        let (mut state, mut loan) = lending(policy());
        gather(&mut state, &mut loan, at(2));
        prepare(&mut state);
        state.lend(&mut loan, at(3));
        loan.begin(AttemptId(99), 1, 1, at(3))
    };
    assert!(lends(|_| {}));
    assert!(!lends(UpstreamState::drain));
    assert!(!lends(UpstreamState::force_open));
    assert!(!lends(UpstreamState::shutdown));
    assert!(!lends(|state| state.quarantine(true)));
    assert!(!lends(|state| state.share()));
    assert!(!lends(|state| {
        for n in 0..11 {
            let batch = state.ask(ask(n, TrafficClass::BatchIngestion), at(2));
            assert_eq!(batch == Decision::Queued, n == 10, "{batch:?}");
        }
    }));
}

#[test]
fn failures_on_loan_open_the_breaker_and_late_successes_do_not_close_it() {
    let (mut state, mut loan) = lending(Policy { max_concurrency: 100, ..policy() });
    for n in 0..30 {
        assert!(loan.begin(AttemptId(n), 1, 1, at(2)));
    }
    for n in 0..25 {
        loan.end(AttemptId(n), OutcomeKind::ServerError, UNTOLD, Look::InTurn);
    }
    gather(&mut state, &mut loan, at(3));
    state.lend(&mut loan, at(3));
    assert!(!loan.begin(AttemptId(50), 1, 1, at(3)));
    for n in 25..30 {
        loan.end(AttemptId(n), OK, UNTOLD, Look::InTurn);
    }
    gather(&mut state, &mut loan, at(4));
    assert_eq!(state.snapshot(at(4)).breaker, Phase::Open);
    let refused = state.ask(ask(60, TrafficClass::InteractiveSearch), at(4));
    assert!(matches!(refused, Decision::Refuse(refusal) if refusal.why == Why::CircuitOpen));
    assert_eq!(state.in_flight(), 0);
}

#[test]
fn a_word_of_the_provider_or_of_the_owner_is_heard_at_once() {
    let (_, mut loan) = lending(Policy { tpm: None, ..policy() });
    assert!(loan.begin(AttemptId(1), 1, 1, at(2)) && loan.begin(AttemptId(2), 1, 1, at(2)));
    loan.end(AttemptId(1), OK, [Some(80), None], Look::InTurn);
    assert!(!loan.begin(AttemptId(3), 11, 1, at(2)) && loan.begin(AttemptId(4), 10, 1, at(2)));
    loan.close();
    loan.end(AttemptId(2), OK, [Some(1_000), Some(1_000)], Look::InTurn);
    assert!(!loan.begin(AttemptId(5), 1, 1, at(2)), "what is closed is opened by the owner only");
}

#[test]
fn the_owner_is_told_at_once_of_what_it_does_not_expect_and_of_all_else_in_turn() {
    let begun = |policy: Policy, calls: u64| {
        let (state, mut loan) = lending(policy);
        (0..calls).for_each(|n| assert!(loan.begin(AttemptId(n), 10, 1, at(2)), "{n}"));
        (state, loan)
    };
    let end = |loan: &mut CallLoan<OutcomeKind>, n, left, look| loan.end(AttemptId(n), OK, [left, None], look);
    let (mut state, mut loan) = begun(policy(), 5);
    assert_eq!(end(&mut loan, 0, None, Look::InTurn), Ending::See(Look::InTurn));
    assert_eq!(end(&mut loan, 1, Some(8_000), Look::InTurn), Ending::Noted, "as much is left as was thought");
    assert_eq!(end(&mut loan, 2, None, Look::Soon), Ending::See(Look::Soon), "news overtakes");
    assert_eq!(end(&mut loan, 3, Some(10), Look::InTurn), Ending::Noted, "it looks soon anyway");
    gather(&mut state, &mut loan, at(3));
    assert_eq!(end(&mut loan, 4, None, Look::InTurn), Ending::See(Look::Soon), "nothing is lent: somebody may wait");

    let (_, mut loan) = begun(policy(), 1);
    assert_eq!(end(&mut loan, 0, Some(80), Look::InTurn), Ending::See(Look::Soon), "less is left than was thought");
}

#[test]
fn the_providers_word_on_a_call_that_the_owner_was_asked_for_holds_for_the_loan_too() {
    let (_, mut loan) = lending(policy());
    let asked = AttemptId(99);
    assert_eq!(loan.end(asked, OK, [Some(80), None], Look::InTurn), Ending::NotHere(OK));
    assert!(!loan.begin(AttemptId(1), 60, 1, at(2)), "no more than a part of what is left");
    assert!(loan.begin(AttemptId(2), 10, 1, at(2)));
}

#[test]
fn a_call_can_be_taken_over_while_it_is_under_way() {
    let (mut state, mut loan) = lending(policy());
    assert!(loan.begin(AttemptId(1), 10, 1, at(2)) && loan.begin(AttemptId(2), 10, 1, at(2)));
    gather(&mut state, &mut loan, at(3));
    state.adopt(&mut loan, AttemptId(1));
    state.adopt(&mut loan, AttemptId(1));
    assert_eq!((state.in_flight(), state.asked_in_flight(), state.snapshot(at(3)).concurrency), (2, 1, 2));
    assert_eq!(loan.end(AttemptId(1), OK, UNTOLD, Look::InTurn), Ending::NotHere(OK));
    state.finished(AttemptId(1), Outcome::bare(OK), at(4));
    assert_eq!((state.in_flight(), state.snapshot(at(4)).concurrency), (1, 1));
}

#[test]
fn a_call_that_is_never_reported_is_lost() {
    let (mut state, mut loan) = lending(policy());
    assert!(loan.begin(AttemptId(1), 10, 1, at(2)) && loan.begin(AttemptId(2), 10, 1, at(2)));
    loan.end(AttemptId(2), OK, UNTOLD, Look::InTurn);
    let late = at(2).plus(Duration::from_secs(36));
    gather(&mut state, &mut loan, late);
    let counters = {
        state.poll(late);
        state.snapshot(late).counters
    };
    assert_eq!((counters.granted, counters.finished, counters.lost), (2, 1, 1));
    assert_eq!((loan.end(AttemptId(1), OK, UNTOLD, Look::InTurn), state.in_flight()), (Ending::NotHere(OK), 0));
}
