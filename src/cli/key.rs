//! `vectorgate key new`: a new secret for a tenant.
//!
//! The secret is shown once and kept nowhere; the configuration holds its hash.

use std::process::ExitCode;

use rand::TryRng;
use rand::rngs::SysRng;

use crate::edge::auth;

/// Prints a new secret for `tenant` to stdout, with the lines to put into the configuration. Exit code 0, or 1 when
/// the system gives no random bytes.
pub fn new(tenant: &str) -> ExitCode {
    let mut random = [0; 32];
    if let Err(error) = SysRng.try_fill_bytes(&mut random) {
        eprintln!("the system gives no random bytes: {error}");
        return ExitCode::FAILURE;
    }
    let (secret, sha256) = auth::new_key(&random);
    println!("The new key, shown once:\n\n    {}\n", secret.expose());
    println!("Its line in the configuration, under [[tenants]] id = {tenant:?}:\n");
    println!("    key_sha256 = [\"{}\"]", hex::encode(sha256));
    ExitCode::SUCCESS
}
