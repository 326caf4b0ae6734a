//! Configurations, and the secrets that they name.

use super::*;

fn parse(json: &str) -> NatsConfig {
    serde_json::from_str(json).unwrap()
}

#[test]
fn defaults_are_those_of_new() {
    let config = parse(r#"{"servers":["nats://a:4222"]}"#);
    assert_eq!(config, NatsConfig::new(["nats://a:4222"]));
    assert_eq!(config.problems(), []);
    assert!(serde_json::from_str::<NatsConfig>("{}").is_err());
}

#[test]
fn a_password_or_token_is_sent_over_tls_only() {
    let (password, token) = (
        r#""auth":{"user":"u","password":{"env":"P"}}"#,
        r#""auth":{"token":{"env":"T"}}"#,
    );
    for (servers, more, required, warnings) in [
        (r#""nats://a""#, password, true, 0),
        (r#""nats://a""#, token, true, 0),
        (r#""nats://127.0.0.1:1","nats://a""#, token, true, 0),
        (
            r#""nats://127.0.0.1:1","nats://localhost""#,
            token,
            false,
            0,
        ),
        (r#""nats://[::1]:1""#, password, false, 0),
        (r#""nats://a""#, r#""auth":{"nkey":{"env":"N"}}"#, false, 0),
        (r#""nats://a""#, r#""name":"x""#, false, 0),
        (r#""nats://a""#, r#""tls":{"required":true}"#, true, 0),
        (
            r#""nats://a""#,
            r#""tls":{"required":false},"auth":{"token":{"env":"T"}}"#,
            false,
            1,
        ),
    ] {
        let config = parse(&format!(r#"{{"servers":[{servers}],{more}}}"#));
        assert_eq!(config.requires_tls(), required, "{servers} {more}");
        assert_eq!(config.warnings().len(), warnings, "{servers} {more}");
    }
}

#[test]
fn written_values_are_read_again() {
    let config = parse(
        r#"{"servers":["tls://a"],"ack_timeout":"250ms","jetstream":{"manage":true,"streams":[
                {"name":"S","subjects":["a.>"],"max_age":"7d","storage":"memory"}]}}"#,
    );
    let written = serde_json::to_string(&config).unwrap();
    assert_eq!(parse(&written), config);
    assert_eq!(
        config.jetstream.streams[0].max_age,
        Some(Duration::from_secs(7 * 86_400))
    );
}

#[test]
fn unknown_keys_and_inline_secrets_are_refused() {
    for text in [
        r#"{"servers":["nats://a"],"pings":"1s"}"#,
        r#"{"servers":["nats://a"],"ping_interval":5}"#,
        r#"{"servers":["nats://a"],"tls":{"verify":false}}"#,
        r#"{"servers":["nats://a"],"auth":{"token":"hunter2"}}"#,
        r#"{"servers":["nats://a"],"auth":{"user":"u"}}"#,
        r#"{"servers":["nats://a"],"auth":{"token":{"env":"T"},"nkey":{"env":"N"}}}"#,
        r#"{"servers":["nats://a"],"auth":{}}"#,
        r#"{"servers":["nats://a"],"jetstream":{"streams":[{"name":"s"}]}}"#,
    ] {
        assert!(serde_json::from_str::<NatsConfig>(text).is_err(), "{text}");
    }
}

#[test]
fn every_problem_is_reported_at_once_with_its_path() {
    let config = parse(
        r#"{"servers":["a:1","http://a","nats://u:canary@a","nats://"],"name":" ","tls":{"cert_file":"c"},
                "ping_interval":"1h","connect_timeout":"0s","request_timeout":"1h","ack_timeout":"1us",
                "max_ack_pending":0,"inbox_prefix":"a.>","jetstream":{"domain":"a.b","ack_wait":"0s","streams":[
                {"name":"a b","subjects":[]},
                {"name":"a b","subjects":["x..y"],"replicas":9,"max_age":"1s","duplicate_window":"2s"}]}}"#,
    );
    let problems = config.problems();
    let paths: Vec<&str> = problems.iter().map(|problem| &*problem.key).collect();
    assert_eq!(
        paths,
        [
            "servers[0]",
            "servers[1]",
            "servers[2]",
            "servers[3]",
            "name",
            "tls",
            "ping_interval",
            "connect_timeout",
            "request_timeout",
            "ack_timeout",
            "jetstream.ack_wait",
            "max_ack_pending",
            "inbox_prefix",
            "jetstream.domain",
            "jetstream.streams[0].name",
            "jetstream.streams[0].subjects",
            "jetstream.streams[1].name",
            "jetstream.streams[1].name",
            "jetstream.streams[1].subjects[0]",
            "jetstream.streams[1].replicas",
            "jetstream.streams[1].duplicate_window",
        ]
    );
    assert!(!format!("{problems:?}").contains("canary"));
}

#[test]
fn no_two_subjects_of_streams_overlap() {
    let second_of = |stream: usize| format!("jetstream.streams[{stream}].subjects[1]");
    for (first, second, problem) in [
        (r#""x""#, r#""y","*""#, Some(second_of(1))),
        (r#""a.>""#, r#""b","a.*.c""#, Some(second_of(1))),
        (r#""a.b","a.*""#, r#""b""#, Some(second_of(0))),
        (r#""a.*""#, r#""a.b.c","a""#, None),
    ] {
        let config = parse(&format!(
            r#"{{"servers":["nats://a"],"jetstream":{{"streams":[
                    {{"name":"C","subjects":[{first}]}},{{"name":"D","subjects":[{second}]}}]}}}}"#
        ));
        let problems = config.problems();
        let keys = problems.iter().map(|problem| problem.key.clone());
        assert_eq!(Vec::from_iter(keys), Vec::from_iter(problem));
    }
}

#[test]
fn secrets_are_never_printed() {
    let config =
        parse(r#"{"servers":["nats://a"],"auth":{"user":"u","password":{"env":"CANARY_PLACE"}}}"#);
    for shown in [
        format!("{config:?}"),
        serde_json::to_string(&config).unwrap(),
    ] {
        assert!(
            shown.contains("***") && !shown.contains("CANARY"),
            "{shown}"
        );
    }
}

#[test]
fn a_missing_secret_or_file_is_named_at_the_start() {
    for (text, named) in [
        (r#""auth":{"token":{"env":"A2ABUS_NO_SUCH"}}"#, "auth.token"),
        (
            r#""auth":{"user":"u","password":{"file":"/no/such"}}"#,
            "auth.password",
        ),
        (r#""auth":{"creds_file":"/no/such"}"#, "auth.creds_file"),
        (r#""auth":{"nkey":{"file":"/no/such"}}"#, "auth.nkey"),
        (r#""tls":{"ca_file":"/no/such"}"#, "tls.ca_file"),
        (
            r#""tls":{"cert_file":"/no/such","key_file":"/no/such"}"#,
            "tls.cert_file",
        ),
    ] {
        let config = parse(&format!(r#"{{"servers":["nats://a"],{text}}}"#));
        let error = config.options().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::BadConfig);
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_secret_that_cannot_log_in_is_named_before_the_client_starts() {
    // A seed of the documentation of NATS.
    let seed = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\ne30.e30.x\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("login");
    let auths = [
        ("auth.creds_file", NatsAuth::Credentials(file.clone())),
        ("auth.nkey", NatsAuth::Nkey(Secret::file(&file))),
    ];
    for ((key, auth), good) in auths.into_iter().zip([credentials, format!("{seed}\n")]) {
        let mut config = parse(r#"{"servers":["nats://a"]}"#);
        config.auth = Some(auth);
        std::fs::write(&file, &good).unwrap();
        assert_eq!(config.login_problem(), None, "{key}");
        assert!(config.options().is_ok(), "{key}");
        // The last character is part of a checksum.
        for bad in ["nothing".to_owned(), good.replace("M7ZY", "M7ZA")] {
            std::fs::write(&file, &bad).unwrap();
            let problem = config.login_problem().unwrap();
            assert_eq!(problem.key, key);
            assert!(!problem.message.contains("SUANQ"), "{}", problem.message);
            let error = config.options().unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::BadConfig);
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}

#[test]
fn credentials_that_have_expired_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bridge.creds");
    let seed = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
    // {"exp":1}
    let jwt = "e30.eyJleHAiOjF9.x";
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut config = parse(r#"{"servers":["nats://a"]}"#);
    assert_eq!(config.tls_findings(), TlsFindings::default());
    config.auth = Some(NatsAuth::Credentials(file));
    let findings = config.tls_findings();
    let [problem] = &findings.invalid[..] else {
        panic!("{findings:?}");
    };
    assert_eq!(problem.key, "auth.creds_file");
    let expired = "expired on 1970-01-01T00:00:01Z";
    assert!(problem.message.contains(expired), "{}", problem.message);
    assert!(config.options().is_ok(), "the clock may be wrong");
}

#[test]
fn the_schema_documents_every_key() {
    let schema = schemars::schema_for!(NatsConfig);
    let text = serde_json::to_string(&schema).unwrap();
    for key in [
        "servers",
        "ack_timeout",
        "creds_file",
        "duplicate_window",
        "inbox_prefix",
    ] {
        assert!(text.contains(&format!("\"{key}\"")), "{key}");
    }
    let properties = schema
        .get("properties")
        .and_then(|p| p.as_object())
        .unwrap();
    for (key, value) in properties {
        assert!(
            value.get("description").is_some(),
            "{key} has no description"
        );
    }
}
