//! Which inputs are already answered, which another request is asking for right now, and which this request must
//! ask an upstream for. Equal inputs of one request are one unit of work.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use crate::cache::flight::{FlightFailed, Follower, Joined, LeaderGuard, Told};
use crate::cache::{Cached, EntryTag};
use crate::clock;
use crate::config::plan::{CacheScope, Normalization};
use crate::dialects::rerank::Document;
use crate::dialects::{Dtype, EmbedOptions, InputType};
use crate::edge::scan::{Item, ItemKind};
use crate::error::{ApiError, Code, Source};
use crate::pure::cache_key::{CacheKey, ItemDigest, KeyBase, KeyParts, normalized_digest};
use crate::telemetry::CacheResult;
use crate::worker::Worker;

use super::classify::{Call, Task};
use super::items::renumber;
use super::rerank;

/// A vector or a score and the tokens it stands for, as kept in the cache.
pub type Entry = Cached;

/// One distinct input of a request.
struct Unit {
    /// Position of its first occurrence among the inputs.
    input: usize,
    key: CacheKey,
    state: State,
    /// This request asked an upstream for it, so it is no hit.
    led: bool,
}

enum State {
    /// Not known; whoever asks for it next leads or follows.
    Missing,
    /// Another request is asking for it.
    Followed(Follower),
    /// This request is asking for it; the work is in the [`Round`].
    Led,
    /// Here.
    Known(Entry),
}

/// How far a request's inputs are.
pub struct Plan {
    units: Vec<Unit>,
    /// For each input, its unit.
    unit_of: Vec<usize>,
    sharing: Sharing,
    /// What the last leader that failed has told.
    told: Option<ApiError>,
}

/// Whether this request's answers may come from others and go to others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Look up, join, store.
    Full,
    /// Store only (`no-cache`).
    StoreOnly,
    /// Look up and join, store nothing (`no-store`).
    LookOnly,
    /// Neither: the cache is off, or each answer depends on its neighbours.
    None,
}

/// What one round asks upstreams for.
pub struct Round {
    /// The work, in the order of the inputs.
    pub led: Vec<Work>,
    store: bool,
}

/// One input to ask for.
pub struct Work {
    unit: usize,
    /// Its position among the inputs.
    pub input: usize,
    key: CacheKey,
    leader: Option<LeaderGuard>,
    /// Its answer, once it is there.
    pub done: Option<Entry>,
}

/// Looks up every input.
///
/// # Cancel safety
/// Safe.
pub async fn look_up(worker: &Worker, call: &Call) -> Plan {
    let sharing = sharing(worker, call);
    let keys = Keys::new(call);
    let mut units: Vec<Unit> = Vec::with_capacity(call.items.len());
    // Where neighbours matter, equal inputs may have different answers: nothing is folded.
    let folds = call.items.len() > 1 && call.items_stand_alone();
    let mut known: HashMap<CacheKey, usize> = HashMap::new();
    let mut unit_of = Vec::with_capacity(call.items.len());
    for (input, item) in call.items.iter().enumerate() {
        let key = keys.key(input, item);
        let unit = if folds { *known.entry(key).or_insert(units.len()) } else { units.len() };
        if unit == units.len() {
            units.push(Unit { input, key, state: State::Missing, led: false });
        }
        unit_of.push(unit);
    }
    let mut plan = Plan { units, unit_of, sharing, told: None };
    if matches!(sharing, Sharing::Full | Sharing::LookOnly) {
        let now = clock::mono();
        for unit in &mut plan.units {
            if let Some(entry) = worker.gateway.cache.get(&unit.key, now) {
                unit.state = State::Known(entry);
            }
        }
        if worker.gateway.cache.remote().is_some() {
            plan.look_far(worker, call).await;
        }
    }
    plan
}

/// Whether an entry is of the kind and width that the call asks for.
fn fits(call: &Call, entry: &Entry) -> bool {
    match &call.task {
        Task::Embed(embed) => {
            let width = embed.width.or(call.model.native_width());
            entry.vector().is_some_and(|vector| width.is_none_or(|width| width == vector.width()))
        }
        Task::Rerank(_) => entry.score().is_some(),
    }
}

fn sharing(worker: &Worker, call: &Call) -> Sharing {
    if !worker.gateway.cache.is_on() || !call.items_stand_alone() {
        return Sharing::None;
    }
    match (call.context.no_cache, call.context.no_store) {
        (false, false) => Sharing::Full,
        (true, false) => Sharing::StoreOnly,
        (false, true) => Sharing::LookOnly,
        (true, true) => Sharing::None,
    }
}

/// The keys of one call's inputs.
struct Keys<'a> {
    base: KeyBase,
    call: &'a Call,
    /// Of the query, where there is one.
    query: Option<ItemDigest>,
}

impl Keys<'_> {
    fn new(call: &Call) -> Keys<'_> {
        let cache = &call.context.running.plan.cache;
        let (width, parameters, query) = match &call.task {
            Task::Embed(embed) => (embed.width, parameters(&embed.options), None),
            Task::Rerank(rerank) => {
                let query = digest(&rerank.query, &rerank.query_item, call.normalization);
                (None, rerank::parameters(&rerank.options, cache.normalize_documents), Some(query))
            }
        };
        let parameters: Vec<(&str, &str)> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let base = KeyBase::new(&KeyParts {
            tenant: (cache.scope == CacheScope::Tenant).then(|| call.context.tenant.plan.id.as_str()),
            space: call.model.plan.space.as_str(),
            width,
            parameters: &parameters,
            normalization: call.normalization,
        });
        Keys { base, call, query }
    }

    fn key(&self, index: usize, item: &Item) -> CacheKey {
        let exact = || item.digest;
        match (&self.call.task, &self.query) {
            (Task::Embed(embed), _) => {
                // Only search queries are folded, and those are small: reading one back from disk blocks nobody.
                let folds = self.call.normalization != Normalization::Exact;
                let input = embed.inputs.get(index).filter(|_| folds).and_then(|input| input.load_blocking().ok());
                self.base.key(&input.map_or_else(exact, |input| digest(input.raw(), item, self.call.normalization)))
            }
            (Task::Rerank(rerank), query) => {
                // A document is folded like documents that are indexed: by what it says, not like what people type.
                let folding = self.call.context.running.plan.cache.normalize_documents;
                let raw = rerank.documents.get(index).map(Document::raw);
                let document = raw.map_or_else(exact, |raw| digest(raw, item, folding));
                self.base.pair_key(query.as_ref().unwrap_or(&rerank.query_item.digest), &document)
            }
        }
    }
}

/// The digest of a text after folding, of anything else as it is.
pub(super) fn digest(raw: &[u8], item: &Item, folding: Normalization) -> ItemDigest {
    if folding == Normalization::Exact || item.kind != ItemKind::Text {
        return item.digest;
    }
    match serde_json::from_slice::<std::borrow::Cow<'_, str>>(raw) {
        Ok(text) => normalized_digest(&text, folding),
        Err(_not_text) => item.digest,
    }
}

/// Every option as (name, value): a new field of [`EmbedOptions`] does not compile until it is part of the key.
fn parameters(options: &EmbedOptions) -> Vec<(String, String)> {
    let EmbedOptions { input_type, task, prompt_name, truncate, normalize, dtype, late_chunking, extra } = options;
    let mut list = Vec::new();
    let mut add = |name: &str, value: String| list.push((format!("={name}"), value));
    if let Some(input_type) = input_type {
        add(
            "input_type",
            match input_type {
                InputType::Query => "query".to_owned(),
                InputType::Document => "document".to_owned(),
                InputType::Other(word) => format!("other:{word}"),
            },
        );
    }
    if let Some(task) = task {
        add("task", task.clone());
    }
    if let Some(name) = prompt_name {
        add("prompt_name", name.clone());
    }
    if let Some(truncate) = truncate {
        add("truncate", rerank::truncate_word(*truncate).to_owned());
    }
    if let Some(normalize) = normalize {
        add("normalize", normalize.to_string());
    }
    if *dtype != Dtype::Float {
        add("dtype", format!("{dtype:?}"));
    }
    if *late_chunking {
        add("late_chunking", "true".to_owned());
    }
    // Own names start with "=", a client's member may have any other name.
    list.extend(extra.iter().map(|(name, raw)| (name.clone(), String::from_utf8_lossy(raw).into_owned())));
    list
}

impl Plan {
    /// How many inputs were answered without a call of this request: from the cache, or by another request's call.
    pub fn hits(&self) -> usize {
        let is_hit = |unit: &Unit| !unit.led && matches!(unit.state, State::Known(_));
        self.unit_of.iter().filter(|unit| is_hit(&self.units[**unit])).count()
    }

    /// Looks up what memory does not have, all in one step.
    async fn look_far(&mut self, worker: &Worker, call: &Call) {
        let is_missing = |unit: &&mut Unit| matches!(unit.state, State::Missing);
        let missing: Vec<&mut Unit> = self.units.iter_mut().filter(is_missing).collect();
        let keys: Vec<CacheKey> = missing.iter().map(|unit| unit.key).collect();
        let found = worker.gateway.cache.get_far(&keys, |entry| fits(call, entry), clock::mono()).await;
        for (unit, found) in missing.into_iter().zip(found) {
            if let Some(entry) = found {
                unit.state = State::Known(entry);
            }
        }
    }

    /// What the client is told about the cache.
    pub fn cache_result(&self) -> CacheResult {
        match (self.sharing, self.hits()) {
            (Sharing::None | Sharing::StoreOnly, _) => CacheResult::Bypass,
            (_, 0) => CacheResult::Miss,
            (_, hits) if hits == self.unit_of.len() => CacheResult::Hit,
            _ => CacheResult::Partial,
        }
    }

    /// Whether every input has its answer.
    pub fn is_complete(&self) -> bool {
        self.units.iter().all(|unit| matches!(unit.state, State::Known(_)))
    }

    /// The answers in the order of the inputs.
    pub fn into_entries(self) -> Vec<Entry> {
        let units: Vec<Option<Entry>> = self
            .units
            .into_iter()
            .map(|unit| match unit.state {
                State::Known(entry) => Some(entry),
                _ => None,
            })
            .collect();
        self.unit_of.iter().filter_map(|unit| units[*unit].clone()).collect()
    }

    /// Takes on what nobody is asking for yet, and follows the rest.
    pub fn next_round(&mut self, worker: &Worker, call: &Call) -> Round {
        let joins = matches!(self.sharing, Sharing::Full | Sharing::LookOnly);
        let cache = &worker.gateway.cache;
        let flights = cache.flights(call.class.is_interactive());
        let mut led = Vec::new();
        for (index, unit) in self.units.iter_mut().enumerate() {
            if !matches!(unit.state, State::Missing) {
                continue;
            }
            let leader = match joins.then(|| flights.join(unit.key)) {
                Some(Joined::Follower(follower)) => {
                    unit.state = State::Followed(follower);
                    continue;
                }
                Some(Joined::Leader(leader)) => {
                    // The flight before may have landed between the look-up and the joining.
                    if let Some(entry) = cache.get(&unit.key, clock::mono()) {
                        leader.land(entry.clone());
                        unit.state = State::Known(entry);
                        continue;
                    }
                    Some(leader)
                }
                None => None,
            };
            unit.state = State::Led;
            unit.led = true;
            led.push(Work { unit: index, input: unit.input, key: unit.key, leader, done: None });
        }
        Round { led, store: matches!(self.sharing, Sharing::Full | Sharing::StoreOnly) }
    }

    /// What the last request that led for this one, and failed, has told.
    pub fn last_told(&mut self) -> Option<ApiError> {
        self.told.take()
    }

    /// Takes over what a round brought. What it did not bring is missing again.
    pub fn take(&mut self, round: Round) {
        for work in round.led {
            self.units[work.unit].state = work.done.map_or(State::Missing, State::Known);
        }
    }

    /// Whether other requests are asking for some of it.
    pub fn follows(&self) -> bool {
        self.units.iter().any(|unit| matches!(unit.state, State::Followed(_)))
    }

    /// Waits for what other requests are asking for. What failed there is missing again.
    ///
    /// # Errors
    /// The client has left, or another request's upstream said what asking again would only bring once more.
    pub async fn await_followed(&mut self, gone: &CancellationToken) -> Result<(), ApiError> {
        for unit in &mut self.units {
            let State::Followed(_) = unit.state else { continue };
            let State::Followed(follower) = std::mem::replace(&mut unit.state, State::Missing) else { continue };
            tokio::select! {
                landed = follower.wait() => match landed {
                    Ok(entry) => unit.state = State::Known(entry),
                    Err(FlightFailed::Abandoned) => {}
                    Err(FlightFailed::Told(told)) => {
                        let error = in_own_words(&told, unit.input);
                        if told.hopeless {
                            return Err(error);
                        }
                        self.told = Some(error);
                    }
                },
                () = gone.cancelled() => return Err(client_gone()),
            }
        }
        Ok(())
    }
}

/// Another request's error as this one's client reads it: it counts its own inputs.
fn in_own_words(told: &Told, input: usize) -> ApiError {
    let (message, _) = renumber(&told.error.message, |position| (position == told.position).then_some(input));
    ApiError { message: message.into(), ..told.error.clone() }
}

/// The client has left: nobody reads this, but records and logs do.
pub fn client_gone() -> ApiError {
    ApiError::new(Code::ClientGone, "the client closed the connection")
}

/// Whom a part's failure concerns besides this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nobody: another request may do better with the same inputs.
    Request,
    /// Whoever asks for the input at this place of the part.
    Item(usize),
    /// Whoever waits for one of its inputs; another try may still help.
    Upstream,
    /// Whoever waits for one of its inputs; another try would only make them wait as long again.
    Hopeless,
}

impl Round {
    /// Tells those who wait for the works at `range` why they get no answer from this request.
    pub fn fail(&mut self, range: Range<usize>, error: &ApiError, reach: Reach) {
        // An error about this request's money, rights or client is nobody else's.
        let own = error.provider.is_none() && error.code.row().source == Source::Client;
        for (place, work) in self.led[range].iter_mut().enumerate() {
            let hopeless = match reach {
                Reach::Upstream => false,
                Reach::Hopeless => true,
                Reach::Item(item) if item == place => true,
                Reach::Request | Reach::Item(_) => continue,
            };
            if let Some(leader) = work.leader.take_if(|_| !own) {
                leader.fail(Told { error: error.clone(), position: work.input, hopeless });
            }
        }
    }

    /// Keeps the answer to `led[index]`: for this request, for those who wait for it, and in the cache.
    pub fn land(&mut self, worker: &Rc<Worker>, call: &Call, index: usize, entry: Entry) {
        let work = &mut self.led[index];
        // Stored before it is handed on, or the next to ask would pay for it again.
        if self.store {
            let tag = EntryTag { tenant: call.context.tenant.plan.id.clone(), model: call.model.plan.name.clone() };
            worker.gateway.cache.put(work.key, &entry, &tag, clock::mono());
        }
        if let Some(leader) = work.leader.take() {
            leader.land(entry.clone());
        }
        work.done = Some(entry);
    }
}
