//! A stream on its way to the client: whole events, as they come, metered as they pass. Owns how it ends: complete, cut by
//! the upstream, left by the client, or out of time; and that its books are closed before its last event leaves.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};

use super::exchange::{Live, too_long};
use super::open::Stream;
use super::{ChatCall, Facts, Head, LONGEST_STREAM, Reply, bounds};
use crate::actors::upstream::Report;
use crate::clock;
use crate::dialects::chat::answer::error_event;
use crate::dialects::chat::event;
use crate::dialects::chat::meter::Fate;
use crate::dialects::client::ErrorIds;
use crate::dialects::wire::WireError;
use crate::error::{ApiError, Code};
use crate::journey::plan::client_gone;
use crate::journey::settle::{self, Tally};
use crate::lifecycle;
use crate::pure::admission::{Outcome, OutcomeKind};
use crate::runtime::ModelRuntime;
use crate::telemetry::labels::CallStatus;
use crate::worker::Worker;

/// Pieces that may wait for the client; the provider is read no further until it has taken them.
const DEPTH: usize = 16;

/// How long the last words of a stream may wait for a client that reads slowly while the gateway is in a hurry.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a stream ends.
enum End {
    /// With this event, which the client has not got yet.
    Complete(Bytes),
    /// With this error of the provider's own, which the client has not got yet.
    Failed(Bytes),
    /// The client has left.
    Gone,
    /// Without an end.
    Broken(ApiError, OutcomeKind, CallStatus),
}

impl End {
    fn broken(error: &WireError) -> End {
        let message = format!("the upstream {}", error.describe());
        match error {
            WireError::Timeout => {
                let message = "the upstream stopped in the middle of its answer";
                End::Broken(ApiError::new(Code::UpstreamTimeout, message), OutcomeKind::Timeout, CallStatus::Timeout)
            }
            _ => End::Broken(ApiError::new(Code::UpstreamError, message), OutcomeKind::Transport, CallStatus::Broken),
        }
    }

    /// What the books say; `None`: it ended well.
    fn error(&self) -> Option<ApiError> {
        match self {
            End::Complete(_) => None,
            End::Failed(_) => {
                Some(ApiError::new(Code::UpstreamError, "the upstream ended its answer with an error of its own"))
            }
            End::Gone => Some(client_gone()),
            End::Broken(error, ..) => Some(error.clone()),
        }
    }
}

/// Forwards `stream` to its end and closes the books on it.
///
/// # Cancel safety
/// Must not be dropped: it runs inside the journey's own task.
pub(super) async fn run(
    worker: &Rc<Worker>,
    call: ChatCall,
    model: &ModelRuntime,
    stream: Stream,
    mut tally: Tally,
    told: oneshot::Sender<Reply>,
) {
    let Stream { live, permit, route, trace: mut called, rate, latency } = stream;
    let after = clock::mono().since(call.context.started);
    tally.head_after = Some(after);
    let facts = Facts {
        upstream: Some(route.upstream.plan.id.clone()),
        model: Some(model.plan.name.clone()),
        ..super::facts(&tally, None)
    };
    let call = Arc::new(call);
    let (sender, events) = mpsc::channel(DEPTH);
    let head = Head { call: Arc::clone(&call), content_type: live.content_type.clone(), facts, after, events };
    let mut pump = Pump { live, sender };
    let end = match told.send(Reply::Stream(Box::new(head))) {
        Err(_) => End::Gone,
        Ok(()) => {
            let cut = |error| End::Broken(error, OutcomeKind::ClientGone, CallStatus::Cancelled);
            tokio::select! {
                biased;
                end = pump.run() => end,
                () = worker.cut.cancelled() => cut(lifecycle::cut_error()),
                () = tokio::time::sleep(LONGEST_STREAM) => {
                    cut(ApiError::new(Code::UpstreamTimeout, "no answer may go on for longer than an hour"))
                }
            }
        }
    };
    let Pump { live: Live { source, meter, .. }, sender } = pump;
    // A provider whose answer nobody waits for any more stops working when its connection closes.
    let source = Some(source).filter(|_| matches!(end, End::Complete(_)));
    let told = meter.told();
    if told.usage.odd {
        worker.gateway.telemetry.usage_odd(&route.upstream.plan.id);
    }
    let spent = bounds::spent(&call, model, &route, &told);
    let counted = Some(spent.tokens.saturating_add(spent.output_tokens)).filter(|_| !spent.estimated);
    let input = counted.map(|_| spent.tokens);
    tally.spent.push(spent);
    let (kind, status) = match &end {
        End::Complete(_) => (OutcomeKind::Success { latency }, CallStatus::Http(200)),
        End::Failed(_) => (OutcomeKind::ServerError, CallStatus::Broken),
        End::Gone => (OutcomeKind::ClientGone, CallStatus::Cancelled),
        End::Broken(_, kind, status) => (*kind, *status),
    };
    permit.report(Report::plain(Outcome { kind, actual_tokens: counted, headers: rate }));
    let exemplar = call.context.trace.exemplar();
    worker.gateway.telemetry.metrics.upstream_call(&route.upstream.plan.id, status, latency, exemplar);
    called.ended(status, input);

    let mut closed = settle::close(worker, call.subject(), &mut tally, end.error().as_ref()).await;
    let last = match (end, &closed.withheld) {
        (End::Complete(last), None) | (End::Failed(last), _) => Some(last),
        (End::Complete(_), Some(error)) => Some(error_words(&call, error)),
        (End::Broken(error, ..), _) => Some(error_words(&call, &error)),
        (End::Gone, _) => None,
    };
    closed.end.tell();
    if let Some(last) = last {
        say(worker, &sender, last).await;
    }
    drop(sender);
    if let Some(source) = source {
        source.finish().await;
    }
}

/// Hands over a stream's last words; if the client has left by now, it has had all it waited for.
async fn say(worker: &Worker, sender: &mpsc::Sender<Bytes>, words: Bytes) {
    let in_a_hurry = async {
        worker.cut.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        biased;
        _gone = sender.send(words) => {}
        () = in_a_hurry => {}
    }
}

fn error_words(call: &ChatCall, error: &ApiError) -> Bytes {
    let context = &call.context;
    let ids = ErrorIds { request: Some(context.request_id.as_str()), trace: Some(context.trace.id()) };
    error_event(call.request.api, context.dialect, error, ids)
}

/// Moves events from the provider to the client.
struct Pump {
    live: Live,
    sender: mpsc::Sender<Bytes>,
}

impl Pump {
    async fn run(&mut self) -> End {
        loop {
            let (piece, end) = self.take();
            if let Some(piece) = piece
                && self.sender.send(piece).await.is_err()
            {
                return End::Gone;
            }
            if let Some(end) = end {
                return end;
            }
            let piece = tokio::select! {
                piece = self.live.source.next() => piece,
                () = self.sender.closed() => return End::Gone,
            };
            match piece {
                Ok(Some(piece)) => self.live.splitter.push(&piece),
                Ok(None) => return self.ended(),
                Err(error) => return End::broken(&error),
            }
        }
    }

    /// The events that are here, for the client; and the end, if it is among them.
    fn take(&mut self) -> (Option<Bytes>, Option<End>) {
        let mut out: Option<BytesMut> = None;
        let mut only: Option<Bytes> = None;
        let end = loop {
            let event = match self.live.first.take().map_or_else(|| self.live.splitter.take(), |first| Ok(Some(first)))
            {
                Ok(Some(event)) => event,
                Ok(None) => break None,
                Err(_) => {
                    let error = ApiError::new(Code::UpstreamBadResponse, too_long().reason);
                    break Some(End::Broken(error, OutcomeKind::Transport, CallStatus::Broken));
                }
            };
            match self.live.meter.read(&event::read(&event)) {
                Fate::Pass => match (&mut out, only.take()) {
                    (Some(out), _) => out.extend_from_slice(&event),
                    (None, None) => only = Some(event),
                    (None, Some(first)) => {
                        let mut both = BytesMut::with_capacity((first.len() + event.len()) * 2);
                        both.extend_from_slice(&first);
                        both.extend_from_slice(&event);
                        out = Some(both);
                    }
                },
                Fate::Hide => {}
                Fate::Last => break Some(End::Complete(event)),
                Fate::Failed => break Some(End::Failed(event)),
            }
        };
        (out.map(BytesMut::freeze).or(only), end)
    }

    /// The provider closed the connection. Its last event may lack the empty line that ends one; without a last event the
    /// answer is cut, however politely.
    fn ended(&mut self) -> End {
        let rest = self.live.splitter.rest();
        if self.live.meter.read(&event::read(&rest)) == Fate::Last {
            let mut last = BytesMut::from(&rest[..]);
            last.extend_from_slice(b"\n\n");
            return End::Complete(last.freeze());
        }
        End::broken(&WireError::Broken("closed the connection in the middle of its answer"))
    }
}
