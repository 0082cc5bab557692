//! Names of things as types, so that a tenant can never stand where an upstream is meant.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name_type!(
    /// A tenant's id, as in `[[tenants]] id`.
    TenantId
);
name_type!(
    /// An upstream's id, as in `[[upstreams]] id`.
    UpstreamId
);
name_type!(
    /// A model's name as clients ask for it, as in `[[models]] name`.
    ModelName
);
name_type!(
    /// A vector space: models that share one may answer for each other.
    SpaceId
);
name_type!(
    /// A request's id: the client's own if it is sane, else made by us.
    RequestId
);
name_type!(
    /// The first 16 hex digits of a key's SHA-256: names a key in records and logs without revealing it.
    KeyFingerprint
);

macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);
    };
}

macro_rules! counted_type {
    ($(#[$doc:meta])* $name:ident) => {
        number_type!($(#[$doc])* $name);

        impl $name {
            /// An id that no other of this process has.
            pub fn next() -> $name {
                static NEXT: AtomicU64 = AtomicU64::new(1);
                $name(NEXT.fetch_add(1, Ordering::Relaxed))
            }
        }
    };
}

number_type!(
    /// One hold on a tenant's balance; unique within a ledger store.
    HoldId
);
counted_type!(
    /// One call to an upstream; unique within a process.
    AttemptId
);
counted_type!(
    /// One request waiting in an upstream's queue; unique within a process.
    WaiterId
);
