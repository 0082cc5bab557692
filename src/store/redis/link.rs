//! Connections to Redis. Every step has a time limit; after one step without an answer the others fail at once until one task
//! has looked whether the server is still there, and while it is gone all of them do. So however many steps a request
//! makes, it waits in vain for one of them at most. Requests never open a connection: that too is the task's.
//!
//! Owns connections and whether the server counts as there. Knows no keys and no commands but its own.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ErrorKind, RedisError, RedisResult, ServerErrorKind,
    TlsCertificates, cmd,
};
use deadpool_redis::{Manager, Pool, Runtime};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock;
use crate::config::plan::RedisTls;
use crate::telemetry::Telemetry;
use crate::telemetry::labels::StoreName;

use super::health::{Health, Step};

/// While the server is there it is asked for a sign of life this often.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// While it is gone it is looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Failures are counted always, but told in log and timeline when the server goes and comes, not each.
const LANES: usize = 2;

/// A connection of its own for each kind of work, so that a large look-up never stands before a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Money and quota: small steps.
    Small,
    /// Vectors.
    Bulk,
}

/// Why a step brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDown {
    /// The server counts as gone; nothing was sent.
    Gone,
    /// No answer in time; whether the step was done is not known.
    Silent,
    /// The connection broke or the server refused; whether the step was done is not known.
    Broken,
}

impl fmt::Display for StoreDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreDown::Gone => "the server does not answer",
            StoreDown::Silent => "no answer in time",
            StoreDown::Broken => "the connection broke",
        })
    }
}

impl std::error::Error for StoreDown {}

/// The process's connections to one server.
pub struct Link {
    pool: Pool,
    lanes: [ArcSwapOption<MultiplexedConnection>; LANES],
    health: Mutex<Health>,
    limit: Duration,
    /// The server's clock less ours, milliseconds.
    offset: AtomicI64,
    /// How often the server came back, the first time included.
    arrivals: AtomicU64,
    /// Whether the server was looked for at all.
    looked: AtomicBool,
    trouble: Notify,
    telemetry: Arc<Telemetry>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("health", &*self.health.lock()).finish_non_exhaustive()
    }
}

impl Link {
    /// Connections to the server at `url`, each step limited to `limit`. Nothing is opened before [`Link::keep`] runs.
    ///
    /// # Errors
    /// When the URL or the certificates cannot be used.
    pub fn new(url: &str, tls: &RedisTls, limit: Duration, telemetry: Arc<Telemetry>) -> RedisResult<Link> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
        let client = match url.starts_with("rediss:") {
            true => Client::build_with_tls(url, certificates(tls)?)?,
            false => Client::open(url)?,
        };
        let manager = Manager::new_with_config(client.get_connection_info().clone(), config)?;
        let pool = Pool::builder(manager)
            .max_size(LANES)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(limit))
            .create_timeout(Some(limit))
            .recycle_timeout(Some(limit))
            .build()
            .map_err(|_| RedisError::from((ErrorKind::InvalidClientConfig, "the pool cannot be built")))?;
        Ok(Link {
            pool,
            lanes: Default::default(),
            health: Mutex::new(Health::Down),
            limit,
            offset: AtomicI64::new(0),
            arrivals: AtomicU64::new(0),
            looked: AtomicBool::new(false),
            trouble: Notify::new(),
            telemetry,
        })
    }

    /// Whether the server counts as there.
    pub fn is_up(&self) -> bool {
        *self.health.lock() != Health::Down
    }

    /// Whether steps are sent: it answers, as far as is known.
    pub fn is_answering(&self) -> bool {
        *self.health.lock() == Health::Up
    }

    /// Whether the server was looked for and is not there.
    pub fn is_gone(&self) -> bool {
        !self.is_up() && self.looked.load(Ordering::Acquire)
    }

    /// How often the server has come back so far. A change means that what it knew may be gone.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// The longest that one step takes.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// When, by the server's clock, a step that begins now has no business any more: a server that was held up must
    /// not do what everybody has given up on.
    pub fn deadline(&self) -> i64 {
        let slack = i64::try_from(self.limit.as_millis()).unwrap_or(i64::MAX / 4).saturating_mul(2).saturating_add(50);
        self.server_now().saturating_add(slack)
    }

    /// The server's clock, milliseconds since the epoch, as far as it is known.
    pub fn server_now(&self) -> i64 {
        clock::wall().0.saturating_add(self.offset.load(Ordering::Relaxed))
    }

    /// One step: a round trip, or several commands in one.
    ///
    /// # Errors
    /// [`StoreDown`]; counted for `store`.
    ///
    /// # Cancel safety
    /// What was sent is done all the same.
    pub async fn step<T, F>(
        &self,
        lane: Lane,
        store: StoreName,
        work: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreDown>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let up = *self.health.lock() == Health::Up;
        let Some(connection) = self.lanes[lane as usize].load_full().filter(|_| up) else {
            self.telemetry.metrics.store_error(store);
            return Err(StoreDown::Gone);
        };
        let (step, result) = match tokio::time::timeout(self.limit, work((*connection).clone())).await {
            Ok(Ok(value)) => (Step::Answered, Ok(value)),
            Ok(Err(error)) if is_ours(&error) => {
                tracing::error!(store = store.as_str(), error = %error, "the store cannot do a step");
                (Step::Answered, Err(StoreDown::Broken))
            }
            Ok(Err(_)) => (Step::Broken, Err(StoreDown::Broken)),
            Err(_elapsed) => (Step::Silent, Err(StoreDown::Silent)),
        };
        if result.is_err() {
            self.telemetry.metrics.store_error(store);
        }
        self.saw(step, store);
        result
    }

    fn saw(&self, step: Step, store: StoreName) {
        let (before, after) = {
            let mut health = self.health.lock();
            let before = *health;
            *health = before.on(step);
            (before, *health)
        };
        if before == after {
            return;
        }
        if after == Health::Down {
            let cause = if step == Step::Broken { "the connection broke" } else { "no answer in time" };
            self.telemetry.events.store_failed(store, cause);
        }
        self.trouble.notify_one();
    }

    /// Keeps the connections: opens them, looks whether the server is there, and looks for it while it is not. Runs until
    /// it is dropped.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn keep(&self) {
        let mut first = true;
        loop {
            let health = *self.health.lock();
            match health {
                Health::Up => {
                    tokio::select! {
                        () = tokio::time::sleep(WATCH_EVERY) => self.watch().await,
                        () = self.trouble.notified() => {}
                    }
                    continue;
                }
                Health::Suspect => {
                    self.watch().await;
                    continue;
                }
                Health::Down => {}
            }
            let opened = self.open(first).await;
            match opened {
                Ok(()) => {
                    self.arrivals.fetch_add(1, Ordering::AcqRel);
                    *self.health.lock() = Health::Up;
                    self.looked.store(true, Ordering::Release);
                    if !first {
                        self.telemetry.events.store_recovered(StoreName::RedisLedger);
                    }
                    first = false;
                }
                Err(cause) => {
                    self.looked.store(true, Ordering::Release);
                    if first {
                        // From here on it is gone as if it had been there: said once.
                        self.telemetry.events.store_failed(StoreName::RedisLedger, cause);
                        first = false;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    async fn open(&self, first: bool) -> Result<(), &'static str> {
        for lane in &self.lanes {
            lane.store(None);
        }
        for lane in &self.lanes {
            let pooled = self.pool.get().await.map_err(|error| {
                // Once a second would be a flood in a long outage.
                match first {
                    true => tracing::warn!(%error, "no connection to redis"),
                    false => tracing::debug!(%error, "no connection to redis"),
                }
                "no connection"
            })?;
            let connection = deadpool_redis::Connection::take(pooled);
            self.look(connection.clone()).await.map_err(|_| "no sign of life")?;
            lane.store(Some(Arc::new(connection)));
        }
        Ok(())
    }

    /// Looks for a sign of life on each connection.
    async fn watch(&self) {
        for lane in &self.lanes {
            let Some(connection) = lane.load_full() else { continue };
            let step = match tokio::time::timeout(self.limit, self.ask_time((*connection).clone())).await {
                Ok(Ok(())) => Step::Answered,
                Ok(Err(_)) => Step::Broken,
                Err(_elapsed) => Step::Lifeless,
            };
            self.saw(step, StoreName::RedisLedger);
            if step != Step::Answered {
                return;
            }
        }
    }

    async fn look(&self, connection: MultiplexedConnection) -> RedisResult<()> {
        match tokio::time::timeout(self.limit, self.ask_time(connection)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(RedisError::from((ErrorKind::Io, "no answer in time"))),
        }
    }

    /// Asks for the server's clock: a sign of life that also keeps the two clocks together. A server that may not write
    /// (a replica, or one that has no room) is as good as none.
    async fn ask_time(&self, mut connection: MultiplexedConnection) -> RedisResult<()> {
        let asked = clock::wall().0;
        let (seconds, micros): (i64, i64) = cmd("TIME").query_async(&mut connection).await?;
        let ours = asked + (clock::wall().0 - asked) / 2;
        self.offset.store(seconds.saturating_mul(1000).saturating_add(micros / 1000) - ours, Ordering::Relaxed);
        Ok(())
    }
}

fn certificates(tls: &RedisTls) -> RedisResult<TlsCertificates> {
    let root_cert = tls.ca.as_ref().map(std::fs::read).transpose()?;
    let identity = tls.identity.as_ref();
    let client_tls = identity.map(|(cert, key)| -> RedisResult<ClientTlsConfig> {
        Ok(ClientTlsConfig { client_cert: std::fs::read(cert)?, client_key: std::fs::read(key)? })
    });
    Ok(TlsCertificates { client_tls: client_tls.transpose()?, root_cert })
}

/// Whether an error is a fault of the step, not of the server: another step may well succeed.
fn is_ours(error: &RedisError) -> bool {
    !error.is_io_error()
        && !error.is_connection_dropped()
        && !matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ReadOnly
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::TryAgain
            )
        )
}
