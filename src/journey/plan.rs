//! Which inputs are already known, which are being embedded by another request right now, and which this request must
//! ask an upstream for. Equal inputs of one request are one unit of work.

use std::collections::HashMap;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use crate::cache::flight::{Follower, Joined, LeaderGuard};
use crate::cache::{Cached, EntryTag};
use crate::clock;
use crate::config::plan::{CacheScope, Normalization};
use crate::dialects::{Dtype, EmbedOptions, Input, InputType, Truncate};
use crate::edge::scan::ItemKind;
use crate::error::{ApiError, Code};
use crate::pure::cache_key::{CacheKey, KeyBase, KeyParts, normalized_digest};
use crate::telemetry::CacheResult;
use crate::worker::Worker;

use super::classify::Call;

/// A vector and the tokens it stands for, as kept in the cache.
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
    /// Another request is embedding it.
    Followed(Follower),
    /// This request is embedding it; the work is in the [`Round`].
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
}

/// Whether this request's vectors may come from others and go to others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Look up, join, store.
    Full,
    /// Store only (`no-cache`).
    StoreOnly,
    /// Look up and join, store nothing (`no-store`).
    LookOnly,
    /// Neither: the cache is off, or each vector depends on its neighbours.
    None,
}

/// What one round asks upstreams for.
pub struct Round {
    /// The work, in the order of the inputs.
    pub led: Vec<Work>,
    store: bool,
}

/// One input to embed.
pub struct Work {
    unit: usize,
    /// Its position among the inputs.
    pub input: usize,
    key: CacheKey,
    leader: Option<LeaderGuard>,
    /// Its vector, once it is there.
    pub done: Option<Entry>,
}

/// Looks up every input.
pub fn look_up(worker: &Worker, call: &Call) -> Plan {
    let sharing = sharing(worker, call);
    let base = key_base(call);
    let mut units: Vec<Unit> = Vec::with_capacity(call.items.len());
    let mut known: HashMap<CacheKey, usize> = HashMap::new();
    let mut unit_of = Vec::with_capacity(call.items.len());
    for (input, item) in call.items.iter().enumerate() {
        let key = base.key(&digest(call, input, item.kind, item.digest));
        // With late chunking equal texts have different vectors, so nothing is folded.
        let unit = if call.options.late_chunking { units.len() } else { *known.entry(key).or_insert(units.len()) };
        if unit == units.len() {
            units.push(Unit { input, key, state: State::Missing, led: false });
        }
        unit_of.push(unit);
    }
    let mut plan = Plan { units, unit_of, sharing };
    if matches!(sharing, Sharing::Full | Sharing::LookOnly) {
        let now = clock::mono();
        for unit in &mut plan.units {
            if let Some(entry) = worker.gateway.cache.get(&unit.key, now) {
                unit.state = State::Known(entry);
            }
        }
    }
    plan
}

fn sharing(worker: &Worker, call: &Call) -> Sharing {
    if !worker.gateway.cache.is_on() || call.options.late_chunking {
        return Sharing::None;
    }
    match (call.context.no_cache, call.context.no_store) {
        (false, false) => Sharing::Full,
        (true, false) => Sharing::StoreOnly,
        (false, true) => Sharing::LookOnly,
        (true, true) => Sharing::None,
    }
}

fn digest(call: &Call, input: usize, kind: ItemKind, exact: [u8; 32]) -> [u8; 32] {
    if call.normalization == Normalization::Exact || kind != ItemKind::Text {
        return exact;
    }
    // Only search queries are folded, and those are small: reading one back blocks nobody.
    let Ok(Input::Text(raw)) = call.inputs[input].load_blocking() else { return exact };
    match serde_json::from_slice::<std::borrow::Cow<'_, str>>(&raw) {
        Ok(text) => normalized_digest(&text, call.normalization),
        Err(_not_text) => exact,
    }
}

fn key_base(call: &Call) -> KeyBase {
    let scope = call.context.running.plan.cache.scope;
    let parameters = parameters(&call.options);
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    KeyBase::new(&KeyParts {
        tenant: (scope == CacheScope::Tenant).then(|| call.context.tenant.plan.id.as_str()),
        space: call.model.plan.space.as_str(),
        width: call.width,
        parameters: &parameters,
        normalization: call.normalization,
    })
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
        let word = match truncate {
            Truncate::Never => "never",
            Truncate::Cut => "cut",
            Truncate::Start => "start",
            Truncate::End => "end",
        };
        add("truncate", word.to_owned());
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

    /// What the client is told about the cache.
    pub fn cache_result(&self) -> CacheResult {
        match (self.sharing, self.hits()) {
            (Sharing::None | Sharing::StoreOnly, _) => CacheResult::Bypass,
            (_, 0) => CacheResult::Miss,
            (_, hits) if hits == self.unit_of.len() => CacheResult::Hit,
            _ => CacheResult::Partial,
        }
    }

    /// Whether every input has its vector.
    pub fn is_complete(&self) -> bool {
        self.units.iter().all(|unit| matches!(unit.state, State::Known(_)))
    }

    /// The vectors in the order of the inputs.
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

    /// Takes on what nobody is embedding yet, and follows the rest.
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

    /// Takes over what a round brought. What it did not bring is missing again.
    pub fn take(&mut self, round: Round) {
        for work in round.led {
            self.units[work.unit].state = work.done.map_or(State::Missing, State::Known);
        }
    }

    /// Waits for what other requests are embedding. What failed there is missing again.
    ///
    /// # Errors
    /// The client has left.
    pub async fn await_followed(&mut self, gone: &CancellationToken) -> Result<(), ApiError> {
        for unit in &mut self.units {
            let State::Followed(_) = unit.state else { continue };
            let State::Followed(follower) = std::mem::replace(&mut unit.state, State::Missing) else { continue };
            tokio::select! {
                landed = follower.wait() => if let Ok(entry) = landed { unit.state = State::Known(entry) },
                () = gone.cancelled() => return Err(client_gone()),
            }
        }
        Ok(())
    }
}

/// The client has left: nobody reads this, but records and logs do.
pub fn client_gone() -> ApiError {
    ApiError::new(Code::ClientGone, "the client closed the connection")
}

impl Round {
    /// Keeps the vector of `led[index]`: for this request, for those who wait for it, and in the cache.
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
