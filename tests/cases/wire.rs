//! Numbers, encodings and members on their way through.

use loadtest::provider::script::EncodingRule;
use loadtest::provider::{Dialect, Effect, Labels, Provider, Script, When, signature};
use serde_json::json;

use super::faces::Face;
use super::{ONE_TRY, PRICED, all_compared, asking, base64_floats, before, float_numbers};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures, embedding_config};

/// An answer with this text as its only vector.
fn answer_with(vector: &str) -> String {
    format!(
        "{{\"object\":\"list\",\"data\":[{{\"object\":\"embedding\",\"index\":0,\"embedding\":{vector}}}],\
         \"model\":\"emb-a\",\"usage\":{{\"prompt_tokens\":1,\"total_tokens\":1}}}}"
    )
}

/// The bit patterns of the first vector of a body, read by the standard library and nothing else.
#[track_caller]
fn bits(body: &str) -> Vec<u64> {
    let start = body.find("\"embedding\":[").unwrap_or_else(|| panic!("no vector: {body}")) + "\"embedding\":[".len();
    let list = body[start..].split(']').next().expect("a list");
    list.split(',').map(|number| number.trim().parse::<f64>().expect("a number").to_bits()).collect()
}

#[tokio::test]
async fn rg_8c4t_numbers_of_a_vector_are_not_altered() {
    const NUMBERS: &str = "[-0.012345678901234567, 1e-45, -0.0, 0.1, 3.4028235e38, 1, 0.30000001192092896, 5e-324]";
    let provider = Provider::start(Script::new().always(Effect::answer(200, &answer_with(NUMBERS))));
    let gateway = before(&provider, "");
    for (turn, face) in Face::ALL.into_iter().enumerate() {
        let text = format!("{face:?}");
        let miss = face.embed_with(&gateway, asking(json!(text), "float")).await;
        assert_eq!((miss.status, miss.header("x-cache")), (200, "MISS"));
        assert_eq!(bits(&miss.text), bits(&answer_with(NUMBERS)), "{}", miss.text);
        let hit = face.embed_with(&gateway, asking(json!(text), "float")).await;
        assert_eq!((hit.status, hit.header("x-cache")), (200, "HIT"));
        assert_eq!(hit.text, miss.text);
        // The same vector in base64 is the nearest 32-bit floats, sign of zero included.
        let expected: Vec<u32> =
            bits(&answer_with(NUMBERS)).iter().map(|bits| (f64::from_bits(*bits) as f32).to_bits()).collect();
        for reader in Face::BASE64 {
            let got = base64_floats(&reader.embed_with(&gateway, asking(json!(text), "base64")).await);
            let got: Vec<u32> = got.iter().map(|value| value.to_bits()).collect();
            assert_eq!(got, expected, "{reader:?} after {face:?}");
        }
        assert_eq!(provider.call_count(), turn as u64 + 1, "one entry, whichever route reads it");
    }
}

#[tokio::test]
async fn rg_pm6n_base64_as_the_sdk_asks_for_it() {
    // Providers that obey, that answer base64 whatever was asked, and that answer numbers whatever was asked.
    for encoding in [EncodingRule::AsAsked, EncodingRule::Base64, EncodingRule::Float] {
        let provider = Provider::start(Script { encoding, ..Script::new() });
        let gateway = before(&provider, "");
        for (turn, face) in Face::BASE64.into_iter().enumerate() {
            let note = format!("{encoding:?} {face:?}");
            let (alpha, beta) = (format!("alpha of {face:?}"), format!("beta of {face:?}"));
            let expected = signature("A", &alpha, 8);
            let miss = face.embed_with(&gateway, asking(json!(alpha), "base64")).await;
            assert_eq!(base64_floats(&miss), expected, "{note}");
            let float = face.embed_with(&gateway, asking(json!(alpha), "float")).await;
            assert_eq!(float_numbers(&float), expected, "{note}");
            assert_eq!(float.header("x-cache"), "HIT");
            for (format, first) in [("base64", &miss), ("float", &float)] {
                let again = face.embed_with(&gateway, asking(json!(alpha), format)).await;
                assert_eq!((again.header("x-cache"), &again.text), ("HIT", &first.text), "{note} {format}");
            }
            // Numbers first, base64 second.
            let float = face.embed_with(&gateway, asking(json!(beta), "float")).await;
            assert_eq!(float_numbers(&float), signature("A", &beta, 8), "{note}");
            let base64 = face.embed_with(&gateway, asking(json!(beta), "base64")).await;
            assert_eq!(base64_floats(&base64), signature("A", &beta, 8), "{note}");
            assert_eq!(provider.call_count(), 2 * (turn as u64 + 1), "{note}");
        }
    }
}

#[tokio::test]
async fn rg_7mj9_base64_of_a_provider_that_speaks_only_numbers() {
    for (name, dialect) in [("ollama", Dialect::Ollama), ("tei", Dialect::Tei)] {
        let provider = Provider::start(Script::new().dialect(dialect));
        let config = embedding_config(&[("one", name, &provider.base_url())], PRICED, "", "");
        let gateway = Gateway::start(&config);
        let hex = gateway.embed_with(asking(json!("alpha"), "hex")).await;
        assert_eq!((hex.status, hex.error_code().as_str()), (400, "unknown_parameter_value"));
        assert_eq!(hex.json()["error"]["param"], "encoding_format");
        assert!(hex.text.contains("encoding_format"), "{}", hex.text);
        assert_eq!(provider.call_count(), 0);
        for face in Face::BASE64 {
            let text = format!("{face:?}");
            let hex = face.embed_with(&gateway, asking(json!(text), "hex")).await;
            assert_eq!((hex.status, hex.error_code().as_str()), (400, "unknown_parameter_value"), "{face:?}");
            let calls = provider.call_count();
            let miss = face.embed_with(&gateway, asking(json!(text), "base64")).await;
            assert_eq!(base64_floats(&miss), signature("A", &text, 8), "{name} {face:?}");
            let hit = face.embed_with(&gateway, asking(json!(text), "base64")).await;
            assert_eq!((hit.header("x-cache"), &hit.text), ("HIT", &miss.text), "{name} {face:?}");
            assert_eq!(provider.call_count(), calls + 1);
        }
    }
}

#[tokio::test]
async fn rg_n5q3_unknown_members_order_and_digits_survive() {
    let body = |tail: &str| {
        format!(
            "{{ \"seed\":9007199254740993, \"model\":\"emb-a\",\"x_trace\":{{\"b\":1,\"a\":[18446744073709551615{tail}]}},\
             \n\"schema\":{{\"z\":{{\"type\":\"string\"}},\"a\":{{\"type\":\"number\"}}}},\"ratio\":1.10,\"input\":\"alpha\"}}"
        )
    };
    let no_cache = [("cache-control", "no-cache")];
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let sent = body("");
    for _ in 0..2 {
        let answer = gateway.post("/v1/embeddings", KEY, &no_cache, sent.clone()).await;
        assert_signatures(&answer.expect(200), "A", &["alpha"]);
    }
    let calls = provider.calls();
    assert_eq!(calls.len(), 2);
    for call in &calls {
        assert_eq!(std::str::from_utf8(&call.body), Ok(sent.as_str()));
    }
    // A number that no 64-bit float holds goes on with its own digits: nothing here has to hold it.
    let odd = body(",1e400");
    let answer = gateway.post("/v1/embeddings", KEY, &no_cache, odd.clone()).await;
    assert_eq!(answer.status, 400, "the scripted provider cannot hold it and says so: {}", answer.text);
    assert_eq!(std::str::from_utf8(&provider.calls()[2].body), Ok(odd.as_str()), "never altered");

    // Another name there: only that word changes.
    let config = format!(
        "{}[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 8\n[[upstreams]]\nid = \"two\"\n\
         provider = \"openai\"\nbase_url = \"{}/v1\"\nserves = [{{ model = \"emb-b\", as = \"other-name\" }}]\n",
        embedding_config(&[("one", "openai", &format!("{}/v1", provider.base_url()))], PRICED, "", ""),
        provider.base_url()
    );
    let gateway = Gateway::start(&config);
    provider.clear();
    let sent = sent.replace("emb-a", "emb-b");
    let answer = gateway.post("/v1/embeddings", KEY, &no_cache, sent.clone()).await;
    assert_eq!(answer.expect(200)["model"], "emb-b", "the client reads the name it asked for");
    let expected = sent.replace("emb-b", "other-name");
    assert_eq!(std::str::from_utf8(&provider.calls()[0].body), Ok(expected.as_str()));
}

#[tokio::test]
async fn rg_n5q3_unknown_members_of_other_dialects_reach_their_own_provider_only() {
    let odd = json!({ "b": 1, "a": [9007199254740993_u64] });
    for (face, name) in [(Face::Cohere, "cohere"), (Face::Voyage, "voyage")] {
        let provider = Provider::start(Script::new());
        let mut body = json!({ "model": "emb-a", "input": ["alpha"], "x_trace": odd });
        if face == Face::Cohere {
            body["input_type"] = json!("search_query");
        }
        let url = crate::dialects::base_url(&provider, name);
        let own = Gateway::start(&embedding_config(&[("one", name, &url)], PRICED, "", ""));
        let answer = face.embed_with(&own, body.clone()).await;
        assert_eq!(answer.status, 200, "{face:?}: {}", answer.text);
        let sent = String::from_utf8(provider.calls()[0].body.to_vec()).expect("text");
        assert!(sent.contains(&format!("\"x_trace\":{odd}")), "digits and order: {sent}");
        // To any other provider it cannot be translated, and may mean anything.
        let foreign = before(&provider, "");
        body.as_object_mut().expect("an object").remove("input_type");
        let refused = face.embed_with(&foreign, body).await;
        assert_eq!(refused.status, 400, "{face:?}: {}", refused.text);
        assert!(refused.text.contains("x_trace"), "{}", refused.text);
        assert_eq!(provider.call_count(), 1);
    }
}

#[tokio::test]
async fn rg_d6m5_items_out_of_order() {
    let texts = ["zero", "one", "two"];
    let valid = |labels: &Labels| !matches!(labels, Labels::Given(given) if given.as_slice() != [2, 0, 1]);
    let rounds = [
        Labels::Given(vec![2, 0, 1]),
        Labels::Given(vec![0, 0, 1]),
        Labels::Given(vec![1, 2, 3]),
        Labels::Given(vec![0, 1, -1]),
        Labels::Omitted,
        Labels::Reversed,
    ];
    for (labels, face) in rounds.into_iter().flat_map(|labels| Face::ALL.map(|face| (labels.clone(), face))) {
        let provider = Provider::start(Script::new().next(1, Effect::labels(labels.clone())));
        let gateway = before(&provider, ONE_TRY);
        let answer = face.embed(&gateway, json!(texts)).await;
        if valid(&labels) {
            assert_signatures(&answer.expect(200), "A", &texts);
        } else {
            assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_bad_response"), "{labels:?}");
        }
        for text in texts {
            let alone = face.embed(&gateway, json!(text)).await;
            assert_signatures(&alone.expect(200), "A", &[text]);
            let expected = if valid(&labels) { "HIT" } else { "MISS" };
            assert_eq!(alone.header("x-cache"), expected, "{face:?} {labels:?} {text}");
        }
    }
}

#[tokio::test]
async fn rg_d6m5_a_faulty_answer_is_asked_for_elsewhere() {
    let faulty = Provider::start(Script::new().rule(When::body("zero"), Effect::labels(Labels::Given(vec![0, 0, 1]))));
    let sound = Provider::start(Script::new());
    let (one, two) = (format!("{}/v1", faulty.base_url()), format!("{}/v1", sound.base_url()));
    let config = embedding_config(&[("one", "openai", &one)], PRICED, "", "");
    let config = format!(
        "{config}[[upstreams]]\nid = \"two\"\nprovider = \"openai\"\nbase_url = \"{two}\"\ntier = 1\n\
         serves = [{{ model = \"emb-a\" }}]\n"
    );
    let gateway = Gateway::start(&config);
    all_compared(&gateway).await;
    let answer = gateway.embed(json!(["zero", "one", "two"])).await;
    assert_signatures(&answer.expect(200), "A", &["zero", "one", "two"]);
    assert_eq!((answer.header("x-gateway-upstream"), answer.header("x-gateway-attempts")), ("two", "2"));
}
