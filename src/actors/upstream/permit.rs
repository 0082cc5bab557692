//! Leave to make one call, from the actor or out of what it has lent, and what is told of the call's end. Owns that each
//! permit ends once; refuses to know what follows from how a call ended.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::{Board, UpstreamActor, UpstreamHandle};
use crate::ids::AttemptId;
use crate::pure::adaptive_batch::{Chunk, LimitHint, Refused, TooMuch};
use crate::pure::admission::{Ask, Ending, Look, Outcome, OutcomeKind};
use crate::pure::time::Mono;

/// An answer that took so many times as long as was known is news.
const SLOWER: u32 = 2;

/// A call ended. A fact, idempotent by attempt.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CallFinished {
    /// The call.
    pub attempt: AttemptId,
    /// How it ended.
    pub report: Report,
}

/// The answer to a call has begun and may go on for long. A fact, idempotent by attempt; [`CallFinished`] follows.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CallAnswered {
    /// The call.
    pub attempt: AttemptId,
    /// From sending to the answer's first event.
    pub latency: Duration,
    /// The longest it may still go on.
    pub longest: Duration,
}

/// What a worker learned from a call.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What its items really cost, if it was a call for vectors and was answered.
    pub chunk: Option<Chunk>,
    /// What was too much, if that is why it was refused.
    pub too_large: Option<TooLarge>,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Vectors.
    Embedding,
    /// Scores of documents that are judged each on its own.
    Ranking,
}

/// A refusal of a call's size.
#[derive(Debug, Clone, Copy)]
pub struct TooLarge {
    /// What the call was for: what is too much for one kind says nothing about another.
    pub of: Work,
    /// What the call carried.
    pub sent: Refused,
    /// What there was too much of.
    pub kind: TooMuch,
    /// The limit that the upstream named.
    pub hint: Option<LimitHint>,
}

impl Report {
    /// A call about whose size nothing was learned.
    pub fn plain(outcome: Outcome) -> Report {
        Report { outcome, chunk: None, too_large: None }
    }

    /// Whether a call ended as was to be expected of an upstream with a latency of `latency_ns`, so that what follows from it
    /// follows as well a moment later. A slower one has to turn others away at once.
    fn is_expected(&self, latency_ns: u64) -> bool {
        match self.outcome.kind {
            OutcomeKind::Success { latency } => latency <= Duration::from_nanos(latency_ns).saturating_mul(SLOWER),
            OutcomeKind::NotSent => true,
            _ => false,
        }
    }
}

/// Calls that were made out of a loan have ended: well a moment ago, or one has failed. A fact.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CallsEnded;

/// Leave to make one call. Reporting how it ended is what gives the slot and the unused tokens back; a permit that is
/// dropped without a report counts as a call whose client left.
#[derive(Debug)]
pub struct Permit {
    actor: Addr<UpstreamActor>,
    board: Arc<Board>,
    attempt: AttemptId,
    /// Time spent in the queue.
    pub dwell: Duration,
    reported: bool,
}

impl Permit {
    pub(super) fn new(actor: Addr<UpstreamActor>, board: &Arc<Board>, attempt: AttemptId, dwell: Duration) -> Permit {
        Permit { actor, board: Arc::clone(board), attempt, dwell, reported: false }
    }

    /// Reports that the answer has begun, `latency` after the call was sent; it may go on for `longest`.
    pub fn answered(&self, latency: Duration, longest: Duration) {
        self.actor.do_send(CallAnswered { attempt: self.attempt, latency, longest });
    }

    /// Reports how the call ended.
    pub fn report(mut self, report: Report) {
        self.end(report);
    }

    fn end(&mut self, report: Report) {
        self.reported = true;
        let harmless = matches!(report.outcome.kind, OutcomeKind::Success { .. } | OutcomeKind::NotSent);
        let headers = &report.outcome.headers;
        let left = [headers.remaining_tokens, headers.remaining_requests];
        let look = if report.is_expected(self.board.latency_ns()) { Look::InTurn } else { Look::Soon };
        let mut loan = self.board.loan();
        let ending = loan.end(self.attempt, report, left, look);
        if !harmless {
            loan.close();
        }
        drop(loan);
        match ending {
            Ending::NotHere(report) => self.actor.do_send(CallFinished { attempt: self.attempt, report }),
            Ending::Noted | Ending::See(_) if !harmless => self.actor.do_send(CallsEnded),
            Ending::See(look) => self.board.bell.ring(&self.actor, look),
            Ending::Noted => {}
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.reported {
            self.end(Report::plain(Outcome::bare(OutcomeKind::NotSent)));
        }
    }
}

impl UpstreamHandle {
    /// A permit out of what the actor has lent; `None` where it must be asked.
    pub fn permit_lent(&self, ask: &Ask, now: Mono) -> Option<Permit> {
        let lent = ask.class.is_interactive() && self.board.loan().begin(ask.attempt, ask.tokens, ask.items, now);
        lent.then(|| Permit::new(self.actor.clone(), &self.board, ask.attempt, Duration::ZERO))
    }
}
