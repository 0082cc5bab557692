//! Fairness in numbers, and a property that nothing is lost, doubled or out of order.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn waiting(waiter: u64, tenant: &str, weight: u32, tokens: u64) -> Waiting<()> {
    Waiting {
        waiter: WaiterId(waiter),
        tenant: TenantId::from(tenant),
        weight,
        tokens,
        items: 1,
        enqueued: Mono(waiter),
        expires: Mono::from_millis(waiter).plus(Duration::from_secs(300)),
        payload: (),
    }
}

/// Serves `rounds` requests out of lines that never run empty; returns the tokens each tenant got.
fn serve(tenants: &[(&str, u32, u64)], rounds: u64) -> BTreeMap<String, u64> {
    let mut queue = FairQueue::new(usize::MAX);
    let mut next = 0;
    for (name, weight, tokens) in tenants {
        for _ in 0..4 {
            next += 1;
            queue.push(waiting(next, name, *weight, *tokens)).expect("room");
        }
    }
    let mut served = BTreeMap::new();
    for _ in 0..rounds {
        let out = queue.pop().expect("never empty");
        *served.entry(out.tenant.to_string()).or_insert(0) += out.tokens;
        next += 1;
        queue.push(waiting(next, out.tenant.as_str(), out.weight, out.tokens)).expect("room");
    }
    served
}

#[track_caller]
fn check_share(tenants: &[(&str, u32, u64)], rounds: u64, expected: &[(&str, f64)]) {
    let served = serve(tenants, rounds);
    let all: u64 = served.values().sum();
    for (name, share) in expected {
        let got = served.get(*name).copied().unwrap_or(0) as f64 / all as f64;
        assert!((got - share).abs() <= 0.02, "{name} got {got:.3} of {served:?}");
    }
}

#[test]
fn tokens_are_shared_by_weight_whatever_the_size_of_calls() {
    check_share(&[("a", 1, 25_000), ("b", 3, 25_000)], 400, &[("a", 0.25), ("b", 0.75)]);
    check_share(&[("a", 1, 500), ("b", 3, 25_000)], 4_000, &[("a", 0.25), ("b", 0.75)]);
    check_share(&[("a", 1, 100), ("b", 1, 100_000)], 20_000, &[("a", 0.5), ("b", 0.5)]);
    check_share(&[("a", 1, 7_000), ("b", 1, 300), ("c", 2, 50_000)], 8_000, &[("a", 0.25), ("b", 0.25), ("c", 0.5)]);
}

#[test]
fn a_newcomer_goes_next_but_only_once() {
    let mut queue = FairQueue::new(usize::MAX);
    for n in 0..20 {
        queue.push(waiting(n, if n % 2 == 0 { "a" } else { "b" }, 1, 25_000)).expect("room");
    }
    for _ in 0..4 {
        queue.pop();
    }
    queue.push(waiting(100, "c", 1, 500)).expect("room");
    assert_eq!(queue.pop().map(|out| out.waiter), Some(WaiterId(100)));
}

#[test]
fn one_big_call_at_a_time_earns_no_more_than_a_line_of_them() {
    let mut queue = FairQueue::new(usize::MAX);
    let mut served: BTreeMap<String, u64> = BTreeMap::new();
    for n in 0..1_000 {
        queue.push(waiting(n, "backlogged", 1, 25_000)).expect("room");
    }
    for n in 1_000..1_400 {
        // The lonely one comes back as soon as its last call went.
        if !queue.entries.values().any(|waiting| waiting.tenant.as_str() == "lonely") {
            queue.push(waiting(n, "lonely", 1, 25_000)).expect("room");
        }
        let out = queue.pop().expect("never empty");
        *served.entry(out.tenant.to_string()).or_insert(0) += out.tokens;
    }
    let lonely = served.get("lonely").copied().unwrap_or(0) as f64 / (400.0 * 25_000.0);
    assert!((0.45..=0.52).contains(&lonely), "{served:?}");
}

#[test]
fn the_bound_counts_items_and_an_empty_queue_takes_anything() {
    let mut queue = FairQueue::new(10);
    let sized = |waiter, items| Waiting { items, ..waiting(waiter, "a", 1, 1) };
    assert_eq!(queue.push(sized(1, 50)), Ok(()));
    assert_eq!(queue.push(sized(2, 1)), Err(PushError::Full));
    assert_eq!(queue.pop().map(|out| out.items), Some(50));
    assert_eq!(queue.push(sized(3, 6)), Ok(()));
    assert_eq!(queue.push(sized(3, 1)), Err(PushError::Duplicate));
    assert_eq!(queue.push(sized(4, 5)), Err(PushError::Full));
    assert_eq!(queue.push(sized(5, 4)), Ok(()));
    assert_eq!((queue.len(), queue.items()), (2, 10));
}

#[test]
fn who_leaves_or_waits_too_long_is_gone() {
    let mut queue = FairQueue::new(usize::MAX);
    for n in 1..=3 {
        queue.push(waiting(n, "a", 1, 10)).expect("room");
    }
    assert!(queue.remove(WaiterId(1)).is_some());
    assert!(queue.remove(WaiterId(1)).is_none());
    assert_eq!(queue.next_expiry(), Some(Mono::from_millis(300_002)));
    assert_eq!(queue.expire(Mono::from_millis(300_002)).len(), 1);
    assert_eq!(queue.pop().map(|out| out.waiter), Some(WaiterId(3)));
    assert!(queue.pop().is_none());
}

#[test]
fn ten_thousand_waiters_are_no_trouble() {
    let mut queue = FairQueue::new(usize::MAX);
    for n in 0..10_000 {
        queue.push(waiting(n, &format!("tenant-{n}"), 1, 900_000)).expect("room");
    }
    for n in (0..10_000).step_by(2) {
        assert!(queue.remove(WaiterId(n)).is_some());
    }
    let mut served = 0;
    while queue.pop().is_some() {
        served += 1;
    }
    assert_eq!(served, 5_000);
}

#[derive(Debug, Clone)]
enum Step {
    Push { tenant: u8, weight: u32, tokens: u64, items: usize },
    Pop,
    Remove(u64),
    Expire(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0_u8..4, 1_u32..5, 0_u64..60_000, 0_usize..20).prop_map(|(tenant, weight, tokens, items)| Step::Push {
        tenant,
        weight,
        tokens,
        items,
    });
    let step = prop_oneof![4 => push, 3 => Just(Step::Pop), 1 => (0_u64..200).prop_map(Step::Remove), 1 => (0_u64..200).prop_map(Step::Expire)];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn nothing_is_lost_doubled_or_out_of_order(steps in steps()) {
        let mut queue = FairQueue::new(100);
        let mut model: BTreeMap<u64, (String, usize)> = BTreeMap::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push { tenant, weight, tokens, items } => {
                    let tenant = tenant.to_string();
                    let waiting = Waiting { items, ..waiting(n as u64, &tenant, weight, tokens) };
                    if queue.push(waiting).is_ok() {
                        model.insert(n as u64, (tenant, items));
                    }
                }
                Step::Pop => {
                    let head = queue.head().map(|waiting| waiting.waiter);
                    let out = queue.pop();
                    prop_assert_eq!(out.as_ref().map(|out| out.waiter), head);
                    prop_assert_eq!(out.is_none(), model.is_empty());
                    if let Some(out) = out {
                        let oldest = model.iter().find(|(_, (tenant, _))| tenant.as_str() == out.tenant.as_str());
                        prop_assert_eq!(oldest.map(|(waiter, _)| WaiterId(*waiter)), Some(out.waiter), "FIFO within a tenant");
                        model.remove(&out.waiter.0);
                    }
                }
                Step::Remove(waiter) => {
                    prop_assert_eq!(queue.remove(WaiterId(waiter)).is_some(), model.remove(&waiter).is_some());
                }
                Step::Expire(waiter) => {
                    for out in queue.expire(waiting(waiter, "", 1, 0).expires) {
                        prop_assert!(out.waiter.0 <= waiter && model.remove(&out.waiter.0).is_some());
                    }
                    prop_assert!(model.keys().all(|left| *left > waiter));
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.items(), model.values().map(|(_, items)| items).sum::<usize>());
        }
    }
}

#[test]
fn a_queue_that_nobody_waits_in_does_not_remember_everybody() {
    let mut queue = FairQueue::<()>::new(usize::MAX);
    for tenant in 0..20_000 {
        queue.charge(&TenantId::from(format!("t{tenant}")), 1, 100_000);
        assert!(queue.flows.len() <= DEBTS && queue.round.len() <= DEBTS + 1);
    }
    assert!(queue.flows.contains_key(&TenantId::from("t19999")), "the newest debts are kept");
}
