//! For each kind of error and each SDK the exception that the SDK raises for its own provider, with the words in it.

use loadtest::provider::Provider;
use serde_json::{Value, json};

use super::run::{Home, told};
use crate::dialects::errors::{config, failing};
use crate::support::Gateway;

/// One way to fail: what is asked, and words that must reach whoever reads the exception.
struct Condition {
    name: &'static str,
    key: &'static str,
    model: &'static str,
    text: &'static str,
    words: &'static str,
}

const fn condition(
    name: &'static str,
    key: &'static str,
    model: &'static str,
    text: &'static str,
    words: &'static str,
) -> Condition {
    Condition { name, key, model, text, words }
}

/// In the order of the columns of [`RAISED`].
const CONDITIONS: [Condition; 12] = [
    condition("400 bad input", "k1", "m", "", "empty"),
    condition("400 provider's word", "k1", "m", "nonsense", "that is nonsense"),
    condition("401 key", "wrong", "m", "a", "key"),
    condition("402 budget", "poor", "m", "a", "Retrieval quota exceeded"),
    condition("403 model", "k1", "secret", "a", "secret"),
    condition("404 model", "k1", "none-such", "a", "none-such"),
    condition("413 size", "k1", "m", "LONG", "4096"),
    condition("422 provider's word", "k1", "m", "unfit", "that is unfit"),
    condition("429 limit", "k1", "limited", "too-fast", ""),
    condition("502 failure", "k1", "m", "broken", ""),
    // Voyage's SDK has words of its own for it.
    condition("503 nobody", "k1", "nowhere", "a", ""),
    condition("504 silence", "k1", "m", "never", ""),
];

/// Which classes an SDK has for the conditions.
struct Row {
    home: Home,
    sdk: &'static str,
    raised: [&'static str; 12],
}

/// OpenAI's SDKs choose by the status, and have a class for what their provider answers; for the others the common one.
const fn openai(home: Home, sdk: &'static str, other: &'static str) -> Row {
    Row {
        home,
        sdk,
        raised: [
            "BadRequestError",
            "BadRequestError",
            "AuthenticationError",
            other,
            "PermissionDeniedError",
            "NotFoundError",
            other,
            "UnprocessableEntityError",
            "RateLimitError",
            "InternalServerError",
            "InternalServerError",
            "InternalServerError",
        ],
    }
}

/// Cohere's have none for 402, 413 and 502.
const fn cohere(home: Home, sdk: &'static str, other: &'static str) -> Row {
    Row {
        home,
        sdk,
        raised: [
            "BadRequestError",
            "BadRequestError",
            "UnauthorizedError",
            other,
            "ForbiddenError",
            "NotFoundError",
            other,
            "UnprocessableEntityError",
            "TooManyRequestsError",
            other,
            "ServiceUnavailableError",
            "GatewayTimeoutError",
        ],
    }
}

/// Voyage answers 400 for a model that it does not know; its SDK has no class for 404.
const fn voyage(home: Home) -> Row {
    Row {
        home,
        sdk: "voyage",
        raised: [
            "InvalidRequestError",
            "InvalidRequestError",
            "AuthenticationError",
            "APIError",
            "APIError",
            "InvalidRequestError",
            "APIError",
            "MalformedRequestError",
            "RateLimitError",
            "ServiceUnavailableError",
            "ServiceUnavailableError",
            "ServiceUnavailableError",
        ],
    }
}

/// One class for everything but 400.
const fn hugging_face(home: Home) -> Row {
    let mut raised = ["HfHubHTTPError"; 12];
    raised[0] = "BadRequestError";
    raised[1] = "BadRequestError";
    Row { home, sdk: "hugging-face", raised }
}

/// One class for everything.
const fn ollama(home: Home) -> Row {
    Row { home, sdk: "ollama", raised: ["ResponseError"; 12] }
}

#[track_caller]
fn check(provider: &str, rows: &[Row]) {
    let server = Provider::start(failing());
    let gateway = Gateway::start(&config(&server, provider));
    let mut wrong = Vec::new();
    for Row { home, sdk, raised } in rows {
        // No failing text is anybody else's: what one SDK is told is not another's flight.
        let asked: Vec<Value> = CONDITIONS
            .iter()
            .map(|Condition { name, key, model, text, .. }| {
                let text = match *text {
                    "" => String::new(),
                    "LONG" => "x".repeat(5000),
                    text => format!("{text} {home:?} {sdk}"),
                };
                json!({ "condition": name, "key": key, "model": model, "text": text })
            })
            .collect();
        let got = told(*home, "exceptions", &[sdk, &gateway.url], &Value::Array(asked));
        assert_eq!(got.len(), CONDITIONS.len(), "{got:?}");
        for ((condition, expected), got) in CONDITIONS.iter().zip(raised).zip(&got) {
            let words = got["words"].as_str().unwrap_or_default();
            if got["raised"] != *expected || !words.contains(condition.words) {
                wrong.push(format!(
                    "{home:?} {sdk}, {}: {} instead of {expected}: {words}",
                    condition.name, got["raised"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Cohere's newer API must know what texts are for, which an OpenAI-like server has no word for: its SDKs meet a provider
/// of their own.
#[track_caller]
fn check_python(home: Home) {
    check(
        "openai",
        &[
            openai(home, "openai", "APIStatusError"),
            openai(home, "azure", "APIStatusError"),
            openai(home, "langchain", "APIStatusError"),
            openai(home, "llama-index", "APIStatusError"),
            cohere(home, "cohere-v1", "ApiError"),
            voyage(home),
            hugging_face(home),
            ollama(home),
        ],
    );
    check("cohere", &[cohere(home, "cohere-v1-typed", "ApiError"), cohere(home, "cohere-v2", "ApiError")]);
}

#[test]
fn newest_python_sdks_raise_their_own_exceptions() {
    check_python(Home::Newest);
}

#[test]
fn older_python_sdks_raise_their_own_exceptions() {
    check_python(Home::Older);
}

#[test]
fn node_sdks_throw_their_own_errors() {
    const OTHER: &str = "CohereError";
    let cohere = |sdk| cohere(Home::Node, sdk, OTHER);
    let openai = |sdk| openai(Home::Node, sdk, "APIError");
    check("openai", &[openai("openai"), openai("openai-older"), cohere("cohere-v1"), cohere("cohere-v1-older")]);
    check("cohere", &[cohere("cohere-v2"), cohere("cohere-v2-older")]);
}
