//! Owns what a call that brought no answer means: to the client, to the part, to the upstream. Refuses to try again.

use std::time::Duration;

use crate::actors::upstream::TooLarge;
use crate::dialects::wire::WireError;
use crate::dialects::{BadAnswer, Fault, ProviderError};
use crate::error::{ApiError, Code, ProviderWord};
use crate::journey::items::renumber;
use crate::journey::plan::Reach;
use crate::journey::refuse;
use crate::pure::admission::OutcomeKind;
use crate::worker::CallError;

use super::PartError;

/// A call that brought no usable answer.
pub(super) struct Failure {
    pub(super) error: ApiError,
    /// Whether another try, here or elsewhere, may help.
    pub(super) elsewhere: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) too_large: Option<TooLarge>,
    /// Whom it concerns; `None`: one input, which is not known yet.
    pub(super) reach: Option<Reach>,
}

impl From<Failure> for PartError {
    fn from(Failure { error, too_large, reach, .. }: Failure) -> PartError {
        match (too_large, reach) {
            (Some(refused), _) => PartError::TooLarge { refused, error },
            (None, None) => PartError::Unnamed(error),
            (None, Some(reach)) => PartError::Failed { error, reach },
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
            reach: Some(Reach::Upstream),
        }
    }

    pub(super) fn wire(error: &CallError) -> Failure {
        let (code, reach) = match error {
            CallError::Bad(bad) => return Failure::bad_answer(bad),
            CallError::Wire(WireError::Timeout) => (Code::UpstreamTimeout, Reach::Hopeless),
            CallError::Wire(_) => (Code::UpstreamError, Reach::Upstream),
        };
        let message = format!("the upstream {}", error.describe());
        Failure {
            error: ApiError::new(code, message),
            elsewhere: true,
            retry_after: None,
            too_large: None,
            reach: Some(reach),
        }
    }

    pub(super) fn provider(
        error: ProviderError,
        indices: &[usize],
        embeds: bool,
        refused: Option<TooLarge>,
    ) -> Failure {
        let ProviderError { status, fault, message, .. } = error;
        let elsewhere = matches!(fault, Fault::Auth | Fault::Quota | Fault::RateLimited | Fault::Server);
        let (message, named) = match fault {
            Fault::Request | Fault::TooLarge => name_item(&message, indices, embeds),
            _ => (message, None),
        };
        let retry_after = if fault == Fault::Quota { Some(refuse::OUT_OF_CREDIT_WAIT) } else { error.wait_hint };
        let word = |status: u16| Some(Box::new(ProviderWord { status, code: error.code, kind: error.kind }));
        let param = error.param.map(|param| renumber(&param, |place| indices.get(place).copied()).0.into());
        let (code, message, provider) = match fault {
            Fault::Request => (Code::InvalidInput, message, word(status)),
            Fault::TooLarge if status == 413 => (Code::BodyTooLarge, message, word(status)),
            Fault::TooLarge => (Code::InvalidInput, message, word(status)),
            Fault::Auth => {
                let message = "the upstream refused the gateway's own key; the operator has been told";
                (Code::UpstreamAuth, message.to_owned(), None)
            }
            // Some providers say so with 401, 402 or 403: to the client these would be about its own key and money.
            Fault::Quota | Fault::RateLimited => {
                let status = Code::UpstreamRateLimited.row().status;
                (Code::UpstreamRateLimited, message, word(status))
            }
            Fault::Server => {
                let message = format!("the upstream failed with status {status}: {message}");
                (Code::UpstreamError, message, None)
            }
        };
        let reach = match fault {
            Fault::Request if named.is_none() && error.too_long => None,
            Fault::Request | Fault::TooLarge => Some(named.map_or(Reach::Request, Reach::Item)),
            Fault::Auth | Fault::Quota | Fault::RateLimited | Fault::Server => Some(Reach::Upstream),
        };
        let error = ApiError { code, message: message.into(), param, retry_after, provider };
        Failure { error, elsewhere, retry_after, too_large: refused.filter(|_| fault == Fault::TooLarge), reach }
    }
}

/// A refusal with its input counted as the client counts, and the input's place in the part if the refusal is about one.
fn name_item(message: &str, indices: &[usize], embeds: bool) -> (String, Option<usize>) {
    let (message, named) = renumber(message, |place| indices.get(place).copied());
    let only = if let [only] = indices { Some(*only) } else { None };
    let Some(item) = named.or(only) else { return (message, None) };
    let told = !embeds || message.contains("input[");
    let message = if told { message } else { format!("input[{item}]: {message}") };
    (message, indices.iter().position(|index| *index == item))
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
