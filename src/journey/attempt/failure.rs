//! What a failed call means: for the client's words, for another try, for those who wait for the same inputs, and for
//! how the work is cut. Owns the translation; refuses to act on it.

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

/// A part that did not succeed.
pub(in crate::journey) enum PartError {
    /// The upstream takes fewer inputs at once; nothing was charged.
    TooLarge {
        /// What it refused.
        refused: TooLarge,
        /// What the client reads if the part is a single input.
        error: ApiError,
    },
    /// One of its inputs is at fault, and the upstream does not say which.
    Unnamed(ApiError),
    /// The request fails.
    Failed {
        /// What the client reads.
        error: ApiError,
        /// Whom else it concerns.
        reach: Reach,
    },
}

/// A call that brought no usable answer.
pub(in crate::journey) struct Failure {
    /// What the client reads if there is no other try.
    pub error: ApiError,
    /// Whether another try, here or elsewhere, may help.
    pub elsewhere: bool,
    /// When the upstream wants to be asked again.
    pub retry_after: Option<Duration>,
    too_large: Option<TooLarge>,
    /// Whom it concerns; `None`: one input, which is not known yet.
    reach: Option<Reach>,
}

impl From<Box<Failure>> for PartError {
    fn from(failure: Box<Failure>) -> PartError {
        let Failure { error, too_large, reach, .. } = *failure;
        match (too_large, reach) {
            (Some(refused), _) => PartError::TooLarge { refused, error },
            (None, None) => PartError::Unnamed(error),
            (None, Some(reach)) => PartError::Failed { error, reach },
        }
    }
}

impl Failure {
    /// An answer that cannot be trusted.
    pub fn bad_answer(bad: &BadAnswer) -> Failure {
        let message = format!("the upstream's answer cannot be used: {}", bad.reason);
        Failure {
            error: ApiError::new(Code::UpstreamBadResponse, message),
            elsewhere: true,
            retry_after: None,
            too_large: None,
            reach: Some(Reach::Upstream),
        }
    }

    /// No usable answer at all.
    pub fn wire(error: &CallError) -> Failure {
        let (code, reach) = match error {
            CallError::Bad(bad) => return Failure::bad_answer(bad),
            CallError::Wire(WireError::Timeout) => (Code::UpstreamTimeout, Reach::Hopeless),
            CallError::Wire(_) => (Code::UpstreamError, Reach::Upstream),
            CallError::NotSent => return Failure::not_sent(),
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

    /// The gateway's own fault.
    fn not_sent() -> Failure {
        Failure {
            error: ApiError::new(Code::Internal, "the request body could not be kept"),
            elsewhere: false,
            retry_after: None,
            too_large: None,
            reach: Some(Reach::Request),
        }
    }

    /// The provider's own no. `indices` are the client's numbers of the part's items, which it calls `field`; `refused`
    /// is what it was too much of.
    pub fn provider(
        error: ProviderError,
        indices: &[usize],
        field: Option<&str>,
        refused: Option<TooLarge>,
    ) -> Failure {
        let ProviderError { status, fault, message, .. } = error;
        let elsewhere = matches!(fault, Fault::Auth | Fault::Quota | Fault::RateLimited | Fault::Server);
        let (message, named) = match fault {
            Fault::Request | Fault::TooLarge => name_item(&message, indices, field),
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
fn name_item(message: &str, indices: &[usize], field: Option<&str>) -> (String, Option<usize>) {
    let (message, named) = renumber(message, |place| indices.get(place).copied());
    let only = if let [only] = indices { Some(*only) } else { None };
    let Some(item) = named.or(only) else { return (message, None) };
    let message = match field {
        Some(field) if !message.contains("input[") && !message.contains(&format!("{field}[")) => {
            format!("{field}[{item}]: {message}")
        }
        _ => message,
    };
    (message, indices.iter().position(|index| *index == item))
}

/// How an error counts for the upstream.
pub(in crate::journey) fn kind_of(error: &ProviderError) -> OutcomeKind {
    match error.fault {
        Fault::Request | Fault::TooLarge => OutcomeKind::RequestError,
        Fault::Auth => OutcomeKind::KeyRejected,
        Fault::Quota => OutcomeKind::OutOfQuota,
        Fault::RateLimited => OutcomeKind::RateLimited { hint: error.wait_hint },
        Fault::Server => OutcomeKind::ServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(fault: Fault, status: u16, message: &str) -> ProviderError {
        ProviderError {
            status,
            fault,
            code: None,
            kind: None,
            message: message.to_owned(),
            param: None,
            limit_hint: None,
            too_long: message.contains("too long"),
            wait_hint: None,
        }
    }

    /// Items 4 and 7 of the client's list make the part.
    #[track_caller]
    fn check(error: ProviderError, status: u16, code: Code, message: &str, elsewhere: bool, reach: Option<Reach>) {
        let failure = Failure::provider(error, &[4, 7], Some("input"), None);
        assert_eq!((failure.error.status(), failure.error.code), (status, code));
        assert_eq!((failure.error.message.as_ref(), failure.elsewhere, failure.reach), (message, elsewhere, reach));
    }

    #[test]
    fn a_refusal_of_the_request_reaches_as_far_as_its_words() {
        let no = |message| said(Fault::Request, 422, message);
        check(no("input[1] is bad"), 422, Code::InvalidInput, "input[7] is bad", false, Some(Reach::Item(1)));
        check(no("item at index 0"), 422, Code::InvalidInput, "input[4]: item at index 4", false, Some(Reach::Item(0)));
        check(no("a text is too long"), 422, Code::InvalidInput, "a text is too long", false, None);
        check(no("not allowed"), 422, Code::InvalidInput, "not allowed", false, Some(Reach::Request));
        let alone = Failure::provider(no("too long"), &[9], Some("input"), None);
        assert_eq!((alone.error.message.as_ref(), alone.reach), ("input[9]: too long", Some(Reach::Item(0))));
        let text = Failure::provider(no("too long"), &[9], Some("texts"), None);
        assert_eq!(text.error.message, "texts[9]: too long", "by the client's own word");
        let document = Failure::provider(no("too long"), &[9], None, None);
        assert_eq!(document.error.message, "too long", "a rerank request has no `input`");
    }

    #[test]
    fn the_gateways_own_key_and_account_are_not_the_clients() {
        let upstream = Some(Reach::Upstream);
        for status in [402, 403, 429] {
            let error = said(Fault::Quota, status, "no credit");
            check(error, 429, Code::UpstreamRateLimited, "no credit", true, upstream);
        }
        let own = "the upstream refused the gateway's own key; the operator has been told";
        check(said(Fault::Auth, 401, "bad key"), 502, Code::UpstreamAuth, own, true, upstream);
        check(said(Fault::TooLarge, 413, "much"), 413, Code::BodyTooLarge, "much", false, Some(Reach::Request));
        check(said(Fault::TooLarge, 400, "many"), 400, Code::InvalidInput, "many", false, Some(Reach::Request));
    }
}
