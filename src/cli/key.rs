//! `vectorgate key new`: a new secret for a tenant.
//!
//! The secret is shown once and kept nowhere; the configuration holds its hash.

use std::process::ExitCode;

use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};

use crate::config::secret::Secret;

/// Prints a new secret for `tenant` to stdout, with the lines to put into the configuration. Exit code 0, or 1 when
/// the system gives no random bytes.
pub fn new(tenant: &str) -> ExitCode {
    let mut random = [0; 32];
    if let Err(error) = SysRng.try_fill_bytes(&mut random) {
        eprintln!("the system gives no random bytes: {error}");
        return ExitCode::FAILURE;
    }
    let (secret, sha256) = from_random(&random);
    println!("The new key, shown once:\n\n    {}\n", secret.expose());
    println!("Its line in the configuration, under [[tenants]] id = {tenant:?}:\n");
    println!("    key_sha256 = [\"{sha256}\"]");
    ExitCode::SUCCESS
}

/// The secret made of `random`, `vg-` and 43 URL-safe base64 characters, and its SHA-256 in hex.
pub fn from_random(random: &[u8; 32]) -> (Secret, String) {
    let text = format!("vg-{}", base64_simd::URL_SAFE_NO_PAD.encode_to_string(random));
    let sha256 = hex::encode(Sha256::digest(&text));
    (Secret::new(text), sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_prefix_and_43_safe_characters() {
        let (secret, sha256) = from_random(&[0xfb; 32]);
        assert_eq!(secret.expose(), "vg--_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s");
        assert_eq!(secret.expose().len(), 46);
        assert_eq!(sha256, hex::encode(Sha256::digest(secret.expose())));
    }
}
