//! Requests and responses on the wire.

use super::server::{AfterResponse, Server, ok};
use super::*;
use crate::environment::{HttpClient, HttpError};
use bytes::Bytes;

#[tokio::test]
async fn a_request_is_sent_unchanged() {
    let server = Server::start(ok("application/json", "[1]"), AfterResponse::Listen).await;
    let request = HttpRequest {
        method: Method::Post,
        headers: vec![
            ("x-one".into(), "1".into()),
            ("x-text".into(), "é".into()),
            ("content-type".into(), "application/json".into()),
        ],
        body: Some(Bytes::from_static(b"{\"a\":1}")),
        ..get(&server.url("/p%20q/x?a=b%2Fc#fragment"))
    };
    let response = local_client().send(request).await.unwrap();
    assert_eq!((response.status, &response.body[..]), (200, &b"[1]"[..]));
    assert_eq!(response.header("content-type"), Some("application/json"));
    let [request] = server.requests().try_into().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "{\"a\":1}");
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("POST /p%20q/x?a=b%2Fc HTTP/1.1"));
    let mut headers: Vec<_> = lines.map(str::to_ascii_lowercase).collect();
    headers.sort_unstable();
    let expected = [
        "accept-encoding: identity".to_owned(),
        "accept: */*".to_owned(),
        "content-length: 7".to_owned(),
        "content-type: application/json".to_owned(),
        format!("host: 127.0.0.1:{}", server.port),
        format!("user-agent: a2abus/{}", env!("CARGO_PKG_VERSION")),
        "x-one: 1".to_owned(),
        // UTF-8, read byte by byte.
        "x-text: \u{c3}\u{a9}".to_owned(),
    ];
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn request_headers_override_the_defaults() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    let request = HttpRequest {
        headers: vec![
            ("user-agent".into(), "mine".into()),
            ("accept".into(), "text/plain".into()),
        ],
        ..get(&server.url("/"))
    };
    local_client().send(request).await.unwrap();
    let request = server.requests().remove(0);
    assert!(request.contains("user-agent: mine\r\n") && !request.contains("a2abus"));
    assert!(request.contains("accept: text/plain\r\n") && !request.contains("*/*"));
}

#[tokio::test]
async fn every_method_is_sent_by_name() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    let client = local_client();
    for method in Method::ALL {
        let request = HttpRequest {
            method: *method,
            ..get(&server.url("/"))
        };
        client.send(request).await.unwrap();
        let line = format!("{} / HTTP/1.1", method.as_str());
        assert!(server.requests().last().unwrap().starts_with(&line));
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = Server::start(ok("text/plain", "elsewhere"), AfterResponse::Listen).await;
        let answer = format!(
            "HTTP/1.1 {status} Go\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n",
            elsewhere.url("/")
        );
        let server = Server::start(answer, AfterResponse::Listen).await;
        let response = local_client().send(get(&server.url("/"))).await.unwrap();
        assert_eq!(response.status, status);
        assert_eq!(
            response.header("location"),
            Some(elsewhere.url("/").as_str())
        );
        assert_eq!(elsewhere.connections(), 0);
    }
}

#[tokio::test]
async fn chunked_bodies_and_bodies_until_close_are_read() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n";
    let chunks = "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: 1\r\n\r\n";
    for (rest, after) in [
        (chunks, AfterResponse::Listen),
        ("\r\nabcde", AfterResponse::Close),
        ("connection: close\r\n\r\nabcde", AfterResponse::Close),
    ] {
        let server = Server::start(format!("{head}{rest}"), after).await;
        let response = local_client().send(get(&server.url("/"))).await.unwrap();
        assert_eq!(&response.body[..], b"abcde", "{rest}");
    }
}

#[tokio::test]
async fn a_response_of_10_mib_is_read_and_a_larger_one_is_not() {
    let max = 10 << 20;
    for (bytes, expected) in [(max, Ok(max)), (max + 1, Err(HttpError::TooLarge))] {
        let body = "x".repeat(bytes);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{bytes:x}\r\n{body}\r\n0\r\n\r\n"
        );
        let until_close = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
        for (answer, after) in [
            (ok("text/plain", &body), AfterResponse::Listen),
            (chunked, AfterResponse::Listen),
            (until_close, AfterResponse::Close),
        ] {
            let server = Server::start(answer, after).await;
            let response = local_client().send(get(&server.url("/"))).await;
            assert_eq!(response.map(|response| response.body.len()), expected);
        }
    }
    // A body that is declared as too large is not read.
    let huge = "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
    let server = Server::start(huge, AfterResponse::Hang).await;
    let response = local_client().send(get(&server.url("/"))).await;
    assert_eq!(response.unwrap_err(), HttpError::TooLarge);
}

#[tokio::test]
async fn a_response_whose_body_is_not_wanted_is_complete_after_its_head() {
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\n\r\n", 200),
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", 200),
        ("HTTP/1.1 410 Gone\r\ncontent-length: 10\r\n\r\n", 410),
    ] {
        let server = Server::start(answer, AfterResponse::Hang).await;
        let request = HttpRequest {
            max_response_bytes: 0,
            ..get(&server.url("/"))
        };
        let response = local_client().send(request).await.unwrap();
        assert_eq!((response.status, response.body.len()), (status, 0));
    }
}

#[tokio::test]
async fn only_part_of_an_error_response_is_read() {
    let body = "x".repeat(1 << 20);
    let length = 100_u64 << 30;
    let answer = format!("HTTP/1.1 500 No\r\ncontent-length: {length}\r\n\r\n{body}");
    let server = Server::start(answer, AfterResponse::Hang).await;
    let response = local_client().send(get(&server.url("/"))).await.unwrap();
    assert_eq!((response.status, response.body.len()), (500, 64 << 10));
}

#[tokio::test]
async fn a_broken_connection_is_an_error() {
    for answer in [
        "",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    ] {
        let server = Server::start(answer, AfterResponse::Close).await;
        let request = HttpRequest {
            method: Method::Post,
            ..get(&server.url("/"))
        };
        let response = local_client().send(request).await;
        assert_eq!(response.unwrap_err(), HttpError::Broken, "{answer:?}");
        assert_eq!(
            server.requests().len(),
            1,
            "it is not sent again: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_response_that_never_ends_times_out() {
    for answer in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        let server = Server::start(answer, AfterResponse::Hang).await;
        let request = HttpRequest {
            timeout: Duration::from_millis(200),
            ..get(&server.url("/"))
        };
        let response = local_client().send(request).await;
        assert_eq!(response.unwrap_err(), HttpError::Timeout, "{answer:?}");
    }
}

#[tokio::test]
async fn a_request_with_too_many_headers_is_not_sent() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    let headers = (0..30_000).map(|number| (format!("a{number}"), String::new()));
    let request = HttpRequest {
        headers: headers.collect(),
        ..get(&server.url("/"))
    };
    let response = local_client().send(request).await;
    assert_eq!(response.unwrap_err(), HttpError::Connect);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_port_without_a_listener_is_a_connection_error() {
    let port = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let url = format!("http://127.0.0.1:{port}/");
    let response = local_client().send(get(&url)).await;
    assert_eq!(response.unwrap_err(), HttpError::Connect);
}

#[tokio::test]
async fn open_reports_whether_the_request_may_have_been_sent() {
    let ask = |url: String| {
        http::Request::post(url)
            .body(Bytes::from_static(b"[]"))
            .unwrap()
    };
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Listen).await;
    let response = local_client().open(ask(server.url("/"))).await.unwrap();
    assert_eq!(response.status(), 200);
    let silent = Server::start(String::new(), AfterResponse::Close).await;
    let broken = local_client().open(ask(silent.url("/"))).await.unwrap_err();
    assert!(broken.may_be_sent, "{broken}");
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", nobody.local_addr().unwrap());
    drop(nobody);
    let refused = local_client().open(ask(url)).await.unwrap_err();
    assert!(!refused.may_be_sent, "{refused}");
    assert!(refused.to_string().contains("refused"), "{refused}");
}
