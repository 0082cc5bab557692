//! What a running gateway cannot change: a reload that asks for it is refused, so that what is shown is what runs.

use super::section;
use crate::config::plan::{CacheBackend, Plan};
use crate::config::problem::Report;
use crate::config::tree::Table;

/// Reports every key in which `after`, built from `tree`, differs from what `before` is bound to.
pub(crate) fn check(tree: &Table, before: &Plan, after: &Plan, report: &mut Report) {
    let (was, is) = (&before.server, &after.server);
    let on_off = |tls: bool| if tls { "on" } else { "off" };
    let differences = [
        ("server", "listen", was.listen != is.listen, was.listen.to_string()),
        ("server", "admin_listen", was.admin_listen != is.admin_listen, was.admin_listen.to_string()),
        ("server", "workers", was.workers != is.workers, was.workers.to_string()),
        (
            "server",
            "header_timeout_s",
            was.header_timeout != is.header_timeout,
            was.header_timeout.as_secs_f64().to_string(),
        ),
        ("server", "tls_cert", was.tls.is_some() != is.tls.is_some(), format!("TLS {}", on_off(was.tls.is_some()))),
        (
            "store",
            "ledger",
            before.store.ledger != after.store.ledger,
            format!("{:?}", before.store.ledger).to_lowercase(),
        ),
        ("store", "path", before.store.path != after.store.path, before.store.path.display().to_string()),
        ("store", "redis_url", before.store.redis_url != after.store.redis_url, "another server".to_owned()),
        ("store", "redis_ca", before.store.redis_tls != after.store.redis_tls, "other certificate files".to_owned()),
        (
            "store",
            "redis_timeout_ms",
            before.store.redis_timeout != after.store.redis_timeout,
            before.store.redis_timeout.as_millis().to_string(),
        ),
        (
            "store",
            "redis_lease_s",
            before.store.redis_lease != after.store.redis_lease,
            before.store.redis_lease.as_secs_f64().to_string(),
        ),
        (
            "store",
            "redis_owed_records",
            before.store.redis_owed_records != after.store.redis_owed_records,
            before.store.redis_owed_records.to_string(),
        ),
        (
            "cache",
            "backend",
            is_shared(before.cache.backend) != is_shared(after.cache.backend),
            format!("{:?}", before.cache.backend).to_lowercase(),
        ),
        ("quota", "shared", before.quota.shared != after.quota.shared, on_off(before.quota.shared).to_owned()),
        ("money", "currency", before.currency != after.currency, before.currency.clone()),
    ];
    for (name, key, differs, running) in differences {
        if differs {
            let what = format!("cannot change while the gateway runs (it runs with {running})");
            section(tree, name).problem(report, key, what, "restart the gateway, or take the change back");
        }
    }
}

fn is_shared(backend: CacheBackend) -> bool {
    matches!(backend, CacheBackend::Redis | CacheBackend::Tiered)
}
