//! Watches that upstreams of one vector space really make the same vectors.
//!
//! A fixed set of texts is embedded by every upstream of a space, at start and before the first use after an outage: a
//! breaker that was open, or, where another upstream can stand in, a refused connection or several failures in a row.
//! The first upstream that answered, in the order of the file, is the space's reference; its vectors are kept in the
//! store's folder, so that a later start compares with them even while that upstream is down. An upstream whose cosine
//! to the reference is below [`SAME`] is taken out until a later check says otherwise; the reference itself never is.
//!
//! Spaces with a single upstream are never asked: there is nothing to compare and nothing that could be mixed.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

use judge::{Finding, Fingerprint, Judge, Reference};

use crate::actors::upstream::{Board, Command, Order, UpstreamHandle};
use crate::config::plan::{Model, ModelKind, Plan, Provider, Upstream};
use crate::crowd::Breath;
use crate::dialects::upstream::{Expect, decode_embed, decode_error, encode_embed};
use crate::dialects::wire::{Places, Wire};
use crate::dialects::{Dtype, EmbedOptions, EmbedRequest, Encoding, Input, InputType, Truncate, simulated};
use crate::ids::{SpaceId, UpstreamId};
use crate::telemetry::Telemetry;

/// Cosine below which two vectors of one text are not of one model. Mirrors of the same weights on different servers
/// were measured to agree to 0.9999 and better; different models of equal width agree by chance only.
pub const SAME: f64 = 0.999;

/// Longest wait for one check's answer: an upstream that needs longer is not checked, and not used, yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause before an upstream that did not answer its check is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// Pause before an upstream whose vectors differ is looked at again: its operator may have put it right.
const QUARANTINE: Duration = Duration::from_secs(60);

/// How long the first reference of a space waits for upstreams that stand earlier in the file: one that is silent must
/// not keep the others out for as long as its check may take.
const GRACE: Duration = Duration::from_secs(1);

/// Outages of one upstream that begin closer together than this are flapping.
const FLAPPING: Duration = Duration::from_secs(60);

/// The texts: short and long, several scripts, code, so that a different tokenizer, pooling or prefix shows.
const TEXTS: [&str; 5] = [
    "How do I configure mutual TLS on an internal proxy?",
    "De vergunning wordt verleend onder de voorwaarde dat de aanvrager binnen zes weken bewijs van betaling overlegt.",
    "fn main() { println!(\"{}\", (1..=10).map(|n| n * n).sum::<u32>()); }",
    "\u{767e}\u{805e}\u{4e0d}\u{5982}\u{4e00}\u{898b}\u{3002}",
    "refund",
];

/// One upstream's part in a space.
#[derive(Debug, Clone)]
pub struct Member {
    /// What the configuration says of it.
    pub upstream: Arc<Upstream>,
    /// The model's name there.
    pub remote_name: String,
}

/// The embedding spaces that more than one upstream serves, with those upstreams in the order of the file.
pub fn shared_spaces(plan: &Plan) -> BTreeMap<SpaceId, Vec<Member>> {
    let mut spaces = all_spaces(plan);
    spaces.retain(|_, members| members.len() > 1);
    spaces
}

fn all_spaces(plan: &Plan) -> BTreeMap<SpaceId, Vec<Member>> {
    let mut spaces: BTreeMap<SpaceId, Vec<Member>> = BTreeMap::new();
    for upstream in &plan.upstreams {
        for serves in &upstream.serves {
            let is_it = |model: &&Arc<Model>| model.name == serves.model && model.kind == ModelKind::Embedding;
            let Some(model) = plan.models.iter().find(is_it) else { continue };
            let members = spaces.entry(model.space.clone()).or_default();
            if members.iter().all(|member| member.upstream.id != upstream.id) {
                members.push(Member { upstream: Arc::clone(upstream), remote_name: serves.remote_name.clone() });
            }
        }
    }
    spaces
}

impl Member {
    /// Whether the two send the same request to the same place.
    fn speaks_as(&self, other: &Member) -> bool {
        let (one, another) = (&self.upstream, &other.upstream);
        one.id == another.id
            && one.provider == another.provider
            && one.base_url == another.base_url
            && self.remote_name == other.remote_name
    }
}

/// Asks one upstream for its vectors of the fixed texts.
///
/// # Errors
/// Why there are none, in words for an operator.
pub async fn fingerprint(member: &Member) -> Result<Fingerprint, String> {
    if member.upstream.provider == Provider::Simulated {
        return Ok(TEXTS.iter().map(|text| simulated::embed(text, 384)).collect());
    }
    let inputs: Vec<Input> = TEXTS
        .iter()
        .map(|text| serde_json::to_vec(text).map(|raw| Input::Text(Bytes::from(raw))))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let options = EmbedOptions {
        // Cohere refuses requests that do not say; any word will do as long as it is the same for all.
        input_type: (member.upstream.provider == Provider::Cohere).then_some(InputType::Document),
        truncate: Some(Truncate::End).filter(|_| member.upstream.provider == Provider::Cohere),
        ..EmbedOptions::default()
    };
    let request = EmbedRequest {
        remote_model: &member.remote_name,
        inputs: &inputs,
        single: false,
        width: None,
        encoding: Encoding::Float,
        options: &options,
        original: None,
    };
    let provider = member.upstream.provider;
    let wire_request = encode_embed(provider, &request).map_err(|unsupported| unsupported.message)?;
    let wire = Wire::new(&member.upstream, &Places::default());
    let answer = match timeout(PATIENCE, wire.call(wire_request, &[], Breath::new(&Rc::default()))).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.describe().to_owned()),
        Err(_elapsed) => return Err("did not answer in time".to_owned()),
    };
    let headers = |name: &str| answer.header(name).map(str::to_owned);
    if !(200..300).contains(&answer.status) {
        let error = decode_error(provider, answer.status, &headers, &answer.body);
        return Err(format!("answered {}: {}", answer.status, error.message));
    }
    let expect = Expect { count: TEXTS.len(), width: None, dtype: Dtype::Float };
    let decoded = decode_embed(provider, &headers, &answer.body, &expect).map_err(|bad| bad.reason)?;
    Ok(decoded.vectors.iter().map(crate::vector::Vector::floats).collect())
}

/// The lowest cosine between two upstreams' vectors of the same texts; -1 if their widths differ.
pub fn lowest_cosine(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    if one.len() != other.len() {
        return -1.0;
    }
    one.iter().zip(other).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return -1.0;
    }
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let norm = (dot(a, a) * dot(b, b)).sqrt();
    if norm == 0.0 { -1.0 } else { dot(a, b) / norm }
}

/// Asks for checks, and knows who else makes an upstream's vectors.
#[derive(Clone)]
pub struct Watch {
    line: UnboundedSender<Asked>,
    stand_ins: Arc<ArcSwap<BTreeMap<UpstreamId, Vec<Arc<Board>>>>>,
}

/// What is asked for.
enum Asked {
    /// The upstream's breaker is about to let calls through again.
    Back(UpstreamId),
    /// The upstream seems to be down.
    Lost(UpstreamId),
    /// This is to be watched from now on.
    Watch(Watched),
}

/// The end of the line that the sentinel listens on.
pub struct Line(UnboundedReceiver<Asked>);

/// The spaces of one configuration that are watched, and the upstreams that serve them.
#[derive(Clone, Default)]
pub struct Watched {
    /// Those with several members, incumbents first: who served the space before another joined it is what its clients'
    /// vectors come from. Else in the order of the file.
    spaces: BTreeMap<SpaceId, Vec<Member>>,
    /// All of them.
    all: BTreeMap<SpaceId, Vec<Member>>,
    handles: BTreeMap<UpstreamId, Arc<UpstreamHandle>>,
}

impl Watched {
    /// What is to be watched of a configuration that follows one of which `before` was watched.
    pub fn of(plan: &Plan, handles: &[Arc<UpstreamHandle>], before: &Watched) -> Watched {
        let handles = handles.iter().map(|handle| (handle.plan.id.clone(), Arc::clone(handle))).collect();
        let mut spaces = shared_spaces(plan);
        for (space, members) in &mut spaces {
            members.sort_by_key(|member| !before.served(space, member));
        }
        Watched { spaces, all: all_spaces(plan), handles }
    }

    fn upstreams(&self) -> BTreeSet<&UpstreamId> {
        self.spaces.values().flatten().map(|member| &member.upstream.id).collect()
    }

    /// Whether this member of the space is watched, sending the same to the same place: then what one was found to be the
    /// other is.
    fn has(&self, space: &SpaceId, member: &Member) -> bool {
        self.spaces.get(space).is_some_and(|members| members.iter().any(|one| one.speaks_as(member)))
    }

    /// Whether this member served the space, alone or with others.
    fn served(&self, space: &SpaceId, member: &Member) -> bool {
        self.all.get(space).is_some_and(|members| members.iter().any(|one| one.speaks_as(member)))
    }

    /// Members that may not be used before they were compared: those that did not serve the space before, unless there
    /// is nobody else; then the first may.
    fn newcomers<'a>(&'a self, before: &'a Watched) -> impl Iterator<Item = &'a UpstreamId> {
        self.spaces.iter().flat_map(move |(space, members)| {
            let new = members.iter().skip(1).filter(move |member| !before.served(space, member));
            new.map(|member| &member.upstream.id)
        })
    }

    /// For each upstream what the others publish that make the vectors of all its shared spaces.
    fn stand_ins(&self) -> BTreeMap<UpstreamId, Vec<Arc<Board>>> {
        let in_all_spaces_of = |one: &UpstreamId, other: &UpstreamId| {
            let mut spaces = self.spaces.values().filter(|members| has(members, one));
            one != other && spaces.all(|members| has(members, other))
        };
        self.upstreams()
            .into_iter()
            .map(|one| {
                let others = self.handles.iter().filter(|(other, _)| in_all_spaces_of(one, other));
                (one.clone(), others.map(|(_, handle)| Arc::clone(&handle.board)).collect())
            })
            .collect()
    }

    fn order(&self, upstream: &UpstreamId, command: Command) {
        if let Some(handle) = self.handles.get(upstream) {
            handle.actor.do_send(Order(command));
        }
    }
}

impl Watch {
    /// Has `upstream` checked before it is used again.
    pub fn recheck(&self, upstream: &UpstreamId) {
        self.ask(Asked::Back(upstream.clone()));
    }

    /// Has `upstream`, which stopped answering, checked until it is back.
    pub fn lost(&self, upstream: &UpstreamId) {
        self.ask(Asked::Lost(upstream.clone()));
    }

    /// Has another configuration watched. What cannot be compared any more is free of doubt at once, and what joins a space
    /// is out of it at once; the checks follow.
    pub fn watch(&self, before: &Watched, next: Watched) {
        let compared = next.upstreams();
        for upstream in before.upstreams().difference(&compared) {
            before.order(upstream, Command::Verified);
        }
        for upstream in next.newcomers(before) {
            next.order(upstream, Command::AwaitCheck);
        }
        self.stand_ins.store(Arc::new(next.stand_ins()));
        self.ask(Asked::Watch(next));
    }

    /// Whether another upstream that can be used now makes the vectors of `upstream`.
    pub fn has_stand_in(&self, upstream: &UpstreamId) -> bool {
        self.stand_ins.load().get(upstream).is_some_and(|boards| boards.iter().any(|board| board.usable()))
    }

    fn ask(&self, asked: Asked) {
        if self.line.send(asked).is_err() {
            tracing::debug!("nobody checks vectors any more: the gateway is ending");
        }
    }
}

/// The two ends of the line on which checks are asked for.
pub fn line() -> (Watch, Line) {
    let (line, receiver) = unbounded_channel();
    (Watch { line, stand_ins: Arc::default() }, Line(receiver))
}

/// Checks spaces, and takes upstreams out and puts them back.
pub struct Sentinel {
    watched: Watched,
    judge: Judge,
    kept: BTreeMap<SpaceId, Reference>,
    kept_in: PathBuf,
    checks: FuturesUnordered<LocalBoxFuture<'static, Checked>>,
    /// Upstreams with a check under way or arranged.
    busy: BTreeSet<UpstreamId>,
    /// Outages of each upstream that followed each other closely, and when the last began.
    outages: BTreeMap<UpstreamId, (u32, Instant)>,
    telemetry: Arc<Telemetry>,
}

/// One upstream's vectors in each of its shared spaces, or why there are none.
struct Checked {
    upstream: UpstreamId,
    answers: Vec<(SpaceId, Member, Result<Fingerprint, String>)>,
}

impl Sentinel {
    /// A sentinel over the shared spaces of a first configuration, whose references are kept in `folder`; until its first
    /// check, all members but each space's first are out.
    pub fn new(watched: Watched, folder: &Path, watch: &Watch, telemetry: Arc<Telemetry>) -> Sentinel {
        let kept_in = folder.join("references.json");
        let kept = load(&kept_in);
        let members = |members: &Vec<Member>| members.iter().map(|member| member.upstream.id.clone()).collect();
        let judge = Judge::new(watched.spaces.iter().map(|(space, list)| (space.clone(), members(list))), &kept);
        watch.stand_ins.store(Arc::new(watched.stand_ins()));
        for upstream in watched.newcomers(&Watched::default()) {
            watched.order(upstream, Command::AwaitCheck);
        }
        Sentinel {
            watched,
            judge,
            kept,
            kept_in,
            checks: FuturesUnordered::new(),
            busy: BTreeSet::new(),
            outages: BTreeMap::new(),
            telemetry,
        }
    }

    /// Goes on with another configuration: what stays as it was keeps its verdict, all else is checked.
    fn renew(&mut self, next: Watched) {
        let before = std::mem::replace(&mut self.watched, next);
        let known = |space: &SpaceId, list: &[Member]| -> Vec<(UpstreamId, bool)> {
            list.iter().map(|member| (member.upstream.id.clone(), before.has(space, member))).collect()
        };
        let spaces: Vec<_> =
            self.watched.spaces.iter().map(|(space, list)| (space.clone(), known(space, list))).collect();
        let unknown: BTreeSet<UpstreamId> =
            spaces.iter().flat_map(|(_, list)| list).filter(|(_, known)| !known).map(|(id, _)| id.clone()).collect();
        self.judge = self.judge.renewed(spaces, &self.kept);
        for upstream in unknown {
            self.check(&upstream, Duration::ZERO);
        }
    }

    /// Checks everything once, then whatever is asked for, until the line is closed.
    pub async fn run(mut self, Line(mut asked): Line) {
        let all: Vec<UpstreamId> = self.watched.upstreams().into_iter().cloned().collect();
        for upstream in all {
            self.check(&upstream, Duration::ZERO);
        }
        let mut hurry = std::pin::pin!(sleep(GRACE));
        let mut hurried = false;
        loop {
            tokio::select! {
                asked = asked.recv() => match asked {
                    None => return,
                    Some(Asked::Watch(watched)) => {
                        self.renew(watched);
                        hurry.as_mut().reset(Instant::now() + GRACE);
                        hurried = false;
                    }
                    Some(Asked::Back(upstream)) => self.check(&upstream, Duration::ZERO),
                    Some(Asked::Lost(upstream)) => {
                        let wait = self.outage(&upstream);
                        self.check(&upstream, wait);
                    }
                },
                Some(checked) = self.checks.next() => self.checked(checked),
                () = &mut hurry, if !hurried => {
                    hurried = true;
                    let findings = self.judge.hurry();
                    self.act(findings);
                }
            }
        }
    }

    /// How long an upstream that went down stays out at least: longer each time it does so again soon, so that one which
    /// flaps does not drag the traffic to and fro.
    fn outage(&mut self, upstream: &UpstreamId) -> Duration {
        let now = Instant::now();
        let (count, last) = self.outages.entry(upstream.clone()).or_insert((0, now));
        *count = if now.duration_since(*last) < FLAPPING { (*count + 1).min(5) } else { 1 };
        *last = now;
        match *count {
            0 | 1 => Duration::ZERO,
            again => AGAIN * (1 << (again - 2)),
        }
    }

    /// Begins a check of one upstream, in every shared space that it serves, after `wait`.
    fn check(&mut self, upstream: &UpstreamId, wait: Duration) {
        if !self.busy.insert(upstream.clone()) {
            return;
        }
        self.judge.asked(upstream);
        let is_it = |member: &&Member| member.upstream.id == *upstream;
        let memberships: Vec<(SpaceId, Member)> = self
            .watched
            .spaces
            .iter()
            .filter_map(|(space, members)| Some((space.clone(), members.iter().find(is_it)?.clone())))
            .collect();
        let upstream = upstream.clone();
        self.checks.push(Box::pin(async move {
            sleep(wait).await;
            let mut answers = Vec::with_capacity(memberships.len());
            for (space, member) in memberships {
                let answer = fingerprint(&member).await;
                answers.push((space, member, answer));
            }
            Checked { upstream, answers }
        }));
    }

    fn checked(&mut self, Checked { upstream, answers }: Checked) {
        self.busy.remove(&upstream);
        let current = self.watched.spaces.values().filter(|members| has(members, &upstream)).count();
        let stale = answers.iter().any(|(space, member, _)| !self.watched.has(space, member));
        if stale || current != answers.len() {
            // A reload has changed it meanwhile: what it was says nothing of what it is.
            if current > 0 {
                self.check(&upstream, Duration::ZERO);
            }
            return;
        }
        let mut failed = false;
        for (space, _, answer) in answers {
            if let Err(reason) = &answer {
                failed = true;
                tracing::warn!(%upstream, %space, reason, "vectors could not be checked, the upstream waits");
            }
            let findings = self.judge.answered(&upstream, &space, answer.ok());
            self.act(findings);
        }
        if failed {
            self.watched.order(&upstream, Command::CheckFailed);
            self.check(&upstream, AGAIN);
        }
    }

    fn act(&mut self, findings: Vec<Finding>) {
        for finding in findings {
            match finding {
                Finding::Verified(upstream) => self.watched.order(&upstream, Command::Verified),
                Finding::Differs { upstream, space, cosine } => {
                    tracing::debug!(%upstream, %space, "differs from the reference");
                    self.telemetry.events.quarantined(&upstream, cosine);
                    self.watched.order(&upstream, Command::Quarantine);
                    self.check(&upstream, QUARANTINE);
                }
                Finding::ReferenceChanged { upstream, space, cosine } => {
                    tracing::error!(%upstream, %space, cosine, "the reference of a vector space no longer makes the vectors it made");
                }
            }
        }
        let references = self.judge.references();
        if references != self.kept {
            self.kept.extend(references);
            self.keep();
        }
    }

    fn keep(&self) {
        let written = serde_json::to_vec_pretty(&self.kept)
            .map_err(std::io::Error::other)
            .and_then(|text| std::fs::write(&self.kept_in, text));
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.kept_in.display(), "the reference vectors could not be kept");
        }
    }
}

fn has(members: &[Member], upstream: &UpstreamId) -> bool {
    members.iter().any(|member| member.upstream.id == *upstream)
}

fn load(path: &Path) -> BTreeMap<SpaceId, Reference> {
    let Ok(text) = std::fs::read(path) else { return BTreeMap::new() };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%error, file = %path.display(), "the kept reference vectors cannot be read and are made anew");
        BTreeMap::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_directions_are_the_same() {
        let a = vec![vec![1.0, 0.0], vec![0.0, 1.0]];
        assert!(lowest_cosine(&a, &[vec![2.0, 0.0], vec![0.0, 0.5]]) >= SAME);
        assert!(lowest_cosine(&a, &[vec![2.0, 0.0], vec![0.5, 0.5]]) < SAME);
        assert!(lowest_cosine(&a, &[vec![1.0, 0.0]]) < SAME, "another number of texts");
        assert!(lowest_cosine(&a, &[vec![1.0], vec![1.0]]) < SAME, "another width");
        assert!(lowest_cosine(&[vec![0.0, 0.0]], &[vec![0.0, 0.0]]) < SAME, "nothing is like nothing");
    }
}
