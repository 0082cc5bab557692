//! Answers to calls that run no model: health, information, lists of models.

use serde_json::json;

use super::{Op, Route};
use crate::provider::script::Script;
use crate::provider::wire::Answer;

/// Answers a look at the provider.
pub(in crate::provider) fn look(route: Route, script: &Script) -> Answer {
    let tei = &script.tei;
    let models = if script.models.is_empty() { std::slice::from_ref(&tei.model_id) } else { &script.models };
    let body = match route.op {
        Op::Health => return Answer::new(200, None, ""),
        Op::Info => {
            let kind = if tei.reranker {
                json!({"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}})
            } else {
                json!({"embedding": {"pooling": "cls"}})
            };
            json!({"model_id": tei.model_id, "model_sha": null, "model_dtype": "float32",
                "served_model_name": tei.model_id, "model_type": kind,
                "max_concurrent_requests": if script.max_concurrent_texts == 0 { 512 } else { script.max_concurrent_texts },
                "max_input_length": tei.max_input_length, "max_batch_tokens": 16384, "max_batch_requests": null,
                "max_client_batch_size": tei.max_client_batch_size, "auto_truncate": tei.auto_truncate,
                "tokenization_workers": 2, "version": tei.version, "sha": null, "docker_label": null})
        }
        Op::Version => json!({"version": "0.33.0"}),
        Op::Tags => {
            json!({"models": models.iter().map(|name| json!({"name": name, "model": name})).collect::<Vec<_>>()})
        }
        _ => json!({"object": "list", "data": models.iter().map(|name| {
            json!({"id": name, "object": "model", "created": 1_796_056_200, "owned_by": "scripted"})
        }).collect::<Vec<_>>()}),
    };
    Answer::json(200, body.to_string())
}
