//! Calls by the real client, to real servers on this machine.

use super::*;
use crate::client::tests::server::{AfterResponse, Server, ok};
use crate::client::tests::{ScriptedResolver, client};

/// A harness for which all names resolve to this machine, and the operator has registered one name.
fn harness(server: &Server) -> Harness {
    let mut harness = Harness::new([]);
    let names = ScriptedResolver::new(&[&["127.0.0.1"]]);
    harness.environment.http = Arc::new(client(&names, Vec::new()));
    let base = format!("http://service.test:{}", server.port);
    harness.agent = agent("agent", &["*", &base], []);
    harness
}

async fn called(answer: impl Into<Vec<u8>>, then: AfterResponse) -> CallResult {
    let server = Server::start(answer, then).await;
    let url = format!("http://service.test:{}/x", server.port);
    harness(&server).call(&get(&url)).await
}

#[tokio::test]
async fn responses_become_values() {
    let called = called(ok("application/json", "{\"a\":[1]}"), AfterResponse::Listen).await;
    assert_eq!(called.result.unwrap().to_string(), r#"{"a":[1]}"#);
    assert_eq!(called.attempts, 1);
}

#[tokio::test]
async fn every_connection_failure_has_its_code() {
    let redirect = "HTTP/1.1 302 Go\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n";
    let failure = "HTTP/1.1 404 No\r\ncontent-length: 4\r\n\r\nnope";
    let broken = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
    let large = ok("text/plain", &"x".repeat((10 << 20) + 1));
    for (answer, then, code, attempts) in [
        (
            redirect.to_owned(),
            AfterResponse::Listen,
            "redirect_not_followed",
            1,
        ),
        (failure.to_owned(), AfterResponse::Listen, "http_status", 1),
        (
            ok("application/json", "{\"a\":"),
            AfterResponse::Listen,
            "invalid_response",
            1,
        ),
        (
            ok("image/png", "x"),
            AfterResponse::Listen,
            "invalid_response",
            1,
        ),
        (large, AfterResponse::Listen, "response_too_large", 1),
        (
            broken.to_owned(),
            AfterResponse::Close,
            "connection_failed",
            4,
        ),
    ] {
        let called = called(answer, then).await;
        assert_eq!(failed(&called).1, code);
        assert_eq!(called.attempts, attempts, "{code}");
    }
}

#[tokio::test]
async fn a_slow_response_times_out() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
    let server = Server::start(answer, AfterResponse::Hang).await;
    let url = format!("http://service.test:{}/x", server.port);
    let mut harness = harness(&server);
    harness.deadline = Duration::from_millis(300);
    let called = harness.call(&get(&url)).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(called.attempts, 1);
}

#[tokio::test]
async fn a_name_with_an_internal_address_is_forbidden_unless_registered() {
    let server = Server::start(ok("text/plain", "inside"), AfterResponse::Listen).await;
    let harness = harness(&server);
    let other = format!("https://other.test:{}/x", server.port);
    let called = harness.call(&get(&other)).await;
    assert_eq!(failed(&called), ("PermissionError", "forbidden_target"));
    assert_eq!((called.attempts, server.connections()), (1, 0));
}

#[tokio::test]
async fn a_secret_is_sent_and_its_echo_is_redacted() {
    let echo = ok(
        "application/json",
        r#"{"authorization":"Basic dXNlcjpzM2NyM3Q="}"#,
    );
    let server = Server::start(echo, AfterResponse::Listen).await;
    let base = format!("http://service.test:{}", server.port);
    let mut harness = harness(&server);
    let basic = credential(CredentialKind::Basic, "user:s3cr3t", &[&base]);
    harness.agent = agent("agent", &[&base], [("c", basic)]);
    let called = harness
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
