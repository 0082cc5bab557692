//! Owns the vocabulary of admission: what is asked, answered, reported and observed. Refuses to decide anything.

use std::time::Duration;

use serde::Serialize;

use crate::ids::{AttemptId, TenantId, WaiterId};
use crate::pure::breaker::{self, Phase};
use crate::pure::class::TrafficClass;
use crate::pure::rate_headers::RateHeaders;
use crate::pure::time::Mono;

/// A request for permission to make one call.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The call's id; every later word about it carries it.
    pub attempt: AttemptId,
    /// Names the request while it waits.
    pub waiter: WaiterId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The tenant's share of the batch queue, at least 1.
    pub weight: u32,
    /// What it is for.
    pub class: TrafficClass,
    /// Tokens it will cost, estimated; 0 counts as 1.
    pub tokens: u64,
    /// Input items it carries; 0 counts as 1.
    pub items: usize,
    /// Whether it would wait; one that may fail over elsewhere had better not.
    pub may_queue: bool,
    /// Whether it goes on with work that has had a call: such work is let finish while the gateway shuts down.
    pub begun: bool,
    /// When its answer is of no use any more.
    pub deadline: Mono,
    /// The latest moment to which it waits in a queue. Whoever can go at once goes, however late it is: that the gateway
    /// itself stood still for a moment is no want of capacity.
    pub waits_until: Mono,
    /// A fresh random number in 0..1, for probes.
    pub roll: f64,
}

/// Permission to make one call. It must be reported by its attempt's id, whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The call's id.
    pub attempt: AttemptId,
    /// Whether it decides if the breaker closes.
    pub probe: bool,
    /// How long it waited in a queue.
    pub waited: Duration,
}

/// Why a call may not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The breaker is open, or half-open and this is no probe.
    CircuitOpen,
    /// Out of tokens or requests, or the provider asked for a pause.
    RateLimited,
    /// The queue is full.
    QueueFull,
    /// It waited as long as it may.
    QueueTimeout,
    /// Enough calls are in flight.
    Concurrency,
    /// The upstream's key is rejected.
    Parked,
    /// The upstream's key has no credit left.
    OutOfCredit,
    /// The upstream's vectors do not match its space.
    Quarantined,
    /// The upstream is back from an outage, or new, and its vectors have not been looked at yet.
    Unverified,
    /// An operator is taking the upstream out.
    Draining,
    /// The call alone is more than a whole minute's share.
    TooLarge,
    /// Its deadline has passed already.
    Late,
    /// The gateway is shutting down.
    ShuttingDown,
    /// The actor is restarting. Never decided here: the shell's answer while it cannot ask.
    Restarting,
}

impl Why {
    /// Whether waiting can help: capacity comes back by itself.
    pub const fn may_pass(self) -> bool {
        matches!(self, Why::RateLimited | Why::Concurrency | Why::QueueFull)
    }
}

/// A refusal with its reason and, where one is known, a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: Why,
    /// When asking again makes sense; `None`: unknown, or never without a human.
    pub retry_at: Option<Mono>,
}

/// The immediate answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Go.
    Grant(Grant),
    /// The answer will come out of a later poll.
    Queued,
    /// No.
    Refuse(Refusal),
}

/// How a granted call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// A good answer.
    Success {
        /// From sending to the answer's head.
        latency: Duration,
    },
    /// 429 for want of rate, or an overload refusal of a server without quota.
    RateLimited {
        /// The wait that the error's text suggests.
        hint: Option<Duration>,
    },
    /// The key has no credit left.
    OutOfQuota,
    /// The key was rejected (401, 403).
    KeyRejected,
    /// 5xx.
    ServerError,
    /// No answer in time; whether the provider did the work is not known.
    Timeout,
    /// No connection: nothing was sent.
    Connect,
    /// The connection broke or spoke nonsense after sending; whether the provider did the work is not known.
    Transport,
    /// The provider found fault with the request itself (400, 404, 413, 422).
    RequestError,
    /// The client left and the call was given up; whether the provider did the work is not known.
    ClientGone,
    /// Another upstream's answer to the same work came first and the call was given up; whether the provider did the
    /// work is not known, and it says nothing about its health.
    Outrun {
        /// How long it had been under way.
        after: Duration,
    },
    /// The permit was returned without a call.
    NotSent,
}

/// A report about a granted call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub kind: OutcomeKind,
    /// Tokens that the provider says it counted.
    pub actual_tokens: Option<u64>,
    /// What the answer's headers said.
    pub headers: RateHeaders,
}

impl Outcome {
    /// An outcome about which nothing but its kind is known.
    pub fn bare(kind: OutcomeKind) -> Outcome {
        Outcome { kind, actual_tokens: None, headers: RateHeaders::default() }
    }
}

/// Why an upstream's key is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// No credit.
    OutOfQuota,
    /// Rejected.
    KeyRejected,
}

/// Something that happened and should be logged or counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The breaker changed its phase.
    Breaker(breaker::Transition),
    /// The key is set aside until an operator brings it back.
    Parked(ParkReason),
    /// The provider asked for a pause, or is given one.
    CoolDown(Duration),
    /// A request left a queue, granted or not, after that long.
    Dwell {
        /// Its class.
        class: TrafficClass,
        /// How long it waited.
        waited: Duration,
    },
    /// A granted call was never reported; its permit was taken back.
    Lost(AttemptId),
    /// Something that cannot happen did; the state was kept. Names the rule that was broken.
    Impossible(&'static str),
}

/// What came out of a poll.
#[derive(Debug, Default)]
pub struct Poll {
    /// Answers to requests that waited.
    pub answers: Vec<(WaiterId, Result<Grant, Refusal>)>,
    /// What to log and count, of this poll and of all events before it.
    pub effects: Vec<Effect>,
    /// When to poll next if nothing happens before.
    pub wake: Option<Mono>,
}

/// What a class may still take, for rate-limit headers to clients; `None`: no limit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Most units a minute.
    pub limit: Option<u64>,
    /// Units that could be taken now.
    pub remaining: Option<u64>,
    /// Time until all of it is there again.
    pub reset: Duration,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Permits granted.
    pub granted: u64,
    /// Requests refused at once or out of the queue.
    pub refused: u64,
    /// Calls reported.
    pub finished: u64,
    /// Calls never reported.
    pub lost: u64,
    /// Reports about calls not known (twice, or too late).
    pub unknown_reports: u64,
}

/// The last thing that went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LastError {
    /// What.
    pub kind: &'static str,
    /// How long ago, milliseconds.
    pub ago_ms: u64,
}

/// One upstream's admission, for the admin page, metrics and tests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UpstreamSnapshot {
    /// The breaker.
    pub breaker: Phase,
    /// Why it is open.
    pub breaker_reason: Option<breaker::OpenReason>,
    /// Whether it would take an interactive call now, quota permitting.
    pub usable: bool,
    /// Tokens a minute in force.
    pub limit_tokens: Option<u64>,
    /// Requests a minute in force.
    pub limit_requests: Option<u64>,
    /// Tokens that interactive could take now.
    pub interactive_tokens: Option<u64>,
    /// Tokens that batch could take now.
    pub batch_tokens: Option<u64>,
    /// Requests that interactive could make now.
    pub interactive_requests: Option<u64>,
    /// Requests that batch could make now.
    pub batch_requests: Option<u64>,
    /// Tokens left by the provider's own count.
    pub provider_remaining_tokens: Option<u64>,
    /// Requests left by the provider's own count.
    pub provider_remaining_requests: Option<u64>,
    /// Interactive requests waiting.
    pub interactive_waiting: usize,
    /// Batch requests waiting.
    pub batch_waiting: usize,
    /// Input items of batch requests waiting.
    pub batch_waiting_items: usize,
    /// Calls in flight.
    pub in_flight: usize,
    /// Concurrency in use, in calls or texts.
    pub concurrency: usize,
    /// Concurrency allowed now, in calls or texts.
    pub concurrency_limit: usize,
    /// Remaining pause, milliseconds; 0: none.
    pub cool_down_ms: u64,
    /// Why the key is set aside.
    pub parked: Option<ParkReason>,
    /// Whether its vectors do not match.
    pub quarantined: bool,
    /// Whether its vectors have yet to be looked at.
    pub unverified: bool,
    /// Whether an operator is taking it out.
    pub draining: bool,
    /// The last thing that went wrong.
    pub last_error: Option<LastError>,
    /// Counts since the start.
    pub counters: Counters,
}
