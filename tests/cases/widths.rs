//! Shorter vectors than the model's own.

use loadtest::provider::script::Honour;
use loadtest::provider::{Effect, Provider, Script, When, shorten, signature};
use serde_json::{Value, json};

use super::faces::Face;
use super::{base64_floats, float_numbers};
use crate::support::{Gateway, embedding_config};

const MATRYOSHKA: &str = "dimensions = 8\nmatryoshka = [4]";

/// A gateway whose `emb-a` may be shortened to 4 and whose `emb-b`, of another space, may not.
fn gateway(provider: &Provider) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], MATRYOSHKA, "", "");
    Gateway::start(&format!(
        "{config}[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 8\n[[upstreams]]\nid = \"two\"\n\
         provider = \"openai\"\nbase_url = \"{url}\"\nserves = [{{ model = \"emb-b\" }}]\n"
    ))
}

fn asking(model: &str, text: &str, width: Option<u32>, format: &str) -> Value {
    let mut body = json!({ "model": model, "input": text, "encoding_format": format });
    if let Some(width) = width {
        body["dimensions"] = json!(width);
    }
    body
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    let far = got.iter().zip(expected).any(|(a, b)| (f64::from(*a) - f64::from(*b)).abs() > 1e-6);
    assert!(!far, "{got:?} is not {expected:?}");
}

#[tokio::test]
async fn rg_stbw_a_shortened_vector_has_unit_length() {
    let rounds = [Honour::Ignore, Honour::Honour].into_iter().flat_map(|honour| Face::ALL.map(|face| (honour, face)));
    for (honour, face) in rounds {
        let provider = Provider::start(Script { dimensions: honour, ..Script::new().space_of("emb-b", "B") }.rule(
            When::body("zeros"),
            Effect::answer(
                200,
                "{\"data\":[{\"index\":0,\"embedding\":[0,0,0,0,0.6,0.8,0,0]}],\"usage\":{\"total_tokens\":1}}",
            ),
        ));
        let gateway = gateway(&provider);
        let whole = signature("A", "alpha", 8);
        let short = shorten(&whole, 4);

        let four = face.embed_with(&gateway, asking("emb-a", "alpha", Some(4), "float")).await;
        let got = float_numbers(&four);
        assert_close(&got, &short);
        let norm = got.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
        assert!((norm - 1.0).abs() < 1e-6, "{norm}");
        if Face::BASE64.contains(&face) {
            let base64 = face.embed_with(&gateway, asking("emb-a", "alpha", Some(4), "base64")).await;
            assert_eq!(base64_floats(&base64), got, "both encodings agree");
        }
        assert_eq!(provider.call_count(), 1);

        // 8 after 4 is never made from the 4.
        let eight = face.embed_with(&gateway, asking("emb-a", "alpha", Some(8), "float")).await;
        assert_eq!(float_numbers(&eight), whole, "untouched");
        assert_eq!(provider.call_count(), 2);
        // 4 after 8.
        let other = face.embed_with(&gateway, asking("emb-a", "beta", Some(8), "float")).await;
        assert_eq!(float_numbers(&other), signature("A", "beta", 8));
        let other = face.embed_with(&gateway, asking("emb-a", "beta", Some(4), "float")).await;
        assert_close(&float_numbers(&other), &shorten(&signature("A", "beta", 8), 4));

        let calls = provider.call_count();
        let refused = [("emb-a", 9), ("emb-a", 3), ("emb-a", 0), ("emb-b", 4), ("emb-b", 9)];
        for (model, width) in refused {
            let answer = face.embed_with(&gateway, asking(model, "alpha", Some(width), "float")).await;
            assert_eq!(
                (answer.status, answer.error_code().as_str()),
                (400, "unsupported_dimensions"),
                "{face:?} {model} {width}"
            );
            if face == Face::OpenAi {
                assert_eq!(answer.json()["error"]["param"], "dimensions");
            }
        }
        assert_eq!(provider.call_count(), calls);
        let native = face.embed_with(&gateway, asking("emb-b", "alpha", Some(8), "float")).await;
        assert_eq!(float_numbers(&native), signature("B", "alpha", 8));

        if honour == Honour::Ignore {
            let zeros = face.embed_with(&gateway, asking("emb-a", "zeros", Some(4), "float")).await;
            assert_eq!(float_numbers(&zeros), [0.0; 4], "nothing is divided by zero");
        }
    }
}

#[tokio::test]
async fn rg_2cx9_width_and_encoding_in_every_order() {
    let provider = Provider::start(Script { dimensions: Honour::Ignore, ..Script::new() });
    let gateway = gateway(&provider);
    let kinds: Vec<(Option<u32>, &str)> =
        [None, Some(4), Some(8)].into_iter().flat_map(|width| [(width, "float"), (width, "base64")]).collect();
    // Every rotation of both directions: each kind comes first, last, and after each other one.
    for turn in 0..kinds.len() * 2 {
        let text = format!("text {turn}");
        let mut order = kinds.clone();
        if turn >= kinds.len() {
            order.reverse();
        }
        order.rotate_left(turn % kinds.len());
        let before = provider.call_count();
        for (nth, (width, format)) in order.into_iter().enumerate() {
            // Whichever route asks, it is the same entry.
            let face = Face::BASE64[(turn + nth) % Face::BASE64.len()];
            let answer = face.embed_with(&gateway, asking("emb-a", &text, width, format)).await;
            let got = if format == "float" { float_numbers(&answer) } else { base64_floats(&answer) };
            let whole = signature("A", &text, 8);
            match width {
                Some(4) => assert_close(&got, &shorten(&whole, 4)),
                _ => assert_eq!(got, whole, "{width:?} {format}"),
            }
        }
        assert_eq!(provider.call_count() - before, 2, "default and native width are one entry");
    }
}
