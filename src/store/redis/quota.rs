//! Limits per minute that replicas share, and their opinion of each upstream: one step exchanges all of it.
//!
//! Owns keys and the script's words. What to ask for is decided by [`crate::pure::quota_lease`], what may be given by
//! `quota.lua`.

use std::sync::Arc;

use crate::pure::tenant_limits::Axis;
use deadpool_redis::redis::Script;

use crate::ids::{TenantId, UpstreamId};
use crate::pure::admission::{LimitAsk, LimitGrant, QuotaAsk, QuotaGrant};
use crate::pure::quota_lease::LeaseAsk;
use crate::telemetry::labels::StoreName;

use super::link::{Lane, Link, StoreDown};

const SCRIPT: &str = include_str!("quota.lua");

/// The process's part in shared limits.
pub struct SharedQuota {
    link: Arc<Link>,
    script: Script,
    /// Names this process among the replicas.
    replica: String,
}

impl SharedQuota {
    /// Over `link`.
    pub fn new(link: Arc<Link>) -> SharedQuota {
        let replica = format!("{:016x}", rand::random::<u64>());
        SharedQuota { link, script: Script::new(SCRIPT), replica }
    }

    /// Exchanges units and opinions of one upstream.
    ///
    /// # Errors
    /// The server did not answer: units that were handed back are lost for a minute, none were given.
    pub async fn exchange(&self, upstream: &UpstreamId, ask: QuotaAsk) -> Result<QuotaGrant, StoreDown> {
        self.exchange_of(&format!("quota:{upstream}"), ask).await
    }

    /// Takes a request of `tokens` out of a tenant's own limits over all replicas.
    ///
    /// # Errors
    /// The limit that is used up. A server that does not answer is no error: then this replica's own count decides alone.
    ///
    /// # Cancel safety
    /// What was taken stays taken for a minute.
    pub async fn take(self: &Arc<Self>, tenant: &TenantId, limits: Limits, tokens: u64) -> Result<Taken, Axis> {
        let mut taken = Taken { quota: Arc::clone(self), tenant: tenant.clone(), limits, tokens: 0, requests: 0 };
        let ask = limits.ask([tokens.max(1), 1], [0, 0]);
        let Ok(grant) = self.exchange_of(&limits_key(tenant), ask).await else { return Ok(taken) };
        // What was given is given back when `taken` is dropped.
        taken.tokens = grant.tokens.units[0];
        taken.requests = grant.requests.units[0];
        if ask.requests.is_some() && taken.requests == 0 {
            return Err(Axis::Requests);
        }
        if ask.tokens.is_some() && taken.tokens == 0 {
            return Err(Axis::Tokens);
        }
        Ok(taken)
    }

    async fn exchange_of(&self, subject: &str, ask: QuotaAsk) -> Result<QuotaGrant, StoreDown> {
        let mut arguments: Vec<String> = vec![self.replica.clone(), ask.open_ms.unwrap_or(0).to_string()];
        for limit in [ask.tokens, ask.requests] {
            arguments.extend(words(limit).map(|word| word.to_string()));
        }
        let keys = ["tokens", "requests", "replicas", "open"].map(|part| format!("vectorgate:{{{subject}}}:{part}"));
        let answer: Vec<u64> = self
            .link
            .step(Lane::Small, StoreName::RedisQuota, async |mut connection| {
                let mut call = self.script.prepare_invoke();
                call.key(&keys[..]).arg(&arguments).invoke_async(&mut connection).await
            })
            .await?;
        let [a, b, c, d, e, f, g, h, open_ms, replicas] = answer[..] else { return Err(StoreDown::Broken) };
        let tokens = LimitGrant { units: [a, b], free: [c, d] };
        let requests = LimitGrant { units: [e, f], free: [g, h] };
        Ok(QuotaGrant { tokens, requests, open_ms, replicas })
    }
}

/// A tenant's own limits per minute; `None`: none.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tokens.
    pub tpm: Option<u64>,
    /// Requests.
    pub rpm: Option<u64>,
}

impl Limits {
    /// Wants all of `want` or nothing, and hands back `back`, of tokens and of requests. No tier has a share of its own.
    fn ask(self, want: [u64; 2], back: [u64; 2]) -> QuotaAsk {
        let of = |limit: Option<u64>, axis: usize| {
            let wanted = [want[axis], 0];
            let lease = LeaseAsk { back: [back[axis], 0], want: wanted, least: wanted };
            limit.map(|limit| LimitAsk { limit, guaranteed: [0, 0], lease })
        };
        QuotaAsk { tokens: of(self.tpm, 0), requests: of(self.rpm, 1), open_ms: None }
    }
}

/// A request taken out of a tenant's shared limits. Dropped, it is given back whole; see [`Taken::settle`].
pub struct Taken {
    quota: Arc<SharedQuota>,
    tenant: TenantId,
    limits: Limits,
    tokens: u64,
    requests: u64,
}

impl Taken {
    /// The request was billed for so many tokens: they replace the estimate.
    pub fn settle(mut self, billed: u64) {
        let back = [self.tokens.saturating_sub(billed), 0];
        let more = if self.tokens > 0 { billed.saturating_sub(self.tokens) } else { 0 };
        (self.tokens, self.requests) = (0, 0);
        self.tell([more, 0], back);
    }

    /// Tells the server, beside the request: nobody waits for it. Where it fails, the units age out.
    fn tell(&self, want: [u64; 2], back: [u64; 2]) {
        if want == [0; 2] && back == [0; 2] {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (quota, key, ask) = (Arc::clone(&self.quota), limits_key(&self.tenant), self.limits.ask(want, back));
        runtime.spawn(async move { quota.exchange_of(&key, ask).await.map(drop) });
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.tell([0; 2], [self.tokens, self.requests]);
    }
}

fn limits_key(tenant: &TenantId) -> String {
    format!("limits:{tenant}")
}

fn words(ask: Option<LimitAsk>) -> [u64; 9] {
    let Some(LimitAsk { limit, guaranteed, lease }) = ask else { return [0; 9] };
    let [a, b] = guaranteed;
    let ([c, d], [e, f], [g, h]) = (lease.back, lease.want, lease.least);
    [limit, a, b, c, d, e, f, g, h]
}
