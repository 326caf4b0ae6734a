//! Calls that must not be made.

use super::*;
use crate::testing::json;

/// By an agent with all permissions.
async fn by_url(apis: &[&str], url: &str) -> (CallResult, usize) {
    let mut harness = Harness::new([json(200, "1")]);
    harness.agent = agent("agent", apis, []);
    harness.input = Json::object([("u", Json::from(url))]);
    let called = harness.call(&get("{/workflow/u}")).await;
    let requests = harness.requests().len();
    (called, requests)
}

#[tokio::test]
async fn urls_into_the_network_of_the_host_are_refused() {
    const URLS: &[&str] = &[
        "https://localhost/",
        "https://LOCALHOST/",
        "https://localhost./",
        "https://a.localhost/",
        "https://a.b.localhost./",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://127.0.1/",
        "https://127.255.255.254/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://017700000001/",
        "https://127.0.0.1.:443/",
        "https://%31%32%37.0.0.1/",
        "https://１２７.０.０.１/",
        "https://127。0。0。1/",
        "https://0.0.0.0/",
        "https://0/",
        "https://10.0.0.8/",
        "https://10.255.255.255/",
        "https://172.16.0.1/",
        "https://172.31.255.255/",
        "https://192.168.1.1/",
        "https://0xc0a80101/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://0xa9fea9fe/",
        "https://2852039166/",
        "https://168.63.129.16/",
        "https://192.0.0.192/",
        "https://192.0.2.1/",
        "https://198.18.0.1/",
        "https://198.51.100.1/",
        "https://203.0.113.1/",
        "https://224.0.0.1/",
        "https://239.255.255.255/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        "https://[::]/",
        "https://[::1]/",
        "https://[0:0:0:0:0:0:0:1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b:1::1]/",
        "https://[fe80::1]/",
        "https://[fec0::1]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[ff02::1]/",
        "https://[2001:db8::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001::1]/",
        "http://api.example.com/",
        "http://8.8.8.8/",
        "ftp://api.example.com/",
        "file:///etc/passwd",
        "gopher://api.example.com/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "unix:/var/run/docker.sock",
        "ws://api.example.com/",
        "https://user@api.example.com/",
        "https://user:pass@api.example.com/",
        "https://@api.example.com/",
        "https://api.example.com@127.0.0.1/",
        "https:\\\\127.0.0.1\\",
    ];
    for url in URLS {
        let (called, requests) = by_url(&["*"], url).await;
        let (type_name, code) = failed(&called);
        let refused = (type_name, code) == ("PermissionError", "forbidden_target")
            || (type_name, code) == ("DataError", "invalid_value");
        assert!(refused, "{url}: {type_name} {code}");
        assert_eq!((called.attempts, requests), (0, 0), "{url}");
    }
}

#[tokio::test]
async fn public_urls_pass() {
    for url in [
        "https://api.example.com/x",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/",
        "https://localhost.example.com/",
        "https://notlocalhost/",
        // The backslash ends the authority: what follows is a path of the public host.
        "https://api.example.com\\@127.0.0.1/x@y",
    ] {
        let (called, requests) = by_url(&["*"], url).await;
        assert!(called.result.is_ok(), "{url}");
        assert_eq!(requests, 1);
    }
}

#[tokio::test]
async fn a_base_covers_its_scheme_host_port_and_path_on_segments() {
    let base = "https://api.example.com/v1/public";
    for (url, code) in [
        ("https://api.example.com/v1/public", None),
        ("https://api.example.com/v1/public/x?y", None),
        ("https://api.example.com:443/v1/public/", None),
        (
            "https://api.example.com/v1/publicity",
            Some("api_not_permitted"),
        ),
        ("https://api.example.com/v1", Some("api_not_permitted")),
        (
            "https://api.example.com/v1/public/../private",
            Some("api_not_permitted"),
        ),
        (
            "https://api.example.com/v1/public/%2e%2e/private",
            Some("api_not_permitted"),
        ),
        (
            "https://api.example.com/v1/%7B%7D/users",
            Some("api_not_permitted"),
        ),
        (
            "https://api.example.com/%7B%7D/%7B%7D/users",
            Some("api_not_permitted"),
        ),
        (
            "https://api.example.com:8443/v1/public/x",
            Some("api_not_permitted"),
        ),
        (
            "https://api.example.com.evil.example/v1/public/x",
            Some("api_not_permitted"),
        ),
        (
            "https://evil.example/v1/public/x",
            Some("api_not_permitted"),
        ),
        (
            "http://api.example.com/v1/public/x",
            Some("forbidden_target"),
        ),
    ] {
        let (called, requests) = by_url(&[base], url).await;
        match code {
            None => assert!(called.result.is_ok(), "{url}"),
            Some(code) => assert_eq!(failed(&called), ("PermissionError", code), "{url}"),
        }
        assert_eq!(requests, usize::from(code.is_none()), "{url}");
    }
    assert_eq!(
        failed(&by_url(&[], "https://x.example/").await.0).1,
        "api_not_permitted"
    );
}

#[tokio::test]
async fn no_value_in_a_url_escapes_the_registered_base() {
    for x in [
        "..",
        "{}",
        "%2e%2e",
        "../..",
        "a/../../..",
        "\\..\\..",
        "?",
        "#",
    ] {
        let mut harness = Harness::new([json(200, "1")]);
        harness.agent = agent("agent", &["https://api.example.com/v1/public"], []);
        harness.input = Json::object([("x", Json::from(x))]);
        let called = harness
            .call(&get("https://api.example.com/v1/{/workflow/x}/users"))
            .await;
        assert!(called.result.is_err(), "{x}");
        assert!(harness.requests().is_empty(), "{x}");
    }
}

#[tokio::test]
async fn a_registered_base_may_be_private_and_without_tls() {
    for (base, url) in [
        ("http://10.0.0.8:8080/api", "http://10.0.0.8:8080/api/x"),
        ("http://localhost:3000", "http://localhost:3000/x"),
        ("https://[fd00::1]", "https://[fd00::1]/x"),
    ] {
        let (called, _) = by_url(&["*", base], url).await;
        assert!(called.result.is_ok(), "{url}");
    }
    for (base, url) in [
        ("http://10.0.0.8:8080/api", "http://10.0.0.8:8080/admin"),
        ("http://10.0.0.8:8080/api", "http://10.0.0.8:8081/api/x"),
        ("http://10.0.0.8:8080/api", "http://10.0.0.9:8080/api/x"),
        ("http://localhost:3000", "https://localhost:3000/x"),
    ] {
        let (called, _) = by_url(&["*", base], url).await;
        assert_eq!(failed(&called).1, "forbidden_target", "{url}");
    }
}

#[tokio::test]
async fn a_credential_is_sent_only_to_its_own_bases() {
    let (own, other) = ("https://own.example/v1", "https://other.example");
    let harness = |id: &'static str, granted: &[&str]| {
        let mut harness = Harness::new([json(200, "1")]);
        let key = credential(CredentialKind::ApiKey, "s3cr3t-value", &[own]);
        let agent = agent("agent", &[own, other, "https://own.example"], [(id, key)]);
        let policy = Policy {
            credentials: granted.iter().copied().collect(),
            ..agent.policy().clone()
        };
        let credentials = agent.credentials().clone();
        harness.agent = Agent::new("agent".into(), policy, credentials, Rates::default());
        harness
    };
    let call = async |harness: Harness, url: &str| {
        let input = Json::object([("u", Json::from(url))]);
        let harness = Harness { input, ..harness };
        let called = harness
            .call(
                r#"{"method":"GET","url":"{/workflow/u}",
                "headers":{"X-Key":{"credentialRef":{"id":"k"}}}}"#,
            )
            .await;
        let code = called
            .result
            .as_ref()
            .err()
            .map(|failure| failure.code.as_str());
        assert_eq!(harness.requests().len(), usize::from(code.is_none()));
        code
    };
    assert_eq!(
        call(harness("k", &["k"]), "https://own.example/v1/x").await,
        None
    );
    assert_eq!(
        call(harness("k", &["*"]), "https://own.example/v1/x").await,
        None
    );
    for url in [
        "https://own.example/v2",
        "https://own.example/v1/../v2",
        "https://other.example/v1",
    ] {
        let code = call(harness("k", &["k"]), url).await;
        assert_eq!(code, Some("credential_not_permitted"), "{url}");
    }
    let ours = "https://own.example/v1/x";
    for (id, granted, code) in [
        ("k", vec!["other"], "credential_not_permitted"),
        ("k", vec![], "credential_not_permitted"),
        ("absent", vec!["other"], "credential_not_permitted"),
        ("absent", vec!["k"], "credential_not_found"),
        ("absent", vec!["*"], "credential_not_found"),
    ] {
        assert_eq!(
            call(harness(id, &granted), ours).await,
            Some(code),
            "{id} {granted:?}"
        );
    }
}
