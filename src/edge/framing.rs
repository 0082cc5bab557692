//! Requests whose end two servers might see at different places. A proxy in front that goes by one header and this server
//! that goes by the other would take the rest for somebody else's request, so what is not plain is refused and the
//! connection closed. What is no HTTP at all never gets here: the server below refuses it.

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use actix_web::http::{ConnectionType, Version};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse};

use crate::error::{ApiError, Code};

use super::{respond, routes};

/// Surrounds requests of a listener that needs nothing else around them.
///
/// # Errors
/// Those of the service inside.
///
/// # Cancel safety
/// That of the service inside.
pub async fn around<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let mut response = match refusal(&request) {
        Some(answer) => request.into_response(answer).map_into_right_body(),
        None => next.call(request).await?.map_into_left_body(),
    };
    respond::identify(&mut response);
    Ok(response)
}

/// The answer to a request whose end is in doubt.
pub fn refusal(request: &ServiceRequest) -> Option<HttpResponse> {
    let problem = doubt(request.headers(), request.version())?;
    let error = ApiError::new(Code::InvalidInput, problem);
    let mut answer = respond::plain_error(request.request(), routes::dialect_near(request.path()), &error);
    answer.head_mut().set_connection_type(ConnectionType::Close);
    Some(answer)
}

/// What is wrong with the way in which a request states its length.
fn doubt(headers: &HeaderMap, version: Version) -> Option<&'static str> {
    let coding = headers.get(TRANSFER_ENCODING)?;
    if version < Version::HTTP_11 {
        Some("Transfer-Encoding is not part of HTTP/1.0")
    } else if headers.contains_key(CONTENT_LENGTH) {
        Some("a request has Content-Length or Transfer-Encoding, not both")
    } else if !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
        Some("the only Transfer-Encoding of a request is chunked")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    #[track_caller]
    fn check(lines: &[(&str, &str)], version: Version, sound: bool) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).expect("name"), HeaderValue::from_str(value).expect("value"));
        }
        assert_eq!(doubt(&headers, version).is_none(), sound, "{lines:?} {version:?}");
    }

    #[test]
    fn one_statement_of_the_length_is_sound() {
        check(&[], Version::HTTP_11, true);
        check(&[("content-length", "5")], Version::HTTP_10, true);
        check(&[("transfer-encoding", "Chunked ")], Version::HTTP_11, true);
        check(&[("transfer-encoding", "chunked"), ("content-length", "5")], Version::HTTP_11, false);
        check(&[("transfer-encoding", "identity"), ("content-length", "5")], Version::HTTP_11, false);
        check(&[("transfer-encoding", "identity")], Version::HTTP_11, false);
        check(&[("transfer-encoding", "gzip, chunked")], Version::HTTP_11, false);
        check(&[("transfer-encoding", "chunked")], Version::HTTP_10, false);
    }
}
