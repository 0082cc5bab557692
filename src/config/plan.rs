//! The resolved configuration: every default filled in, every reference looked up, every secret read.
//!
//! What the rest of the program sees. Nothing here can be wrong any more: [`super::load`] reports all problems of a
//! file before a `Plan` exists.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

pub use crate::pure::budget_period::BudgetPeriod;
pub use crate::pure::migration::{Position, Stage};

use crate::ids::{KeyFingerprint, ModelName, SpaceId, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::money::{Money, UnitPrice};
use crate::pure::time::Wall;
use crate::pure::utc;

use super::secret::Secret;
use crate::tls::{Authorities, Certificate};

/// A whole, valid configuration.
#[derive(Debug)]
pub struct Plan {
    /// Listeners and limits of the HTTP side.
    pub server: Server,
    /// Currency of budgets, costs and reports; three upper-case letters.
    pub currency: String,
    /// Where balances and records are kept.
    pub store: Store,
    /// The vector cache.
    pub cache: Cache,
    /// Traffic classes, queues and shares.
    pub quota: Quota,
    /// Retries and failover.
    pub retry: Retry,
    /// Service level objectives.
    pub slo: Slo,
    /// Models by the order of the file.
    pub models: Vec<Arc<Model>>,
    /// Upstreams by the order of the file.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Tenants by the order of the file.
    pub tenants: Vec<Arc<Tenant>>,
    /// Collections by the order of the file.
    pub collections: Vec<Arc<Collection>>,
    /// Models that will be retired, the first to go first.
    pub retirements: Vec<Retirement>,
    /// What is valid but deserves a look; printed by `check` and at start-up.
    pub warnings: Vec<String>,
    /// The secret of the built-in `demo` tenant when the configuration is the default one: printed at start-up.
    pub demo_key: Option<Secret>,
    /// Names this version of the configuration on status pages: first 12 hex digits of the file's SHA-256.
    pub version: String,
}

impl Plan {
    /// Whether requests of `tenant` may end at `model`: by its own name, or because a collection that the tenant may
    /// use has it.
    pub fn reaches(&self, tenant: &Tenant, model: &ModelName) -> bool {
        let has = |collection: &&Arc<Collection>| collection.from == *model || collection.to == *model;
        tenant.may_use(model) || self.collections.iter().filter(has).any(|one| tenant.may_use_collection(one))
    }
}

/// `[server]`.
#[derive(Debug, Clone)]
pub struct Server {
    /// Client routes.
    pub listen: SocketAddr,
    /// Admin routes, metrics, dashboard.
    pub admin_listen: SocketAddr,
    /// Bearer token of the admin side; without one it answers loopback only.
    pub admin_token: Option<Secret>,
    /// HTTP worker threads, at least 1 (`0` in the file is resolved to the number of cores).
    pub workers: usize,
    /// Largest request body in bytes, after decoding.
    pub max_body_bytes: u64,
    /// All request bodies in memory together, bytes.
    pub max_buffered_bytes: u64,
    /// Where bodies beyond that go; `None`: the system's temporary folder.
    pub spool_dir: Option<PathBuf>,
    /// Longest wait for a request's head.
    pub header_timeout: Duration,
    /// Longest time in which a request's body must bring 16 KiB more, or its end.
    pub body_timeout: Duration,
    /// Longest time in which a client takes nothing of its answer.
    pub write_timeout: Duration,
    /// Longest shutdown.
    pub drain: Duration,
    /// Certificate and key when the client listener speaks TLS.
    pub tls: Option<Certificate>,
    /// Origins that browsers may call from.
    pub cors_origins: Vec<String>,
}

/// Which store keeps balances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerStore {
    /// A folder of this process.
    Embedded,
    /// Shared through Redis.
    Redis,
}

/// When a record counts as kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the operating system before the answer: survives the death of the process.
    Process,
    /// Synced to the device before the answer: survives a power cut.
    Power,
}

/// `[store]`.
#[derive(Debug, Clone)]
pub struct Store {
    /// Which store keeps balances.
    pub ledger: LedgerStore,
    /// Folder of the embedded store.
    pub path: PathBuf,
    /// When a record counts as kept.
    pub durability: Durability,
    /// Days for which records are kept one by one before they are summed up; `None`: for ever.
    pub retention_days: Option<u32>,
    /// Redis, where one is used.
    pub redis_url: Option<Secret>,
    /// With what its certificate is checked and this side shows its own, where the URL begins with `rediss:`.
    pub redis_tls: RedisTls,
    /// Longest wait for one Redis step.
    pub redis_timeout: Duration,
    /// How long a hold in the shared ledger outlives the last sign of its replica.
    pub redis_lease: Duration,
    /// Most usage records that wait in memory for a shared ledger that does not answer.
    pub redis_owed_records: usize,
}

/// PEM files for a connection to Redis; read at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Who may have signed the server's certificate; `None`: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate shown to the server, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where vectors are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheBackend {
    /// In the process.
    Memory,
    /// In Redis.
    Redis,
    /// In the process, then in Redis.
    Tiered,
    /// Nowhere.
    Off,
}

/// Who shares cache entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheScope {
    /// Each tenant has its own: nobody learns from a hit what others asked.
    Tenant,
    /// All tenants share.
    Shared,
}

/// How texts are folded before they are compared with cached ones. What is sent upstream is never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalization {
    /// Trimmed and lower-cased.
    Lowercase,
    /// Leading and trailing white space removed.
    Trim,
    /// As they are.
    Exact,
}

/// `[cache]`.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Where vectors are cached.
    pub backend: CacheBackend,
    /// Bound of the in-process cache, bytes.
    pub max_bytes: u64,
    /// Life of an entry.
    pub ttl: Duration,
    /// Who shares entries.
    pub scope: CacheScope,
    /// For interactive-search and rerank.
    pub normalize_queries: Normalization,
    /// For batch-ingestion.
    pub normalize_documents: Normalization,
}

/// `[quota]`. Shares are fractions of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    /// Whether replicas share limits through Redis.
    pub shared: bool,
    /// Share of an upstream's limits that batch can never take, 0 to 1.
    pub interactive_reserve: f64,
    /// Share that interactive can never take, 0 to 1.
    pub batch_floor: f64,
    /// Whether a slow interactive call is raced by a second one.
    pub hedge: bool,
    /// Longest wait of an interactive request for capacity.
    pub interactive_max_wait: Duration,
    /// Longest stay of a batch request in a queue.
    pub batch_max_dwell: Duration,
    /// Bound of a batch queue, in input items.
    pub batch_queue_max_items: usize,
    /// Most inputs in one upstream call of a batch, before adaptation.
    pub batch_size: usize,
    /// A request without a class and with more inputs than this is batch-ingestion.
    pub classify_batch_over_inputs: usize,
    /// A request with more inputs than this is batch-ingestion whatever it says.
    pub interactive_max_inputs: usize,
}

/// `[breaker]`, with the upstream's own overrides applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Breaker {
    /// Rolling window over which failures are counted.
    pub window: Duration,
    /// Share of failures that opens the breaker, 0 to 1.
    pub failure_ratio: f64,
    /// Fewest requests in the window before it may open.
    pub min_requests: u64,
    /// An answer slower than this counts as a failure.
    pub slow: Duration,
    /// How long it stays open.
    pub cooldown: Duration,
    /// Share of interactive queries that probe while half-open, 0 to 1.
    pub probe_ratio: f64,
    /// At low traffic, at least one probe per interval.
    pub probe_interval: Duration,
    /// Successful probes in a row that close it.
    pub probe_successes: u32,
}

/// `[retry]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Calls made for one request part, the first included; at least 1.
    pub max_attempts: u32,
    /// Base of the exponential back-off with full jitter.
    pub base: Duration,
    /// Cap of one back-off.
    pub cap: Duration,
    /// Retries and failovers as a share of recent requests, 0 to 1.
    pub budget_ratio: f64,
}

/// `[slo]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Slo {
    /// Window of the percentiles.
    pub window: Duration,
    /// 95 % of query embeddings are faster than this.
    pub interactive_p95: Duration,
    /// 99 % of query embeddings are faster than this.
    pub interactive_p99: Duration,
    /// 95 % of reranks are faster than this.
    pub rerank_p95: Duration,
    /// 99 % of reranks are faster than this.
    pub rerank_p99: Duration,
    /// 95 % of chat answers begin within this.
    pub chat_p95: Duration,
    /// 99 % of chat answers begin within this.
    pub chat_p99: Duration,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Text to vector.
    Embedding,
    /// Query and documents to scores.
    Rerank,
    /// Messages to text.
    Chat,
}

impl ModelKind {
    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            ModelKind::Embedding => "embedding",
            ModelKind::Rerank => "rerank",
            ModelKind::Chat => "chat",
        }
    }
}

/// Widths to which a vector may be cut and still mean the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matryoshka {
    /// None: only the native width.
    None,
    /// Exactly these.
    Widths(Vec<u32>),
    /// Any width in this range, ends included.
    Range {
        /// Smallest width.
        min: u32,
        /// Largest width.
        max: u32,
    },
}

impl Matryoshka {
    /// Whether a vector may be cut to `width`.
    pub fn allows(&self, width: u32) -> bool {
        match self {
            Matryoshka::None => false,
            Matryoshka::Widths(widths) => widths.contains(&width),
            Matryoshka::Range { min, max } => (*min..=*max).contains(&width),
        }
    }
}

/// How a model's tokens are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tokenizer {
    /// OpenAI's cl100k_base, counted exactly.
    Cl100k,
    /// OpenAI's o200k_base, counted exactly.
    O200k,
    /// One token a byte, exactly: what some self-hosted models and the simulated provider's tests use.
    Bytes,
    /// Not known here: estimated, and bounded by the number of bytes.
    Unknown,
}

/// Whether texts that differ only by case have the same vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// The model's tokenizer lower-cases.
    Folded,
    /// Case changes the vector.
    Kept,
    /// Not known.
    Unknown,
}

/// Prices of one model at one upstream, in the configured currency. `None`: no price is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prices {
    /// One input token.
    pub input: Option<UnitPrice>,
    /// One output token (chat).
    pub output: Option<UnitPrice>,
    /// One search (rerank).
    pub search: Option<UnitPrice>,
}

/// One `[[models]]` entry with what the catalogue knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What clients ask for.
    pub name: ModelName,
    /// What it is for.
    pub kind: ModelKind,
    /// Whose vectors it makes.
    pub space: SpaceId,
    /// Native width; `None` for rerankers, chat, and embedding models whose width is learned from the first answer.
    pub dimensions: Option<u32>,
    /// Widths it may be cut to.
    pub matryoshka: Matryoshka,
    /// Every vector leaves with this width.
    pub enforce_dimensions: Option<u32>,
    /// Longest input, tokens.
    pub max_input_tokens: Option<u32>,
    /// Longest answer, tokens (chat).
    pub max_output_tokens: Option<u32>,
    /// How its tokens are counted.
    pub tokenizer: Tokenizer,
    /// Whether case matters to it.
    pub case: Case,
    /// Whether a text has one vector, be it a query or a document (embedding): what a client says of that is taken as
    /// read, and not asked of an upstream that may have no word for it.
    pub symmetric: bool,
    /// Its prices, unless an upstream has its own.
    pub prices: Prices,
    /// Whether each (query, document) pair is scored on its own (rerank): only then may pairs be cached or split.
    pub pairwise: bool,
    /// Models that may answer instead (chat only), in order.
    pub fallbacks: Vec<ModelName>,
    /// The day (00:00 UTC) on which the provider retires it, where known.
    pub retires: Option<Wall>,
    /// `[slo]`, with the model's own lines applied.
    pub slo: Slo,
}

/// Whose wire format an upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// OpenAI and its look-alikes.
    OpenAi,
    /// Azure OpenAI.
    Azure,
    /// Cohere.
    Cohere,
    /// Voyage AI.
    Voyage,
    /// Jina.
    Jina,
    /// Hugging Face Text Embeddings Inference.
    Tei,
    /// Ollama.
    Ollama,
    /// vLLM.
    Vllm,
    /// Anthropic (chat).
    Anthropic,
    /// The built-in provider.
    Simulated,
}

impl Provider {
    /// The name in the configuration and in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Provider::OpenAi => "openai",
            Provider::Azure => "azure",
            Provider::Cohere => "cohere",
            Provider::Voyage => "voyage",
            Provider::Jina => "jina",
            Provider::Tei => "tei",
            Provider::Ollama => "ollama",
            Provider::Vllm => "vllm",
            Provider::Anthropic => "anthropic",
            Provider::Simulated => "simulated",
        }
    }

    /// The provider of that name, if there is one.
    pub fn parse(name: &str) -> Option<Provider> {
        let all = [
            Provider::OpenAi,
            Provider::Azure,
            Provider::Cohere,
            Provider::Voyage,
            Provider::Jina,
            Provider::Tei,
            Provider::Ollama,
            Provider::Vllm,
            Provider::Anthropic,
            Provider::Simulated,
        ];
        all.into_iter().find(|provider| provider.as_str() == name)
    }
}

/// One `[[upstreams]]` entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Its id.
    pub id: UpstreamId,
    /// Its wire format.
    pub provider: Provider,
    /// Its base URL without a trailing slash; empty for the simulated provider.
    pub base_url: String,
    /// Whose word counts on who it is, for `https:`; `None`: the authorities that browsers trust.
    pub ca: Option<Authorities>,
    /// Its key.
    pub api_key: Option<Secret>,
    /// Its region; empty: none stated.
    pub region: String,
    /// Lower tiers are tried first.
    pub tier: u32,
    /// Tokens per minute; `None`: unknown.
    pub tpm: Option<u64>,
    /// Requests per minute; `None`: unknown.
    pub rpm: Option<u64>,
    /// Calls in flight at once, at least 1.
    pub max_concurrency: usize,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest call.
    pub timeout: Duration,
    /// Most inputs in one call, where stated; else the provider's own limit holds.
    pub max_batch_items: Option<usize>,
    /// Most tokens in one call, where stated.
    pub max_batch_tokens: Option<u64>,
    /// Most body bytes in one call, where stated.
    pub max_batch_bytes: Option<u64>,
    /// Whether a stream of chat may be asked to end with its usage; some hosts refuse the wish.
    pub stream_usage: bool,
    /// Its breaker.
    pub breaker: Breaker,
    /// What it serves.
    pub serves: Vec<Serves>,
}

/// One entry of `serves`.
#[derive(Debug, Clone, PartialEq)]
pub struct Serves {
    /// The model.
    pub model: ModelName,
    /// Its name at the upstream.
    pub remote_name: String,
    /// What it costs there: the model's prices unless the entry has its own.
    pub prices: Prices,
}

/// One key of a tenant: only its hash is ever kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHash {
    /// SHA-256 of the whole secret.
    pub sha256: [u8; 32],
    /// Names it in records.
    pub fingerprint: KeyFingerprint,
}

/// Where a tenant comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TenantSource {
    /// The configuration file; it wins over a tenant of the same id made on the admin side.
    File,
    /// A call of the admin side.
    Admin,
}

/// One `[[tenants]]` entry, or a tenant made on the admin side.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its keys.
    pub keys: Vec<KeyHash>,
    /// Its budget; `None`: unlimited, still metered.
    pub budget: Option<Money>,
    /// How often the budget is refilled.
    pub budget_period: BudgetPeriod,
    /// Its own tokens per minute; `None`: no limit.
    pub tpm: Option<u64>,
    /// Its own requests per minute; `None`: no limit.
    pub rpm: Option<u64>,
    /// Most of its requests at once in this process; `None`: no limit.
    pub max_concurrency: Option<usize>,
    /// Its share of the batch queue, at least 1.
    pub weight: u32,
    /// Class of its keys; wins over what the request says.
    pub class: Option<TrafficClass>,
    /// Models it may use; `None`: all.
    pub models: Option<Vec<ModelName>>,
    /// Whether full cache hits are still served without budget.
    pub serve_cached_when_exhausted: bool,
    /// Where it comes from.
    pub source: TenantSource,
}

impl Tenant {
    /// Whether the tenant may use `model`.
    pub fn may_use(&self, model: &ModelName) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether the tenant may use `collection`: by its name, or because it may use both models. One of them is not
    /// enough, since the next stage would lock the tenant out.
    pub fn may_use_collection(&self, collection: &Collection) -> bool {
        let named = |models: &Vec<ModelName>| models.iter().any(|model| model.as_str() == collection.name);
        self.models.as_ref().is_none_or(named) || (self.may_use(&collection.from) && self.may_use(&collection.to))
    }
}

/// One `[[collections]]` entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Collection {
    /// Its name, also its alias as a model.
    pub name: String,
    /// The old model.
    pub from: ModelName,
    /// The new model.
    pub to: ModelName,
    /// Where the move begins: what was set on the admin side since holds instead.
    pub position: Position,
}

/// A model that its provider will stop serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retirement {
    /// The model.
    pub model: ModelName,
    /// The upstream at which it ends; `None`: everywhere.
    pub upstream: Option<UpstreamId>,
    /// 00:00 UTC of the day.
    pub on: Wall,
}

impl Retirement {
    /// Whole days from `now` to the day; below 0 when it is over.
    pub fn days_left(&self, now: Wall) -> i64 {
        (self.on.0 - utc::start_of_day(now).0).div_euclid(utc::DAY_MS)
    }
}
