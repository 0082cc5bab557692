//! Asking for leave to call: money held first, then a permit of an upstream, in one question to the router.
//!
//! Owns how long a request may wait for either, and that a hold which costs something is in the journal before anything is
//! called. Refuses to know what is called, and what it costs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::actors::ledger::{HoldRefusal, PlaceHold};
use crate::actors::router::{Reserve, Reserved, Unreserved, leave_queues};
use crate::clock;
use crate::error::{ApiError, Code};
use crate::ids::{AttemptId, UpstreamId, WaiterId};
use crate::pure::admission::Ask;
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::tenant_limits::Exceeded;
use crate::pure::time::Mono;
use crate::runtime::{Fleet, Shared};
use crate::store::record::{HoldRecord, Record};
use crate::store::redis::hold::{SharedAsk, SharedHold, SharedRefusal};
use crate::store::redis::quota::{self, Taken};
use crate::worker::Worker;

use super::admit::{CostBounds, exhausted_error};
use super::classify::Context;
use super::guards::Hold;
use super::plan::client_gone;
use super::refuse;
use super::settle::Tally;

/// Where a limit over all replicas is used up, it is not known when the others' share ages out: a second is a slot or two.
const SHARED_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// What a permit is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tries {
    /// The first call of the request.
    First,
    /// A call of its own besides.
    More,
    /// The same work once more.
    Again,
}

/// A call as the limits see it.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Tokens it will take, estimated.
    pub tokens: u64,
    /// Inputs it carries.
    pub items: usize,
}

/// A request that asks.
pub struct Asker<'a> {
    /// Where it is served.
    pub worker: &'a Rc<Worker>,
    /// What the edge knows of it.
    pub context: &'a Context,
    /// Its class.
    pub class: TrafficClass,
    /// Cancelled when its client leaves.
    pub gone: &'a CancellationToken,
}

/// What is held for a request before anything is called.
pub struct Funds {
    /// What it can cost.
    pub bounds: CostBounds,
    /// Tokens that count against the tenant's own limits, estimated.
    pub tokens: u64,
    /// When the hold lapses, if it is never resolved.
    pub lapses: Mono,
}

impl Asker<'_> {
    /// How long this request can wait for capacity or for money that is held by others.
    pub fn patience(&self) -> Duration {
        let quota = &self.context.running.plan.quota;
        if self.class.is_interactive() { quota.interactive_max_wait } else { quota.batch_max_dwell }
    }

    /// The latest moment at which a call may still begin: within the class's patience, and before the client gives up.
    pub fn deadline(&self, now: Mono) -> Mono {
        let latest = now.plus(self.patience());
        self.context.deadline.map_or(latest, |deadline| deadline.min(latest))
    }

    /// What is asked of an upstream; whoever waits for no queue sets `may_queue` to false.
    pub fn ask(&self, demand: Demand, tries: Tries) -> Ask {
        let tenant = &self.context.tenant.plan;
        Ask {
            attempt: AttemptId::next(),
            waiter: WaiterId::next(),
            tenant: tenant.id.clone(),
            weight: tenant.weight,
            class: self.class,
            tokens: demand.tokens,
            items: demand.items,
            may_queue: true,
            begun: tries != Tries::First,
            deadline: self.context.deadline.unwrap_or(Mono(u64::MAX)),
            waits_until: self.deadline(clock::mono()),
            roll: rand::random(),
        }
    }

    /// A permit out of what the best upstream has lent; `None` where the router must be asked.
    fn reserve_lent(&self, routes: &Fleet, ask: &Ask, avoid: &[UpstreamId]) -> Option<Reserved> {
        if routes.any_down() {
            // The router tells one that is down what it misses.
            return None;
        }
        let now = clock::mono();
        let rolls = [rand::random(), rand::random()];
        let lent = |route: usize| Some((route, routes[route].upstream.permit_lent(ask, now)?));
        let first = routes.best(avoid, rolls, now).and_then(lent);
        let (route, permit) = first.or_else(|| routes.beyond(avoid, rolls).and_then(lent))?;
        self.worker.request_begun();
        Some(Reserved { route, permit, held: Money::ZERO })
    }

    /// Asks for a permit of one of `routes`, after placing `hold`.
    ///
    /// # Errors
    /// Why there is none, in the client's words.
    ///
    /// # Cancel safety
    /// Safe: guards give back what a lost answer granted.
    pub async fn reserve(
        &self,
        routes: &Arc<Fleet>,
        demand: Demand,
        hold: Option<PlaceHold>,
        avoid: &[UpstreamId],
        tries: Tries,
    ) -> Result<Reserved, ApiError> {
        let ask = self.ask(demand, tries);
        let waiter = ask.waiter;
        let _stage = self.context.trace.stage("reserve");
        if hold.is_none()
            && tries != Tries::Again
            && let Some(reserved) = self.reserve_lent(routes, &ask, avoid)
        {
            return Ok(reserved);
        }
        let reserve = Reserve {
            hold: hold.map(|hold| (self.context.tenant.ledger.clone(), hold)),
            routes: Arc::clone(routes),
            avoid: avoid.to_vec(),
            retry: tries == Tries::Again,
            ask,
            rolls: [rand::random(), rand::random()],
        };
        if tries == Tries::Again {
            // Retries are measured by the requests so far.
            self.worker.flush_facts();
        }
        let asked = self.worker.gateway.router.send(reserve);
        let answer = tokio::select! {
            answer = asked => answer,
            () = self.gone.cancelled() => {
                leave_queues(routes, waiter);
                return Err(client_gone());
            }
        };
        match answer {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(Unreserved::Hold(HoldRefusal::Exhausted))) => Err(exhausted_error(self.context)),
            Ok(Err(Unreserved::Hold(HoldRefusal::RateLimited(exceeded)))) => {
                Err(refuse::tenant_limit(&exceeded, clock::mono()))
            }
            Ok(Err(Unreserved::Refused(refusal))) => Err(refuse::refusal(self.class, &refusal, clock::mono())),
            Ok(Err(Unreserved::RetryBudget)) => Err(refuse::retry_budget()),
            Ok(Err(Unreserved::Hold(HoldRefusal::Unavailable) | Unreserved::Unavailable)) | Err(_) => {
                Err(refuse::restarting())
            }
        }
    }

    /// Holds `funds` and asks for a permit. The hold is in the journal before anything is called, so that a crash cannot
    /// strand it unseen, and in `tally` afterwards.
    ///
    /// # Errors
    /// Why there is no hold or no permit; then nothing is held.
    ///
    /// # Cancel safety
    /// Safe: guards give back what a lost answer granted.
    pub async fn hold_and_reserve(
        &self,
        routes: &Arc<Fleet>,
        demand: Demand,
        funds: Funds,
        (avoid, tries): (&[UpstreamId], Tries),
        tally: &mut Tally,
    ) -> Result<Reserved, ApiError> {
        let tenant = &self.context.tenant;
        let Funds { mut bounds, tokens, lapses } = funds;
        if let Some(shared) = &tenant.shared
            && bounds.upper > Money::ZERO
        {
            let patience = if tally.shared_holds.is_empty() { self.patience() } else { Duration::ZERO };
            // Boxed, as below: only where replicas share a ledger is there need of its room.
            tally.shared_holds.push(Box::pin(self.hold_shared(shared, bounds, patience)).await?);
            // The rest is the tenant's own limits, which the actor owns.
            bounds = CostBounds::NOTHING;
        }
        let limited = tenant.plan.tpm.is_some() || tenant.plan.rpm.is_some();
        if bounds.upper == Money::ZERO && !limited {
            return self.reserve(routes, demand, None, avoid, tries).await;
        }
        if limited {
            tally.shared_limits.extend(Box::pin(self.take_shared_limits(tokens)).await?);
        }
        let journal = &self.worker.gateway.journal;
        let id = journal.next_hold_id();
        let ask = PlaceHold {
            id,
            upper: bounds.upper,
            likely: bounds.likely,
            lower: bounds.lower,
            expires_at: lapses,
            // Whoever holds money never waits for more: it might be waiting for itself.
            patience: if tally.holds.is_empty() { self.patience() } else { Duration::ZERO },
            tokens,
        };
        let lent = Hold::of_loan(tenant, &ask);
        let (mut hold, reserved) = match lent {
            Some(hold) => (hold, self.reserve(routes, demand, None, avoid, tries).await?),
            None => {
                let mut hold = Hold::new(Arc::clone(tenant), id);
                let reserved = self.reserve(routes, demand, Some(ask), avoid, tries).await?;
                hold.amount = reserved.held;
                (hold, reserved)
            }
        };
        let record = (bounds.upper > Money::ZERO).then(|| {
            // Noted first: a record that is told to have failed may be kept and written after all.
            hold.note_in(Arc::clone(journal), tenant.plan.id.clone());
            Record::Hold(HoldRecord {
                time: clock::wall(),
                hold: id,
                tenant: tenant.plan.id.clone(),
                request_id: self.context.request_id.clone(),
                amount: hold.amount,
            })
        });
        // On the tally before it is written: whoever cuts the journey meanwhile settles it after this record.
        tally.holds.push(hold);
        self.worker.scribe.write(record.into_iter().collect()).await.map_err(|error| {
            self.worker.gateway.telemetry.store_failed("hold", &error);
            ApiError::new(Code::StoreUnavailable, "the ledger cannot be written, so nothing that costs money is called")
        })?;
        Ok(reserved)
    }

    /// Takes tokens and a request out of the tenant's limits over all replicas, where they are shared. This process's own
    /// count comes after it and holds alone while the server is gone.
    async fn take_shared_limits(&self, tokens: u64) -> Result<Option<Taken>, ApiError> {
        let Some(quota) = self.worker.gateway.redis.as_ref().and_then(|redis| redis.quota.as_ref()) else {
            return Ok(None);
        };
        let plan = &self.context.tenant.plan;
        let limits = quota::Limits { tpm: plan.tpm, rpm: plan.rpm };
        if plan.tpm.is_some_and(|tpm| tokens > tpm) {
            // Never, and this process's own count says so.
            return Ok(None);
        }
        quota.take(&plan.id, limits, tokens).await.map(Some).map_err(|axis| {
            let now = clock::mono();
            refuse::tenant_limit(&Exceeded { axis, retry_at: Some(now.plus(SHARED_LIMIT_PAUSE)) }, now)
        })
    }

    /// Holds the money of a tenant whose balance replicas share.
    async fn hold_shared(
        &self,
        shared: &Shared,
        bounds: CostBounds,
        patience: Duration,
    ) -> Result<SharedHold, ApiError> {
        let request = self.context.request_id.clone();
        let ask = SharedAsk { upper: bounds.upper, likely: bounds.likely, lower: bounds.lower, patience, request };
        let placed = tokio::select! {
            placed = shared.ledger.place(&shared.account, &ask) => placed,
            () = self.gone.cancelled() => return Err(client_gone()),
        };
        placed.map_err(|refusal| match refusal {
            SharedRefusal::Exhausted => exhausted_error(self.context),
            SharedRefusal::Unavailable => refuse::ledger_unavailable(),
        })
    }
}
