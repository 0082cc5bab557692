//! Limits per minute that replicas share, and their opinion of each upstream: one step exchanges all of it.
//!
//! Owns keys and the script's words. What to ask for is decided by [`crate::pure::quota_lease`], what may be given by
//! `quota.lua`.

use std::sync::Arc;

use deadpool_redis::redis::Script;

use crate::ids::UpstreamId;
use crate::pure::admission::{LimitAsk, LimitGrant, QuotaAsk, QuotaGrant};
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
        let mut arguments: Vec<String> = vec![self.replica.clone(), ask.open_ms.unwrap_or(0).to_string()];
        for limit in [ask.tokens, ask.requests] {
            arguments.extend(words(limit).map(|word| word.to_string()));
        }
        let keys =
            ["tokens", "requests", "replicas", "open"].map(|part| format!("vectorgate:{{quota:{upstream}}}:{part}"));
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

fn words(ask: Option<LimitAsk>) -> [u64; 9] {
    let Some(LimitAsk { limit, guaranteed, lease }) = ask else { return [0; 9] };
    let [a, b] = guaranteed;
    let ([c, d], [e, f], [g, h]) = (lease.back, lease.want, lease.least);
    [limit, a, b, c, d, e, f, g, h]
}
