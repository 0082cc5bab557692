//! The ways to one model's vectors, with everything prepared that a request would otherwise find out by a walk over all of
//! them: what a request costs must not depend on how many upstreams there are.
//!
//! What the configuration says is summed up once. What upstreams publish is summed up when it has changed in kind (one is down,
//! back, or has learned a limit: [`changes`]), which is rare; figures that move with every call are summed up as they are asked
//! for, over many upstreams at most every [`FRESH_FOR`]. Owns no rule of choice: that is [`select`]'s.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::Route;
use crate::actors::upstream::changes;
use crate::clock;
use crate::config::limits;
use crate::config::plan::{ModelKind, Prices, Provider};
use crate::ids::UpstreamId;
use crate::pure::adaptive_batch::Limits;
use crate::pure::admission::Allowance;
use crate::pure::class::TrafficClass;
use crate::pure::select::{self, Candidate, Group};
use crate::pure::tenant_limits::Allowances;
use crate::pure::time::Mono;

/// Up to so many upstreams their figures are looked at each time.
const FEW: usize = 16;

/// Sums over more upstreams than [`FEW`] are taken anew this often: whatever is decided by them is judged again by the upstream
/// that is asked.
const FRESH_FOR: Duration = Duration::from_millis(20);

/// Ways to get vectors; all of one space.
pub struct Fleet {
    routes: Box<[Route]>,
    /// Each once.
    prices: Vec<Prices>,
    providers: Vec<Provider>,
    longest_timeout: Duration,
    stated: OnceLock<(ModelKind, Limits)>,
    standing: ArcSwapOption<Standing>,
    /// What each quota leaves to a batch call, and what interactive traffic and batch may still take of all together; each as
    /// it was at a moment.
    batch: OfLate<Limits>,
    allowances: [OfLate<Option<Allowances>>; 2],
}

/// A sum over the upstreams, and when it was taken.
type OfLate<T> = Mutex<Option<(Mono, T)>>;

/// What is true until the next change.
struct Standing {
    /// [`changes`] before it was taken.
    change: u64,
    any_down: bool,
    /// Routes that are tried before all others: half-open, or of the lowest tier that is usable.
    best: Group<usize>,
    /// The least that refusals have taught of calls for vectors, and of rerank calls.
    learned: [Limits; 2],
}

impl Deref for Fleet {
    type Target = [Route];

    fn deref(&self) -> &[Route] {
        &self.routes
    }
}

impl FromIterator<Route> for Fleet {
    fn from_iter<I: IntoIterator<Item = Route>>(routes: I) -> Fleet {
        let routes: Box<[Route]> = routes.into_iter().collect();
        let (mut prices, mut providers) = (Vec::new(), Vec::new());
        for route in &routes {
            if !prices.contains(&route.prices) {
                prices.push(route.prices);
            }
            if !providers.contains(&route.upstream.plan.provider) {
                providers.push(route.upstream.plan.provider);
            }
        }
        Fleet {
            longest_timeout: routes.iter().map(|route| route.upstream.plan.timeout).max().unwrap_or_default(),
            prices,
            providers,
            routes,
            stated: OnceLock::new(),
            standing: ArcSwapOption::empty(),
            batch: Mutex::default(),
            allowances: Default::default(),
        }
    }
}

/// What the configuration says.
impl Fleet {
    /// What a call costs at any of them, each price once.
    pub fn prices(&self) -> &[Prices] {
        &self.prices
    }

    /// Whose wire formats they speak, each once.
    pub fn providers(&self) -> &[Provider] {
        &self.providers
    }

    /// The longest that a call to any of them may take.
    pub fn longest_timeout(&self) -> Duration {
        self.longest_timeout
    }

    /// What a call for a model of that kind may carry to any of them, by what is published or configured.
    pub fn stated_limits(&self, kind: ModelKind) -> Limits {
        let sum_up = || {
            let own = self.routes.iter().map(|route| {
                let own = limits::of_upstream(&route.upstream.plan, &route.remote_name, kind);
                Limits { max_items: own.items, max_tokens: own.tokens, max_bytes: own.bytes }
            });
            own.fold(Limits::default(), Limits::tighter)
        };
        let (known, stated) = *self.stated.get_or_init(|| (kind, sum_up()));
        if known == kind { stated } else { sum_up() }
    }
}

/// What the upstreams publish.
impl Fleet {
    /// Whether any does not answer and its breaker has yet to learn what that costs.
    pub fn any_down(&self) -> bool {
        self.standing().any_down
    }

    /// The route that is tried first: as [`Fleet::order`] has it, or of very many as the [`Group`] of the best has it.
    pub fn best(&self, avoid: &[UpstreamId], rolls: [f64; 2], now: Mono) -> Option<usize> {
        if !avoid.is_empty() {
            return self.order(avoid, rolls).next();
        }
        self.standing().best.first(rolls, now, |index| candidate(index, &self.routes[index], avoid))
    }

    /// The route that is tried next if [`Fleet::best`] did not take a call and chose among some only; else `None`.
    pub fn beyond(&self, avoid: &[UpstreamId], rolls: [f64; 2]) -> Option<usize> {
        if !avoid.is_empty() {
            return None;
        }
        self.standing().best.beyond(rolls, |index| candidate(index, &self.routes[index], avoid))
    }

    /// All routes in the order in which they are tried.
    pub fn order(&self, avoid: &[UpstreamId], rolls: [f64; 2]) -> impl Iterator<Item = usize> + use<> {
        let candidates = self.routes.iter().enumerate().map(|(index, route)| candidate(index, route, avoid)).collect();
        select::order(candidates, rolls).into_iter().map(|candidate| candidate.id)
    }

    /// The least that refusals of calls for vectors have taught, and for a batch call also what each quota leaves now.
    pub fn call_limits(&self, batch: bool) -> Limits {
        let learned = self.standing().learned[0];
        if batch { learned.tighter(self.batch_limits()) } else { learned }
    }

    /// The least that refusals of rerank calls have taught.
    pub fn rerank_limits(&self) -> Limits {
        self.standing().learned[1]
    }

    /// What a class may still take of all usable ones together; `None` before any has said so.
    pub fn allowances(&self, class: TrafficClass) -> Option<Allowances> {
        self.of_late(&self.allowances[usize::from(!class.is_interactive())], || self.allowances_now(class))
    }

    fn batch_limits(&self) -> Limits {
        self.of_late(&self.batch, || self.batch_limits_now())
    }

    fn standing(&self) -> Arc<Standing> {
        let change = changes();
        if let Some(known) = self.standing.load_full().filter(|known| known.change == change) {
            return known;
        }
        let boards = || self.routes.iter().map(|route| &route.upstream.board);
        let ranks = || self.routes.iter().map(|route| candidate(0, route, &[]).rank());
        let best = ranks().min();
        let standing = Arc::new(Standing {
            change,
            any_down: boards().any(|board| board.down()),
            best: Group::new(
                ranks().enumerate().filter(|(_, rank)| Some(*rank) == best).map(|(index, _)| index).collect(),
            ),
            learned: [
                boards().map(|board| board.call_limits(false)).fold(Limits::default(), Limits::tighter),
                boards().map(|board| board.rerank_limits()).fold(Limits::default(), Limits::tighter),
            ],
        });
        self.standing.store(Some(Arc::clone(&standing)));
        standing
    }

    /// What was summed up a moment ago; over few upstreams it is summed up each time.
    fn of_late<T: Copy>(&self, known: &OfLate<T>, sum_up: impl FnOnce() -> T) -> T {
        if self.routes.len() <= FEW {
            return sum_up();
        }
        let now = clock::mono();
        let mut known = known.lock();
        match *known {
            Some((at, sum)) if now.since(at) < FRESH_FOR => sum,
            _ => known.insert((now, sum_up())).1,
        }
    }

    fn batch_limits_now(&self) -> Limits {
        let limits = self.routes.iter().map(|route| route.upstream.board.call_limits(true));
        limits.fold(Limits::default(), Limits::tighter)
    }

    fn allowances_now(&self, class: TrafficClass) -> Option<Allowances> {
        let usable = self.routes.iter().filter(|route| route.upstream.board.usable());
        let mut all = usable.filter_map(|route| route.upstream.board.allowances(class));
        let mut sum = all.next()?;
        while !(is_unlimited(sum.tokens) && is_unlimited(sum.requests))
            && let Some(next) = all.next()
        {
            sum = Allowances {
                tokens: together(sum.tokens, next.tokens),
                requests: together(sum.requests, next.requests),
            };
        }
        Some(sum)
    }
}

/// No other upstream can make a sum of it.
fn is_unlimited(allowance: Allowance) -> bool {
    allowance.limit.is_none() && allowance.remaining.is_none()
}

/// Two upstreams' allowances as one; where one has no limit, there is none.
fn together(one: Allowance, other: Allowance) -> Allowance {
    let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
    Allowance {
        limit: sum(one.limit, other.limit),
        remaining: sum(one.remaining, other.remaining),
        reset: one.reset.max(other.reset),
    }
}

fn candidate(index: usize, route: &Route, avoid: &[UpstreamId]) -> Candidate<usize> {
    let upstream = &route.upstream;
    Candidate {
        id: index,
        tier: upstream.plan.tier,
        probing: upstream.board.probing(),
        usable: upstream.board.usable() && !avoid.contains(&upstream.plan.id),
        in_flight: upstream.board.in_flight() as u64,
        latency_ns: upstream.board.latency_ns(),
    }
}
