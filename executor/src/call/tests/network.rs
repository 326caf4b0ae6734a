//! Calls by the real client, to real servers on this machine.

use super::*;
use crate::client::tests::server::{Server, Then, ok};
use crate::client::tests::{Names, client};

/// A world in which all names resolve to this machine, and the operator has registered one name.
fn world(server: &Server) -> World {
    let mut world = World::new([]);
    let names = Names::new(&[&["127.0.0.1"]]);
    world.environment.http = Arc::new(client(&names, Vec::new()));
    let base = format!("http://service.test:{}", server.port);
    world.agent = agent("agent", &["*", &base], []);
    world
}

async fn called(answer: impl Into<Vec<u8>>, then: Then) -> CallResult {
    let server = Server::start(answer, then).await;
    let url = format!("http://service.test:{}/x", server.port);
    world(&server).call(&get(&url)).await
}

#[tokio::test]
async fn answers_become_values() {
    let called = called(ok("application/json", "{\"a\":[1]}"), Then::Listen).await;
    assert_eq!(called.result.unwrap().to_string(), r#"{"a":[1]}"#);
    assert_eq!(called.attempts, 1);
}

#[tokio::test]
async fn what_goes_wrong_has_its_code() {
    let redirect = "HTTP/1.1 302 Go\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n";
    let failure = "HTTP/1.1 404 No\r\ncontent-length: 4\r\n\r\nnope";
    let broken = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
    let large = ok("text/plain", &"x".repeat((10 << 20) + 1));
    for (answer, then, code, attempts) in [
        (
            redirect.to_owned(),
            Then::Listen,
            "redirect_not_followed",
            1,
        ),
        (failure.to_owned(), Then::Listen, "http_status", 1),
        (
            ok("application/json", "{\"a\":"),
            Then::Listen,
            "invalid_response",
            1,
        ),
        (ok("image/png", "x"), Then::Listen, "invalid_response", 1),
        (large, Then::Listen, "response_too_large", 1),
        (broken.to_owned(), Then::Close, "connection_failed", 4),
    ] {
        let called = called(answer, then).await;
        assert_eq!(failed(&called).1, code);
        assert_eq!(called.attempts, attempts, "{code}");
    }
}

#[tokio::test]
async fn a_slow_answer_is_late_by_its_timeout() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
    let server = Server::start(answer, Then::Hang).await;
    let url = format!("http://service.test:{}/x", server.port);
    let mut world = world(&server);
    world.deadline = Duration::from_millis(300);
    let called = world.call(&get(&url)).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(called.attempts, 1);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_a_forbidden_target_unless_it_is_registered() {
    let server = Server::start(ok("text/plain", "inside"), Then::Listen).await;
    let world = world(&server);
    let other = format!("https://other.test:{}/x", server.port);
    let called = world.call(&get(&other)).await;
    assert_eq!(failed(&called), ("PermissionError", "forbidden_target"));
    assert_eq!((called.attempts, server.connections()), (1, 0));
}

#[tokio::test]
async fn a_secret_is_sent_and_its_echo_is_taken_out() {
    let echo = ok(
        "application/json",
        r#"{"authorization":"Basic dXNlcjpzM2NyM3Q="}"#,
    );
    let server = Server::start(echo, Then::Listen).await;
    let base = format!("http://service.test:{}", server.port);
    let mut world = world(&server);
    let basic = credential(CredentialKind::Basic, "user:s3cr3t", &[&base]);
    world.agent = agent("agent", &[&base], [("c", basic)]);
    let called = world
        .call(&format!(
            r#"{{"method":"GET","url":"{base}/x",
            "headers":{{"Authorization":{{"credentialRef":{{"id":"c"}}}}}}}}"#
        ))
        .await;
    let expected = r#"{"authorization":"Basic [REDACTED]"}"#;
    assert_eq!(called.result.unwrap().to_string(), expected);
    let sent = "authorization: Basic dXNlcjpzM2NyM3Q=\r\n";
    assert!(server.requests()[0].contains(sent));
}
