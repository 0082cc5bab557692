//! Who is asking: the key in a request's headers, compared by its SHA-256. Never logs a key.

use std::collections::HashMap;

use actix_web::http::header::{AUTHORIZATION, HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::config::secret::Secret;
use crate::error::{ApiError, Code};
use crate::ids::KeyFingerprint;

use super::headers::names;

/// Maps the SHA-256 of keys to whatever belongs to them.
///
/// Looking up by the digest and comparing the digest in constant time gives away nothing of the secret: an attacker
/// would have to steer SHA-256 to learn a prefix.
#[derive(Debug)]
pub struct KeyRing<T> {
    entries: HashMap<[u8; 32], T>,
}

impl<T> Default for KeyRing<T> {
    fn default() -> Self {
        KeyRing { entries: HashMap::new() }
    }
}

impl<T> KeyRing<T> {
    /// Adds a key by its hash.
    pub fn insert(&mut self, sha256: [u8; 32], owner: T) {
        self.entries.insert(sha256, owner);
    }

    /// Whether the key of this hash opens anything.
    pub fn has(&self, sha256: &[u8; 32]) -> bool {
        self.entries.contains_key(sha256)
    }

    /// The owner of `secret`.
    pub fn find(&self, secret: &str) -> Option<&T> {
        let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let (stored, owner) = self.entries.get_key_value(&digest)?;
        bool::from(stored.ct_eq(&digest)).then_some(owner)
    }
}

/// The secret made of `random`, `vg-` and 43 URL-safe base64 characters, and its SHA-256.
pub fn new_key(random: &[u8; 32]) -> (Secret, [u8; 32]) {
    let text = format!("vg-{}", base64_simd::URL_SAFE_NO_PAD.encode_to_string(random));
    let sha256 = Sha256::digest(&text).into();
    (Secret::new(text), sha256)
}

/// The first 16 hex digits of a key's SHA-256.
pub fn fingerprint(sha256: &[u8; 32]) -> KeyFingerprint {
    KeyFingerprint::from(hex::encode(&sha256[..8]))
}

/// The secret that a request carries, from `Authorization: Bearer`, `x-api-key` or `api-key`, in this order.
///
/// # Errors
/// `invalid_api_key` when there is none, or when it is not text.
pub fn presented(headers: &HeaderMap) -> Result<&str, ApiError> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    let named = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    bearer
        .or_else(|| named(names::X_API_KEY))
        .or_else(|| named(names::API_KEY))
        .filter(|secret| !secret.is_empty())
        .ok_or_else(|| {
            ApiError::new(
                Code::InvalidApiKey,
                "no API key was given: send it as \"Authorization: Bearer <key>\", \"x-api-key\" or \"api-key\"",
            )
        })
}

/// What a client with an unknown key reads.
pub fn unknown_key() -> ApiError {
    ApiError::new(Code::InvalidApiKey, "the API key is not known to this gateway")
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderValue;

    #[track_caller]
    fn check(headers: &[(&str, &str)], expected: Option<&str>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).expect("name"), HeaderValue::from_str(value).expect("value"));
        }
        assert_eq!(presented(&map).ok(), expected);
    }

    #[test]
    fn a_key_is_found_where_sdks_put_it() {
        check(&[("authorization", "Bearer k1")], Some("k1"));
        check(&[("authorization", "bearer  k1 ")], Some("k1"));
        check(&[("x-api-key", "k2")], Some("k2"));
        check(&[("api-key", "k3")], Some("k3"));
        check(&[("authorization", "Bearer k1"), ("x-api-key", "k2")], Some("k1"));
        check(&[("authorization", "Basic abc"), ("api-key", "k3")], Some("k3"));
        check(&[("authorization", "Bearer ")], None);
        check(&[], None);
    }

    #[test]
    fn a_new_key_is_its_prefix_and_43_safe_characters() {
        let (secret, sha256) = new_key(&[0xfb; 32]);
        assert_eq!(secret.expose(), "vg--_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s");
        assert_eq!(secret.expose().len(), 46);
        assert_eq!(sha256, <[u8; 32]>::from(Sha256::digest(secret.expose())));
    }

    #[test]
    fn only_the_whole_secret_opens() {
        let mut ring = KeyRing::default();
        ring.insert(Sha256::digest(b"secret").into(), 7);
        assert_eq!(ring.find("secret"), Some(&7));
        assert_eq!(ring.find("secre"), None);
        assert_eq!(ring.find("Secret"), None);
        assert_eq!(ring.find(""), None);
    }
}
