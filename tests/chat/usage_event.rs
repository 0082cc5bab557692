//! RG-8g5c: the usage that only the gateway asked for is charged and not shown.

use loadtest::provider::{Chat, Effect, Provider, StreamUsage, UsageShape, When};
use serde_json::{Value, json};

use super::*;

/// How a client may put it.
fn wishes() -> [(Value, bool); 3] {
    [(json!({ "include_usage": true }), true), (json!({ "include_usage": false }), false), (Value::Null, false)]
}

#[tokio::test]
async fn rg_8g5c_usage_is_booked_always_and_its_event_shown_to_who_asked() {
    for (shape, events_without, exact) in [
        (StreamUsage::WhenAsked, 4, true),
        (StreamUsage::Always, 4, true),
        (StreamUsage::BesideEmptyChoice, 4, true),
        (StreamUsage::InLastPiece, 4, true),
        (StreamUsage::InEveryPiece, 4, true),
        (StreamUsage::InFirstPiece, 4, false),
        (StreamUsage::Never, 4, false),
    ] {
        let provider = Provider::start(talking(Chat { pieces: 2, stream_usage: shape, ..Chat::default() }));
        let gateway = before(&provider, "budget = \"10\"", "");
        for (place, (options, asked)) in wishes().into_iter().enumerate() {
            let mut body = ask(true);
            if !options.is_null() {
                body["stream_options"] = options;
            }
            let (status, text) = stream(&gateway, &body).await;
            assert_eq!(status, 200, "{text}");
            let own_event =
                matches!(shape, StreamUsage::WhenAsked | StreamUsage::Always | StreamUsage::BesideEmptyChoice);
            let expected = events_without + usize::from(asked && own_event);
            let events = data(&text);
            assert_eq!(events.len(), expected, "{shape:?} {asked}: {text}");
            assert_eq!(events.last(), Some(&"[DONE]"));
            // Every event that is shown has a choice with something in it, unless it was asked for.
            let empty = |event: &&&str| {
                let event: Value = serde_json::from_str(event).unwrap_or_default();
                event["choices"].as_array().is_some_and(Vec::is_empty)
            };
            assert_eq!(
                events.iter().filter(empty).count(),
                usize::from(asked && own_event && shape != StreamUsage::BesideEmptyChoice)
            );
            let sent = &provider.calls()[place].json()["stream_options"]["include_usage"];
            assert_eq!(sent, &json!(true), "the gateway asks");
            let records = records(&gateway, place + 1).await;
            let (input, output, _, estimated) = bill(records.last().expect("a record"));
            assert_eq!(estimated, !exact, "{shape:?} {asked}: {records:?}");
            if exact {
                assert_eq!((input, output), (3, 2), "{shape:?}");
            } else {
                assert!(input >= 3 && output >= 2, "{shape:?}: {records:?}");
            }
        }
    }
}

#[tokio::test]
async fn rg_8g5c_a_host_that_refuses_the_wish_is_not_asked() {
    let picky = talking(Chat { pieces: 3, stream_usage: StreamUsage::Never, ..Chat::default() });
    let provider = Provider::start(picky.rule(When::body("stream_options"), Effect::status(400)));
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", ""));
    assert_eq!(stream(&gateway, &ask(true)).await.0, 400, "it is as picky as it says");
    drop(gateway);
    let mut config = chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", "");
    config.push_str("stream_usage = false\n");
    let gateway = Gateway::start(&config);
    let (status, text) = stream(&gateway, &ask(true)).await;
    assert_eq!((status, data(&text).len()), (200, 5), "{text}");
    let records = records(&gateway, 1).await;
    let (input, output, _, estimated) = bill(&records[0]);
    assert!(estimated && input >= 3 && output >= 3, "{records:?}");
}

#[tokio::test]
async fn plain_answers_without_usage_are_estimated_and_marked() {
    let provider = Provider::start(talking(Chat { pieces: 4, ..Chat::default() }).usage(UsageShape::Absent));
    let gateway = before(&provider, "budget = \"10\"", "");
    gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await.expect(200);
    let records = records(&gateway, 1).await;
    let (input, output, _, estimated) = bill(&records[0]);
    assert!(estimated && input >= 3 && output >= 4, "{records:?}");
}
