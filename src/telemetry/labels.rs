//! The closed sets that labels are drawn from, and how they are written.
//!
//! Names of models, upstreams and tenants come from the configuration only: [`LabelPlan`] lists them, and anything
//! else is counted under [`OTHER`]. So no client can grow the page.

use std::fmt::Write;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder};
use serde::Serialize;

use crate::config::plan::{ModelKind, Plan, Retirement, Slo};
use crate::error::{ApiError, Code, Source};
use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::service_levels::{Promises, Target, Verdict};
use crate::pure::slo::WINDOWS;

/// What stands in a label for a name that the configuration does not know.
pub const OTHER: &str = "other";

/// Every name that may become a label value.
#[derive(Debug, Clone)]
pub struct LabelPlan {
    /// Models and what they are for, in the order of the file.
    pub models: Vec<(ModelName, ModelKind)>,
    /// Upstreams in the order of the file.
    pub upstreams: Vec<UpstreamId>,
    /// Tenants, those made at run time included.
    pub tenants: Vec<TenantId>,
    /// Collections and their two models, in the order of the file.
    pub collections: Vec<(String, [ModelName; 2])>,
    /// Models that will be retired.
    pub retirements: Vec<Retirement>,
    /// Three upper-case letters.
    pub currency: String,
}

impl LabelPlan {
    /// The names of a configuration.
    pub fn from_plan(plan: &Plan) -> LabelPlan {
        LabelPlan {
            models: plan.models.iter().map(|model| (model.name.clone(), model.kind)).collect(),
            upstreams: plan.upstreams.iter().map(|upstream| upstream.id.clone()).collect(),
            tenants: plan.tenants.iter().map(|tenant| tenant.id.clone()).collect(),
            collections: (plan.collections.iter())
                .map(|one| (one.name.clone(), [one.from.clone(), one.to.clone()]))
                .collect(),
            retirements: plan.retirements.clone(),
            currency: plan.currency.clone(),
        }
    }
}

/// The classes in which a model of that kind is used.
pub fn classes_of(kind: ModelKind) -> &'static [TrafficClass] {
    match kind {
        ModelKind::Embedding => &[TrafficClass::InteractiveSearch, TrafficClass::BatchIngestion],
        ModelKind::Rerank => &[TrafficClass::Rerank],
        ModelKind::Chat => &[TrafficClass::Chat, TrafficClass::BatchIngestion],
    }
}

macro_rules! closed_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        pub enum $name {
            $($(#[$item_doc])* #[serde(rename = $text)] $item),*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[$name] = &[$($name::$item),*];

            /// The label's text.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$item => $text),* }
            }
        }

        impl LabelText for $name {
            fn text(&self) -> &str {
                self.as_str()
            }
        }
    };
}

closed_set!(
    /// The one thing that came of a request.
    Outcome {
        /// Answered as asked, whatever the client did after the last byte.
        Success = "success",
        /// Refused for what it asked.
        ClientError = "client_error",
        /// Refused by the tenant's own budget or limit.
        TenantLimited = "tenant_limited",
        /// Refused because queues or upstream limits were full.
        Limited = "limited",
        /// Failed because of the provider.
        UpstreamError = "upstream_error",
        /// Failed because of this gateway.
        GatewayError = "gateway_error",
        /// The client went away before the answer's end.
        Cancelled = "cancelled",
    }
);

impl Outcome {
    /// What an error makes of its request.
    pub fn of(error: &ApiError) -> Outcome {
        match error.code {
            Code::ClientGone => Outcome::Cancelled,
            Code::BudgetExhausted | Code::TenantRateLimited => Outcome::TenantLimited,
            Code::UpstreamRateLimited | Code::QueueFull | Code::QueueTimeout => Outcome::Limited,
            _ if error.provider.is_some() && error.status() < 500 => Outcome::ClientError,
            code => match code.row().source {
                Source::Client => Outcome::ClientError,
                Source::Gateway => Outcome::GatewayError,
                Source::Upstream => Outcome::UpstreamError,
            },
        }
    }

    /// Whether the request counts against the service's objectives: the service, not the client, let it down.
    pub const fn counts_against_slo(self) -> bool {
        matches!(self, Outcome::Limited | Outcome::UpstreamError | Outcome::GatewayError)
    }

    /// The same, in the objectives' words.
    pub const fn verdict(self) -> Verdict {
        match self {
            Outcome::Success => Verdict::Answered,
            Outcome::Limited | Outcome::UpstreamError | Outcome::GatewayError => Verdict::Failed,
            Outcome::TenantLimited => Verdict::Limited,
            Outcome::ClientError | Outcome::Cancelled => Verdict::NotOurs,
        }
    }
}

closed_set!(
    /// What the cache knew of a request.
    CacheResult {
        /// Every item.
        Hit = "hit",
        /// Some items.
        Partial = "partial",
        /// No item.
        Miss = "miss",
        /// It was not asked.
        Bypass = "bypass",
    }
);

closed_set!(
    /// What a bucket holds.
    BucketUnit {
        /// Tokens.
        Tokens = "tokens",
        /// Requests.
        Requests = "requests",
    }
);

closed_set!(
    /// Where a breaker stands.
    BreakerLevel {
        /// Traffic flows.
        Closed = "closed",
        /// Probes only.
        HalfOpen = "half-open",
        /// Nothing is sent.
        Open = "open",
    }
);

impl BreakerLevel {
    /// The gauge's value: 0 closed, 1 half-open, 2 open.
    pub const fn gauge(self) -> i64 {
        match self {
            BreakerLevel::Closed => 0,
            BreakerLevel::HalfOpen => 1,
            BreakerLevel::Open => 2,
        }
    }
}

closed_set!(
    /// A percentile that is published.
    Quantile {
        /// The median.
        P50 = "0.5",
        /// 95 of 100 are at or below it.
        P95 = "0.95",
        /// 99 of 100 are at or below it.
        P99 = "0.99",
    }
);

impl Quantile {
    /// As a percentile: a gauge with a label `quantile` is taken for a summary by some readers.
    pub const fn percentile(self) -> &'static str {
        match self {
            Quantile::P50 => "50",
            Quantile::P95 => "95",
            Quantile::P99 => "99",
        }
    }
}

closed_set!(
    /// A service level objective.
    Objective {
        /// 95 % of query embeddings are answered within `slo.interactive_p95_ms`.
        InteractiveP95 = "interactive_p95",
        /// 99 % of query embeddings are answered within `slo.interactive_p99_ms`.
        InteractiveP99 = "interactive_p99",
        /// 95 % of reranks are answered within `slo.rerank_p95_ms`.
        RerankP95 = "rerank_p95",
        /// 99 % of reranks are answered within `slo.rerank_p99_ms`.
        RerankP99 = "rerank_p99",
        /// 95 % of chat answers begin within `slo.chat_p95_ms`.
        ChatP95 = "chat_p95",
        /// 99 % of chat answers begin within `slo.chat_p99_ms`.
        ChatP99 = "chat_p99",
    }
);

impl Objective {
    /// Share of requests that may miss the objective.
    pub const fn allowed_bad(self) -> f64 {
        match self {
            Objective::InteractiveP95 | Objective::RerankP95 | Objective::ChatP95 => 0.05,
            Objective::InteractiveP99 | Objective::RerankP99 | Objective::ChatP99 => 0.01,
        }
    }

    /// Whose requests it is about, and the time they have.
    pub fn target(self, slo: &Slo) -> Target {
        let (class, line) = match self {
            Objective::InteractiveP95 => (TrafficClass::InteractiveSearch, slo.interactive_p95),
            Objective::InteractiveP99 => (TrafficClass::InteractiveSearch, slo.interactive_p99),
            Objective::RerankP95 => (TrafficClass::Rerank, slo.rerank_p95),
            Objective::RerankP99 => (TrafficClass::Rerank, slo.rerank_p99),
            Objective::ChatP95 => (TrafficClass::Chat, slo.chat_p95),
            Objective::ChatP99 => (TrafficClass::Chat, slo.chat_p99),
        };
        Target { class, line, allowed_bad: self.allowed_bad() }
    }

    /// What a configuration promises: every objective's target, in the order of [`Objective::ALL`], and the lines of
    /// every model.
    pub fn promises(plan: &Plan) -> Promises {
        let targets = |slo: &Slo| Objective::ALL.iter().map(|objective| objective.target(slo)).collect::<Vec<_>>();
        let lines = |slo: &Slo| targets(slo).into_iter().map(|target| target.line).collect();
        Promises {
            window: plan.slo.window,
            targets: targets(&plan.slo),
            models: plan.models.iter().map(|model| (model.name.clone(), lines(&model.slo))).collect(),
        }
    }
}

closed_set!(
    /// A window over which a burn rate is taken.
    BurnWindow {
        /// Five minutes: confirms that a fast burn is still going on.
        M5 = "5m",
        /// Half an hour: confirms that a slow burn is still going on.
        M30 = "30m",
        /// An hour: a fast burn.
        H1 = "1h",
        /// Six hours: a slow burn.
        H6 = "6h",
    }
);

impl BurnWindow {
    /// The window's length.
    pub const fn duration(self) -> std::time::Duration {
        WINDOWS[self as usize]
    }
}

closed_set!(
    /// An actor.
    ActorName {
        /// The router.
        Router = "router",
        /// An upstream's.
        Upstream = "upstream",
        /// The tenants' balances.
        Ledger = "ledger",
        /// The supervisor of the others.
        Keeper = "keeper",
        /// The writer of the ledger's store.
        Store = "store",
    }
);

closed_set!(
    /// A state machine.
    MachineName {
        /// An upstream's breaker.
        Breaker = "breaker",
        /// An upstream's admission.
        Admission = "admission",
        /// A queue.
        Queue = "queue",
        /// A tenant's balance.
        Ledger = "ledger",
        /// A collection's move between spaces.
        Migration = "migration",
    }
);

closed_set!(
    /// A store.
    StoreName {
        /// The ledger's, in the process.
        Ledger = "ledger",
        /// The ledger's, in Redis.
        RedisLedger = "redis_ledger",
        /// The cache in Redis.
        RedisCache = "redis_cache",
        /// Shared limits in Redis.
        RedisQuota = "redis_quota",
        /// Bodies on disk.
        Spool = "spool",
    }
);

closed_set!(
    /// What came of a reload.
    ReloadResult {
        /// The new configuration holds.
        Applied = "applied",
        /// It was not valid and changed nothing.
        Refused = "refused",
    }
);

closed_set!(
    /// How a client connection ended that brought no request.
    VisitEnd {
        /// No whole head came in `server.header_timeout_s`.
        Slow = "slow",
        /// Its head was refused as too long or malformed, or the client left first.
        Other = "other",
    }
);

/// How a call to an upstream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallStatus {
    /// With an HTTP status.
    Http(u16),
    /// No answer in time.
    Timeout,
    /// No connection.
    Connect,
    /// The connection broke, or the answer was not one.
    Broken,
    /// It was given up because nobody waited for it any more.
    Cancelled,
    /// It was given up because a hedge answered first.
    Outrun,
}

impl CallStatus {
    /// Statuses that have a series of their own; the others share one per hundred.
    const KNOWN: [(u16, &'static str); 14] = [
        (200, "200"),
        (400, "400"),
        (401, "401"),
        (402, "402"),
        (403, "403"),
        (404, "404"),
        (408, "408"),
        (413, "413"),
        (422, "422"),
        (429, "429"),
        (500, "500"),
        (502, "502"),
        (503, "503"),
        (504, "504"),
    ];

    /// Every text that a status can have.
    pub(super) fn texts() -> impl Iterator<Item = &'static str> {
        let known = CallStatus::KNOWN.map(|(status, _)| status).into_iter().chain([0, 299, 399, 499, 599]);
        let ended = [Self::Timeout, Self::Connect, Self::Broken, Self::Cancelled, Self::Outrun];
        known.map(Self::Http).chain(ended).map(Self::as_str)
    }

    /// The label's text.
    pub fn as_str(self) -> &'static str {
        match self {
            CallStatus::Timeout => "timeout",
            CallStatus::Connect => "connect",
            CallStatus::Broken => "broken",
            CallStatus::Cancelled => "cancelled",
            CallStatus::Outrun => "outrun",
            CallStatus::Http(status) => Self::KNOWN.iter().find(|(known, _)| *known == status).map_or_else(
                || match status {
                    200..300 => "2xx",
                    300..400 => "3xx",
                    400..500 => "4xx",
                    500..600 => "5xx",
                    _ => OTHER,
                },
                |(_, text)| text,
            ),
        }
    }
}

/// Anything that can stand in a label.
pub(super) trait LabelText {
    fn text(&self) -> &str;
}

impl LabelText for ModelName {
    fn text(&self) -> &str {
        self.as_str()
    }
}

impl LabelText for UpstreamId {
    fn text(&self) -> &str {
        self.as_str()
    }
}

impl LabelText for TenantId {
    fn text(&self) -> &str {
        self.as_str()
    }
}

impl LabelText for String {
    fn text(&self) -> &str {
        self
    }
}

impl LabelText for TrafficClass {
    fn text(&self) -> &str {
        self.as_str()
    }
}

impl LabelText for &'static str {
    fn text(&self) -> &str {
        self
    }
}

impl LabelText for std::sync::Arc<str> {
    fn text(&self) -> &str {
        self
    }
}

/// Writes one label.
pub(super) fn encode_label(encoder: &mut LabelSetEncoder<'_>, key: &str, value: &str) -> std::fmt::Result {
    let mut label = encoder.encode_label();
    let mut key_encoder = label.encode_label_key()?;
    prometheus_client::encoding::EncodeLabelKey::encode(&key, &mut key_encoder)?;
    let mut value_encoder = key_encoder.encode_label_value()?;
    EncodeLabelValue::encode(&value, &mut value_encoder)?;
    value_encoder.finish()
}

macro_rules! label_sets {
    ($($name:ident { $($field:ident: $kind:ty),* })*) => {
        $(#[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(super) struct $name { $(pub(super) $field: $kind),* }

        impl EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
                $(encode_label(encoder, stringify!($field), self.$field.text())?;)*
                Ok(())
            }
        })*
    };
}

label_sets! {
    ByRequest { class: TrafficClass, model: ModelName, outcome: Outcome }
    ByClass { class: TrafficClass }
    ByCode { code: &'static str }
    ByQuantile { quantile: Quantile }
    ByObjective { slo: Objective }
    ByBurn { slo: Objective, window: BurnWindow }
    ByModelPercentile { class: TrafficClass, model: ModelName, percentile: &'static str }
    ByModelObjective { slo: Objective, model: ModelName }
    ByModelBurn { slo: Objective, model: ModelName, window: BurnWindow }
    ByRetirement { model: ModelName, upstream: String }
    ByTenant { tenant: TenantId }
    ByTenantResult { tenant: TenantId, result: CacheResult }
    ByCost { tenant: TenantId, model: ModelName, class: TrafficClass, currency: std::sync::Arc<str> }
    ByTokens { tenant: TenantId, model: ModelName, class: TrafficClass }
    ByCollection { collection: String }
    ByCollectionUse { collection: String, model: ModelName, class: TrafficClass }
    ByUpstream { upstream: UpstreamId }
    ByUpstreamStatus { upstream: UpstreamId, status: &'static str }
    ByUpstreamClass { upstream: UpstreamId, class: TrafficClass }
    ByUpstreamUnit { upstream: UpstreamId, unit: BucketUnit }
    ByActor { actor: ActorName }
    ByMachine { machine: MachineName }
    ByStore { store: StoreName }
    ByReload { result: ReloadResult }
    ByVisit { end: VisitEnd }
    ByVersion { version: &'static str }
}

/// A trace's id, written only when the page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl EncodeLabelValue for TraceId {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        write!(encoder, "{:032x}", self.0)
    }
}

/// The labels of an exemplar.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByTrace(pub(super) TraceId);

impl EncodeLabelSet for ByTrace {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        let mut label = encoder.encode_label();
        let mut key_encoder = label.encode_label_key()?;
        prometheus_client::encoding::EncodeLabelKey::encode(&"trace_id", &mut key_encoder)?;
        let mut value_encoder = key_encoder.encode_label_value()?;
        self.0.encode(&mut value_encoder)?;
        value_encoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_outcome(code: Code, expected: Outcome) {
        assert_eq!(Outcome::of(&ApiError::new(code, "x")), expected);
    }

    #[test]
    fn every_error_has_one_outcome() {
        check_outcome(Code::InvalidInput, Outcome::ClientError);
        check_outcome(Code::InvalidApiKey, Outcome::ClientError);
        check_outcome(Code::BudgetExhausted, Outcome::TenantLimited);
        check_outcome(Code::TenantRateLimited, Outcome::TenantLimited);
        check_outcome(Code::QueueTimeout, Outcome::Limited);
        check_outcome(Code::UpstreamRateLimited, Outcome::Limited);
        check_outcome(Code::UpstreamTimeout, Outcome::UpstreamError);
        check_outcome(Code::UpstreamCircuitOpen, Outcome::UpstreamError);
        check_outcome(Code::UpstreamAuth, Outcome::GatewayError);
        check_outcome(Code::Overloaded, Outcome::GatewayError);
        check_outcome(Code::Internal, Outcome::GatewayError);
        check_outcome(Code::ClientGone, Outcome::Cancelled);
        assert!(Code::ALL.iter().all(|code| Outcome::of(&ApiError::new(*code, "x")) != Outcome::Success));
    }

    #[test]
    fn a_providers_word_about_the_request_is_the_clients() {
        let mut error = ApiError::new(Code::UpstreamError, "too long");
        error.provider = Some(Box::new(crate::error::ProviderWord { status: 422, code: None, kind: None }));
        assert_eq!(Outcome::of(&error), Outcome::ClientError);
        assert!(!Outcome::of(&error).counts_against_slo());
    }

    #[test]
    fn verdicts_agree_with_what_counts() {
        for outcome in Outcome::ALL {
            assert_eq!(outcome.verdict() == Verdict::Failed, outcome.counts_against_slo(), "{outcome:?}");
        }
    }

    #[test]
    fn windows_are_named_by_their_length() {
        let lengths: Vec<u64> = BurnWindow::ALL.iter().map(|window| window.duration().as_secs()).collect();
        assert_eq!(lengths, [300, 1_800, 3_600, 21_600]);
        assert_eq!(BurnWindow::ALL.len(), WINDOWS.len());
    }

    #[test]
    fn statuses_come_from_a_closed_set() {
        let distinct: std::collections::HashSet<&str> = (0..=u16::MAX).map(|s| CallStatus::Http(s).as_str()).collect();
        assert_eq!(distinct.len(), CallStatus::KNOWN.len() + 5);
        assert_eq!(CallStatus::Http(429).as_str(), "429");
        assert_eq!(CallStatus::Http(418).as_str(), "4xx");
        assert_eq!(CallStatus::Http(0).as_str(), "other");
    }
}
