//! What is fed with arbitrary bytes, each with what must hold whatever they are: no panic, and the lines asserted here. Used
//! by the test beside it, and by the targets of `fuzz/` for longer runs.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::{Bytes, BytesMut};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use vectorgate::cache::remote;
use vectorgate::config::plan::{Provider, Tokenizer, Upstream};
use vectorgate::config::{self, Environment, Source};
use vectorgate::dialects::chat::event::{self, Splitter};
use vectorgate::dialects::chat::meter::{Fate, Meter};
use vectorgate::dialects::chat::request::{self as chat_request, Said};
use vectorgate::dialects::chat::{ChatApi, answer as chat_answer};
use vectorgate::dialects::client::{self, ParsedEmbed, ParsedRerank};
use vectorgate::dialects::json::write_inputs;
use vectorgate::dialects::rerank::{Document, RerankOptions, RerankRequest};
use vectorgate::dialects::upstream::{self, Expect};
use vectorgate::dialects::wire::framing::{self, Framing};
use vectorgate::dialects::{ClientDialect, Dtype, EmbedRequest, Encoding, WireRequest};
use vectorgate::edge::body::coding::{Coding, Decoder};
use vectorgate::edge::scan::{Item, Scan, ScanError, ScanLimits, Scanner};
use vectorgate::edge::{auth, request};
use vectorgate::pure::header_duration::{self, LONGEST};
use vectorgate::pure::rate_headers::{LONGEST_PAUSE, RateHeaders, wait_after_429};
use vectorgate::pure::time::Wall;
use vectorgate::store::book::Book;
use vectorgate::store::record::Record;
use vectorgate::store::segment::{self, StoreError};
use vectorgate::telemetry::traces::TraceParent;
use vectorgate::vector::Vector;

/// A target: takes any bytes, panics if something does not hold.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Target); 13] = [
    ("body_scanner", body_scanner),
    ("client_requests", client_requests),
    ("provider_answers", provider_answers),
    ("header_durations", header_durations),
    ("configuration", configuration),
    ("cache_entries", cache_entries),
    ("body_codings", body_codings),
    ("chat_requests", chat_requests),
    ("chat_streams", chat_streams),
    ("vectors", vectors),
    ("request_heads", request_heads),
    ("upstream_heads", upstream_heads),
    ("ledger_lines", ledger_lines),
];

const DIALECTS: [ClientDialect; 11] = [
    ClientDialect::OpenAi,
    ClientDialect::Azure,
    ClientDialect::TeiOpenAi,
    ClientDialect::CohereV1,
    ClientDialect::CohereV2,
    ClientDialect::Voyage,
    ClientDialect::Jina,
    ClientDialect::Tei,
    ClientDialect::Ollama,
    ClientDialect::OllamaLegacy,
    ClientDialect::Anthropic,
];

const PROVIDERS: [Provider; 10] = [
    Provider::OpenAi,
    Provider::Azure,
    Provider::Cohere,
    Provider::Voyage,
    Provider::Jina,
    Provider::Tei,
    Provider::Ollama,
    Provider::Vllm,
    Provider::Anthropic,
    Provider::Simulated,
];

/// The first byte chooses, the others are what it is chosen for.
fn chosen<T: Copy, const N: usize>(data: &[u8], from: [T; N]) -> Option<(T, Bytes)> {
    let (first, rest) = data.split_first()?;
    Some((*from.get(usize::from(*first) % N)?, Bytes::copy_from_slice(rest)))
}

fn scanned(body: &[u8], fields: &'static [&'static str], limits: ScanLimits, piece: usize) -> Result<Scan, ScanError> {
    let mut scanner = Scanner::new(fields, limits);
    for chunk in body.chunks(piece.max(1)) {
        scanner.feed(chunk)?;
    }
    scanner.finish()
}

/// The first byte is the length of the pieces. What was accepted is JSON, however it was cut the finding is the same, and
/// every range lies in the body.
pub fn body_scanner(data: &[u8]) {
    let Some((piece, body)) = data.split_first() else { return };
    const FIELDS: &[&str] = &["input", "texts"];
    for allow_objects in [false, true] {
        let limits = ScanLimits { allow_objects, ..ScanLimits::default() };
        let whole = scanned(body, FIELDS, limits, usize::MAX);
        let cut = scanned(body, FIELDS, limits, usize::from(*piece));
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => {
                assert_eq!(whole, cut);
                serde_json::from_slice::<serde::de::IgnoredAny>(body).expect("what is accepted is JSON");
                for member in &whole.members {
                    let value = body.get(member.value.clone()).expect("a value lies in the body");
                    serde_json::from_slice::<serde::de::IgnoredAny>(value).expect("a value is JSON");
                    for item in member.items.iter().flat_map(|items| &items.items) {
                        assert!(member.value.start <= item.range.start && item.range.end <= member.value.end);
                    }
                }
            }
            // The place in the words may differ by what had come when the fault showed.
            (Err(whole), Err(cut)) => {
                assert_eq!((whole.code, whole.field, whole.item), (cut.code, cut.field, cut.item));
            }
            (whole, cut) => panic!("whole: {whole:?}, in pieces: {cut:?}"),
        }
    }
}

/// JSON in which no object has a member twice: what such JSON says is what every reader takes it for. `None` for all else.
fn plain_json(json: &[u8]) -> Option<Value> {
    struct Plain(Value);

    impl<'de> Deserialize<'de> for Plain {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plain, D::Error> {
            struct Once;

            impl<'de> Visitor<'de> for Once {
                type Value = Plain;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("JSON")
                }

                fn visit_bool<E>(self, value: bool) -> Result<Plain, E> {
                    Ok(Plain(value.into()))
                }

                fn visit_u64<E>(self, value: u64) -> Result<Plain, E> {
                    Ok(Plain(value.into()))
                }

                fn visit_i64<E>(self, value: i64) -> Result<Plain, E> {
                    Ok(Plain(value.into()))
                }

                fn visit_f64<E>(self, value: f64) -> Result<Plain, E> {
                    Ok(Plain(value.into()))
                }

                fn visit_str<E>(self, value: &str) -> Result<Plain, E> {
                    Ok(Plain(value.into()))
                }

                fn visit_unit<E>(self) -> Result<Plain, E> {
                    Ok(Plain(Value::Null))
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Plain, A::Error> {
                    let mut found = Vec::new();
                    while let Some(Plain(value)) = list.next_element()? {
                        found.push(value);
                    }
                    Ok(Plain(Value::Array(found)))
                }

                fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Plain, A::Error> {
                    let mut found = serde_json::Map::new();
                    while let Some((key, Plain(value))) = members.next_entry::<String, Plain>()? {
                        if found.insert(key, value).is_some() {
                            return Err(A::Error::custom("twice"));
                        }
                    }
                    Ok(Plain(Value::Object(found)))
                }
            }

            deserializer.deserialize_any(Once)
        }
    }

    serde_json::from_slice::<Plain>(json).ok().map(|plain| plain.0)
}

/// The keys of a JSON object as they come, repeated ones included.
#[track_caller]
fn keys(json: &[u8]) -> Vec<String> {
    struct Keys;

    impl<'de> DeserializeSeed<'de> for Keys {
        type Value = Vec<String>;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<String>, D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Vec<String>, A::Error> {
            let mut found = Vec::new();
            while let Some((key, _)) = members.next_entry::<String, IgnoredAny>()? {
                found.push(key);
            }
            Ok(found)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Keys.deserialize(&mut deserializer).expect("an object")
}

/// What is sent is JSON to a path that ends no line, names no model but the one that was chosen, and has no member twice
/// unless the client's own words had one twice.
#[track_caller]
fn check_wire(wire: &WireRequest, model: &str, from: &Scan) {
    serde_json::from_slice::<IgnoredAny>(&wire.body).expect("what is sent is JSON");
    assert!(wire.path.starts_with('/') && !wire.path.contains([' ', '\r', '\n']), "{:?}", wire.path);
    let sent = keys(&wire.body);
    let unique = |keys: &[String]| keys.iter().collect::<BTreeSet<_>>().len() == keys.len();
    let had: Vec<String> = from.members.iter().map(|member| member.key.clone()).collect();
    assert!(unique(&sent) || !unique(&had), "a member is sent twice: {sent:?}");
    let named = sent.iter().filter(|key| *key == "model").count();
    assert!(named <= 1, "models are named {named} times");
    #[derive(serde::Deserialize)]
    struct Named {
        model: Option<String>,
    }
    if named == 1 {
        let sent: Named = serde_json::from_slice(&wire.body).expect("a model's name is a text");
        assert_eq!(sent.model.as_deref(), Some(model));
    }
}

/// The first byte is the client's dialect. A request that is understood is encoded for every provider: its inputs arrive
/// as they are, in their order, for the model that was chosen.
pub fn client_requests(data: &[u8]) {
    let Some((dialect, body)) = chosen(data, DIALECTS) else { return };
    if let Ok(scan) = scanned(&body, client::item_fields(dialect), client::scan_limits(dialect), usize::MAX)
        && let Ok(parsed) = client::parse_embed(dialect, &scan, &body)
    {
        assert!(!parsed.inputs.is_empty());
        let mut list = b"{\"input\":".to_vec();
        write_inputs(&mut list, &parsed.inputs);
        list.push(b'}');
        let asked = digests(&list, &["input"]);
        assert_eq!(asked.len(), parsed.inputs.len());
        PROVIDERS.into_iter().for_each(|provider| encode_embed(dialect, provider, &parsed, &scan, &asked));
    }
    if let Ok(scan) = scanned(&body, client::RERANK_ITEM_FIELDS, client::rerank_scan_limits(), usize::MAX) {
        let dialect = client::rerank_dialect(&scan, dialect);
        if let Ok(parsed) = client::parse_rerank(dialect, &scan, &body) {
            assert!(!parsed.documents.is_empty());
            PROVIDERS.into_iter().for_each(|provider| encode_rerank(dialect, provider, &parsed, &scan));
        }
    }
    if let Ok(embed) = client::similarity_as_embed(&body) {
        serde_json::from_slice::<IgnoredAny>(&embed).expect("what is made of it is JSON");
    }
}

/// What the inputs of a body are, however they are written.
#[track_caller]
fn digests(body: &[u8], fields: &'static [&'static str]) -> Vec<([u8; 32], u32)> {
    let limits = ScanLimits { allow_empty_texts: true, ..ScanLimits::default() };
    let scan = scanned(body, fields, limits, usize::MAX).expect("what is sent can be read");
    let items = fields.iter().find_map(|field| scan.items(field)).expect("inputs are sent");
    items.items.iter().map(|item: &Item| (item.digest, item.tokens)).collect()
}

fn encode_embed(
    dialect: ClientDialect,
    provider: Provider,
    parsed: &ParsedEmbed,
    scan: &Scan,
    asked: &[([u8; 32], u32)],
) {
    const MODEL: &str = "emb \"a\"";
    let request = EmbedRequest {
        remote_model: MODEL,
        inputs: &parsed.inputs,
        single: parsed.single,
        width: parsed.dimensions,
        encoding: Encoding::Float,
        options: &parsed.options,
        original: client::shares_body(dialect, provider).then_some(&parsed.original),
    };
    let Ok(wire) = upstream::encode_embed(provider, &request) else { return };
    check_wire(&wire, MODEL, scan);
    let fields: &[&str] = match provider {
        Provider::Cohere => &["texts"],
        Provider::Tei => &["inputs"],
        _ => &["input"],
    };
    assert_eq!(digests(&wire.body, fields), asked, "{provider:?}");
}

fn encode_rerank(dialect: ClientDialect, provider: Provider, parsed: &ParsedRerank, scan: &Scan) {
    const MODEL: &str = "rank \"a\"";
    let request = RerankRequest {
        remote_model: MODEL,
        query: &parsed.query,
        documents: &parsed.documents,
        top_n: parsed.top_n,
        options: &parsed.options,
        native: client::shares_body(dialect, provider),
    };
    let Ok(wire) = upstream::encode_rerank(provider, &request) else { return };
    check_wire(&wire, MODEL, scan);
    let sent = scanned(&wire.body, &[], ScanLimits::default(), usize::MAX).expect("what is sent can be read");
    let member = |key: &str| sent.raw(&wire.body, key).expect("it is sent");
    assert_eq!(member("query"), &parsed.query[..]);
    let mut documents = vec![b'['];
    documents.extend(parsed.documents.iter().map(|document| &document.raw()[..]).collect::<Vec<_>>().join(&b','));
    documents.push(b']');
    assert_eq!(member(if provider == Provider::Tei { "texts" } else { "documents" }), documents, "{provider:?}");
}

/// The first byte is the provider, the second a status. A good answer has what was asked for, an error's words are short.
pub fn provider_answers(data: &[u8]) {
    let Some((provider, rest)) = chosen(data, PROVIDERS) else { return };
    let Some((status, body)) = chosen(&rest, [200, 400, 401, 403, 404, 413, 422, 429, 500, 503]) else { return };
    let header = |name: &str| (name == "x-compute-tokens").then(|| String::from_utf8_lossy(&body).into_owned());
    let expected = [
        (1, Some(2), Dtype::Float),
        (2, None, Dtype::Float),
        (1, Some(2), Dtype::Int8),
        (2, None, Dtype::Uint8),
        (2, Some(16), Dtype::Binary),
        (1, None, Dtype::Ubinary),
    ];
    let said = OnceCell::new();
    for (count, width, dtype) in expected {
        let expect = Expect { count, width, dtype };
        if let Ok(answer) = upstream::decode_embed(provider, &header, &body, &expect) {
            assert_eq!(answer.vectors.len(), count);
            if let (Dtype::Float, Some(said)) = (dtype, said.get_or_init(|| plain_json(&body))) {
                check_vectors(provider, said, &answer.vectors);
            }
            for vector in &answer.vectors {
                let floats = vector.floats();
                assert!(floats.iter().all(|number| number.is_finite()) && floats.len() == vector.width() as usize);
                assert!(dtype != Dtype::Float || width.is_none_or(|width| width == vector.width()));
            }
        }
    }
    let text = || Document::Text(Bytes::from_static(b"\"d\""));
    let (query, documents, options) = (Bytes::from_static(b"\"q\""), [text(), text()], RerankOptions::default());
    for top_n in [None, Some(1)] {
        let request = RerankRequest {
            remote_model: "r",
            query: &query,
            documents: &documents,
            top_n,
            options: &options,
            native: false,
        };
        if let Ok(answer) = upstream::decode_rerank(provider, &header, &body, &request) {
            assert_eq!(answer.results.len(), top_n.unwrap_or(documents.len()));
            assert!(answer.results.iter().all(|one| one.index < documents.len() && one.score.is_finite()));
        }
    }
    let error = upstream::decode_error(provider, status, &header, &body);
    for said in
        [Some(&error.message), error.code.as_ref(), error.kind.as_ref(), error.param.as_ref()].into_iter().flatten()
    {
        assert!(said.chars().count() <= 600, "{} characters", said.chars().count());
        assert!(!said.contains(char::is_control), "it ends a line: {said:?}");
        // What was cut at the end may break the words that stand for a key.
        assert!(
            said.chars().count() >= 500 || &upstream::scrub(said) == said,
            "a second look finds another key: {said:?}"
        );
    }
    upstream::names_fewer_items(&error, 100);
}

/// The vectors are those that serde_json finds at the places of the inputs.
#[track_caller]
fn check_vectors(provider: Provider, said: &Value, found: &[Vector]) {
    let list = match provider {
        Provider::Tei => said,
        Provider::Cohere | Provider::Ollama => match &said["embeddings"] {
            Value::Object(types) => {
                let named = |name: &str| types.get(name).filter(|list| !list.is_null());
                named("float").or_else(|| named("base64")).expect("a type")
            }
            Value::Null => &Value::Null,
            list => list,
        },
        _ => &said["data"],
    };
    let rows: Vec<&Value> = match list {
        Value::Null => vec![&said["embedding"]],
        list => list.as_array().expect("a list").iter().collect(),
    };
    assert_eq!(rows.len(), found.len());
    for (at, vector) in found.iter().enumerate() {
        let row = match rows.iter().find(|row| row["index"].as_f64() == Some(at as f64)) {
            Some(labelled) => &labelled["embedding"],
            None if rows[at].is_object() => &rows[at]["embedding"],
            None => rows[at],
        };
        let floats = vector.floats();
        match row {
            Value::String(text) => {
                let same = Vector::from_base64(text.as_bytes(), None).expect("base64");
                assert_eq!(same.floats(), floats);
            }
            row => check_numbers(row.as_array().expect("numbers"), &floats),
        }
    }
}

/// `floats` are `numbers`, as near as two roundings allow.
#[track_caller]
fn check_numbers(numbers: &[Value], floats: &[f32]) {
    assert_eq!(numbers.len(), floats.len());
    for (number, float) in numbers.iter().zip(floats) {
        let (number, float) = (number.as_f64().expect("a number"), f64::from(*float));
        assert!((number - float).abs() <= number.abs() * 1e-6 + 1e-44, "{number} became {float}");
    }
}

/// Waits and counts in headers are never longer than anybody would wait.
pub fn header_durations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let now = Wall(1_700_000_000_000);
    let found = [
        header_duration::parse_duration(&text),
        header_duration::parse_reset(&text, now),
        header_duration::parse_retry_after(&text, now),
        header_duration::parse_millis(&text),
        header_duration::error_text_hint(&text),
    ];
    assert!(found.iter().flatten().all(|wait| *wait <= LONGEST), "{found:?}");
    let _date = header_duration::parse_http_date(&text);
    // Lines of "name: value", as they would stand in a head; a line alone is the value of each that is known.
    let names =
        ["retry-after", "x-ratelimit-reset-tokens", "x-ratelimit-remaining-requests", "ratelimit", "ratelimit-policy"];
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let headers: Vec<(&str, &str)> = lines.chain(names.into_iter().map(|name| (name, &*text))).collect();
    let read = RateHeaders::read(headers, now);
    let waits = [read.retry_after, read.reset_tokens, read.reset_requests, read.renewal];
    assert!(waits.iter().flatten().all(|wait| *wait <= LONGEST), "{read:?}");
    let pause = wait_after_429(&read, header_duration::error_text_hint(&text));
    assert!(pause.is_none_or(|pause| pause <= LONGEST_PAUSE), "{pause:?}");
}

/// A configuration is taken or refused; a secret in it is never repeated.
pub fn configuration(data: &[u8]) {
    const SECRET: &str = "never-shown-secret";
    let text = String::from_utf8_lossy(data).into_owned();
    // What stands where no secret belongs, as a name for instance, may be shown.
    let is_public = text.matches(SECRET).count() > text.matches(&format!("value = \"{SECRET}\"")).count();
    let source = Source::Text { name: "fuzz.toml".to_owned(), text };
    let environment: Environment = [("VG_FUZZ_SECRET", SECRET)].into_iter().collect();
    let shown = match config::load(&source, &environment) {
        Ok(plan) => format!("{} {plan:?}", plan.describe(Wall(0))),
        Err(problems) => problems.to_string(),
    };
    assert!(is_public || !shown.contains(SECRET), "{shown}");
}

/// What others wrote into the shared cache is an entry with sound numbers, or a miss.
pub fn cache_entries(data: &[u8]) {
    if let Some(found) = remote::decode(Bytes::copy_from_slice(data)) {
        assert!(found.cached.score().is_none_or(f64::is_finite));
        assert!(found.cached.vector().is_none_or(|vector| vector.floats().iter().all(|number| number.is_finite())));
        if let Some(vector) = found.cached.vector() {
            check_vector(vector);
        }
    }
}

/// A vector keeps its numbers in every form in which it is written.
#[track_caller]
fn check_vector(vector: &Vector) {
    let floats = vector.floats();
    assert_eq!(floats.len(), vector.width() as usize);
    assert!(floats.iter().all(|number| number.is_finite()));
    let (mut text, mut base64) = (Vec::new(), Vec::new());
    vector.write_float(&mut text);
    vector.write_base64(&mut base64);
    let numbers: Vec<Value> = serde_json::from_slice(&text).expect("a vector is written as JSON");
    check_numbers(&numbers, &floats);
    assert_eq!(base64.len(), vector.base64_len());
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    let width = Some(vector.width());
    let coded = Vector::from_base64(&base64, width).expect("it reads back");
    assert_eq!(bits(coded.floats()), bits(floats));
    assert_eq!(&Vector::from_stored(&Bytes::from(vector.to_stored()), width).expect("it reads back"), vector);
    let half = vector.cut(vector.width().div_ceil(2)).expect("a shorter one");
    assert!(
        half.floats()
            .iter()
            .all(|number| number.is_finite() && (half.width() == vector.width() || number.abs() <= 1.0))
    );
}

/// A list of numbers in a provider's answer is taken exactly if serde_json takes it and every number is finite as `f32`.
pub fn vectors(data: &[u8]) {
    let taken = Vector::from_text(Bytes::copy_from_slice(data), None);
    if let Ok(vector) = &taken {
        check_vector(vector);
    }
    let whole = data.first() == Some(&b'[') && data.last() == Some(&b']');
    let numbers = serde_json::from_slice::<Vec<f64>>(data).ok().filter(|numbers| whole && !numbers.is_empty());
    // At the very edge two roundings may differ from one.
    if numbers.is_some_and(|numbers| numbers.iter().all(|number| number.abs() < 3.4e38)) {
        taken.expect("serde_json takes it");
    }
    if let Ok(vector) = Vector::from_base64(data, None) {
        check_vector(&vector);
    }
}

/// Lines of "name: value", as they stand in a request's head. What is taken over of them ends no line and names nobody.
pub fn request_heads(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut headers = HeaderMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    let id = request::request_id(&headers);
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    assert!((1..=128).contains(&id.as_str().len()) && id.as_str().bytes().all(sane), "{id:?}");
    if let Ok(secret) = auth::presented(&headers) {
        assert!(!secret.is_empty() && secret.trim() == secret);
    }
    for line in text.lines().chain([&*text]) {
        if let Some(parent) = TraceParent::parse(line) {
            assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
            assert!(parent.trace.0 != 0 && parent.span != 0);
        }
        if let Ok(Some(coding)) = Coding::read(line) {
            assert_eq!(Coding::read(coding.name()), Ok(Some(coding)));
        }
    }
}

/// The first byte is the length of the pieces. However an upstream's answer is cut, its status, its body and what follows are
/// the same, and a body is never longer than its head says.
pub fn upstream_heads(data: &[u8]) {
    let Some((piece, answer)) = data.split_first() else { return };
    let whole = framed(answer, usize::MAX);
    assert_eq!(framed(answer, usize::from(*piece)), whole);
    if let Ok(Some((_, length, body, _))) = whole {
        assert!(length.is_none_or(|length| body.len() as u64 <= length) && body.len() <= answer.len());
    }
}

/// Status, stated length, body and rest of an HTTP/1 answer.
type Framed = (u16, Option<u64>, Vec<u8>, Vec<u8>);

fn framed(answer: &[u8], piece: usize) -> Result<Option<Framed>, framing::Malformed> {
    let (mut buf, mut seen, mut begun, mut body) = (BytesMut::new(), 0, None, Vec::new());
    for chunk in answer.chunks(piece.max(1)) {
        buf.extend_from_slice(chunk);
        if begun.is_none() {
            begun = framing::head(&mut buf, &mut seen)?.map(|head| {
                let length = if let Framing::Length(length) = head.framing { Some(length) } else { None };
                (head, length)
            });
        }
        let Some((head, _)) = &mut begun else { continue };
        while let Some(piece) = head.framing.take(&mut buf)? {
            body.extend_from_slice(&piece);
        }
    }
    Ok(begun.map(|(head, length)| (head.status, length, body, buf.to_vec())))
}

/// Records as JSON, a line each, and after an empty line whatever a crash left behind them. What was written whole reads
/// back, and the rest is a torn end or damage, never a record.
pub fn ledger_lines(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n").map_or(data.len(), |at| at + 1);
    let (lines, left) = data.split_at(end);
    let records: Vec<Record> =
        lines.split(|byte| *byte == b'\n').filter_map(|line| Record::from_json(line).ok()).collect();
    let (mut file, mut book) = (Vec::new(), Book::default());
    for record in &records {
        segment::encode_line(&mut file, record).expect("memory");
        book.apply(record);
    }
    let good = file.len() as u64;
    let read = |file: &[u8]| {
        let mut found: Vec<Record> = Vec::new();
        let scanned = segment::scan(file, Path::new("fuzz"), |json, _| {
            found.extend(Record::from_json(json).ok());
            Ok::<(), StoreError>(())
        });
        scanned.map(|scanned| (found, scanned))
    };
    let (found, scanned) = read(&file).expect("what was written is sound");
    assert_eq!((found.len(), scanned.good_bytes, scanned.torn), (records.len(), good, None));
    let mut again = Vec::new();
    found.iter().for_each(|record| segment::encode_line(&mut again, record).expect("memory"));
    assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(&file), "a record changes as it is read");
    let kept = serde_json::to_string(&book).expect("a book is kept as JSON");
    let book: Book = serde_json::from_str(&kept).expect("it reads back");
    assert_eq!(serde_json::to_string(&book).expect("a book is kept as JSON"), kept);
    file.extend_from_slice(left);
    if let Ok((again, scanned)) = read(&file) {
        assert!(scanned.good_bytes >= good && again.starts_with(&found));
        assert_eq!(scanned.good_bytes + scanned.torn.map_or(0, |torn| torn.bytes), file.len() as u64);
    }
}

/// A body that comes to more is long enough.
const MOST_DECODED: usize = 1 << 16;

/// What a coded body comes to, given in pieces of this length: as much as was decoded, and whether it is sound and whole.
fn decoded(coding: Coding, body: &[u8], piece: usize, room: usize) -> (Vec<u8>, Result<bool, ()>) {
    let mut decoder = Decoder::new(coding).expect("memory");
    let (mut total, mut output) = (Vec::new(), vec![0; room]);
    for piece in body.chunks(piece.max(1)) {
        let mut rest = piece;
        // As the reader does it: what neither takes nor gives waits for more.
        loop {
            let Ok(step) = decoder.step(rest, &mut output) else { return (total, Err(())) };
            assert!(step.read <= rest.len() && step.written <= output.len());
            rest = &rest[step.read..];
            total.extend_from_slice(&output[..step.written]);
            if (step.read == 0 && step.written == 0) || total.len() > MOST_DECODED {
                break;
            }
        }
    }
    (total, Ok(decoder.is_complete()))
}

/// The first byte is the coding, the second the length of the pieces. A coded body is undone piece by piece, never without
/// end, and comes to the same however it is cut.
pub fn body_codings(data: &[u8]) {
    let Some((coding, rest)) = chosen(data, [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd]) else {
        return;
    };
    let Some((piece, body)) = rest.split_first() else { return };
    let (whole, sound) = decoded(coding, body, usize::MAX, 4096);
    if whole.len() <= MOST_DECODED {
        let (cut, sound_too) = decoded(coding, body, usize::from(*piece), 1000);
        // Damage that lies just behind the bound is not reached where the last piece goes beyond it.
        let stopped = sound.is_err() && cut.len() > MOST_DECODED;
        assert!(stopped || sound == sound_too, "{sound:?}, in pieces {sound_too:?}");
        assert!(sound.is_err() || whole == cut, "{} bytes, in pieces {}", whole.len(), cut.len());
    }
}

const APIS: [ChatApi; 4] = [ChatApi::Chat, ChatApi::Completions, ChatApi::Responses, ChatApi::Messages];

/// An upstream of each provider that chats.
fn chatting() -> &'static [Arc<Upstream>] {
    static UPSTREAMS: OnceLock<Vec<Arc<Upstream>>> = OnceLock::new();
    UPSTREAMS.get_or_init(|| {
        let mut text = "[[models]]\nname = \"c\"\nkind = \"chat\"\n[[tenants]]\nid = \"t\"\n".to_owned();
        for provider in ["openai", "azure", "vllm", "ollama", "anthropic"] {
            text.push_str(&format!(
                "[[upstreams]]\nid = \"{provider}\"\nprovider = \"{provider}\"\nbase_url = \"http://127.0.0.1:1\"\n\
                 serves = [{{ model = \"c\" }}]\n"
            ));
        }
        let source = Source::Text { name: "chat.toml".to_owned(), text };
        let environment: Environment = std::iter::empty::<(String, String)>().collect();
        config::load(&source, &environment).unwrap_or_else(|problems| panic!("{problems}")).upstreams
    })
}

/// The first byte is the API. A request that is understood goes on as JSON, with the members that it had.
pub fn chat_requests(data: &[u8]) {
    let Some((api, body)) = chosen(data, APIS) else { return };
    let fields = chat_request::item_fields(api);
    let Ok(scan) = scanned(&body, fields, chat_request::scan_limits(), usize::MAX) else { return };
    let Ok(parsed) = chat_request::parse(api, &scan, &body, Said::default()) else { return };
    const MODEL: &str = "model \"a\"";
    for upstream in chatting() {
        let wire = parsed.encode(upstream, MODEL);
        check_wire(&wire, MODEL, &scan);
        assert!(wire.headers.iter().all(|(_, value)| HeaderValue::from_str(value).is_ok()));
        let sent =
            scanned(&wire.body, fields, chat_request::scan_limits(), usize::MAX).expect("what is sent can be read");
        let changed = |key: &str| matches!(key, "model" | "stream_options");
        for member in &scan.members {
            let there = sent.member(&member.key).unwrap_or_else(|| panic!("{} is gone", member.key.len()));
            let last = scan.member(&member.key).expect("it is there");
            assert!(changed(&member.key) || wire.body[there.value.clone()] == body[last.value.clone()]);
        }
        assert!(sent.members.len() <= scan.members.len() + 2, "something is added");
    }
}

/// What a stream in pieces of this length comes to: its events, what becomes of each, what is left, what was counted.
fn streamed(api: ChatApi, hides: bool, stream: &[u8], piece: usize) -> (Vec<(Bytes, Fate)>, Bytes, String) {
    let (mut splitter, mut meter, mut events) = (Splitter::default(), Meter::new(api, hides), Vec::new());
    for chunk in stream.chunks(piece.max(1)) {
        splitter.push(chunk);
        while let Some(event) = splitter.take().expect("shorter than the longest") {
            let fate = meter.read(&event::read(&event));
            events.push((event, fate));
        }
    }
    let told = meter.told();
    let counted = format!("{told:?} {:?}", told.output(Tokenizer::Unknown));
    (events, splitter.rest(), counted)
}

/// The first byte is the API and whether usage is hidden, the second the length of the pieces. However a stream is cut, the
/// same events come out of it, and no byte is lost.
pub fn chat_streams(data: &[u8]) {
    let Some((api, rest)) = chosen(data, APIS) else { return };
    let Some((piece, stream)) = rest.split_first() else { return };
    let hides = data.first().is_some_and(|first| first & 4 != 0);
    let whole = streamed(api, hides, stream, usize::MAX);
    let cut = streamed(api, hides, stream, usize::from(*piece));
    assert_eq!(whole, cut);
    let mut joined: Vec<u8> = whole.0.iter().flat_map(|(event, _)| event.to_vec()).collect();
    joined.extend_from_slice(&whole.1);
    assert_eq!(joined, stream);
    // As an answer that is none of events.
    drop(chat_answer::read(api, stream));
}
