//! Good answers to rerank calls, in each provider's form.

use serde_json::{Map, Value, json};

use super::answer::{Shape, compute_headers};
use super::request::RerankJob;
use super::{Dialect, Route};
use crate::provider::rules::Defect;
use crate::provider::signature::rerank_score;
use crate::provider::usage::{self, Tokens};
use crate::provider::wire::Answer;

/// Answers a rerank call.
pub(in crate::provider) fn rerank(
    route: Route,
    body_has_texts: bool,
    job: &RerankJob,
    tokens: u64,
    shape: Shape<'_>,
) -> Answer {
    let mut ranked: Vec<(usize, f64)> = job
        .documents
        .iter()
        .enumerate()
        .map(|(place, document)| (place, rerank_score(shape.space, &job.query, document)))
        .collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    // vLLM takes 0 for all of them.
    let top = job.top.filter(|top| !(route.dialect == Dialect::Vllm && *top == 0));
    ranked.truncate(top.unwrap_or(usize::MAX));
    match shape.defect {
        Some(Defect::MissingItem) => drop(ranked.pop()),
        Some(Defect::NoItems) => ranked.clear(),
        Some(Defect::ExtraItem) => ranked.push((job.documents.len(), 0.0)),
        Some(Defect::ErrorObject) => return Answer::json(200, json!({"error": "the model is loading"}).to_string()),
        Some(Defect::NotJson) => return Answer::new(200, Some("text/html"), "<html><body>Welcome</body></html>"),
        _ => {}
    }
    if route.dialect == Dialect::Tei && body_has_texts {
        return tei(job, &ranked, tokens, shape);
    }
    let results: Vec<Value> = ranked.iter().map(|(place, score)| result(route.dialect, job, *place, *score)).collect();
    let mut body = Map::new();
    let mut add = |name: &str, value: Value| body.insert(name.to_owned(), value);
    match route.dialect {
        Dialect::CohereV1 | Dialect::CohereV2 => {
            let searches = (job.documents.len() as u64).div_ceil(100);
            let version = if route.dialect == Dialect::CohereV1 { "1" } else { "2" };
            add("id", json!("call-1"));
            add("results", json!(results));
            let mut meta = Map::new();
            meta.insert("api_version".to_owned(), json!({"version": version}));
            if let Some(billed) = usage::single(shape.usage, searches, "search_units") {
                meta.insert("billed_units".to_owned(), billed);
            }
            add("meta", Value::Object(meta));
        }
        Dialect::Voyage => {
            add("object", json!("list"));
            add("data", json!(results));
            add("model", json!(job.model));
            usage::single(shape.usage, tokens, "total_tokens").and_then(|usage| add("usage", usage));
        }
        Dialect::Jina => {
            add("model", json!(job.model));
            add("results", json!(results));
            usage::single(shape.usage, tokens, "total_tokens").and_then(|usage| add("usage", usage));
        }
        _ => {
            add("id", json!("rerank-1"));
            add("model", json!(job.model));
            add("results", json!(results));
            usage::openai(shape.usage, Tokens::input(tokens), false).and_then(|usage| add("usage", usage));
        }
    }
    Answer::json(200, Value::Object(body).to_string())
}

fn result(dialect: Dialect, job: &RerankJob, place: usize, score: f64) -> Value {
    let mut result = json!({"index": place, "relevance_score": score});
    if job.echo
        && let Some(result) = result.as_object_mut()
    {
        let text = job.documents.get(place).map_or("", String::as_str);
        let document = if dialect == Dialect::Voyage { json!(text) } else { json!({"text": text}) };
        result.insert("document".to_owned(), document);
    }
    result
}

fn tei(job: &RerankJob, ranked: &[(usize, f64)], tokens: u64, shape: Shape<'_>) -> Answer {
    let results: Vec<Value> = ranked
        .iter()
        .map(|(place, score)| {
            // Raw scores are what the sigmoid is taken of.
            let score = if job.raw_scores { (score / (1.0 - score)).max(1e-6).ln() } else { *score };
            let mut result = json!({"index": place, "score": score});
            if job.echo
                && let Some(result) = result.as_object_mut()
            {
                result.insert("text".to_owned(), json!(job.documents.get(*place)));
            }
            result
        })
        .collect();
    let mut answer = Answer::json(200, Value::Array(results).to_string());
    let characters = job.query.chars().count() * job.documents.len()
        + job.documents.iter().map(|document| document.chars().count()).sum::<usize>();
    compute_headers(&mut answer, characters, tokens, shape.usage);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::dialect::request::{Job, read};
    use crate::provider::dialect::route;
    use crate::provider::script::{Labels, Script};
    use crate::provider::usage::UsageShape;
    use crate::provider::wire::Body;

    fn ranked(target: &str, body: &str) -> Value {
        let route = route("POST", target, None);
        let Job::Rerank(job) = read(route, body.as_bytes(), &Script::default()).expect("a good call") else {
            panic!("a rerank call")
        };
        let shape = Shape { space: "A", noise: 0.0, usage: UsageShape::Exact, labels: &Labels::Sorted, defect: None };
        let answer = rerank(route, body.contains("texts"), &job, 9, shape);
        let Body::Whole(body) = answer.body else { panic!("a whole body") };
        serde_json::from_slice(&body).expect("JSON")
    }

    #[track_caller]
    fn check(target: &str, members: &str, list: &str, score: &str, count: usize, document: Option<Value>) {
        let documents = if target == "/rerank" { "texts" } else { "documents" };
        let value = ranked(target, &format!(r#"{{"query":"q","{documents}":["a","b","c"]{members}}}"#));
        let results = value.pointer(list).and_then(Value::as_array).expect("results");
        assert_eq!(results.len(), count, "{value}");
        let scores: Vec<f64> = results.iter().map(|result| result[score].as_f64().expect("a score")).collect();
        assert!(scores.is_sorted_by(|one, other| one >= other), "{value}");
        for result in results {
            let place = result["index"].as_u64().expect("an index") as usize;
            let text = ["a", "b", "c"][place];
            assert_eq!(result[score].as_f64(), Some(rerank_score("A", "q", text)));
            let echoed = result.get("document").or_else(|| result.get("text"));
            let expected =
                document.as_ref().map(|form| if form.is_object() { json!({"text": text}) } else { json!(text) });
            assert_eq!(echoed, expected.as_ref());
        }
    }

    #[test]
    fn every_dialect_ranks_in_its_own_form() {
        check("/v1/rerank", r#","top_n":2"#, "/results", "relevance_score", 2, None);
        check("/v1/rerank", r#","return_documents":true"#, "/results", "relevance_score", 3, Some(json!({})));
        check("/v2/rerank", r#","top_n":9"#, "/results", "relevance_score", 3, None);
        check("/voyage/v1/rerank", r#","top_k":1"#, "/data", "relevance_score", 1, None);
        check("/voyage/v1/rerank", r#","return_documents":true"#, "/data", "relevance_score", 3, Some(json!("")));
        check("/jina/v1/rerank", "", "/results", "relevance_score", 3, Some(json!({})));
        check("/jina/v1/rerank", r#","return_documents":false"#, "/results", "relevance_score", 3, None);
        check("/rerank", "", "", "score", 3, None);
        check("/rerank", r#","return_text":true"#, "", "score", 3, Some(json!("")));
        check("/vllm/rerank", r#","top_n":0"#, "/results", "relevance_score", 3, Some(json!({})));
    }
}
