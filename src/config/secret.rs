//! Values that must never be printed.

use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// A secret: printed as `[secret]`, wiped from memory when the last copy is dropped.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    /// Wraps a secret's text.
    pub fn new(text: String) -> Secret {
        Secret(Arc::new(Zeroizing::new(text)))
    }

    /// The text itself; for the one place that sends or hashes it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// For telling whether a reload changed a secret; takes the same time wherever two of a length differ.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.expose().as_bytes().ct_eq(other.expose().as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
