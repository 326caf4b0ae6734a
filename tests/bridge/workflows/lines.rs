//! Workflows that come line by line.

use std::time::Duration;

use a2abus_transports::{Message, Outcome};
use serde_json::json;
use tokio::task::yield_now;

use super::stops::cancel_of;
use super::{ReplyEvent, World, begin, define, publish, wait, workflow};
use crate::delivery::Lines;
use crate::set_up::{next, read};

fn part(collaboration: &str, seq: Option<usize>, line: &str) -> Vec<(String, String)> {
    let is_begin = line.contains("beginExecution");
    let method = if is_begin {
        "workflows/execute"
    } else {
        "operationUpdate"
    };
    let mut attributes = vec![
        ("a2amethod".to_owned(), method.to_owned()),
        ("collaborationid".to_owned(), collaboration.to_owned()),
    ];
    attributes.extend(seq.map(|seq| ("seq".to_owned(), seq.to_string())));
    attributes
}

async fn send(world: &World, id: &str, seq: Option<usize>, line: &str) {
    let attributes = part("c-1", seq, line);
    let attributes: Vec<(&str, &str)> = attributes
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    world.send(id, &attributes, line).await;
}

/// Sends the lines with these numbers, each in an event with this id.
async fn send_each(world: &World, lines: &[String], events: &[(&str, usize)]) {
    for (id, number) in events {
        send(world, id, Some(*number), &lines[*number]).await;
    }
}

/// Waits until the binding has settled this many messages.
async fn until_settled(world: &World, count: u64) {
    let settled = r#"a2abus_settled_total{binding="work"}"#;
    world.until_counted(settled, count).await;
}

/// Ends a world whose agent has got all its answers, after this many POSTs.
async fn end_after(mut world: World, posts: usize) {
    assert!(world.answers.try_recv().is_none(), "a second answer");
    assert_eq!(world.service.posts(), posts);
    world.end().await;
}

const ENDED: &str = r#"a2abus_dropped_total{binding="work",reason="workflow_ended"}"#;

fn lines(world: &World) -> Vec<String> {
    vec![
        define("post", &world.service.post("/orders")),
        define("w", &wait(1)),
        begin("e-1", &["post", "w"]),
    ]
}

#[tokio::test]
async fn lines_in_order_make_one_workflow() {
    let mut world = World::named().await;
    for (number, line) in lines(&world).iter().enumerate() {
        send(&world, &format!("line-{number}"), None, line).await;
    }
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{answer:?}");
    assert_eq!(answer.attribute("collaborationid"), "e-1");
    until_settled(&world, 3).await;
    world.end().await;
}

#[tokio::test]
async fn lines_that_are_cancelled_before_the_last_one_start_no_execution() {
    let mut world = World::named().await;
    let lines = lines(&world);
    send(&world, "line-0", Some(0), &lines[0]).await;
    send(&world, "line-1", Some(1), &lines[1]).await;
    world.publish(cancel_of("idler", "c-1")).await;
    until_settled(&world, 1).await;
    world.publish(cancel_of("reporter", "c-1")).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "cancelled", "{answer:?}");
    assert_eq!(answer.attribute("collaborationid"), "c-1");
    // Late lines get no second answer, even if one is redelivered.
    send(&world, "line-1", Some(1), &lines[1]).await;
    send(&world, "line-2", Some(2), &lines[2]).await;
    until_settled(&world, 6).await;
    assert_eq!(world.count(ENDED), 2);
    end_after(world, 0).await;
}

/// A new line with the number of an earlier one shows that the workflow is sent again.
#[tokio::test]
async fn a_workflow_that_is_sent_again_after_its_cancel_is_answered() {
    let mut world = World::named().await;
    let lines = lines(&world);
    send(&world, "line-0", Some(0), &lines[0]).await;
    world.publish(cancel_of("reporter", "c-1")).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "cancelled", "{answer:?}");
    for (attempt, expected) in ["cancelled", "success"].into_iter().enumerate() {
        for (number, line) in lines.iter().enumerate() {
            let id = format!("again-{attempt}-{number}");
            send(&world, &id, Some(number), line).await;
        }
        let answer = world.answer().await;
        assert_eq!(answer.data["status"], expected, "{answer:?}");
    }
    world.until_counted(ENDED, 2).await;
    assert_eq!(world.service.posts(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_repeated_line_does_not_keep_a_cancel_from_the_running_execution() {
    let mut world = World::named().await;
    let lines = [
        define("held", &world.service.get("/held")),
        define("post", &world.service.post("/orders")),
        begin("e-1", &["held", "post"]),
    ];
    for (number, line) in lines.iter().enumerate() {
        send(&world, &format!("line-{number}"), Some(number), line).await;
    }
    world.service.until_held(1).await;
    send(&world, "line-1", Some(1), &lines[1]).await;
    world.publish(cancel_of("reporter", "c-1")).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "cancelled", "{answer:?}");
    assert_eq!(answer.attribute("collaborationid"), "e-1");
    // The last line is repeated, too.
    send(&world, "line-2", Some(2), &lines[2]).await;
    until_settled(&world, 6).await;
    assert_eq!(world.count(ENDED), 1);
    end_after(world, 0).await;
}

#[tokio::test]
async fn lines_out_of_order_are_put_in_the_order_of_seq() {
    for first in [0, 1] {
        let mut world = World::named().await;
        let lines = lines(&world);
        // The last comes first, and one comes twice.
        for number in [2, 1, 1, 0] {
            send(
                &world,
                &format!("line-{number}"),
                Some(number + first),
                &lines[number],
            )
            .await;
        }
        let answer = world.answer().await;
        assert_eq!(answer.data["status"], "success", "from {first}: {answer:?}");
        assert_eq!(world.service.posts(), 1);
        until_settled(&world, 4).await;
        world.end().await;
    }
}

#[tokio::test]
async fn a_line_with_another_text_replaces_an_earlier_one_with_its_number() {
    let mut world = World::named().await;
    let wrong = define("w", &json!({"Nap": {}}));
    send(&world, "line-0", Some(0), &wrong).await;
    // The same text in another event is not another line.
    send(&world, "copy-0", Some(0), &wrong).await;
    send(&world, "again-0", Some(0), &define("w", &wait(1))).await;
    send(&world, "again-1", Some(1), &begin("e-1", &["w"])).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{answer:?}");
    until_settled(&world, 4).await;
    let replaced = r#"a2abus_dropped_total{binding="work",reason="line_replaced"}"#;
    assert_eq!(world.count(replaced), 1);
    world.end().await;
}

#[tokio::test]
async fn the_last_line_waits_for_the_only_other_one() {
    for first in [0, 1] {
        let mut world = World::named().await;
        let lines = [define("w", &wait(1)), begin("e-1", &["w"])];
        for number in [1, 0] {
            let id = format!("line-{number}");
            send(&world, &id, Some(number + first), &lines[number]).await;
        }
        let answer = world.answer().await;
        assert_eq!(answer.data["status"], "success", "from {first}: {answer:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_mistake_in_complete_lines_is_answered_at_once() {
    for first in [0, 1] {
        let mut world = World::named().await;
        let lines = [define("w", &json!({"Nap": {}})), begin("e-1", &["w"])];
        for (number, line) in lines.iter().enumerate() {
            send(
                &world,
                &format!("line-{number}"),
                Some(number + first),
                line,
            )
            .await;
        }
        let answer = world.answer().await;
        assert_eq!(answer.data["status"], "failed", "from {first}: {answer:?}");
        assert!(answer.data.to_string().contains("Nap"), "{answer:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn plain_lines_are_tied_together_by_a_header() {
    let mut world = World::new().await;
    for (id, seq) in [("collaborationid", "seq"), ("ce_collaborationid", "ce_seq")] {
        for (number, line) in lines(&world).into_iter().enumerate().rev() {
            let mut message = Message::plain(line);
            message.headers.push(id, format!("named-{id}"));
            message.headers.push(seq, number.to_string());
            world.publish(message).await;
        }
        assert_eq!(world.answer().await.data["status"], "success", "{id}");
    }
    world.publish(Message::plain(define("w", &wait(1)))).await;
    let dlq_message = world.dead_letter().await;
    assert_eq!(
        dlq_message.headers.get("bus-dlq-reason").unwrap(),
        "missing_collaborationid"
    );
    world.end().await;
}

/// The lines that can be read would be another workflow than the one that was sent.
#[tokio::test]
async fn a_workflow_with_a_line_that_cannot_be_read_is_refused_as_a_whole() {
    let mut world = World::new().await;
    let post = define("post", &world.service.post("/orders"));
    let broken = [
        (&post[..post.len() - 1], "not_json", "invalid_json"),
        ("```", "not_json", "invalid_json"),
        (r#"{"type":"foo"}"#, "unknown", "unknown_message_type"),
        ("[1]", "not_an_object", "not_an_object"),
    ];
    for (number, (line, reason, code)) in broken.into_iter().enumerate() {
        let execution = format!("e-{number}");
        let lines = format!("{post}\n{line}\n{}", begin(&execution, &["post"]));
        for name in [None, Some("collaborationid"), Some("ce_collaborationid")] {
            let mut message = Message::plain(lines.clone());
            if let Some(name) = name {
                message.headers.push(name, execution.clone());
                message.headers.push("seq", "0");
            }
            world.publish(message).await;
            let answers = world.until_answer().await;
            assert_eq!(answers.len(), 1, "{answers:?}");
            let (answer, error) = (&answers[0], &answers[0].data["error"]);
            assert_eq!(answer.attribute("collaborationid"), execution);
            assert_eq!(answer.data["execution_id"], execution.as_str());
            assert_eq!(answer.data["status"], "failed");
            assert_eq!(error["code"], code);
            assert_eq!(error["details"]["errors"][0]["line"], 2, "{error}");
            let dead_letter = world.dead_letter().await;
            assert_eq!(dead_letter.headers.get("bus-dlq-reason").unwrap(), reason);
            assert_eq!(dead_letter.body.unwrap(), lines);
        }
    }
    // Also if it is the first.
    let lines = format!("{{bad\n{post}\n{}", begin("e-first", &["post"]));
    world.publish(Message::plain(lines.clone())).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["execution_id"], "e-first");
    let error = &answer.data["error"];
    assert_eq!(error["code"], "invalid_json");
    assert_eq!(error["details"]["errors"][0]["line"], 1, "{error}");
    assert_eq!(world.dead_letter().await.body.unwrap(), lines);
    until_settled(&world, 13).await;
    // Nothing of them is left that a later line could complete.
    let mut last = Message::plain(begin("e-0", &["post"]));
    last.headers.push("collaborationid", "e-0");
    world.publish(last).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["error"]["code"], "empty_workflow", "{answer:?}");
    assert!(world.dead.try_recv().is_none(), "another dead letter");
    assert_eq!(world.service.posts(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_binding_of_events_joins_no_lines() {
    let mut world = World::new().await;
    let broken = format!("{}\n```", workflow("e-1", &[("w", wait(1))]));
    publish(&world.memory, "relay", Message::plain(broken.clone())).await;
    let dead_letter = world.dead_letter().await;
    assert_eq!(
        dead_letter.headers.get("bus-dlq-reason").unwrap(),
        "not_json"
    );
    assert_eq!(dead_letter.body.unwrap(), broken);

    let mut line = Message::plain(define("w", &wait(1)));
    line.headers.push("collaborationid", "c-1");
    publish(&world.memory, "relay", line).await;
    let dead_letter = world.dead_letter().await;
    let header = |name| String::from_utf8_lossy(dead_letter.headers.get(name).unwrap());
    assert_eq!(header("bus-dlq-reason"), "missing_collaborationid");
    let detail = header("bus-dlq-detail");
    assert!(detail.contains("role: workflows"), "{detail}");
    world.end().await;
}

#[tokio::test]
async fn the_seq_of_a_line_that_is_not_a_number_is_reported() {
    let (log, _logging) = Lines::record();
    let mut world = World::new().await;
    for (line, seq) in [
        (define("w", &wait(1)), "zero"),
        (begin("e-1", &["w"]), "1st"),
    ] {
        let mut message = Message::plain(line);
        message.headers.push("collaborationid", "c-1");
        message.headers.push("seq", seq);
        world.publish(message).await;
    }
    // They stay in the order of arrival.
    assert_eq!(world.answer().await.data["status"], "success");
    let logged = log.of("WARN", "the seq of a line of a workflow is not a number");
    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(logged[0].contains("c-1"), "{logged:?}");
    world.end().await;
}

const REPEATED: &str = r#"a2abus_dropped_total{binding="work",reason="line_repeated"}"#;

#[tokio::test]
async fn a_copy_of_a_line_that_comes_too_late_gets_no_answer() {
    let mut world = World::named().await;
    let lines = lines(&world);
    let twice = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2)];
    send_each(&world, &lines, &twice).await;
    assert_eq!(world.answer().await.data["status"], "success");
    send_each(&world, &lines, &[("f", 2), ("g", 1)]).await;
    world
        .until_counted("a2abus_received_total{binding=\"work\"}", 7)
        .await;
    // No further line arrives for a minute.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    world.until_counted(REPEATED, 2).await;
    tokio::time::resume();
    // With all others, they are the workflow again: it is answered from its record.
    send_each(&world, &lines, &[("h", 2), ("i", 0), ("j", 1)]).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{answer:?}");
    // With another line, they are another workflow.
    send(&world, "k", Some(0), &lines[0]).await;
    send(&world, "l", Some(1), &begin("e-2", &["post"])).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["execution_id"], "e-2");
    assert_eq!(answer.data["status"], "success", "{answer:?}");
    until_settled(&world, 12).await;
    end_after(world, 2).await;
}

#[tokio::test]
async fn a_copy_of_the_last_line_without_a_number_gets_no_answer() {
    let mut world = World::named().await;
    let lines = lines(&world);
    for (id, number) in [("a", 0), ("b", 1), ("c", 2), ("d", 2), ("e", 1), ("f", 2)] {
        send(&world, id, None, &lines[number]).await;
    }
    world.until_counted(REPEATED, 3).await;
    assert_eq!(world.answer().await.data["status"], "success");
    until_settled(&world, 6).await;
    end_after(world, 1).await;
}

#[tokio::test]
async fn the_number_of_a_line_may_be_any_integer() {
    let mut world = World::new().await;
    let plain = |name: &'static str, seq: i64, line: String| {
        let mut message = Message::plain(line);
        message.headers.push("collaborationid", name);
        message.headers.push("seq", seq.to_string());
        message
    };
    let (line, last) = (define("w", &wait(1)), begin("e-1", &["w"]));
    for (name, seq) in [("negative", i64::MIN), ("usual", 1)] {
        world.publish(plain(name, 0, line.clone())).await;
        world.publish(plain(name, seq, last.clone())).await;
    }
    assert_eq!(world.answer().await.data["status"], "success");
    world.end().await;
}

#[tokio::test]
async fn lines_of_two_agents_are_two_workflows() {
    let mut world = World::named().await;
    send(&world, "1", None, &define("w", &wait(1))).await;
    let line = define("w", &json!({"Nap": {}}));
    let attributes = [
        ("a2amethod", "operationUpdate"),
        ("collaborationid", "c-1"),
        ("sourceagent", "idler"),
    ];
    world.send("2", &attributes, &line).await;
    send(&world, "3", None, &begin("e-1", &["w"])).await;
    assert_eq!(world.answer().await.data["status"], "success");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_sequence_of_lines_is_answered_after_a_minute() {
    let (log, _logging) = Lines::record();
    let mut world = World::named().await;
    send(&world, "1", Some(2), &define("w", &wait(1))).await;
    let mut minutes = 0;
    let delivery = loop {
        tokio::select! {
            biased;
            delivery = world.answers.recv() => break delivery.unwrap(),
            () = yield_now() => {
                assert!(minutes < 10_000, "no answer");
                minutes += 1;
                tokio::time::advance(Duration::from_secs(61)).await;
            }
        }
    };
    let answer = ReplyEvent::of(&delivery.message);
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    assert_eq!(answer.data["error"]["type"], "TimeoutError");
    // The other lines may be at another replica.
    let suggestion = answer.data["error"]["suggestions"][0].as_str().unwrap();
    assert!(suggestion.contains("the same key"), "{suggestion}");
    let logged = log.of("WARN", "an incomplete workflow");
    assert!(logged[0].contains("c-1"), "{logged:?}");
    assert!(
        logged[0].contains("1 without beginExecution, seq 2"),
        "{logged:?}"
    );
    assert_eq!(answer.attribute("collaborationid"), "c-1");
    until_settled(&world, 1).await;
    world.end().await;
}

/// A line of a workflow of its own, that nothing follows.
async fn send_lone(world: &World, number: usize, requester: &str) {
    let name = format!("lone-{number}");
    let attributes = [
        ("a2amethod", "operationUpdate"),
        ("collaborationid", name.as_str()),
        ("sourceagent", requester),
    ];
    world.send(&name, &attributes, &define("w", &wait(1))).await;
}

#[tokio::test]
async fn ten_thousand_lone_lines_do_not_block_a_binding() {
    const LONE: usize = 10_050;
    let mut world = World::named().await;
    // The workflow of another requester waits for its last line meanwhile. Its lines keep coming, because it would end
    // a minute after the latest one, and a slow machine needs more for all others.
    let mut lines = 0;
    for number in 0..LONE {
        if number % 1_000 == 0 {
            let line = define(&format!("w{lines}"), &wait(1));
            send(&world, &format!("line-{lines}"), Some(lines), &line).await;
            lines += 1;
        }
        send_lone(&world, number, "idler").await;
    }
    let last = begin("e-1", &["w0"]);
    send(&world, &format!("line-{lines}"), Some(lines), &last).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{answer:?}");

    let mut others = read(&world.memory, "agents.idler").await;
    // Of 256 that may wait one was not of these; the others are answered, the oldest first.
    for number in 0..LONE - 255 {
        let answer = next(&mut others).await;
        if number == 0 {
            let answer = ReplyEvent::of(&answer);
            assert_eq!(answer.data["error"]["code"], "too_many_incomplete");
            assert_eq!(answer.attribute("collaborationid"), "lone-0");
        }
    }
    let refused = "a2abus_workflow_refused_total{reason=\"busy\"}";
    assert_eq!(world.count(refused), LONE as u64 - 255);
    world.end().await;
}

#[tokio::test]
async fn lines_of_one_workflow_have_half_of_the_budget() {
    let mut world = World::with("budget_messages: 8", "").await;
    for number in 0..5 {
        let line = define(&format!("o{number}"), &wait(1));
        send(&world, &format!("line-{number}"), Some(number), &line).await;
    }
    let answer = world.answer().await;
    assert_eq!(answer.data["error"]["code"], "too_many_incomplete");
    let message = answer.data["error"]["message"].as_str().unwrap();
    assert!(message.contains("budget_messages"), "{message}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_sequence_of_lines_is_answered_after_five_minutes() {
    let mut world = World::named().await;
    let mut lines = 0;
    let answer = loop {
        let line = define(&format!("o{lines}"), &wait(1));
        send(&world, &format!("{lines}"), None, &line).await;
        lines += 1;
        assert!(lines < 1_000, "no answer");
        tokio::time::advance(Duration::from_secs(30)).await;
        if let Some(delivery) = world.answers.try_recv() {
            delivery.acknowledger.settle(Outcome::Settled).unwrap();
            break ReplyEvent::of(&delivery.message);
        }
    };
    assert_eq!(answer.data["error"]["type"], "TimeoutError", "{answer:?}");
    let message = "the workflow was incomplete 300 s after its first line";
    assert_eq!(answer.data["error"]["message"], message);
    world.end().await;
}

#[tokio::test]
async fn lines_without_end_are_refused_as_too_large() {
    let mut world = World::named().await;
    let filler = "x".repeat(200_000);
    for number in 0..6 {
        let operation = json!({"StoreData": {"inputPath": "/workflow/a", "storage": "localStorage", "key": filler}});
        send(
            &world,
            &format!("{number}"),
            None,
            &define(&format!("o{number}"), &operation),
        )
        .await;
    }
    let answer = world.answer().await;
    assert_eq!(
        answer.data["error"]["code"], "workflow_too_large",
        "{:?}",
        answer.data["error"]["code"]
    );
    // Its late lines are dropped.
    send(&world, "6", None, &begin("e-1", &["o0"])).await;
    until_settled(&world, 7).await;
    world.end().await;
}
