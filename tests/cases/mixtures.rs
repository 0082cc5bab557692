//! Batches of which some texts are known, some come twice, and some calls fail on the way.

use std::collections::{BTreeMap, BTreeSet};

use loadtest::provider::{Effect, Provider, Script, When};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::{PRICED, before};
use crate::support::gateway::{Answer, KEY};
use crate::support::{Gateway, assert_signatures, embedding_config};

async fn batch(gateway: &Gateway, texts: &[String]) -> Answer {
    let body = json!({ "model": "emb-a", "input": texts }).to_string();
    gateway.post("/v1/embeddings", KEY, &[("x-traffic-class", "batch-ingestion")], body).await
}

#[track_caller]
fn assert_vectors(answer: &Answer, texts: &[String]) {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_signatures(&answer.expect(200), "A", &texts);
}

/// The texts of every call that was answered with vectors, in the order of the calls.
fn embedded(provider: &Provider) -> Vec<String> {
    let answered = provider.calls().into_iter().filter(|call| call.status == 200);
    let inputs = answered.flat_map(|call| match call.json()["input"].take() {
        Value::Array(list) => list,
        one => vec![one],
    });
    inputs.map(|input| input.as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn seventeen_of_twenty_are_known() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let texts: Vec<String> = (0..20).map(|at| format!("text {at}")).collect();
    let fresh = [3, 8, 19];
    let known: Vec<String> = (0..20).filter(|at| !fresh.contains(at)).map(|at| texts[at].clone()).collect();
    assert_vectors(&batch(&gateway, &known).await, &known);
    provider.clear();
    let answer = batch(&gateway, &texts).await;
    assert_vectors(&answer, &texts);
    assert_eq!((answer.header("x-cache"), answer.header("x-cache-hits")), ("PARTIAL", "17/20"));
    assert_eq!(embedded(&provider), fresh.map(|at| texts[at].clone()), "three, in the client's order, in one call");
    assert_eq!(provider.call_count(), 1);
    let again = batch(&gateway, &texts).await;
    assert_eq!((again.header("x-cache"), again.header("x-cache-hits")), ("HIT", "20/20"));
    assert_eq!((again.header("x-gateway-upstream"), again.header("x-gateway-cost-eur")), ("", "0"));
    assert_vectors(&again, &texts);
}

/// What is mixed in one batch.
#[derive(Debug, Clone)]
struct Mixture {
    /// For each input, which text it is; equal numbers are duplicates.
    inputs: Vec<u8>,
    /// Texts that were asked for before.
    known: BTreeSet<u8>,
    /// How the first calls end.
    failures: Vec<u16>,
    /// The text that the provider refuses, and with it the batch.
    poison: Option<u8>,
}

fn mixtures() -> impl Strategy<Value = Mixture> {
    (
        prop::collection::vec(0..30_u8, 1..45),
        prop::collection::btree_set(0..30_u8, 0..30),
        prop::collection::vec(prop::sample::select(vec![500, 502, 503]), 0..=2),
        prop::option::weighted(0.2, 0..30_u8),
    )
        .prop_map(|(inputs, known, failures, poison)| {
            // A refused text cannot be known, and a known one is not asked for again.
            let poison = poison.filter(|text| !known.contains(text) && inputs.contains(text));
            Mixture { inputs, known, failures, poison }
        })
}

struct World {
    provider: Provider,
    gateway: Gateway,
    turn: usize,
}

impl World {
    fn text(&self, number: u8) -> String {
        format!("text {number} of turn {}.", self.turn)
    }

    async fn run(&mut self, mixture: &Mixture) {
        self.turn += 1;
        self.provider.set_script(Script::new());
        let known: Vec<String> = mixture.known.iter().map(|number| self.text(*number)).collect();
        if !known.is_empty() {
            assert_vectors(&batch(&self.gateway, &known).await, &known);
        }
        let mut script = Script::new();
        if let Some(poison) = mixture.poison {
            let refusal = Effect::answer(400, "{\"error\":{\"message\":\"this text is not allowed\",\"code\":\"no\"}}");
            script = script.rule(When::body(&self.text(poison)), refusal);
        }
        script = script.sequence(mixture.failures.iter().map(|status| Effect::status(*status)));
        self.provider.set_script(script);
        self.provider.clear();

        let texts: Vec<String> = mixture.inputs.iter().map(|number| self.text(*number)).collect();
        let answer = batch(&self.gateway, &texts).await;
        let hits = mixture.inputs.iter().filter(|number| mixture.known.contains(number)).count();
        let cache = match hits {
            0 => "MISS",
            _ if hits == texts.len() => "HIT",
            _ => "PARTIAL",
        };
        assert_eq!(answer.header("x-cache-hits"), format!("{hits}/{}", texts.len()));
        assert_eq!(answer.header("x-cache"), cache);

        let mut missing: Vec<String> = Vec::new();
        for number in &mixture.inputs {
            let text = self.text(*number);
            if !mixture.known.contains(number) && !missing.contains(&text) {
                missing.push(text);
            }
        }
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for text in embedded(&self.provider) {
            *calls.entry(text).or_default() += 1;
        }
        assert!(calls.values().all(|count| *count == 1), "paid for twice: {calls:?}");
        if mixture.poison.is_some() {
            assert_eq!((answer.status, answer.error_code().as_str()), (400, "no"), "{}", answer.text);
            assert!(calls.keys().all(|text| missing.contains(text)), "{calls:?}");
        } else {
            assert_vectors(&answer, &texts);
            assert_eq!(calls.keys().collect::<BTreeSet<_>>(), missing.iter().collect::<BTreeSet<_>>());
        }
        assert_eq!(self.gateway.tenant("t1").await["held"], "0");

        // The same again: what was embedded is known now, whatever became of its batch.
        self.provider.set_script(Script::new());
        let paid: Vec<String> = calls.into_keys().collect();
        self.provider.clear();
        let again = batch(&self.gateway, &texts).await;
        assert_vectors(&again, &texts);
        let mut expected: Vec<String> = missing.into_iter().filter(|text| !paid.contains(text)).collect();
        let mut sent = embedded(&self.provider);
        expected.sort();
        sent.sort();
        assert_eq!(sent, expected, "only what was not paid for yet");
    }
}

#[test]
fn any_mixture_of_hits_duplicates_and_failures_is_answered_in_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let provider = Provider::start(Script::new());
    let extra = "[breaker]\nfailure_ratio = 1.0\nmin_requests = 1000000\n[retry]\nbudget_ratio = 1.0\nbase_ms = 1\n\
                 cap_ms = 5\n[quota]\nbatch_size = 7\n";
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"100\"", extra));
    let mut world = World { provider, gateway, turn: 0 };
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let world = std::cell::RefCell::new(&mut world);
    let ran = runner.run(&mixtures(), |mixture| {
        runtime.block_on(world.borrow_mut().run(&mixture));
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}
