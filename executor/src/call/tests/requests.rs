//! The exact requests that are sent.

use super::*;
use crate::environment::Reach;
use crate::testing::json;

#[tokio::test]
async fn references_in_url_headers_and_body_are_replaced() {
    let harness =
        Harness::new([json(201, r#"{"ok":true}"#)]).input(r#"{"u":{"id":7,"name":"Ana"}}"#);
    let called = harness
        .call(
            r#"{"method":"POST","url":"https://api.example.com/orders/{/workflow/u.name}",
            "headers":{"X-Trace":"t-{/workflow/u.id}","X-Name":{"path":"/workflow/u.name"}},
            "body":{"user":"/workflow/u","ids":[{"path":"/workflow/u.id"},"{/workflow/u.id}"],
                    "msg":"for {/workflow/u.name}: {/workflow/u}","slash":"/other","n":null,"e":[]}}"#,
        )
        .await;
    assert_eq!(called.result.unwrap().to_string(), r#"{"ok":true}"#);
    assert_eq!((called.attempts, called.cached), (1, false));
    let [request] = harness.requests().try_into().unwrap();
    assert_eq!(
        request.target.as_str(),
        "https://api.example.com/orders/Ana"
    );
    assert_eq!(header(&request, "x-trace"), Some("t-7"));
    assert_eq!(header(&request, "x-name"), Some("Ana"));
    assert_eq!(header(&request, "content-type"), Some("application/json"));
    assert_eq!(request.headers.len(), 3);
    assert_eq!(
        crate::parse(request.body.as_ref().unwrap()).unwrap(),
        crate::parse(
            br#"{"user":{"id":7,"name":"Ana"},"ids":[7,7],
                "msg":"for Ana: {\"id\":7,\"name\":\"Ana\"}","slash":"/other","n":null,"e":[]}"#
        )
        .unwrap()
    );
    assert_eq!(harness.hooks.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_configured_body_is_sent() {
    for (config, expected) in [
        (r#""body":null"#, None),
        (r#""body":{}"#, Some("{}")),
        (r#""body":[]"#, Some("[]")),
        (r#""body":false"#, Some("false")),
        (r#""body":"""#, Some(r#""""#)),
        (r#""body":"/workflow/none""#, None),
        (r#""body":{"path":"/workflow/list"}"#, Some("[1,2]")),
        (r#""body":"a{/workflow/none}b""#, Some(r#""anullb""#)),
        (r#""body":"{/workflow/list}""#, Some("[1,2]")),
        (r#""headers":{}"#, None),
    ] {
        let harness = Harness::new([json(200, "1")]).input(r#"{"none":null,"list":[1,2]}"#);
        let url = "https://api.example.com/x";
        let called = harness
            .call(&format!(r#"{{"method":"PUT","url":"{url}",{config}}}"#))
            .await;
        assert!(called.result.is_ok(), "{config}");
        let [request] = harness.requests().try_into().unwrap();
        let body = request.body.as_deref().map(|b| str::from_utf8(b).unwrap());
        assert_eq!(body, expected, "{config}");
        let content_type = expected.map(|_| "application/json");
        assert_eq!(header(&request, "content-type"), content_type, "{config}");
    }
}

#[tokio::test]
async fn an_explicit_content_type_is_not_replaced() {
    let harness = Harness::new([json(200, "1")]);
    harness
        .call(
            r#"{"method":"POST","url":"https://api.example.com/x","body":[1],
            "headers":{"Content-TYPE":"application/vnd.api+json"}}"#,
        )
        .await;
    let [request] = harness.requests().try_into().unwrap();
    let types: Vec<_> = request
        .headers
        .iter()
        .filter(|(name, _)| name == "content-type")
        .collect();
    assert_eq!(types.len(), 1);
    assert_eq!(types[0].1, "application/vnd.api+json");
}

#[tokio::test]
async fn values_that_are_invalid_in_a_header_are_refused() {
    for (value, code) in [
        (r#""a\r\nX-Evil: 1""#, "invalid_value"),
        (r#""a\nb""#, "invalid_value"),
        (r#""a\u0000b""#, "invalid_value"),
        (r#""a\u007fb""#, "invalid_value"),
        (r#""a\u001bb""#, "invalid_value"),
        ("null", "invalid_value"),
        ("[1]", "invalid_value"),
        (r#"{"a":1}"#, "invalid_value"),
    ] {
        for header in [r#""v{/workflow/x}""#, r#"{"path":"/workflow/x"}"#] {
            let harness = Harness::new([json(200, "1")]).input(&format!(r#"{{"x":{value}}}"#));
            let config = format!(
                r#"{{"method":"GET","url":"https://api.example.com/x","headers":{{"X-A":{header}}}}}"#
            );
            let called = harness.call(&config).await;
            assert_eq!(failed(&called), ("DataError", code), "{value} in {header}");
            assert_eq!((called.attempts, harness.requests().len()), (0, 0));
        }
    }
    for (value, text) in [(r#""a\tb é""#, "a\tb é"), ("1.5", "1.5"), ("true", "true")] {
        let harness = Harness::new([json(200, "1")]).input(&format!(r#"{{"x":{value}}}"#));
        let called = harness
            .call(
                r#"{"method":"GET","url":"https://api.example.com/x",
                "headers":{"X-A":{"path":"/workflow/x"}}}"#,
            )
            .await;
        assert!(called.result.is_ok());
        assert_eq!(header(&harness.requests()[0], "x-a"), Some(text));
    }
}

#[tokio::test]
async fn suggestions_fit_the_invalid_value() {
    let long = format!("\"{}\"", "x".repeat(70_000));
    let of_url = r#""url":"{/workflow/x}""#;
    let in_path = r#""url":"https://api.example.com/{/workflow/x}/y""#;
    let header = r#""url":"https://api.example.com/","headers":{"A":"{/workflow/x}"}"#;
    for (member, x, expected) in [
        (of_url, r#""nowhere""#, "a whole URL"),
        (of_url, "7", "a whole URL"),
        (in_path, r#""..""#, "does not make the segment"),
        (in_path, &long, "shorter values into the URL"),
        (in_path, "null", "a string, a number or a Boolean"),
        (header, r#""a\nb""#, "remove line ends"),
        (header, &long, "a shorter value into the header"),
        (header, "[]", "a string, a number or a Boolean"),
    ] {
        let harness = Harness::new([json(200, "1")]).input(&format!(r#"{{"x":{x}}}"#));
        let called = harness
            .call(&format!(r#"{{"method":"GET",{member}}}"#))
            .await;
        assert_eq!(failed(&called), ("DataError", "invalid_value"), "{member}");
        let failure = called.result.unwrap_err().to_value();
        let suggestions = failure.get("suggestions").unwrap().to_string();
        assert!(suggestions.contains(expected), "{member}: {suggestions}");
    }
}

#[tokio::test]
async fn a_reference_to_a_missing_value_is_a_data_error() {
    for config in [
        r#"{"method":"GET","url":"https://api.example.com/{/workflow/x}"}"#,
        r#"{"method":"GET","url":"{/workflow/x}"}"#,
        r#"{"method":"GET","url":"https://api.example.com/","headers":{"A":"{/workflow/x}"}}"#,
        r#"{"method":"GET","url":"https://api.example.com/","headers":{"A":{"path":"/workflow/x"}}}"#,
        r#"{"method":"POST","url":"https://api.example.com/","body":"/workflow/x"}"#,
        r#"{"method":"POST","url":"https://api.example.com/","body":[["a {/workflow/x}"]]}"#,
    ] {
        let harness = Harness::new([json(200, "1")]);
        let called = harness.call(config).await;
        assert_eq!(failed(&called), ("DataError", "path_not_found"), "{config}");
        assert!(harness.requests().is_empty());
        assert_eq!(harness.hooks.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn oversized_bodies_are_refused_before_they_are_built() {
    let text = "x".repeat(1 << 20);
    let harness = Harness::new([json(200, "1")]).input(&format!(r#"{{"x":"{text}"}}"#));
    let many = ["{/workflow/x}"; 10_000].concat();
    let each = [r#"{"path":"/workflow/x"}"#; 5_000].join(",");
    for body in [
        format!(r#""a{many}""#),
        format!("[{each}]"),
        format!(r#"["a{many}"]"#),
    ] {
        let config =
            format!(r#"{{"method":"POST","url":"https://api.example.com/","body":{body}}}"#);
        let called = harness.call(&config).await;
        assert_eq!(failed(&called), ("ExecutionError", "limit_exceeded"));
    }
    let header = format!(
        r#"{{"method":"GET","url":"https://api.example.com/","headers":{{"A":"{many}"}}}}"#
    );
    assert_eq!(
        failed(&harness.call(&header).await),
        ("DataError", "invalid_value")
    );
    let url = get(&format!("https://api.example.com/{many}"));
    assert_eq!(
        failed(&harness.call(&url).await),
        ("DataError", "invalid_value")
    );
    assert!(harness.requests().is_empty());
}

#[tokio::test]
async fn headers_have_limits_together() {
    let value = "x".repeat(60_000);
    let harness = Harness::new([json(200, "1")]).input(&format!(r#"{{"x":"{value}"}}"#));
    for (count, value, limit) in [
        (100, "1", None),
        (101, "1", Some("headers")),
        (4, "{/workflow/x}", None),
        (5, "{/workflow/x}", Some("header_bytes")),
    ] {
        let headers = (0..count).map(|number| format!(r#""A{number}":"{value}""#));
        let headers = headers.collect::<Vec<_>>().join(",");
        let config = format!(r#"{{"method":"GET","url":"{API}/x","headers":{{{headers}}}}}"#);
        let called = harness.call(&config).await;
        let Some(limit) = limit else {
            assert!(called.result.is_ok(), "{count} headers");
            continue;
        };
        assert_eq!(failed(&called), ("ExecutionError", "limit_exceeded"));
        assert_eq!(detail(&called, "limit"), Some(limit.into()));
    }
    assert_eq!(harness.requests().len(), 2);
}

#[tokio::test]
async fn a_registered_base_may_be_anywhere_and_others_are_global() {
    for (apis, url, reach) in [
        (
            vec!["http://10.1.2.3:8080/v1"],
            "http://10.1.2.3:8080/v1/x",
            Reach::Registered,
        ),
        (vec![API], "https://api.example.com/x", Reach::Registered),
        (vec!["*"], "https://api.example.com/x", Reach::Global),
        (
            vec!["*", "https://other.example"],
            "https://api.example.com/x",
            Reach::Global,
        ),
        (
            vec!["*", API],
            "https://api.example.com/x",
            Reach::Registered,
        ),
    ] {
        let mut harness = Harness::new([json(200, "1")]);
        harness.agent = agent("agent", &apis, []);
        assert!(harness.call(&get(url)).await.result.is_ok());
        assert_eq!(harness.requests()[0].reach, reach, "{apis:?} {url}");
    }
}

#[tokio::test]
async fn no_value_escapes_the_path_of_a_base() {
    let base = "http://10.1.2.3:8080/users";
    for (url, x) in [
        (format!("{base}/{{/workflow/x}}"), "../echo".to_owned()),
        (format!("{base}/{{/workflow/x}}"), "..\\echo".to_owned()),
        (format!("{base}/..;{{/workflow/x}}/echo"), "a".to_owned()),
        ("{/workflow/x}".to_owned(), format!("{base}/..%2fecho")),
        (
            "{/workflow/x}".to_owned(),
            format!("{base}/%252e%252e/echo"),
        ),
    ] {
        let input = Json::object([("x", Json::from(x.as_str()))]).to_string();
        let mut harness = Harness::new([json(200, "1")]).input(&input);
        harness.agent = agent("agent", &[base], []);
        let called = harness.call(&get(&url)).await;
        assert_eq!(
            failed(&called),
            ("PermissionError", "forbidden_target"),
            "{url} with {x}"
        );
        assert!(harness.requests().is_empty(), "{url} with {x}");
    }
}

#[tokio::test]
async fn nothing_is_sent_when_the_call_cannot_be_recorded() {
    let harness = Harness::new([json(200, "1")]);
    harness.fail_hook.store(true, Ordering::SeqCst);
    let post = r#"{"method":"POST","url":"https://api.example.com/x"}"#;
    let called = harness.call(post).await;
    assert_eq!(failed(&called), ("ExecutionError", "storage_failed"));
    assert_eq!((called.attempts, harness.requests().len()), (0, 0));
    let called = harness.call(&get("https://api.example.com/x")).await;
    assert!(called.result.is_ok(), "a GET changes nothing");
}

#[tokio::test]
async fn the_hook_runs_once_for_every_method_that_changes_something() {
    for (method, hooks) in [
        ("GET", 0),
        ("POST", 1),
        ("PUT", 1),
        ("PATCH", 1),
        ("DELETE", 1),
    ] {
        let harness = Harness::new([json(503, "1"), json(503, "1"), json(200, "1")]);
        let called = harness
            .call(&format!(r#"{{"method":"{method}","url":"{API}/x"}}"#))
            .await;
        assert_eq!(called.attempts, 3);
        assert_eq!(harness.hooks.load(Ordering::SeqCst), hooks, "{method}");
    }
}
