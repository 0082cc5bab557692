//! The script's arithmetic and rules against the same in Rust's own 128-bit integers, through a real server.

use std::cell::RefCell;
use std::collections::BTreeMap;

use deadpool_redis::redis::{Client, Connection, Script};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

const AMOUNTS: &str = include_str!("../../src/store/redis/amounts.lua");
const ACCOUNT: &str = include_str!("../../src/store/redis/account.lua");

fn connect(redis: &RedisServer) -> Connection {
    Client::open(redis.url()).and_then(|client| client.get_connection()).expect("the server answers")
}

/// Any size from nothing to the largest, with the limbs' own borders often.
fn any_amount() -> impl Strategy<Value = i128> {
    let limb = 10_i128.pow(13);
    prop_oneof![
        0..1_000_i128,
        0..=i128::MAX,
        (0..4_i128, -2..3_i128).prop_map(move |(n, near)| (n * limb + near).max(0)),
        (0..4_i128, -2..3_i128).prop_map(move |(n, near)| (n * limb * limb + near).max(0)),
        (0_u32..38).prop_map(|digits| 10_i128.pow(digits)),
    ]
}

#[test]
fn amounts_add_subtract_and_compare_as_integers_do() {
    let redis = RedisServer::start();
    let connection = RefCell::new(connect(&redis));
    let script = Script::new(&format!(
        "{AMOUNTS}\nlocal a, b = parse(ARGV[1]), parse(ARGV[2])\n\
         return {{ text(a), text(plus(a, b)), text(minus(a, b)), tostring(compare(a, b)), text(least(a, b)) }}"
    ));
    let mut runner = TestRunner::new(ProptestConfig { cases: 2_000, ..ProptestConfig::default() });
    let outcome = runner.run(&(any_amount(), any_amount()), |(a, b)| {
        let arguments = [a.to_string(), b.to_string()];
        let got: Vec<String> = script.arg(&arguments).invoke(&mut *connection.borrow_mut()).expect("runs");
        let sum = a.unsigned_abs() + b.unsigned_abs();
        let order = match a.cmp(&b) {
            std::cmp::Ordering::Less => "-1",
            std::cmp::Ordering::Equal => "0",
            std::cmp::Ordering::Greater => "1",
        };
        let expected =
            [a.to_string(), sum.to_string(), (a - b).max(0).to_string(), order.to_owned(), a.min(b).to_string()];
        prop_assert_eq!(got, expected);
        Ok(())
    });
    outcome.expect("the same as in integers");
}

#[derive(Debug, Clone)]
enum Step {
    Place { id: u8, most: i128, lower: i128 },
    Settle { id: u8, charge: i128 },
    Release { id: u8 },
    Credit { key: u8, amount: i128 },
    Period { start: i64 },
    Meter { charge: i128 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let small = || prop_oneof![0..40_i128, (0..4_i128).prop_map(|n| n * 10_i128.pow(13))];
    prop_oneof![
        4 => (0..12_u8, small(), small()).prop_map(|(id, most, lower)| Step::Place { id, most, lower }),
        4 => (0..12_u8, small()).prop_map(|(id, charge)| Step::Settle { id, charge }),
        1 => (0..12_u8).prop_map(|id| Step::Release { id }),
        1 => (0..3_u8, 1..50_i128).prop_map(|(key, amount)| Step::Credit { key, amount }),
        1 => (0..4_i64).prop_map(|start| Step::Period { start }),
        1 => (0..10_i128).prop_map(|charge| Step::Meter { charge }),
    ]
}

/// The same account in plain integers.
#[derive(Debug, Default)]
struct Model {
    budget: i128,
    period: i64,
    spent: i128,
    credits: i128,
    keys: BTreeMap<u8, i128>,
    holds: BTreeMap<u8, (i128, i128)>,
    charged: i128,
}

impl Model {
    fn held(&self) -> i128 {
        self.holds.values().map(|(amount, _)| amount).sum()
    }

    fn available(&self) -> i128 {
        (self.budget + self.credits - self.spent - self.held()).max(0)
    }

    fn roll(&mut self, start: i64) {
        if start > self.period {
            self.credits = (self.credits - (self.spent - self.budget).max(0)).max(0);
            (self.spent, self.period) = (0, start);
        }
    }

    fn place(&mut self, id: u8, most: i128, lower: i128) -> String {
        if let Some((amount, _)) = self.holds.get(&id) {
            return format!("held {amount}");
        }
        let amount = if self.available() >= most {
            most
        } else if self.held() > 0 {
            let committed: i128 = self.holds.values().map(|(_, lower)| lower).sum();
            let best = (self.budget + self.credits - self.spent - committed).max(0);
            let needed = if most.min(lower) == 0 { 1 } else { most.min(lower) };
            return if best < needed { "refused".to_owned() } else { "wait".to_owned() };
        } else {
            // The likely cost is the most here, so nothing smaller will do.
            return "refused".to_owned();
        };
        self.holds.insert(id, (amount, lower.min(amount)));
        format!("held {amount}")
    }

    fn settle(&mut self, id: u8, charge: i128) -> String {
        let Some((held, _)) = self.holds.remove(&id) else { return "unknown".to_owned() };
        let within = charge.min(held);
        self.spent += within;
        let covered = (charge - within).min(self.available());
        self.spent += covered;
        self.charged += within + covered;
        format!("settled {} {}", within + covered, charge - within - covered)
    }
}

#[test]
fn the_script_follows_the_rules_step_by_step() {
    let redis = RedisServer::start();
    let mut connection = connect(&redis);
    let script = Script::new(&format!("{AMOUNTS}\n{ACCOUNT}"));
    let mut run = 0_u64;
    let steps = prop::collection::vec(any_step(), 1..40);
    let mut runner = TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let cell = RefCell::new((&mut connection, &mut run));
    let outcome = runner.run(&(0..200_i128, steps), |(budget, steps)| {
        let (connection, run) = &mut *cell.borrow_mut();
        **run += 1;
        let parts = ["book", "holds", "due", "lapsed", "credits", "parts", "records", "numbers", "late"];
        let keys: Vec<String> = parts.iter().map(|part| format!("{{{run}}}:{part}")).collect();
        let mut model = Model { budget, ..Model::default() };
        let mut number = 0;
        let mut call = |verb: &str, period: i64, arguments: &[String]| -> Vec<String> {
            let mut call = script.prepare_invoke();
            call.key(&keys).arg(verb).arg(budget.to_string()).arg(period).arg(0).arg(arguments);
            call.invoke(connection).expect("the script runs")
        };
        let empty = call("look", 0, &[]);
        prop_assert_eq!(empty, ["empty"]);
        call("open", 0, &["e", "0", "0", "0", "0", "0"].map(str::to_owned));
        for step in steps {
            let text = |value: i128| value.to_string();
            let (got, expected) = match step {
                Step::Place { id, most, lower } => {
                    let own =
                        [id.to_string(), text(most), text(most), text(lower), "60000".into(), "r".into(), "q".into()];
                    (call("place", model.period, &own), model.place(id, most, lower))
                }
                Step::Settle { id, charge } => {
                    let own = [id.to_string(), text(charge), "r".into(), "0".into(), "0".into(), "{}".into()];
                    (call("settle", model.period, &own), model.settle(id, charge))
                }
                Step::Release { id } => {
                    let own = [id.to_string(), "-".into(), "r".into(), "0".into(), "0".into(), String::new()];
                    let expected = if model.holds.remove(&id).is_some() { "settled 0 0" } else { "unknown" };
                    (call("settle", model.period, &own), expected.to_owned())
                }
                Step::Credit { key, amount } => {
                    let got = call("credit", model.period, &[key.to_string(), text(amount)]);
                    let expected = match model.keys.get(&key) {
                        Some(before) if *before == amount => "repeated",
                        Some(_) => "conflict",
                        None => {
                            model.keys.insert(key, amount);
                            model.credits += amount;
                            "applied"
                        }
                    };
                    (got, expected.to_owned())
                }
                Step::Period { start } => {
                    model.roll(start);
                    (call("look", start, &[]), "ok".to_owned())
                }
                Step::Meter { charge } => {
                    number += 1;
                    model.spent += charge;
                    model.charged += charge;
                    let own = ["r".into(), "1".into(), number.to_string(), text(charge), "{}".into()];
                    call("meter", model.period, &own);
                    // A second time changes nothing.
                    (call("meter", model.period, &own), "ok".to_owned())
                }
            };
            let own: Vec<&str> = got.iter().skip(10).map(String::as_str).collect();
            let said = match got[0].as_str() {
                "held" => format!("held {}", own[0]),
                "settled" => format!("settled {} {}", own[0], own[1]),
                other => other.to_owned(),
            };
            prop_assert_eq!(said, expected);
            let state = [text(model.available()), model.period.to_string(), text(model.spent), text(model.held())];
            prop_assert_eq!([&got[2], &got[4], &got[5], &got[6]], [&state[0], &state[1], &state[2], &state[3]]);
            let state = [text(model.credits), model.holds.len().to_string()];
            prop_assert_eq!([&got[7], &got[9]], [&state[0], &state[1]]);
        }
        Ok(())
    });
    outcome.expect("the same as in integers");
}
