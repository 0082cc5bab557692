use super::*;
use proptest::prelude::*;

struct Expected<'a> {
    fault: Fault,
    code: Option<&'a str>,
    kind: Option<&'a str>,
    message: &'a str,
}

#[track_caller]
fn check(
    provider: Provider,
    status: u16,
    headers: &[(&str, &str)],
    body: &str,
    expected: Expected<'_>,
) -> ProviderError {
    let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let error = decode_error(provider, status, &header, body.as_bytes());
    assert_eq!(error.status, status);
    assert_eq!(error.fault, expected.fault, "{body}");
    assert_eq!(error.code.as_deref(), expected.code, "{body}");
    assert_eq!(error.kind.as_deref(), expected.kind, "{body}");
    assert_eq!(error.message, expected.message, "{body}");
    error
}

fn says(fault: Fault, message: &str) -> Expected<'_> {
    Expected { fault, code: None, kind: None, message }
}

#[test]
fn a_key_that_a_long_text_is_cut_in_is_gone_whole() {
    let key = format!("{}0123456789abcdef", "f".repeat(24));
    for before in MAX_MESSAGE * 4 - 40..MAX_MESSAGE * 4 {
        let text = format!("wrong key:{}{key} {}", " ".repeat(before - 10), "x".repeat(4096));
        let error = decode_error(Provider::OpenAi, 401, &|_| None, text.as_bytes());
        assert!(matches!(error.message.as_str(), "wrong key:" | "wrong key: [redacted]"), "{}", error.message);
    }
}

#[test]
fn openai_error_objects() {
    let error = check(
        Provider::OpenAi,
        429,
        &[],
        r#"{"error":{"message":"TPM limit hit for model X. Limit 1000000, Used 999000, Requested 4000. Please try again in 180ms.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        Expected {
            fault: Fault::RateLimited,
            code: Some("rate_limit_exceeded"),
            kind: Some("tokens"),
            message: "TPM limit hit for model X. Limit 1000000, Used 999000, Requested 4000. Please try again in 180ms.",
        },
    );
    assert_eq!(error.wait_hint, Some(Duration::from_millis(180)));
    assert_eq!(error.limit_hint, None);
    check(
        Provider::OpenAi,
        429,
        &[],
        r#"{"error":{"message":"No credit.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
        Expected {
            fault: Fault::Quota,
            code: Some("insufficient_quota"),
            kind: Some("insufficient_quota"),
            message: "No credit.",
        },
    );
    let error = check(
        Provider::OpenAi,
        400,
        &[],
        r#"{"error":{"message":"Requested 301000 tokens, max 300000 tokens per request","type":"max_tokens_per_request","param":null,"code":"max_tokens_per_request"}}"#,
        Expected {
            fault: Fault::TooLarge,
            code: Some("max_tokens_per_request"),
            kind: Some("max_tokens_per_request"),
            message: "Requested 301000 tokens, max 300000 tokens per request",
        },
    );
    assert_eq!(error.limit_hint, Some(300_000));
    let error = check(
        Provider::OpenAi,
        400,
        &[],
        r#"{"error":{"message":"bad value","type":"invalid_request_error","param":"dimensions","code":null}}"#,
        Expected { fault: Fault::Request, code: None, kind: Some("invalid_request_error"), message: "bad value" },
    );
    assert_eq!(error.param.as_deref(), Some("dimensions"));
    check(
        Provider::OpenAi,
        401,
        &[],
        r#"{"error":{"message":"Incorrect API key provided: sk-abc***xyz.","code":"invalid_api_key"}}"#,
        Expected {
            fault: Fault::Auth,
            code: Some("invalid_api_key"),
            kind: None,
            message: "Incorrect API key provided: [redacted].",
        },
    );
}

#[test]
fn azure_codes_are_digits_and_long_waits_are_budgets() {
    let rate =
        Expected { fault: Fault::RateLimited, code: Some("429"), kind: None, message: "Please retry after 3 seconds." };
    check(
        Provider::Azure,
        429,
        &[("retry-after", "3")],
        r#"{"error":{"code":"429","message":"Please retry after 3 seconds."}}"#,
        rate,
    );
    let quota =
        Expected { fault: Fault::Quota, code: Some("429"), kind: None, message: "Please retry after 86400 seconds." };
    check(
        Provider::Azure,
        429,
        &[],
        r#"{"error":{"code":"429","message":"Please retry after 86400 seconds."}}"#,
        quota,
    );
    let gone =
        Expected { fault: Fault::Request, code: Some("DeploymentNotFound"), kind: None, message: "no such deployment" };
    check(Provider::Azure, 404, &[], r#"{"error":{"code":"DeploymentNotFound","message":"no such deployment"}}"#, gone);
    let front = Expected { fault: Fault::Auth, code: Some("401"), kind: None, message: "Access denied" };
    check(Provider::Azure, 401, &[], r#"{"statusCode":401,"message":"Access denied"}"#, front);
}

#[test]
fn cohere_messages() {
    let error = check(
        Provider::Cohere,
        400,
        &[],
        r#"{"id":"a1","message":"invalid request: 104 texts given, at most 96 allowed"}"#,
        says(Fault::TooLarge, "invalid request: 104 texts given, at most 96 allowed"),
    );
    assert_eq!(error.limit_hint, Some(96));
    check(Provider::Cohere, 400, &[], r#"{"message":"x"}"#, says(Fault::Request, "x"));
    check(
        Provider::Cohere,
        429,
        &[],
        r#"{"message":"You are using a Trial key, which is limited to 1000 API calls a month"}"#,
        says(Fault::Quota, "You are using a Trial key, which is limited to 1000 API calls a month"),
    );
    check(Provider::Cohere, 429, &[], r#"{"message":"slow down"}"#, says(Fault::RateLimited, "slow down"));
    check(Provider::Cohere, 498, &[], r#"{"message":"blocked input"}"#, says(Fault::Request, "blocked input"));
    check(Provider::Cohere, 499, &[], r#"{"message":"closed"}"#, says(Fault::Server, "closed"));
    check(Provider::Cohere, 402, &[], r#"{"message":"pay"}"#, says(Fault::Quota, "pay"));
}

#[test]
fn details_as_text_and_as_lists() {
    check(Provider::Voyage, 400, &[], r#"{"detail":"too many inputs"}"#, says(Fault::TooLarge, "too many inputs"));
    check(Provider::Voyage, 401, &[], r#"{"detail":"bad key"}"#, says(Fault::Auth, "bad key"));
    check(
        Provider::Jina,
        422,
        &[],
        r#"{"detail":[{"loc":["body","input",3],"msg":"field required","type":"missing"},"and more"]}"#,
        says(Fault::Request, "body.input.3: field required; and more"),
    );
    check(
        Provider::Jina,
        403,
        &[],
        r#"{"detail":"no money","code":"AUTHZ_INSUFFICIENT_BALANCE"}"#,
        Expected { fault: Fault::Quota, code: Some("AUTHZ_INSUFFICIENT_BALANCE"), kind: None, message: "no money" },
    );
    check(Provider::Jina, 409, &[], r#"{"detail":"busy"}"#, says(Fault::Server, "busy"));
    check(
        Provider::OpenAi,
        400,
        &[],
        r#"{"object":"error","message":"Too many tokens in batch. Max is 16384 got 20000","type":"invalid_request_prompt","code":"3210"}"#,
        Expected {
            fault: Fault::TooLarge,
            code: Some("3210"),
            kind: Some("invalid_request_prompt"),
            message: "Too many tokens in batch. Max is 16384 got 20000",
        },
    );
}

#[test]
fn tei_has_two_meanings_for_413_and_422() {
    let json = [("content-type", "application/json")];
    let text = [("content-type", "text/plain; charset=utf-8")];
    let batch = r#"{"error":"batch size 40 > maximum allowed batch size 32","error_type":"Validation"}"#;
    let words = "batch size 40 > maximum allowed batch size 32";
    for status in [413, 422] {
        let expected = Expected { fault: Fault::TooLarge, code: None, kind: Some("Validation"), message: words };
        assert_eq!(check(Provider::Tei, status, &json, batch, expected).limit_hint, Some(32));
        let long = r#"{"error":"`inputs` must have less than 512 tokens. Given: 600","error_type":"Validation"}"#;
        let message = "`inputs` must have less than 512 tokens. Given: 600";
        let expected = Expected { fault: Fault::Request, code: None, kind: Some("Validation"), message };
        check(Provider::Tei, status, &json, long, expected);
    }
    check(Provider::Tei, 413, &text, "length limit exceeded", says(Fault::TooLarge, "length limit exceeded"));
    let shape = "Failed to deserialize the JSON body into the target type: inputs";
    check(Provider::Tei, 422, &text, shape, says(Fault::Request, shape));
    let overloaded = r#"{"error":"Model is overloaded","error_type":"Overloaded"}"#;
    let expected =
        Expected { fault: Fault::RateLimited, code: None, kind: Some("Overloaded"), message: "Model is overloaded" };
    check(Provider::Tei, 429, &json, overloaded, expected);
    let backend = r#"{"message":"inference failed","code":424,"type":"Backend"}"#;
    let expected =
        Expected { fault: Fault::Server, code: Some("424"), kind: Some("Backend"), message: "inference failed" };
    check(Provider::Tei, 424, &json, backend, expected);
    check(Provider::Tei, 401, &[], "", says(Fault::Auth, "the upstream answered 401 without a text"));
}

#[test]
fn texts_pages_and_nothing() {
    check(Provider::Ollama, 404, &[], r#"{"error":"model not found"}"#, says(Fault::Request, "model not found"));
    check(Provider::Ollama, 503, &[], r#"{"error":"server busy"}"#, says(Fault::Server, "server busy"));
    check(Provider::Vllm, 401, &[], r#"{"error":"Unauthorized"}"#, says(Fault::Auth, "Unauthorized"));
    let page = "<html><head><title>503 Service Temporarily Unavailable</title></head><body>x</body></html>";
    check(
        Provider::OpenAi,
        503,
        &[("content-type", "text/html")],
        page,
        says(Fault::Server, "503 Service Temporarily Unavailable"),
    );
    check(Provider::OpenAi, 502, &[], "<html>", says(Fault::Server, "the upstream answered with an HTML page"));
    check(Provider::OpenAi, 400, &[], "", says(Fault::Request, "the upstream answered 400 without a text"));
    check(Provider::OpenAi, 500, &[], "oops\n  again", says(Fault::Server, "oops again"));
    check(Provider::OpenAi, 500, &[], "{}", says(Fault::Server, "the upstream answered 500 without a text"));
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"r"}"#;
    let expected = Expected { fault: Fault::Server, code: None, kind: Some("overloaded_error"), message: "busy" };
    check(Provider::Anthropic, 529, &[], body, expected);
    let headers = [("x-ratelimit-limit-req-minute", "0")];
    check(Provider::OpenAi, 429, &headers, r#"{"message":"no plan"}"#, says(Fault::Quota, "no plan"));
}

#[test]
fn messages_are_cut_at_500_characters() {
    let long = format!(r#"{{"message":"{}"}}"#, "é ".repeat(2000));
    let error = decode_error(Provider::Cohere, 400, &|_| None, long.as_bytes());
    assert_eq!(error.message.chars().count(), 500);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(status in 100u16..600, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let error = decode_error(Provider::Tei, status, &|_| None, &body);
        prop_assert!(error.message.chars().count() <= MAX_MESSAGE);
    }

    #[test]
    fn any_json_is_survived(body in r#"\{"(error|detail|message|code)":[\[\]{}"a-z0-9:,]{0,30}\}"#) {
        decode_error(Provider::Jina, 422, &|_| None, body.as_bytes());
    }
}

#[test]
fn a_lone_number_below_the_number_of_inputs_is_a_limit_of_inputs() {
    let said = |message: &str| ProviderError {
        status: 400,
        fault: Fault::Request,
        code: None,
        kind: None,
        message: message.to_owned(),
        too_long: false,
        param: None,
        limit_hint: None,
        wait_hint: None,
    };
    for (message, items, expected) in [
        ("limit is 10", 500, true),
        ("value must not be larger than 10", 11, true),
        ("limit is 10", 10, false),
        ("limit is 10", 1, false),
        ("10", 500, false),
        ("maximum context length is 10", 500, false),
        ("dimension may be up to 8", 500, false),
        ("limit is 10, got 20", 500, false),
        ("unknown model v3", 500, false),
    ] {
        assert_eq!(names_fewer_items(&said(message), items), expected, "{message} with {items}");
    }
}
