//! Owns what a call that brought no answer means: to the client, to the part, to the upstream. Refuses to try again.

use std::time::Duration;

use crate::actors::upstream::TooLarge;
use crate::dialects::{BadAnswer, Fault, ProviderError};
use crate::error::{ApiError, Code, ProviderWord};
use crate::journey::items::renumber;
use crate::pure::admission::OutcomeKind;
use crate::worker::CallError;

use super::PartError;

/// A call that brought no usable answer.
pub(super) struct Failure {
    pub(super) error: ApiError,
    /// Whether another try, here or elsewhere, may help.
    pub(super) elsewhere: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) too_large: Option<Box<TooLarge>>,
}

impl From<Failure> for PartError {
    fn from(failure: Failure) -> PartError {
        match failure.too_large {
            Some(refused) => PartError::TooLarge { refused: *refused, error: failure.error },
            None => PartError::Failed(failure.error),
        }
    }
}

impl Failure {
    pub(super) fn bad_answer(bad: &BadAnswer) -> Failure {
        let message = format!("the upstream's answer cannot be used: {}", bad.reason);
        Failure {
            error: ApiError::new(Code::UpstreamBadResponse, message),
            elsewhere: true,
            retry_after: None,
            too_large: None,
        }
    }

    pub(super) fn wire(error: &CallError) -> Failure {
        let code = if error.is_timeout() { Code::UpstreamTimeout } else { Code::UpstreamError };
        let message = format!("the upstream {}", error.describe());
        Failure { error: ApiError::new(code, message), elsewhere: true, retry_after: None, too_large: None }
    }

    pub(super) fn provider(
        error: ProviderError,
        indices: &[usize],
        embeds: bool,
        refused: Option<TooLarge>,
    ) -> Failure {
        let retry_after = error.wait_hint;
        let word = Box::new(ProviderWord { status: error.status, code: error.code, kind: error.kind });
        let said = |code: Code| {
            let own = |item: usize| indices.get(item).copied();
            let (message, named) = renumber(&error.message, own);
            let only = if let [only] = indices { Some(*only) } else { None };
            let message = match named.or(only) {
                Some(item) if embeds && !message.contains("input[") => format!("input[{item}]: {message}"),
                _ => message,
            };
            let param = error.param.as_deref().map(|param| renumber(param, own).0.into());
            ApiError { code, message: message.into(), param, retry_after, provider: None }
        };
        let (error, elsewhere, too_large) = match error.fault {
            Fault::Request => (ApiError { provider: Some(word), ..said(Code::InvalidInput) }, false, None),
            Fault::TooLarge => {
                (ApiError { provider: Some(word), ..said(Code::BodyTooLarge) }, false, refused.map(Box::new))
            }
            Fault::Auth => {
                let message = "the upstream refused the gateway's own key; the operator has been told";
                (ApiError::new(Code::UpstreamAuth, message), true, None)
            }
            Fault::Quota => (ApiError { provider: Some(word), ..said(Code::UpstreamRateLimited) }, true, None),
            Fault::RateLimited => (ApiError { provider: Some(word), ..said(Code::UpstreamRateLimited) }, true, None),
            Fault::Server => {
                let message = format!("the upstream failed with status {}: {}", error.status, error.message);
                (ApiError::new(Code::UpstreamError, message), true, None)
            }
        };
        Failure { error, elsewhere, retry_after, too_large }
    }
}

/// How an error counts for the upstream.
pub(super) fn kind_of(error: &ProviderError) -> OutcomeKind {
    match error.fault {
        Fault::Request | Fault::TooLarge => OutcomeKind::RequestError,
        Fault::Auth => OutcomeKind::KeyRejected,
        Fault::Quota => OutcomeKind::OutOfQuota,
        Fault::RateLimited => OutcomeKind::RateLimited { hint: error.wait_hint },
        Fault::Server => OutcomeKind::ServerError,
    }
}
