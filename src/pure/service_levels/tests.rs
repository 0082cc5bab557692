//! Percentiles and budgets against lists of the same facts.

use proptest::prelude::*;

use super::*;

const SEARCH: Target =
    Target { class: TrafficClass::InteractiveSearch, line: Duration::from_millis(70), allowed_bad: 0.05 };

fn at(ms: u64) -> Mono {
    Mono::from_millis(ms)
}

fn promises(window_s: u64, targets: &[Target], models: &[(&str, u64)]) -> Promises {
    let line = |(name, ms): &(&str, u64)| (ModelName::from(*name), vec![Duration::from_millis(*ms)]);
    let models = models.iter().map(line).collect();
    Promises { window: Duration::from_secs(window_s), targets: targets.to_vec(), models }
}

fn levels() -> ServiceLevels {
    ServiceLevels::new(&promises(300, &[SEARCH], &[]))
}

fn fact(verdict: Verdict, total_ms: u64) -> Fact {
    let ms = Duration::from_millis;
    let (upstream, queued) = (ms(total_ms / 2), ms(total_ms / 4));
    Fact { class: TrafficClass::InteractiveSearch, model: None, verdict, total: ms(total_ms), upstream, queued }
}

#[track_caller]
fn check(facts: &[(Verdict, u64)], count: u64, failed: u64, limited: u64, remaining: f64) {
    let mut levels = levels();
    for (verdict, ms) in facts {
        levels.record(&fact(*verdict, *ms), at(1));
    }
    let shown = levels.snapshot(at(2));
    let class = shown.classes[TrafficClass::InteractiveSearch as usize];
    assert_eq!((class.count, class.failed, class.limited), (count, failed, limited));
    assert!((shown.targets[0].remaining - remaining).abs() < 1e-9, "{:?}", shown.targets);
    assert_eq!(shown.classes[TrafficClass::Rerank as usize], ClassLevel::default());
}

#[test]
fn each_verdict_counts_where_it_should() {
    check(&[], 0, 0, 0, 1.0);
    check(&[(Verdict::Answered, 70)], 1, 0, 0, 1.0);
    check(&[(Verdict::Answered, 71)], 1, 0, 0, 1.0 - 20.0);
    check(&[(Verdict::Failed, 1)], 1, 1, 0, 1.0 - 20.0);
    check(&[(Verdict::Limited, 1), (Verdict::NotOurs, 900)], 0, 0, 1, 1.0);
    let mut facts = vec![(Verdict::Answered, 9); 95];
    facts.extend([(Verdict::Failed, 1); 5]);
    check(&facts, 100, 5, 0, 0.0);
}

#[test]
fn percentiles_are_of_answers_and_their_parts() {
    let mut levels = levels();
    for ms in 1..=1_000 {
        levels.record(&fact(Verdict::Answered, ms * 4), at(5));
        levels.record(&fact(Verdict::Failed, 1), at(5));
    }
    let class = levels.snapshot(at(6)).classes[0];
    let [p50, p95, p99] = class.total.expect("requests").map(|span| span.as_secs_f64());
    assert!((p50 / 2.0 - 1.0).abs() < 0.011 && (p95 / 3.8 - 1.0).abs() < 0.011 && (p99 / 3.96 - 1.0).abs() < 0.011);
    let near = |span: Option<Duration>, s: f64| (span.expect("requests").as_secs_f64() / s - 1.0).abs() < 0.07;
    assert!(near(class.upstream_p95, 1.9) && near(class.queued_p95, 0.95) && near(class.own_p95, 0.95), "{class:?}");
    assert_eq!(levels.snapshot(at(700_000)).classes[0], ClassLevel::default());
}

/// The same numbers on each run, evenly spread over 0 to 1 (exclusive of 0).
fn even(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((mixed ^ (mixed >> 31)) >> 11).saturating_add(1) as f64 / (1_u64 << 53) as f64
}

#[test]
fn percentiles_agree_with_the_clients_own_record_within_one_percent() {
    const REQUESTS: usize = 100_000;
    const SLOT_MS: u64 = 300_000 / SLOTS as u64;
    let (mut levels, mut seed) = (levels(), 20_261_130);
    // What the clients wrote down: when, and how long it took.
    let mut record: Vec<(u64, Duration)> = Vec::with_capacity(REQUESTS);
    let mut compared = 0;
    for number in 0..REQUESTS {
        // Twenty minutes, four windows long; it grows slower by a half each minute, so that a window that forgot too
        // little or too much would be far off.
        let now = number as u64 * 1_200_000 / REQUESTS as u64;
        let spread = (-2.0 * even(&mut seed).ln()).sqrt() * (std::f64::consts::TAU * even(&mut seed)).cos();
        let slower = 1.5_f64.powf(now as f64 / 60_000.0);
        let total = Duration::from_secs_f64((0.012 * slower * (0.8 * spread).exp()).min(3_000.0));
        let fact = Fact { total, ..fact(Verdict::Answered, 1) };
        levels.record(&fact, at(now));
        record.push((now, total));
        if number % 997 != 0 && number + 1 != REQUESTS {
            continue;
        }
        let held = |(when, _): &&(u64, Duration)| when / SLOT_MS + SLOTS as u64 >= now / SLOT_MS;
        let mut exact: Vec<Duration> = record.iter().filter(held).map(|(_, took)| *took).collect();
        exact.sort_unstable();
        let level = levels.snapshot(at(now)).classes[TrafficClass::InteractiveSearch as usize];
        assert_eq!(level.count, exact.len() as u64, "at {now} ms");
        for (q, shown) in [0.5, 0.95, 0.99].into_iter().zip(level.total.expect("requests")) {
            let rank = ((q * exact.len() as f64).ceil() as usize).clamp(1, exact.len());
            let off = shown.as_secs_f64() / exact[rank - 1].as_secs_f64() - 1.0;
            assert!(off.abs() <= 0.01, "p{q} at {now} ms: {shown:?} is off by {off}");
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * (REQUESTS.div_ceil(997) + 1));
    assert!(record.len() as u64 > 2 * levels.snapshot(at(1_199_999)).classes[0].count, "most had left the window");
}

#[test]
fn new_lines_keep_what_was_counted() {
    let mut levels = levels();
    levels.record(&fact(Verdict::Failed, 1), at(1));
    levels.reconfigure(&promises(300, &[Target { line: Duration::from_millis(10), ..SEARCH }], &[]));
    levels.record(&fact(Verdict::Answered, 60), at(2));
    let shown = levels.snapshot(at(3));
    assert_eq!((shown.classes[0].count, shown.targets[0].burn[0].round()), (2, 20.0));
    levels.reconfigure(&promises(60, &[SEARCH], &[]));
    assert_eq!(levels.snapshot(at(4)).classes[0].count, 0);
}

proptest! {
    #[test]
    fn the_history_tells_each_request_once(gaps in prop::collection::vec(0_u64..15_000, 1..200)) {
        let mut levels = levels();
        let mut now = 0;
        let mut failed = 0;
        for (step, gap) in gaps.iter().enumerate() {
            now += gap;
            let verdict = if step % 3 == 0 { Verdict::Failed } else { Verdict::Answered };
            failed += u64::from(verdict == Verdict::Failed);
            levels.record(&fact(verdict, 5), at(now));
            levels.advance(at(now));
        }
        let histories = levels.advance(at(now + 60_000)).expect("the interval is over").clone();
        let sum = |of: fn(&Point) -> u64| histories[0].points().map(of).sum::<u64>();
        prop_assert_eq!(sum(|point| point.count), gaps.len() as u64);
        prop_assert_eq!(sum(|point| point.errors), failed);
    }
}

fn of_model(model: &str, verdict: Verdict, ms: u64) -> Fact {
    Fact { model: Some(ModelName::from(model)), ..fact(verdict, ms) }
}

fn shown<'a>(snapshot: &'a Snapshot, model: &str) -> Option<&'a ModelLevel> {
    snapshot.models.iter().find(|level| level.model.as_str() == model)
}

#[test]
fn a_model_is_held_against_its_own_line_and_so_is_its_class() {
    let mut levels = ServiceLevels::new(&promises(300, &[SEARCH], &[("quick", 20), ("slow", 500), ("idle", 70)]));
    for _ in 0..90 {
        levels.record(&of_model("slow", Verdict::Answered, 400), at(1));
    }
    for _ in 0..9 {
        levels.record(&of_model("quick", Verdict::Answered, 30), at(1));
    }
    levels.record(&of_model("quick", Verdict::Failed, 1), at(1));
    levels.record(&of_model("stranger", Verdict::Answered, 30), at(1));
    let snapshot = levels.snapshot(at(2));
    let names: Vec<&str> = snapshot.models.iter().map(|level| level.model.as_str()).collect();
    assert_eq!(names, ["quick", "slow"], "only what is configured and was asked");
    let quick = shown(&snapshot, "quick").expect("asked");
    assert_eq!((quick.count, quick.failed, quick.class), (10, 1, TrafficClass::InteractiveSearch));
    let [(0, target)] = quick.targets.as_slice() else { panic!("{quick:?}") };
    assert_eq!((target.burn[0].round(), target.urgency), (20.0, Burn::Fast), "all ten missed a budget of 5 %");
    let slow = shown(&snapshot, "slow").expect("asked");
    assert_eq!((slow.count, slow.targets[0].1.remaining), (90, 1.0));
    let [_, p95, _] = slow.total.expect("answers");
    assert!((p95.as_secs_f64() / 0.4 - 1.0).abs() < 0.011, "{p95:?}");
    let of_class = snapshot.targets[0].burn[0];
    assert!((of_class - 10.0 / 101.0 / 0.05).abs() < 1e-9, "the class is the sum of its models: {of_class}");
}

#[test]
fn a_few_failures_of_a_quiet_model_are_not_urgent() {
    let mut levels = ServiceLevels::new(&promises(300, &[SEARCH], &[("m", 70)]));
    for failed in 1..=10 {
        levels.record(&of_model("m", Verdict::Failed, 1), at(1));
        let snapshot = levels.snapshot(at(2));
        let target = shown(&snapshot, "m").expect("asked").targets[0].1;
        assert!(target.burn[0] > 19.0);
        assert_eq!(target.urgency == Burn::Fast, failed == 10, "{failed}");
        assert_eq!(snapshot.targets[0].urgency, Burn::Fast, "of a class each counts");
    }
}

#[test]
fn models_come_and_go_with_the_configuration() {
    let mut levels = ServiceLevels::new(&promises(300, &[SEARCH], &[("a", 70), ("b", 70)]));
    for model in ["a", "b"] {
        levels.record(&of_model(model, Verdict::Answered, 90), at(1));
    }
    levels.snapshot(at(2));
    levels.reconfigure(&promises(300, &[SEARCH], &[("c", 70), ("b", 100)]));
    levels.record(&of_model("b", Verdict::Answered, 90), at(3));
    let snapshot = levels.snapshot(at(4));
    assert!(shown(&snapshot, "a").is_none());
    let b = shown(&snapshot, "b").expect("it stayed");
    assert_eq!((b.count, b.targets[0].1.burn[0].round()), (2, 10.0), "what was judged stays so");
    levels.reconfigure(&promises(60, &[SEARCH], &[("b", 100)]));
    let snapshot = levels.snapshot(at(5));
    let b = shown(&snapshot, "b").expect("it stayed");
    assert_eq!((b.count, b.total, b.targets[0].1.burn[0].round()), (0, None, 10.0));
}

#[test]
fn many_models_are_brought_up_to_date_by_turns() {
    let names: Vec<String> = (0..100).map(|number| format!("m{number}")).collect();
    let lines: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 70)).collect();
    let mut levels = ServiceLevels::new(&promises(300, &[SEARCH], &lines));
    for name in &names {
        levels.record(&of_model(name, Verdict::Answered, 50), at(1));
    }
    let counted: Vec<u64> =
        (2..6).map(|ms| levels.snapshot(at(ms)).models.iter().map(|level| level.count).sum()).collect();
    assert_eq!(counted, [32, 64, 96, 100]);
    let gone: Vec<u64> =
        (0..4).map(|ms| levels.snapshot(at(400_000 + ms)).models.iter().map(|level| level.count).sum()).collect();
    assert_eq!(gone, [68, 36, 4, 0]);
}
