//! Good answers to embedding calls, in each provider's form.

use serde_json::{Map, Value, json};

use super::request::EmbedJob;
use super::{Dialect, Op, Route, vectors};
use crate::provider::rules::Defect;
use crate::provider::script::{Digits, EncodingRule, Labels, Script};
use crate::provider::signature::{Item, disturb, shorten, signature_of};
use crate::provider::usage::{self, Tokens, UsageShape};
use crate::provider::wire::Answer;

/// How one answer differs from another beside the vectors in it.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Shape<'a> {
    pub space: &'a str,
    pub noise: f32,
    pub usage: UsageShape,
    pub labels: &'a Labels,
    pub defect: Option<&'a Defect>,
}

/// Answers an embedding call.
pub(in crate::provider) fn embed(
    route: Route,
    job: &EmbedJob,
    tokens: u64,
    script: &Script,
    shape: Shape<'_>,
) -> Answer {
    match shape.defect {
        Some(Defect::ErrorObject) => {
            return Answer::json(200, json!({"error": {"message": "the model is loading", "code": 503}}).to_string());
        }
        Some(Defect::NotJson) => return Answer::new(200, Some("text/html"), "<html><body>Welcome</body></html>"),
        _ => {}
    }
    let vectors = computed(route, job, script, shape);
    match (route.dialect, route.op) {
        (Dialect::CohereV1 | Dialect::CohereV2, _) => cohere(route, job, &vectors, tokens, script, shape),
        (Dialect::Tei, Op::Embed) => tei(&vectors, job, tokens, script, shape),
        (Dialect::Ollama, Op::Embed) => ollama(&vectors, job, tokens, script, shape),
        (Dialect::Ollama, Op::Prompt) => {
            let mut out = br#"{"embedding":"#.to_vec();
            vectors::list(vectors.first().map_or(&[], Vec::as_slice), script.digits, &mut out);
            out.push(b'}');
            Answer::json(200, out)
        }
        _ => openai(route, job, &vectors, tokens, script, shape),
    }
}

/// The vectors in the order of the request, spoiled as ordered.
fn computed(route: Route, job: &EmbedJob, script: &Script, shape: Shape<'_>) -> Vec<Vec<f32>> {
    let mut vectors: Vec<Vec<f32>> = job
        .items
        .iter()
        .map(|item| {
            let mut vector = signature_of(shape.space, &job.options, item, script.width);
            if let Some(width) = job.width.filter(|width| *width < script.width) {
                vector = shorten(&vector, width);
            }
            if shape.noise != 0.0 {
                vector = disturb(&vector, shape.noise);
            }
            if route.op == Op::Prompt {
                // Ollama's older route leaves vectors as the model made them.
                vector.iter_mut().for_each(|number| *number *= 3.0);
            }
            vector
        })
        .collect();
    match shape.defect {
        Some(Defect::MissingItem) => drop(vectors.pop()),
        Some(Defect::ExtraItem) => vectors.push(signature_of(shape.space, "", &Item::Tokens(vec![0]), script.width)),
        Some(Defect::NoItems) => vectors.clear(),
        Some(Defect::ShortVector) => drop(vectors.last_mut().and_then(Vec::pop)),
        Some(Defect::ZeroVector) => {
            if let Some(vector) = vectors.last_mut() {
                vector.fill(0.0);
            }
        }
        Some(Defect::NullNumber) => {
            if let Some(number) = vectors.last_mut().and_then(|vector| vector.first_mut()) {
                *number = f32::NAN;
            }
        }
        _ => {}
    }
    vectors
}

/// Which vector stands at each place of the answer, under which label.
fn places(count: usize, labels: &Labels) -> Vec<(usize, Option<i64>)> {
    let label = |place: usize| Some(i64::try_from(place).unwrap_or(i64::MAX));
    match labels {
        Labels::Sorted => (0..count).map(|place| (place, label(place))).collect(),
        Labels::Reversed => (0..count).rev().map(|place| (place, label(place))).collect(),
        Labels::Omitted => (0..count).map(|place| (place, None)).collect(),
        Labels::Given(given) => (0..count)
            .map(|place| match given.get(place) {
                Some(named) => {
                    let vector = usize::try_from(*named).ok().filter(|vector| *vector < count).unwrap_or(place);
                    (vector, Some(*named))
                }
                None => (place, label(place)),
            })
            .collect(),
    }
}

fn wants_base64(job: &EmbedJob, script: &Script) -> bool {
    match script.encoding {
        EncodingRule::Float => false,
        EncodingRule::Base64 => true,
        EncodingRule::AsAsked => job.types.first().is_some_and(|kind| kind == "base64"),
    }
}

fn write_vector(out: &mut Vec<u8>, vector: &[f32], base64: bool, digits: Digits) {
    if base64 {
        out.push(b'"');
        out.extend_from_slice(vectors::base64(vector).as_bytes());
        out.push(b'"');
    } else {
        vectors::list(vector, digits, out);
    }
}

fn openai(
    route: Route,
    job: &EmbedJob,
    vectors: &[Vec<f32>],
    tokens: u64,
    script: &Script,
    shape: Shape<'_>,
) -> Answer {
    let bare = shape.defect == Some(&Defect::BareObject);
    let base64 = wants_base64(job, script);
    let packed = job.types.first().filter(|kind| kind.ends_with("binary"));
    let mut out = Vec::with_capacity(vectors.len() * script.width * 14 + 256);
    out.push(b'{');
    if !bare {
        out.extend_from_slice(br#""object":"list","#);
    }
    if route.dialect == Dialect::Vllm {
        out.extend_from_slice(br#""id":"embd-1","created":1796056200,"#);
    }
    out.extend_from_slice(br#""data":["#);
    for (at, (vector, label)) in places(vectors.len(), shape.labels).into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.push(b'{');
        if !bare {
            out.extend_from_slice(br#""object":"embedding","#);
        }
        if let Some(label) = label {
            out.extend_from_slice(format!(r#""index":{label},"#).as_bytes());
        }
        out.extend_from_slice(br#""embedding":"#);
        let vector = vectors.get(vector).map_or(&[][..], Vec::as_slice);
        match packed {
            Some(kind) => out.extend_from_slice(vectors::packed(vector, kind).to_string().as_bytes()),
            None => write_vector(&mut out, vector, base64, script.digits),
        }
        out.push(b'}');
    }
    out.push(b']');
    if !bare {
        let model = job.model.as_deref().unwrap_or(&script.tei.model_id);
        out.extend_from_slice(format!(r#","model":{}"#, json!(model)).as_bytes());
    }
    let usage = match route.dialect {
        Dialect::Voyage | Dialect::Jina => usage::single(shape.usage, tokens, "total_tokens"),
        Dialect::Vllm | Dialect::Mistral => usage::openai(shape.usage, Tokens::input(tokens), true),
        _ => usage::openai(shape.usage, Tokens::input(tokens), false),
    };
    if let Some(usage) = usage {
        out.extend_from_slice(format!(r#","usage":{usage}"#).as_bytes());
    }
    out.push(b'}');
    Answer::json(200, out)
}

fn cohere(
    route: Route,
    job: &EmbedJob,
    vectors: &[Vec<f32>],
    tokens: u64,
    script: &Script,
    shape: Shape<'_>,
) -> Answer {
    let version = if route.dialect == Dialect::CohereV1 { "1" } else { "2" };
    let flat = route.dialect == Dialect::CohereV1 && !job.types_named;
    let texts: Vec<&str> = job
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Text(text) => Some(text.as_str()),
            Item::Tokens(_) => None,
        })
        .collect();
    let mut out = br#"{"id":"call-1","response_type":"#.to_vec();
    let kind = if flat { "embeddings_floats" } else { "embeddings_by_type" };
    out.extend_from_slice(format!(r#""{kind}","texts":{},"embeddings":"#, json!(texts)).as_bytes());
    if flat {
        rows(&mut out, vectors, |out, vector| vectors::list(vector, script.digits, out));
    } else {
        out.push(b'{');
        for (place, kind) in job.types.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            out.extend_from_slice(format!(r#""{kind}":"#).as_bytes());
            rows(&mut out, vectors, |out, vector| match kind.as_str() {
                "float" | "base64" => write_vector(out, vector, kind == "base64", script.digits),
                kind => out.extend_from_slice(vectors::packed(vector, kind).to_string().as_bytes()),
            });
        }
        out.push(b'}');
    }
    let mut meta = Map::new();
    meta.insert("api_version".to_owned(), json!({"version": version}));
    if let Some(billed) = usage::single(shape.usage, tokens, "input_tokens") {
        meta.insert("billed_units".to_owned(), billed);
    }
    out.extend_from_slice(format!(r#","meta":{}}}"#, Value::Object(meta)).as_bytes());
    Answer::json(200, out)
}

fn rows(out: &mut Vec<u8>, vectors: &[Vec<f32>], write: impl Fn(&mut Vec<u8>, &[f32])) {
    out.push(b'[');
    for (place, vector) in vectors.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write(out, vector);
    }
    out.push(b']');
}

fn tei(vectors: &[Vec<f32>], job: &EmbedJob, tokens: u64, script: &Script, shape: Shape<'_>) -> Answer {
    let mut out = Vec::with_capacity(vectors.len() * script.width * 14 + 16);
    rows(&mut out, vectors, |out, vector| vectors::list(vector, script.digits, out));
    let mut answer = Answer::json(200, out);
    let characters: usize = job
        .items
        .iter()
        .map(|item| match item {
            Item::Text(text) => text.chars().count(),
            Item::Tokens(tokens) => tokens.len(),
        })
        .sum();
    compute_headers(&mut answer, characters, tokens, shape.usage);
    answer
}

/// The headers that carry the only token count of TEI's own routes.
pub(super) fn compute_headers(answer: &mut Answer, characters: usize, tokens: u64, shape: UsageShape) {
    let mut add = |name: &str, value: String| answer.headers.push((name.to_owned(), value));
    add("x-compute-type", "gpu+optimized".to_owned());
    add("x-compute-characters", characters.to_string());
    add("x-compute-time", "1".to_owned());
    let told = match usage::single(shape, tokens, "n").and_then(|told| told.get("n").cloned()) {
        Some(Value::String(text)) => text,
        Some(number) => number.to_string(),
        None => return,
    };
    add("x-compute-tokens", told);
}

fn ollama(vectors: &[Vec<f32>], job: &EmbedJob, tokens: u64, script: &Script, shape: Shape<'_>) -> Answer {
    let mut out = format!(r#"{{"model":{},"embeddings":"#, json!(job.model)).into_bytes();
    rows(&mut out, vectors, |out, vector| vectors::list(vector, script.digits, out));
    out.extend_from_slice(br#","total_duration":14143917,"load_duration":1019500"#);
    // The member is left out when the count is zero.
    let counted = usage::single(shape.usage, tokens, "n").filter(|_| !vectors.is_empty());
    if let Some(counted) = counted.and_then(|told| told.get("n").cloned()) {
        out.extend_from_slice(format!(r#","prompt_eval_count":{counted}"#).as_bytes());
    }
    out.push(b'}');
    Answer::json(200, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::dialect::request::{Job, read};
    use crate::provider::dialect::route;
    use crate::provider::signature::signature;
    use crate::provider::wire::Body;

    fn answered(target: &str, body: &str, labels: &Labels, defect: Option<&Defect>) -> (Value, Answer) {
        let script = Script::default();
        let route = route("POST", target, None);
        let Job::Embed(job) = read(route, body.as_bytes(), &script).expect("a good call") else {
            panic!("an embedding call")
        };
        let shape = Shape { space: "A", noise: 0.0, usage: UsageShape::Exact, labels, defect };
        let answer = embed(route, &job, 7, &script, shape);
        let Body::Whole(body) = &answer.body else { panic!("a whole body") };
        (serde_json::from_slice(body).expect("JSON"), answer)
    }

    fn floats(value: &Value) -> Vec<f32> {
        value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number") as f32).collect()
    }

    #[track_caller]
    fn check(target: &str, body: &str, vector: &str, usage: &str) {
        let (value, _) = answered(target, body, &Labels::Sorted, None);
        assert_eq!(floats(value.pointer(vector).expect("a vector")), signature("A", "b", 8), "{value}");
        if !usage.is_empty() {
            assert_eq!(value.pointer(usage).and_then(Value::as_u64), Some(7), "{value}");
        }
    }

    #[test]
    fn every_dialect_puts_vectors_and_usage_in_its_own_place() {
        check("/v1/embeddings", r#"{"input":["a","b"]}"#, "/data/1/embedding", "/usage/prompt_tokens");
        check("/voyage/v1/embeddings", r#"{"input":["a","b"]}"#, "/data/1/embedding", "/usage/total_tokens");
        check("/vllm/v1/embeddings", r#"{"input":["a","b"]}"#, "/data/1/embedding", "/usage/total_tokens");
        check("/v1/embed", r#"{"texts":["a","b"]}"#, "/embeddings/1", "/meta/billed_units/input_tokens");
        let typed = r#"{"texts":["a","b"],"embedding_types":["int8","float"]}"#;
        check("/v2/embed", typed, "/embeddings/float/1", "/meta/billed_units/input_tokens");
        check("/embed", r#"{"inputs":["a","b"]}"#, "/1", "");
        check("/api/embed", r#"{"model":"m","input":["a","b"]}"#, "/embeddings/1", "/prompt_eval_count");
    }

    #[test]
    fn tei_tells_tokens_in_a_header() {
        let (_, answer) = answered("/embed", r#"{"inputs":"ab"}"#, &Labels::Sorted, None);
        assert!(answer.headers.contains(&("x-compute-tokens".to_owned(), "7".to_owned())));
    }

    #[test]
    fn base64_holds_the_same_numbers() {
        let body = r#"{"input":"b","encoding_format":"base64"}"#;
        let (value, _) = answered("/v1/embeddings", body, &Labels::Sorted, None);
        let text = value.pointer("/data/0/embedding").and_then(Value::as_str).expect("text");
        assert_eq!(text, vectors::base64(&signature("A", "b", 8)));
    }

    #[test]
    fn a_shorter_width_is_cut_and_scaled() {
        let (value, _) = answered("/v1/embeddings", r#"{"input":"b","dimensions":4}"#, &Labels::Sorted, None);
        let vector = floats(value.pointer("/data/0/embedding").expect("a vector"));
        assert_eq!(vector, shorten(&signature("A", "b", 8), 4));
    }

    #[test]
    fn labels_go_with_their_vectors() {
        let body = r#"{"input":["a","b","c"]}"#;
        let (value, _) = answered("/v1/embeddings", body, &Labels::Given(vec![2, 0, 1]), None);
        for (place, text) in [(0, "c"), (1, "a"), (2, "b")] {
            let item = value.pointer(&format!("/data/{place}")).expect("an item");
            assert_eq!(floats(&item["embedding"]), signature("A", text, 8));
        }
        let (value, _) = answered("/v1/embeddings", body, &Labels::Given(vec![1, 2, 3]), None);
        assert_eq!(value.pointer("/data/2/index"), Some(&json!(3)));
        let (value, _) = answered("/v1/embeddings", body, &Labels::Omitted, None);
        assert_eq!(value.pointer("/data/0/index"), None);
    }

    #[test]
    fn defects_spoil_what_they_name() {
        let body = r#"{"input":["a","b"]}"#;
        let count = |defect| {
            let (value, _) = answered("/v1/embeddings", body, &Labels::Sorted, Some(defect));
            value["data"].as_array().map(Vec::len)
        };
        assert_eq!(count(&Defect::MissingItem), Some(1));
        assert_eq!(count(&Defect::ExtraItem), Some(3));
        assert_eq!(count(&Defect::NoItems), Some(0));
        assert_eq!(count(&Defect::ErrorObject), None);
        let (value, _) = answered("/v1/embeddings", body, &Labels::Sorted, Some(&Defect::NullNumber));
        assert_eq!(value.pointer("/data/1/embedding/0"), Some(&Value::Null));
        let (value, _) = answered("/v1/embeddings", body, &Labels::Sorted, Some(&Defect::BareObject));
        assert!(value.get("object").is_none() && value.get("model").is_none() && value.get("usage").is_some());
    }
}
