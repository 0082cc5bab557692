//! Every error that a client may see: its code, status, type and what the client should do about it.
//!
//! Statuses are chosen here and nowhere else. The shape of the body belongs to the route's dialect
//! ([`crate::dialects`]); this module knows no wire format.

use std::borrow::Cow;
use std::time::Duration;

/// Who caused an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The request itself.
    Client,
    /// This gateway or its operator.
    Gateway,
    /// The provider behind it.
    Upstream,
}

/// The stable code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The body is not JSON.
    InvalidJson,
    /// A field or an item is not acceptable.
    InvalidInput,
    /// The model has no vectors of that width.
    UnsupportedDimensions,
    /// A field has a value that is not among those known.
    UnknownParameterValue,
    /// This kind of input cannot be sent to the upstreams of this model.
    UnsupportedInputType,
    /// No key, or an unknown one.
    InvalidApiKey,
    /// The tenant has no money left for this.
    BudgetExhausted,
    /// The tenant may not use that model.
    ModelNotAllowed,
    /// A change on the admin side that may have been sent by another site's page.
    Forbidden,
    /// No such model.
    ModelNotFound,
    /// No such route.
    RouteNotFound,
    /// The route exists, the method does not.
    MethodNotAllowed,
    /// It contradicts what is there; admin side only.
    Conflict,
    /// The body's media type or coding is not understood.
    UnsupportedMediaType,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The tenant's own limit.
    TenantRateLimited,
    /// The limits of every upstream that could serve this.
    UpstreamRateLimited,
    /// The batch queue is full.
    QueueFull,
    /// The batch queue was too slow.
    QueueTimeout,
    /// The upstream failed.
    UpstreamError,
    /// The upstream refused the gateway's own key.
    UpstreamAuth,
    /// The upstream's answer cannot be trusted.
    UpstreamBadResponse,
    /// The upstream's breaker is open and no compatible upstream stands in.
    UpstreamCircuitOpen,
    /// No upstream of the right vector space is available.
    NoCompatibleUpstream,
    /// The gateway has more to do than it can hold.
    Overloaded,
    /// Balances cannot be read or written.
    StoreUnavailable,
    /// The gateway is going away.
    ShuttingDown,
    /// The upstream did not answer in time.
    UpstreamTimeout,
    /// The client went away; never seen by anyone but logs and records.
    ClientGone,
    /// A fault of the gateway.
    Internal,
}

/// What the table says of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// `code` in the body.
    pub name: &'static str,
    /// HTTP status.
    pub status: u16,
    /// `type` in the body, by OpenAI's vocabulary.
    pub kind: &'static str,
    /// Who caused it.
    pub source: Source,
    /// Whether the same request may succeed later without a change.
    pub retryable: bool,
}

impl Code {
    /// Every code, in the order of the documentation.
    pub const ALL: [Code; 31] = [
        Code::InvalidJson,
        Code::InvalidInput,
        Code::UnsupportedDimensions,
        Code::UnknownParameterValue,
        Code::UnsupportedInputType,
        Code::InvalidApiKey,
        Code::BudgetExhausted,
        Code::ModelNotAllowed,
        Code::Forbidden,
        Code::ModelNotFound,
        Code::RouteNotFound,
        Code::MethodNotAllowed,
        Code::Conflict,
        Code::UnsupportedMediaType,
        Code::BodyTimeout,
        Code::BodyTooLarge,
        Code::TenantRateLimited,
        Code::UpstreamRateLimited,
        Code::QueueFull,
        Code::QueueTimeout,
        Code::UpstreamError,
        Code::UpstreamAuth,
        Code::UpstreamBadResponse,
        Code::UpstreamCircuitOpen,
        Code::NoCompatibleUpstream,
        Code::Overloaded,
        Code::StoreUnavailable,
        Code::ShuttingDown,
        Code::UpstreamTimeout,
        Code::ClientGone,
        Code::Internal,
    ];

    /// Whether it leaves a search without vectors for want of upstreams or quota: lexical results take their place.
    pub const fn wants_lexical(self) -> bool {
        matches!(
            self,
            Code::UpstreamCircuitOpen
                | Code::NoCompatibleUpstream
                | Code::UpstreamError
                | Code::UpstreamAuth
                | Code::UpstreamBadResponse
                | Code::UpstreamTimeout
                | Code::UpstreamRateLimited
                | Code::TenantRateLimited
                | Code::QueueFull
                | Code::QueueTimeout
                | Code::Overloaded
                | Code::ShuttingDown
        )
    }

    /// The table.
    pub const fn row(self) -> Row {
        const fn row(name: &'static str, status: u16, kind: &'static str, source: Source, retryable: bool) -> Row {
            Row { name, status, kind, source, retryable }
        }
        const REQUEST: &str = "invalid_request_error";
        const LIMIT: &str = "rate_limit_error";
        const SERVER: &str = "server_error";
        match self {
            Code::InvalidJson => row("invalid_json", 400, REQUEST, Source::Client, false),
            Code::InvalidInput => row("invalid_input", 400, REQUEST, Source::Client, false),
            Code::UnsupportedDimensions => row("unsupported_dimensions", 400, REQUEST, Source::Client, false),
            Code::UnknownParameterValue => row("unknown_parameter_value", 400, REQUEST, Source::Client, false),
            Code::UnsupportedInputType => row("unsupported_input_type", 400, REQUEST, Source::Client, false),
            Code::InvalidApiKey => row("invalid_api_key", 401, "authentication_error", Source::Client, false),
            Code::BudgetExhausted => row("budget_exhausted", 402, "insufficient_quota", Source::Client, false),
            Code::ModelNotAllowed => row("model_not_allowed", 403, "permission_error", Source::Client, false),
            Code::Forbidden => row("forbidden", 403, "permission_error", Source::Client, false),
            Code::ModelNotFound => row("model_not_found", 404, REQUEST, Source::Client, false),
            Code::RouteNotFound => row("route_not_found", 404, REQUEST, Source::Client, false),
            Code::MethodNotAllowed => row("method_not_allowed", 405, REQUEST, Source::Client, false),
            Code::Conflict => row("conflict", 409, REQUEST, Source::Client, false),
            Code::UnsupportedMediaType => row("unsupported_media_type", 415, REQUEST, Source::Client, false),
            Code::BodyTimeout => row("body_timeout", 408, REQUEST, Source::Client, true),
            Code::BodyTooLarge => row("body_too_large", 413, REQUEST, Source::Client, false),
            Code::TenantRateLimited => row("tenant_rate_limited", 429, LIMIT, Source::Client, true),
            Code::UpstreamRateLimited => row("upstream_rate_limited", 429, LIMIT, Source::Upstream, true),
            Code::QueueFull => row("queue_full", 429, LIMIT, Source::Gateway, true),
            Code::QueueTimeout => row("queue_timeout", 429, LIMIT, Source::Gateway, true),
            Code::UpstreamError => row("upstream_error", 502, SERVER, Source::Upstream, true),
            Code::UpstreamAuth => row("upstream_auth", 502, SERVER, Source::Gateway, false),
            Code::UpstreamBadResponse => row("upstream_bad_response", 502, SERVER, Source::Upstream, true),
            Code::UpstreamCircuitOpen => row("upstream_circuit_open", 503, SERVER, Source::Upstream, true),
            Code::NoCompatibleUpstream => row("no_compatible_upstream", 503, SERVER, Source::Upstream, true),
            Code::Overloaded => row("overloaded", 503, SERVER, Source::Gateway, true),
            Code::StoreUnavailable => row("store_unavailable", 503, SERVER, Source::Gateway, true),
            Code::ShuttingDown => row("shutting_down", 503, SERVER, Source::Gateway, true),
            Code::UpstreamTimeout => row("upstream_timeout", 504, SERVER, Source::Upstream, true),
            Code::ClientGone => row("client_gone", 499, REQUEST, Source::Client, false),
            Code::Internal => row("internal_error", 500, SERVER, Source::Gateway, true),
        }
    }
}

/// A provider's own word about the request, passed on with its status (contract: "422 / 400 provider's").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderWord {
    /// The provider's status.
    pub status: u16,
    /// The provider's code, if it gave one.
    pub code: Option<String>,
    /// The provider's type, if it gave one.
    pub kind: Option<String>,
}

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// What happened.
    pub code: Code,
    /// What the client reads. Names the field and item; holds no key, no address, no input text.
    pub message: Cow<'static, str>,
    /// The field at fault.
    pub param: Option<Cow<'static, str>>,
    /// When a retry may succeed; rounded up to whole seconds where it is shown.
    pub retry_after: Option<Duration>,
    /// Set when the error is the provider's own word about the request.
    pub provider: Option<Box<ProviderWord>>,
}

impl ApiError {
    /// An error with a message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError { code, message: message.into(), param: None, retry_after: None, provider: None }
    }

    /// Names the field at fault.
    #[must_use]
    pub fn param(mut self, field: impl Into<Cow<'static, str>>) -> ApiError {
        self.param = Some(field.into());
        self
    }

    /// Says when a retry may succeed.
    #[must_use]
    pub fn retry_after(mut self, wait: Option<Duration>) -> ApiError {
        self.retry_after = wait;
        self
    }

    /// The status the client gets.
    pub fn status(&self) -> u16 {
        self.provider.as_ref().map_or(self.code.row().status, |word| word.status)
    }

    /// The code the client gets.
    pub fn shown_code(&self) -> &str {
        let own = self.code.row().name;
        self.provider.as_ref().map_or(own, |word| word.code.as_deref().unwrap_or(own))
    }

    /// The type the client gets.
    pub fn shown_kind(&self) -> &str {
        let own = self.code.row().kind;
        self.provider.as_ref().map_or(own, |word| word.kind.as_deref().unwrap_or(own))
    }

    /// The wait to announce on 429 and 503, whole seconds, at least 1; `None` on other statuses.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        if !matches!(self.status(), 429 | 503) {
            return None;
        }
        let wait = self.retry_after.unwrap_or(Duration::from_secs(1));
        Some(u64::try_from(wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX).max(1))
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.row().name, self.message)
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_consistent() {
        let names: HashSet<&str> = Code::ALL.iter().map(|code| code.row().name).collect();
        assert_eq!(names.len(), Code::ALL.len(), "two codes share a name");
        for (position, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, position, "{}: counters go by the place", code.row().name);
            let row = code.row();
            let client_fault = (400..500).contains(&row.status) && row.status != 429;
            if client_fault {
                assert_eq!(row.source, Source::Client, "{}", row.name);
            }
            if row.status >= 500 {
                assert_ne!(row.source, Source::Client, "{}", row.name);
            }
        }
    }

    #[test]
    fn waits_round_up_and_are_never_zero() {
        let wait = |ms| ApiError::new(Code::QueueFull, "full").retry_after(Some(Duration::from_millis(ms)));
        assert_eq!(wait(0).retry_after_seconds(), Some(1));
        assert_eq!(wait(200).retry_after_seconds(), Some(1));
        assert_eq!(wait(1001).retry_after_seconds(), Some(2));
        assert_eq!(ApiError::new(Code::InvalidInput, "x").retry_after_seconds(), None);
    }
}
