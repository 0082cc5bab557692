//! RG-qstb: rerank's field names differ by provider, and each refuses the others'.

use loadtest::provider::{Provider, Script};
use serde_json::{Value, json};

use super::{expected, gateway, one_model, post, ranking};
use crate::support::gateway::KEY;

const DOCUMENTS: [&str; 4] = ["the first text", "another one", "a third, longer text", "and the last"];

/// Members that a rerank call to `provider` may have.
fn own_words(provider: &str) -> &'static [&'static str] {
    match provider {
        "cohere" => &["model", "query", "documents", "top_n", "max_tokens_per_doc", "priority"],
        "voyage" => &["model", "query", "documents", "top_k", "return_documents", "truncation"],
        "tei" => &["query", "texts", "truncate", "truncation_direction", "raw_scores", "return_text"],
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn rg_qstb_each_provider_sees_its_own_words_only() {
    for provider in ["cohere", "voyage", "tei"] {
        let server = Provider::start(Script { strict: true, ..Script::new().space("A") });
        let tables = one_model(&server, provider, "ranker", "kind = \"rerank\"\npairwise = true");
        let gateway = gateway(&tables, "");
        let all = expected("which?", &DOCUMENTS);
        for version in ["v1", "v2"] {
            for (top, wanted) in [(None, 4), (Some(2), 2), (Some(9), 4), (Some(1), 1)] {
                for echo in [None, Some(true), Some(false)] {
                    let mut body = json!({"model": "ranker", "query": "which?", "documents": DOCUMENTS});
                    if let Some(top) = top {
                        body["top_n"] = json!(top);
                    }
                    if let Some(echo) = echo {
                        body["return_documents"] = json!(echo);
                    }
                    let sent = server.call_count();
                    let path = format!("/{version}/rerank");
                    let answer = gateway.post(&path, KEY, &[("cache-control", "no-cache")], body.to_string()).await;
                    let told = answer.expect(200);
                    assert_eq!(ranking(&told), all[..wanted], "{provider} {body}");
                    assert_eq!(answer.header("x-traffic-class"), "rerank");
                    check_documents(&told, echo == Some(true));
                    assert_eq!(server.call_count(), sent + 1);
                }
            }
            let none = json!({"model": "ranker", "query": "which?", "documents": DOCUMENTS, "top_n": 0});
            let refused = post(&gateway, &format!("/{version}/rerank"), &none).await;
            let message = refused.expect(400)["message"].as_str().expect("a message").to_owned();
            assert!(message.contains("top_n"), "{message}");
        }
        for call in server.calls() {
            assert_eq!(call.status, 200, "{call:?}");
            let seen = call.json();
            for (name, value) in seen.as_object().expect("an object") {
                assert!(own_words(provider).contains(&name.as_str()), "{provider} has no word {name}");
                assert!(!value.is_null(), "{name} is null");
            }
        }
    }
}

/// A document is an object with a text where it is asked for; the key is absent where it is not.
#[track_caller]
fn check_documents(body: &Value, wanted: bool) {
    for result in body["results"].as_array().expect("results") {
        let index = result["index"].as_u64().expect("an index") as usize;
        match wanted {
            true => assert_eq!(result["document"], json!({"text": DOCUMENTS[index]})),
            false => assert!(result.get("document").is_none(), "{result}"),
        }
    }
}
