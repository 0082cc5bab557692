//! What a scenario does to the gateway on the way: kills it, or gives it an order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::http;
use super::stack::Stack;
use crate::report::Mark;
use crate::scenario::{Action, Span};
use crate::{clock, timer};

/// When an action is due, in seconds since the start.
pub fn times(action: &Action, spans: &[Span]) -> Vec<f64> {
    let mut times = Vec::new();
    for span in spans.iter().filter(|span| span.name == action.phase) {
        let mut at_s = span.from_s + action.at * (span.to_s - span.from_s);
        while at_s < span.to_s {
            times.push(at_s);
            match action.every_s.filter(|every| *every > 0.0) {
                Some(every) => at_s += every,
                None => break,
            }
        }
    }
    times
}

/// Does an action each time that it is due. What was done is noted; an action that fails is an error of the run.
///
/// # Errors
/// The gateway did not come up again, or refused the order.
///
/// # Cancel safety
/// Dropping the future ends after the step under way.
pub async fn act(
    action: Action,
    spans: Arc<[Span]>,
    stack: Arc<Stack>,
    start: Instant,
    done: Arc<Mutex<Vec<Mark>>>,
) -> Result<(), String> {
    for at_s in times(&action, &spans) {
        timer::sleep_until(start + Duration::try_from_secs_f64(at_s).unwrap_or_default()).await;
        let since = |now: Instant| now.saturating_duration_since(start).as_secs_f64();
        let from_s = since(clock::now());
        if let Some(number) = action.crash {
            let stack = Arc::clone(&stack);
            let crashed = tokio::task::spawn_blocking(move || {
                let gateway = stack.gateways.get(number).ok_or_else(|| format!("there is no gateway {number}"))?;
                gateway.lock().crash()
            });
            crashed.await.map_err(|error| error.to_string())??;
        }
        if let Some(order) = &action.admin {
            let (method, path) = order.split_once(' ').ok_or_else(|| format!("{order:?} is not METHOD /path"))?;
            let body = action.body.as_ref().map(|body| serde_json::to_string(body).unwrap_or_default());
            for (_, admin) in stack.addresses() {
                let answer = http::call(admin, method, path, &[], body.clone()).await?;
                if !(200..300).contains(&answer.status) {
                    let text = String::from_utf8_lossy(&answer.body).into_owned();
                    return Err(format!("{}: {order} was answered with {}: {text}", action.name, answer.status));
                }
            }
        }
        done.lock().push(Mark { name: action.name.clone(), from_s, to_s: since(clock::now()) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_repeated_within_their_phase() {
        let span = |name: &str, from_s, to_s| Span { name: name.to_owned(), from_s, to_s };
        let spans = [span("a", 0.0, 10.0), span("b", 10.0, 20.0)];
        let action = Action { phase: "b".to_owned(), at: 0.1, every_s: Some(4.0), ..Action::default() };
        assert_eq!(times(&action, &spans), [11.0, 15.0, 19.0]);
        assert_eq!(times(&Action { every_s: None, ..action }, &spans), [11.0]);
    }
}
