//! Which addresses the client connects to.

use super::server::{AfterResponse, Server, ok};
use super::*;
use crate::environment::{HttpClient, HttpError};

#[tokio::test]
async fn a_name_with_one_internal_address_is_forbidden() {
    let server = Server::start(ok("text/plain", "inside"), AfterResponse::Listen).await;
    let url = format!("http://name.example:{}/", server.port);
    for addresses in [
        &["127.0.0.1"][..],
        &["93.184.215.14", "127.0.0.1"],
        &["127.0.0.1", "93.184.215.14"],
        &["::1"],
        &["::ffff:127.0.0.1"],
        &["64:ff9b::7f00:1"],
        &["10.0.0.1"],
        &["169.254.169.254"],
        &["fd00:ec2::254"],
        &["2606:4700::1111", "fe80::1"],
        &["0.0.0.0"],
    ] {
        let names = ScriptedResolver::new(&[addresses]);
        let response = client(&names, Vec::new()).send(get_global(&url)).await;
        assert_eq!(response.unwrap_err(), HttpError::Forbidden, "{addresses:?}");
        assert_eq!(names.lookups(), ["name.example"]);
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn internal_hosts_are_forbidden_without_a_lookup() {
    let server = Server::start(ok("text/plain", "inside"), AfterResponse::Listen).await;
    let names = ScriptedResolver::new(&[&["93.184.215.14"]]);
    let client = client(&names, Vec::new());
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "10.0.0.1",
        "169.254.169.254",
    ] {
        let url = format!("http://{host}:{}/", server.port);
        let response = client.send(get_global(&url)).await;
        assert_eq!(response.unwrap_err(), HttpError::Forbidden, "{host}");
    }
    assert!(names.lookups().is_empty());
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_checked_address_is_the_one_connected_to() {
    let server = Server::start(ok("text/plain", "inside"), AfterResponse::Listen).await;
    let url = format!("http://name.example:{}/", server.port);
    // The first answer is a global address in an unused network. A second lookup would lead to an internal address.
    let names = ScriptedResolver::new(&[&["3000::1"], &["127.0.0.1"]]);
    let client = client(&names, Vec::new());
    let request = HttpRequest {
        timeout: Duration::from_millis(500),
        ..get_global(&url)
    };
    let error = client.send(request).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect | HttpError::Timeout));
    assert_eq!(names.lookups().len(), 1, "one lookup");
    let error = client.send(get_global(&url)).await.unwrap_err();
    assert_eq!(error, HttpError::Forbidden, "what it says later is checked");
    assert_eq!(names.lookups().len(), 2);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_registered_base_reaches_internal_addresses_and_does_not_share_its_connection() {
    let server = Server::start(ok("text/plain", "inside"), AfterResponse::Listen).await;
    let url = format!("http://name.example:{}/", server.port);
    let client = local_client();
    for _ in 0..2 {
        let response = client.send(get(&url)).await.unwrap();
        assert_eq!(&response.body[..], b"inside");
    }
    let response = client.send(get_global(&url)).await;
    assert_eq!(response.unwrap_err(), HttpError::Forbidden);
    assert_eq!(server.requests().len(), 2);
    let host = format!("host: name.example:{}\r\n", server.port);
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.contains(&host))
    );
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_refuses() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    // On Linux all of 127.0.0.0/8 is this machine; nothing listens at the second address.
    let names = ScriptedResolver::new(&[&["127.0.0.2", "127.0.0.1"]]);
    let url = format!("http://name.example:{}/", server.port);
    let response = client(&names, Vec::new()).send(get(&url)).await;
    assert_eq!(response.unwrap().status, 200);
}

#[tokio::test]
async fn a_name_without_addresses_is_a_connection_error() {
    let names = ScriptedResolver::new(&[&[]]);
    for request in [
        get("https://name.example/"),
        get_global("https://name.example/"),
    ] {
        let response = client(&names, Vec::new()).send(request).await;
        assert_eq!(response.unwrap_err(), HttpError::Connect);
    }
}

#[tokio::test]
async fn the_system_resolver_resolves_localhost() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    let client = Client::new(&ClientOptions::default()).unwrap();
    let url = format!("http://localhost:{}/", server.port);
    assert_eq!(client.send(get(&url)).await.unwrap().status, 200);
}
