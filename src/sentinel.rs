//! Watches that upstreams of one vector space really make the same vectors.
//!
//! A fixed set of texts is embedded by every upstream of a space, at start and before the first use after an outage.
//! The first upstream that answered, in the order of the file, is the space's reference; its vectors are kept in the
//! store's folder, so that a later start compares with them even while that upstream is down. An upstream whose cosine
//! to the reference is below [`SAME`] is taken out until a later check says otherwise; the reference itself never is.
//!
//! Spaces with a single upstream are never asked: there is nothing to compare and nothing that could be mixed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64_simd::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::actors::upstream::{Command, Order, UpstreamHandle};
use crate::config::plan::{Model, ModelKind, Plan, Provider, Upstream};
use crate::crowd::Breath;
use crate::dialects::upstream::{Expect, decode_embed, decode_error, encode_embed};
use crate::dialects::wire::Wire;
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

/// An upstream's vectors of [`TEXTS`].
type Fingerprint = Vec<Vec<f32>>;

/// The embedding spaces that more than one upstream serves, with those upstreams in the order of the file.
pub fn shared_spaces(plan: &Plan) -> BTreeMap<SpaceId, Vec<Member>> {
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
    spaces.retain(|_, members| members.len() > 1);
    spaces
}

/// Asks one upstream for its vectors of the fixed texts.
///
/// # Errors
/// Why there are none, in words for an operator.
pub async fn fingerprint(member: &Member) -> Result<Vec<Vec<f32>>, String> {
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
    let wire = Wire::new(&member.upstream);
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

/// A space's reference, as kept in the store's folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reference {
    /// Whose vectors they are.
    upstream: UpstreamId,
    /// Base64 of little-endian f32, one a text.
    vectors: Vec<String>,
}

impl Reference {
    fn of(upstream: UpstreamId, fingerprint: &[Vec<f32>]) -> Reference {
        let encode = |vector: &Vec<f32>| {
            BASE64.encode_to_string(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        };
        Reference { upstream, vectors: fingerprint.iter().map(encode).collect() }
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        let decode = |text: &String| {
            let bytes = BASE64.decode_to_vec(text.as_bytes()).ok()?;
            Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        self.vectors.iter().map(decode).collect()
    }
}

/// Asks for a check of an upstream that may be back from an outage.
#[derive(Debug, Clone)]
pub struct Watch(UnboundedSender<UpstreamId>);

impl Watch {
    /// Has `upstream` checked before it is used again.
    pub fn recheck(&self, upstream: &UpstreamId) {
        if self.0.send(upstream.clone()).is_err() {
            tracing::debug!(%upstream, "nobody checks vectors any more: the gateway is ending");
        }
    }
}

/// The two ends of the line on which checks are asked for.
pub fn line() -> (Watch, UnboundedReceiver<UpstreamId>) {
    let (sender, receiver) = unbounded_channel();
    (Watch(sender), receiver)
}

/// Checks spaces, and takes upstreams out and puts them back.
pub struct Sentinel {
    spaces: BTreeMap<SpaceId, Vec<Member>>,
    handles: BTreeMap<UpstreamId, Arc<UpstreamHandle>>,
    references: BTreeMap<SpaceId, Reference>,
    kept_in: PathBuf,
    telemetry: Arc<Telemetry>,
}

impl Sentinel {
    /// A sentinel over the plan's shared spaces; until its first check, all members but each space's first are out.
    pub fn new(plan: &Plan, handles: &[Arc<UpstreamHandle>], telemetry: Arc<Telemetry>) -> Sentinel {
        let kept_in = plan.store.path.join("references.json");
        let sentinel = Sentinel {
            spaces: shared_spaces(plan),
            handles: handles.iter().map(|handle| (handle.plan.id.clone(), Arc::clone(handle))).collect(),
            references: load(&kept_in),
            kept_in,
            telemetry,
        };
        for member in sentinel.spaces.values().flat_map(|members| members.iter().skip(1)) {
            sentinel.order(&member.upstream.id, Command::Quarantine(true));
        }
        sentinel
    }

    /// Whether there is anything to watch.
    pub fn is_idle(&self) -> bool {
        self.spaces.is_empty()
    }

    fn order(&self, upstream: &UpstreamId, command: Command) {
        if let Some(handle) = self.handles.get(upstream) {
            handle.actor.do_send(Order(command));
        }
    }

    /// Checks everything once, then whatever is asked for, until the line is closed.
    pub async fn run(mut self, mut asked: UnboundedReceiver<UpstreamId>, line: Watch) {
        let all: Vec<UpstreamId> = self.spaces.values().flatten().map(|member| member.upstream.id.clone()).collect();
        for upstream in all {
            self.check(&upstream, &line).await;
        }
        while let Some(upstream) = asked.recv().await {
            self.check(&upstream, &line).await;
        }
    }

    /// Checks one upstream in every shared space that it serves.
    async fn check(&mut self, upstream: &UpstreamId, line: &Watch) {
        let memberships: Vec<(SpaceId, Member)> = self
            .spaces
            .iter()
            .filter_map(|(space, members)| {
                let member = members.iter().find(|member| member.upstream.id == *upstream)?;
                Some((space.clone(), member.clone()))
            })
            .collect();
        let mut fit = true;
        for (space, member) in memberships {
            match fingerprint(&member).await {
                Ok(vectors) => fit &= self.compare(&space, upstream, &vectors),
                Err(reason) => {
                    tracing::warn!(%upstream, %space, reason, "vectors could not be checked, the upstream waits");
                    fit = false;
                    let (line, upstream) = (line.clone(), upstream.clone());
                    actix_web::rt::spawn(async move {
                        sleep(AGAIN).await;
                        line.recheck(&upstream);
                    });
                }
            }
        }
        if fit {
            self.order(upstream, Command::Quarantine(false));
        }
    }

    /// Compares with the space's reference, or becomes it; false if the vectors are of another space.
    fn compare(&mut self, space: &SpaceId, upstream: &UpstreamId, vectors: &[Vec<f32>]) -> bool {
        let known = self
            .references
            .get(space)
            .and_then(|reference| Some((reference.upstream.clone(), reference.fingerprint()?)));
        let Some((owner, reference)) = known else {
            self.references.insert(space.clone(), Reference::of(upstream.clone(), vectors));
            self.keep();
            return true;
        };
        let cosine = lowest_cosine(&reference, vectors);
        if cosine >= SAME {
            return true;
        }
        if owner == *upstream {
            // Its word defines the space; that it changed is the operator's to judge.
            tracing::error!(%upstream, %space, cosine, "the reference of a vector space no longer makes the vectors it made");
            return true;
        }
        self.telemetry.events.quarantined(upstream, cosine);
        self.order(upstream, Command::Quarantine(true));
        false
    }

    fn keep(&self) {
        let written = serde_json::to_vec_pretty(&self.references)
            .map_err(std::io::Error::other)
            .and_then(|text| std::fs::write(&self.kept_in, text));
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.kept_in.display(), "the reference vectors could not be kept");
        }
    }
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
    fn a_reference_survives_being_kept() {
        let vectors = vec![vec![0.5, -0.0, 1e-30], vec![1.0, 2.0, 3.0]];
        let kept = Reference::of("u".into(), &vectors);
        assert_eq!(kept.fingerprint(), Some(vectors));
    }

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
