//! What is fed with arbitrary bytes, each with what must hold whatever they are: no panic, and the lines asserted here. Used
//! by the test beside it, and by the targets of `fuzz/` for longer runs.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use vectorgate::cache::remote;
use vectorgate::config::plan::{Provider, Tokenizer, Upstream};
use vectorgate::config::{self, Environment, Source};
use vectorgate::dialects::chat::event::{self, Splitter};
use vectorgate::dialects::chat::meter::{Fate, Meter};
use vectorgate::dialects::chat::request::{self as chat_request, Said};
use vectorgate::dialects::chat::{ChatApi, answer as chat_answer};
use vectorgate::dialects::client::{self, ParsedEmbed, ParsedRerank};
use vectorgate::dialects::rerank::{Document, RerankOptions, RerankRequest};
use vectorgate::dialects::upstream::{self, Expect};
use vectorgate::dialects::{ClientDialect, Dtype, EmbedRequest, Encoding};
use vectorgate::edge::body::coding::{Coding, Decoder};
use vectorgate::edge::scan::{Scan, ScanError, ScanLimits, Scanner};
use vectorgate::pure::header_duration::{self, LONGEST};
use vectorgate::pure::rate_headers::{LONGEST_PAUSE, RateHeaders};
use vectorgate::pure::time::Wall;

/// A target: takes any bytes, panics if something does not hold.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Target); 9] = [
    ("body_scanner", body_scanner),
    ("client_requests", client_requests),
    ("provider_answers", provider_answers),
    ("header_durations", header_durations),
    ("configuration", configuration),
    ("cache_entries", cache_entries),
    ("body_codings", body_codings),
    ("chat_requests", chat_requests),
    ("chat_streams", chat_streams),
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

/// The first byte is the client's dialect. A request that is understood is encoded for every provider, as JSON.
pub fn client_requests(data: &[u8]) {
    let Some((dialect, body)) = chosen(data, DIALECTS) else { return };
    if let Ok(scan) = scanned(&body, client::item_fields(dialect), client::scan_limits(dialect), usize::MAX)
        && let Ok(parsed) = client::parse_embed(dialect, &scan, &body)
    {
        assert!(!parsed.inputs.is_empty());
        PROVIDERS.into_iter().for_each(|provider| encode_embed(dialect, provider, &parsed));
    }
    if let Ok(scan) = scanned(&body, client::RERANK_ITEM_FIELDS, client::rerank_scan_limits(), usize::MAX) {
        let dialect = client::rerank_dialect(&scan, dialect);
        if let Ok(parsed) = client::parse_rerank(dialect, &scan, &body) {
            assert!(!parsed.documents.is_empty());
            PROVIDERS.into_iter().for_each(|provider| encode_rerank(provider, &parsed));
        }
    }
    drop(client::similarity_as_embed(&body));
}

fn encode_embed(dialect: ClientDialect, provider: Provider, parsed: &ParsedEmbed) {
    let request = EmbedRequest {
        remote_model: "emb \"a\"",
        inputs: &parsed.inputs,
        single: parsed.single,
        width: parsed.dimensions,
        encoding: Encoding::Float,
        options: &parsed.options,
        original: client::shares_body(dialect, provider).then_some(&parsed.original),
    };
    if let Ok(wire) = upstream::encode_embed(provider, &request) {
        serde_json::from_slice::<serde::de::IgnoredAny>(&wire.body).expect("what is sent is JSON");
        assert!(wire.path.starts_with('/') && !wire.path.contains([' ', '\r', '\n']), "{:?}", wire.path);
    }
}

fn encode_rerank(provider: Provider, parsed: &ParsedRerank) {
    for native in [false, true] {
        let request = RerankRequest {
            remote_model: "rank \"a\"",
            query: &parsed.query,
            documents: &parsed.documents,
            top_n: parsed.top_n,
            options: &parsed.options,
            native,
        };
        if let Ok(wire) = upstream::encode_rerank(provider, &request) {
            serde_json::from_slice::<serde::de::IgnoredAny>(&wire.body).expect("what is sent is JSON");
        }
    }
}

/// The first byte is the provider, the second a status. A good answer has what was asked for, an error's words are short.
pub fn provider_answers(data: &[u8]) {
    let Some((provider, rest)) = chosen(data, PROVIDERS) else { return };
    let Some((status, body)) = chosen(&rest, [200, 400, 401, 403, 404, 413, 422, 429, 500, 503]) else { return };
    let header = |name: &str| (name == "x-compute-tokens").then(|| String::from_utf8_lossy(&body).into_owned());
    for (count, width, dtype) in [(1, Some(2), Dtype::Float), (2, None, Dtype::Float), (2, Some(16), Dtype::Binary)] {
        let expect = Expect { count, width, dtype };
        if let Ok(answer) = upstream::decode_embed(provider, &header, &body, &expect) {
            assert_eq!(answer.vectors.len(), count);
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
    assert!(error.message.chars().count() <= 600, "{} characters", error.message.chars().count());
    upstream::names_fewer_items(&error, 100);
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
    assert!(read.retry_after.is_none_or(|wait| wait <= LONGEST.max(LONGEST_PAUSE)), "{read:?}");
}

/// A configuration is taken or refused; a secret in it is never repeated.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let source = Source::Text { name: "fuzz.toml".to_owned(), text };
    let environment: Environment = [("VG_FUZZ_SECRET", "never-shown-secret")].into_iter().collect();
    let shown = match config::load(&source, &environment) {
        Ok(plan) => format!("{} {plan:?}", plan.describe(Wall(0))),
        Err(problems) => problems.to_string(),
    };
    assert!(!shown.contains("never-shown-secret"), "{shown}");
}

/// What others wrote into the shared cache is an entry with sound numbers, or a miss.
pub fn cache_entries(data: &[u8]) {
    if let Some(found) = remote::decode(Bytes::copy_from_slice(data)) {
        assert!(found.cached.score().is_none_or(f64::is_finite));
        assert!(found.cached.vector().is_none_or(|vector| vector.floats().iter().all(|number| number.is_finite())));
        if let Some(vector) = found.cached.vector() {
            let mut text = Vec::new();
            vector.write_float(&mut text);
            serde_json::from_slice::<Vec<f64>>(&text).expect("a vector is written as JSON");
        }
    }
}

/// The first byte is the coding. A coded body is undone piece by piece and never without end.
pub fn body_codings(data: &[u8]) {
    let Some((coding, body)) = chosen(data, [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd]) else {
        return;
    };
    let mut decoder = Decoder::new(coding).expect("memory");
    let (mut rest, mut output, mut total) = (&body[..], vec![0; 4096], 0);
    // As the reader does it: what neither takes nor gives waits for more.
    while total < 1 << 20 {
        let Ok(step) = decoder.step(rest, &mut output) else { return };
        assert!(step.read <= rest.len() && step.written <= output.len());
        if step.read == 0 && step.written == 0 {
            break;
        }
        rest = &rest[step.read..];
        total += step.written;
        if rest.is_empty() && step.written < output.len() {
            break;
        }
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
    for upstream in chatting() {
        let wire = parsed.encode(upstream, "model \"a\"");
        serde_json::from_slice::<serde::de::IgnoredAny>(&wire.body).expect("what is sent is JSON");
        let sent =
            scanned(&wire.body, fields, chat_request::scan_limits(), usize::MAX).expect("what is sent can be read");
        for member in &scan.members {
            assert!(sent.member(&member.key).is_some(), "{} is gone", member.key.len());
        }
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
