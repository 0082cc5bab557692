//! Owns the verdicts over upstreams of shared vector spaces: whose vectors are the reference, and who makes the same.
//! Refuses to call anybody and to know a clock.

use std::collections::{BTreeMap, BTreeSet};

use base64_simd::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::{SAME, lowest_cosine};
use crate::ids::{SpaceId, UpstreamId};

/// An upstream's vectors of the fixed texts.
pub type Fingerprint = Vec<Vec<f32>>;

/// A space's reference, as kept in the store's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Whose vectors they are.
    pub upstream: UpstreamId,
    /// Base64 of little-endian f32, one a text.
    vectors: Vec<String>,
}

impl Reference {
    /// Keeps a fingerprint.
    pub fn of(upstream: UpstreamId, fingerprint: &[Vec<f32>]) -> Reference {
        let encode = |vector: &Vec<f32>| {
            BASE64.encode_to_string(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        };
        Reference { upstream, vectors: fingerprint.iter().map(encode).collect() }
    }

    /// The fingerprint that was kept; `None` if it cannot be read.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let decode = |text: &String| {
            let bytes = BASE64.decode_to_vec(text.as_bytes()).ok()?;
            Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        self.vectors.iter().map(decode).collect()
    }
}

/// What follows from what was learned.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// The upstream makes the vectors of all its spaces.
    Verified(UpstreamId),
    /// It makes others in one of them.
    Differs {
        /// Who.
        upstream: UpstreamId,
        /// Where.
        space: SpaceId,
        /// How far off.
        cosine: f64,
    },
    /// The reference of a space no longer makes the vectors it made. Its word defines the space, so it stays.
    ReferenceChanged {
        /// Who.
        upstream: UpstreamId,
        /// Where.
        space: SpaceId,
        /// How far off.
        cosine: f64,
    },
}

/// How far one upstream's check in one space is.
#[derive(Debug, Clone)]
enum State {
    /// Not asked yet, or asked and still silent.
    Open,
    /// Did not answer when it was asked last.
    Failed,
    /// Answered; there is no reference to compare with yet.
    Answered(Fingerprint),
    /// Compared: the same or not.
    Judged(bool),
}

#[derive(Debug)]
struct Space {
    /// Members in the order of the file.
    members: Vec<(UpstreamId, State)>,
    reference: Option<(UpstreamId, Fingerprint)>,
}

/// The verdicts so far.
#[derive(Debug)]
pub struct Judge {
    spaces: BTreeMap<SpaceId, Space>,
    /// Whether a reference is chosen without waiting for members that have not answered yet.
    hurried: bool,
}

impl Judge {
    /// Nobody has been asked. `spaces` lists members in the order of the file.
    pub fn new(
        spaces: impl IntoIterator<Item = (SpaceId, Vec<UpstreamId>)>,
        known: &BTreeMap<SpaceId, Reference>,
    ) -> Judge {
        let spaces = spaces.into_iter().map(|(space, members)| {
            let reference = known.get(&space).and_then(|kept| Some((kept.upstream.clone(), kept.fingerprint()?)));
            let members = members.into_iter().map(|id| (id, State::Open)).collect();
            (space, Space { members, reference })
        });
        Judge { spaces: spaces.collect(), hurried: false }
    }

    /// The verdicts over other spaces, after a reload. Members in the order of the file, each with whether it is what it
    /// was, so that its verdict still holds.
    pub fn renewed(
        &self,
        spaces: impl IntoIterator<Item = (SpaceId, Vec<(UpstreamId, bool)>)>,
        kept: &BTreeMap<SpaceId, Reference>,
    ) -> Judge {
        let spaces = spaces.into_iter().map(|(space, members)| {
            let before = self.spaces.get(&space);
            let state = |id: &UpstreamId| {
                let found = before?.members.iter().find(|(one, _)| one == id);
                found.map(|(_, state)| state.clone())
            };
            let members = members
                .into_iter()
                .map(|(id, same)| {
                    let state = if same { state(&id).unwrap_or(State::Open) } else { State::Open };
                    (id, state)
                })
                .collect();
            let known = || kept.get(&space).and_then(|kept| Some((kept.upstream.clone(), kept.fingerprint()?)));
            let reference = before.and_then(|before| before.reference.clone()).or_else(known);
            (space, Space { members, reference })
        });
        Judge { spaces: spaces.collect(), hurried: false }
    }

    /// The references in force.
    pub fn references(&self) -> BTreeMap<SpaceId, Reference> {
        let kept = self.spaces.iter().filter_map(|(space, known)| {
            let (upstream, fingerprint) = known.reference.as_ref()?;
            Some((space.clone(), Reference::of(upstream.clone(), fingerprint)))
        });
        kept.collect()
    }

    /// A check of `upstream` begins: what was found before no longer counts. Who did not answer is not waited for again
    /// because it is asked again, or those after it would be kept out for as long as it is down.
    pub fn asked(&mut self, upstream: &UpstreamId) {
        for state in self.spaces.values_mut().filter_map(|space| space.state(upstream)) {
            if !matches!(state, State::Failed) {
                *state = State::Open;
            }
        }
    }

    /// A check of `upstream` in `space` ended; `None`: without an answer.
    pub fn answered(&mut self, upstream: &UpstreamId, space: &SpaceId, answer: Option<Fingerprint>) -> Vec<Finding> {
        if let Some(state) = self.spaces.get_mut(space).and_then(|space| space.state(upstream)) {
            *state = answer.map_or(State::Failed, State::Answered);
        }
        self.settle()
    }

    /// Who has not answered by now is not waited for any more where a space needs a reference.
    pub fn hurry(&mut self) -> Vec<Finding> {
        self.hurried = true;
        self.settle()
    }

    fn settle(&mut self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut compared = BTreeSet::new();
        for (id, space) in &mut self.spaces {
            space.choose(self.hurried);
            let Some((owner, reference)) = &space.reference else { continue };
            for (upstream, state) in &mut space.members {
                let State::Answered(fingerprint) = state else { continue };
                let cosine = lowest_cosine(reference, fingerprint);
                let same = cosine >= SAME;
                *state = State::Judged(same || upstream == owner);
                compared.insert(upstream.clone());
                let (upstream, space) = (upstream.clone(), id.clone());
                match (same, upstream == *owner) {
                    (true, _) => {}
                    (false, true) => findings.push(Finding::ReferenceChanged { upstream, space, cosine }),
                    (false, false) => findings.push(Finding::Differs { upstream, space, cosine }),
                }
            }
        }
        findings.extend(compared.into_iter().filter(|upstream| self.is_sound(upstream)).map(Finding::Verified));
        findings
    }

    /// Whether the upstream was compared in each of its spaces and is the same.
    fn is_sound(&self, upstream: &UpstreamId) -> bool {
        let mut states = self.spaces.values().flat_map(|space| &space.members).filter(|(id, _)| id == upstream);
        states.all(|(_, state)| matches!(state, State::Judged(true)))
    }
}

impl Space {
    fn state(&mut self, upstream: &UpstreamId) -> Option<&mut State> {
        self.members.iter_mut().find(|(id, _)| id == upstream).map(|(_, state)| state)
    }

    /// Makes the first member that answered the reference, if there is none. Whoever stands before it in the file and
    /// may still answer is waited for unless in a hurry.
    fn choose(&mut self, hurried: bool) {
        if self.reference.is_some() {
            return;
        }
        for (upstream, state) in &self.members {
            match state {
                State::Answered(fingerprint) => {
                    self.reference = Some((upstream.clone(), fingerprint.clone()));
                    return;
                }
                State::Open if !hurried => return,
                State::Open | State::Failed | State::Judged(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(x: f32, y: f32) -> Fingerprint {
        vec![vec![x, y], vec![y, x]]
    }

    fn judge(spaces: &[(&str, &[&str])]) -> Judge {
        let spaces = spaces
            .iter()
            .map(|(space, members)| (SpaceId::from(*space), members.iter().map(|id| UpstreamId::from(*id)).collect()));
        Judge::new(spaces, &BTreeMap::new())
    }

    fn answer(judge: &mut Judge, upstream: &str, space: &str, answer: Option<Fingerprint>) -> Vec<String> {
        told(judge.answered(&upstream.into(), &space.into(), answer))
    }

    fn told(findings: Vec<Finding>) -> Vec<String> {
        let tell = |finding| match finding {
            Finding::Verified(upstream) => format!("{upstream} verified"),
            Finding::Differs { upstream, space, .. } => format!("{upstream} differs in {space}"),
            Finding::ReferenceChanged { upstream, space, .. } => format!("{upstream} changed {space}"),
        };
        findings.into_iter().map(tell).collect()
    }

    #[test]
    fn a_reload_keeps_the_verdicts_over_what_stays() {
        let mut judge = judge(&[("A", &["one", "two"])]);
        answer(&mut judge, "one", "A", Some(vectors(1.0, 0.0)));
        answer(&mut judge, "two", "A", Some(vectors(1.0, 0.0)));
        let members = |list: &[(&str, bool)]| list.iter().map(|(id, same)| (UpstreamId::from(*id), *same)).collect();
        let next = [("A".into(), members(&[("one", true), ("two", false), ("three", false)]))];
        let mut judge = judge.renewed(next, &BTreeMap::new());
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(0.0, 1.0))), ["two differs in A"]);
        assert_eq!(answer(&mut judge, "three", "A", Some(vectors(1.0, 0.0))), ["three verified"]);
        assert_eq!(answer(&mut judge, "one", "A", Some(vectors(1.0, 0.0))), ["one verified"]);
    }

    #[test]
    fn a_reference_survives_being_kept() {
        let vectors = vec![vec![0.5, -0.0, 1e-30], vec![1.0, 2.0, 3.0]];
        let kept = Reference::of("u".into(), &vectors);
        assert_eq!(kept.fingerprint(), Some(vectors));
    }

    #[test]
    fn the_first_of_the_file_is_waited_for_and_is_the_reference() {
        let mut judge = judge(&[("A", &["one", "two", "three"])]);
        assert!(answer(&mut judge, "two", "A", Some(vectors(0.0, 1.0))).is_empty());
        assert!(answer(&mut judge, "three", "A", Some(vectors(2.0, 0.0))).is_empty());
        let findings = answer(&mut judge, "one", "A", Some(vectors(1.0, 0.0)));
        assert_eq!(findings, ["two differs in A", "one verified", "three verified"]);
        assert_eq!(judge.references().get(&"A".into()).map(|kept| kept.upstream.clone()), Some("one".into()));
    }

    #[test]
    fn who_does_not_answer_is_passed_over_at_its_failure_or_in_a_hurry() {
        let mut failing = judge(&[("A", &["one", "two"])]);
        assert!(answer(&mut failing, "two", "A", Some(vectors(1.0, 0.0))).is_empty());
        assert_eq!(answer(&mut failing, "one", "A", None), ["two verified"]);
        let mut silent = judge(&[("A", &["one", "two"])]);
        assert!(answer(&mut silent, "two", "A", Some(vectors(1.0, 0.0))).is_empty());
        assert_eq!(told(silent.hurry()), ["two verified"]);
        assert_eq!(answer(&mut silent, "one", "A", Some(vectors(0.0, 1.0))), ["one differs in A"]);
    }

    #[test]
    fn who_failed_is_not_waited_for_while_it_is_asked_again() {
        let mut judge = judge(&[("A", &["one", "two"])]);
        assert!(answer(&mut judge, "one", "A", None).is_empty());
        judge.asked(&"one".into());
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(1.0, 0.0))), ["two verified"]);
        assert_eq!(answer(&mut judge, "one", "A", Some(vectors(0.0, 1.0))), ["one differs in A"]);
    }

    #[test]
    fn an_upstream_that_comes_back_as_another_model_is_found_out_and_may_be_put_right() {
        let mut judge = judge(&[("A", &["one", "two"])]);
        answer(&mut judge, "one", "A", Some(vectors(1.0, 0.0)));
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(1.0, 0.0))), ["two verified"]);
        judge.asked(&"two".into());
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(0.0, 1.0))), ["two differs in A"]);
        judge.asked(&"two".into());
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(1.0, 0.0))), ["two verified"]);
        judge.asked(&"one".into());
        assert_eq!(answer(&mut judge, "one", "A", Some(vectors(0.0, 1.0))), ["one changed A", "one verified"]);
    }

    #[test]
    fn an_upstream_of_two_spaces_must_be_right_in_both() {
        let mut judge = judge(&[("A", &["one", "two"]), ("B", &["one", "two"])]);
        answer(&mut judge, "one", "A", Some(vectors(1.0, 0.0)));
        assert_eq!(answer(&mut judge, "one", "B", Some(vectors(0.0, 1.0))), ["one verified"]);
        assert!(answer(&mut judge, "two", "A", Some(vectors(1.0, 0.0))).is_empty());
        assert_eq!(answer(&mut judge, "two", "B", Some(vectors(1.0, 0.0))), ["two differs in B"]);
    }

    #[test]
    fn a_kept_reference_is_compared_with_at_once() {
        let kept = BTreeMap::from([("A".into(), Reference::of("one".into(), &vectors(1.0, 0.0)))]);
        let mut judge = Judge::new([("A".into(), vec!["one".into(), "two".into()])], &kept);
        assert_eq!(answer(&mut judge, "two", "A", Some(vectors(0.0, 1.0))), ["two differs in A"]);
    }
}
