//! Vectors that were already paid for. Knows keys and values; refuses to know requests, providers and prices.

pub mod flight;
pub mod memory;

use crate::ids::{ModelName, TenantId};

/// Whose entry it is: not part of the key, but what an operator clears the cache by. Where tenants share entries, the
/// tenant that paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryTag {
    /// The tenant.
    pub tenant: TenantId,
    /// The model that made the vector.
    pub model: ModelName,
}

/// Which entries to clear; what is `None` does not matter.
#[derive(Debug, Clone, Default)]
pub struct CacheFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only this model's.
    pub model: Option<ModelName>,
}

impl CacheFilter {
    /// Whether an entry is to be cleared.
    pub fn matches(&self, tag: &EntryTag) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == tag.tenant)
            && self.model.as_ref().is_none_or(|model| *model == tag.model)
    }
}
