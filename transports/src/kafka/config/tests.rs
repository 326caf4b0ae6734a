//! Configurations, and the properties that the clients get.

use super::*;

fn parse(json: &str) -> KafkaConfig {
    serde_json::from_str(json).unwrap()
}

#[test]
fn brokers_are_a_list_or_a_string_with_commas() {
    for text in [r#"{"brokers":"a:1, b:2"}"#, r#"{"brokers":["a:1","b:2"]}"#] {
        assert_eq!(parse(text).brokers, ["a:1", "b:2"]);
    }
    assert!(serde_json::from_str::<KafkaConfig>("{}").is_err());
}

#[test]
fn defaults_are_those_of_new() {
    assert_eq!(parse(r#"{"brokers":"a:1"}"#), KafkaConfig::new(["a:1"]));
    assert!(KafkaConfig::new(["a:1"]).problems().is_empty());
}

#[test]
fn the_queue_has_room_for_the_largest_message() {
    let config = KafkaConfig {
        max_message_bytes: 100_000_000,
        ..KafkaConfig::new(["a:1"])
    };
    let producer = config.producer(Duration::ZERO).unwrap();
    let queue = producer.get("queue.buffering.max.kbytes").unwrap();
    assert!(
        queue.parse::<u32>().unwrap() > 100_000_000 / 1_024,
        "{queue}"
    );
}

#[test]
fn unknown_keys_and_inline_secrets_are_refused() {
    for text in [
        r#"{"brokers":"a","lingre":"1ms"}"#,
        r#"{"brokers":"a","linger":5}"#,
        r#"{"brokers":"a","tls":{"verify":false}}"#,
        r#"{"brokers":"a","sasl":{"mechanism":"PLAIN","username":"u","password":"p"}}"#,
        r#"{"brokers":"a","sasl":{"mechanism":"GSSAPI","username":"u","password":{"env":"P"}}}"#,
    ] {
        assert!(serde_json::from_str::<KafkaConfig>(text).is_err(), "{text}");
    }
}

#[test]
fn every_problem_is_reported_at_once_with_its_path() {
    let config = parse(
        r#"{"brokers":["a:port"],"client_id":"","linger":"2s","message_timeout":"0s","max_message_bytes":1,
                "session_timeout":"1h","instance_id":"","tls":{"cert_file":"c"},
                "properties":{"acks":"1","delivery.report.only.error":"true","group.id":"g","client.rack":"r",
                "test.mock.num.brokers":"1"}}"#,
    );
    let problems = config.problems();
    let paths: Vec<&str> = problems.iter().map(|problem| &*problem.key).collect();
    assert_eq!(
        paths,
        [
            "brokers",
            "client_id",
            "instance_id",
            "linger",
            "linger",
            "message_timeout",
            "max_message_bytes",
            "session_timeout",
            "tls",
            "properties.acks",
            "properties.delivery.report.only.error",
            "properties.group.id",
            "properties.test.mock.num.brokers"
        ]
    );
}

#[test]
fn a_message_may_not_linger_until_its_timeout() {
    let problems = |linger: &str| {
        let text = format!(r#"{{"brokers":"a:1","linger":"{linger}","message_timeout":"1s"}}"#);
        parse(&text).problems()
    };
    assert!(problems("999ms").is_empty());
    let found = problems("1s");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(&*found[0].key, "linger");
    assert_eq!(&*found[0].message, "less than message_timeout");
}

#[test]
fn secrets_among_the_properties_are_refused_and_not_shown() {
    for (key, instead) in [
        ("sasl.password", "sasl.password"),
        ("ssl.key.password", "tls.key_password"),
        ("ssl.key.pem", "tls.key_file"),
        ("ssl_key", "tls.key_file"),
        ("ssl.keystore.password", "tls.key_file"),
        ("SSL.Key.Pem", "tls.key_file"),
        ("sasl.oauthbearer.client.secret", "files"),
        ("sasl.oauthbearer.assertion.private.key.passphrase", "files"),
        ("sasl.oauthbearer.assertion.private.key.pem", "files"),
        ("sasl.jaas.config", "files"),
        ("some.later.password", "files"),
    ] {
        let mut config = KafkaConfig::new(["a:1"]);
        config.properties = [(key, "CANARY")].into_iter().collect();
        let problems = config.problems();
        assert_eq!(problems.len(), 1, "{key}");
        assert!(
            problems[0].key == format!("properties.{key}") && problems[0].message.contains(instead),
            "{problems:?}"
        );
        let shown = format!(
            "{config:?}{}{problems:?}",
            serde_json::to_string(&config).unwrap()
        );
        assert!(
            !shown.contains("CANARY") && shown.contains("***"),
            "{shown}"
        );
    }
}

#[test]
fn other_properties_are_accepted_and_shown() {
    let text = r#"{"brokers":"a","properties":{"client.rack":"r","ssl.certificate.pem":"c","sasl.kerberos.keytab":"k"}}"#;
    let config = parse(text);
    assert!(config.problems().is_empty());
    let written = serde_json::to_string(&config).unwrap();
    assert_eq!(parse(&written), config);
    assert!(format!("{config:?}").contains(r#""client.rack": "r""#));
}

#[test]
fn properties_that_librdkafka_refuses_are_problems() {
    let refused = |properties: &str| {
        let text = format!(r#"{{"brokers":"a","properties":{{{properties}}}}}"#);
        let problems = parse(&text).problems();
        Vec::from_iter(problems.iter().map(ToString::to_string))
    };
    assert_eq!(
        refused(r#""client.rack":"r","fetch.wait.max.ms":"CANARY","foo":"CANARY""#),
        [
            "properties.fetch.wait.max.ms: librdkafka does not accept this value",
            "properties.foo: librdkafka has no such property",
        ]
    );
    // The plugin may know it.
    let plugin = r#""foo":"bar","plugin.library.paths":"/nowhere/plugin""#;
    assert_eq!(refused(plugin), Vec::<String>::new());
}

#[test]
fn properties_that_do_not_fit_together_are_found_without_a_broker() {
    let refused = |properties: &[(&str, &str)]| {
        let mut config = KafkaConfig::new(["a:1"]);
        config.properties = properties.iter().copied().collect();
        assert!(config.problems().is_empty());
        Vec::from_iter(config.refusals().iter().map(ToString::to_string))
    };
    let backoff = "properties.reconnect.backoff.ms: librdkafka refuses the client: `reconnect.backoff.max.ms` must be >= `reconnect.backoff.ms`";
    let receive = "properties.receive.message.max.bytes: librdkafka refuses the client: `receive.message.max.bytes` must be >= `fetch.max.bytes` + 512";
    let threshold = "properties.queue.buffering.backpressure.threshold: librdkafka refuses the client: `queue.buffering.backpressure.threshold` must be set to 1 when `enable.idempotence` is true";
    for (name, value, expected) in [
        // Of both clients, of the consumer, of the producer.
        ("reconnect.backoff.ms", "5000", Some(backoff)),
        ("receive.message.max.bytes", "1000000", Some(receive)),
        (
            "queue.buffering.backpressure.threshold",
            "2",
            Some(threshold),
        ),
        ("client.rack", "r", None),
    ] {
        let expected = Vec::from_iter(expected);
        assert_eq!(refused(&[(name, value)]), expected);
        let plugin = ("plugin.library.paths", "/nowhere/plugin");
        assert_eq!(refused(&[(name, value), plugin]), Vec::<String>::new());
    }
    let backoffs = [
        ("reconnect.backoff.ms", "5000"),
        ("reconnect.backoff.max.ms", "10000"),
    ];
    assert_eq!(refused(&backoffs), Vec::<String>::new());
}

#[test]
fn clients_are_tried_with_their_security() {
    let mut config = KafkaConfig::new(["a:1"]);
    config.tls = Some(KafkaTls::default());
    config.properties = [("ssl.cipher.suites", "none-such")].into_iter().collect();
    assert!(config.problems().is_empty());
    let refused = config.refusals();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].key, "properties.ssl.cipher.suites");
    config.tls = None;
    assert!(config.refusals().is_empty());
}

#[test]
fn addresses() {
    for good in ["a", "a:9092", "[::1]:9092", "[::1]", "10.0.0.1:1"] {
        assert!(is_address(good), "{good}");
    }
    for bad in ["", "a:", "a:x", "a b", "a,b", "http://a:1", "a:70000"] {
        assert!(!is_address(bad), "{bad}");
    }
}

#[test]
fn a_plain_password_needs_tls_or_insecure_plaintext() {
    let problems = |rest: &str| {
        parse(&format!(
                r#"{{"brokers":"a","sasl":{{"mechanism":"PLAIN","username":"u","password":{{"env":"P"}}{rest}"#
            ))
            .problems()
            .len()
    };
    assert_eq!(problems("}}"), 1);
    assert_eq!(problems(r#","insecure_plaintext":true}}"#), 0);
    assert_eq!(problems(r#"},"tls":{}}"#), 0);
}

#[test]
fn passed_properties_override_defaults_but_not_guarantees() {
    let mut config = KafkaConfig::new(["a:1"]);
    config.properties = [("acks", "0"), ("partitioner", "random")]
        .into_iter()
        .collect();
    let built = config.producer(Duration::ZERO).unwrap();
    assert_eq!(built.get("acks"), Some("all"));
    assert_eq!(built.get("enable.idempotence"), Some("true"));
    assert_eq!(built.get("partitioner"), Some("random"));
}

#[test]
fn members_commit_what_they_stored_and_live_readers_commit_nothing() {
    let mut config = KafkaConfig::new(["a:1"]);
    config.instance_id = Some("pod-0".to_owned());
    let member = config
        .member("g", &["t"], config.session_timeout)
        .unwrap()
        .build();
    assert_eq!(member.get("enable.auto.commit"), Some("true"));
    assert_eq!(member.get("enable.auto.offset.store"), Some("false"));
    assert_eq!(
        member.get("partition.assignment.strategy"),
        Some("cooperative-sticky")
    );
    let other = config
        .member("g", &["u"], config.session_timeout)
        .unwrap()
        .build();
    assert_ne!(
        member.get("group.instance.id"),
        other.get("group.instance.id")
    );
    config.properties = [("heartbeat.interval.ms", "15000")].into_iter().collect();
    for (session, heartbeat) in [
        (config.session_timeout, "15000"),
        (Duration::from_secs(10), "3333"),
    ] {
        let member = config.member("g", &["t"], session).unwrap().build();
        assert_eq!(member.get("heartbeat.interval.ms"), Some(heartbeat));
    }
    config.session_timeout = Duration::from_secs(30 * 60);
    let long = config
        .member("g", &["t"], config.session_timeout)
        .unwrap()
        .build();
    long.create::<rdkafka::consumer::BaseConsumer>().unwrap();
    let live = config.live("g").unwrap().build();
    assert_eq!(live.get("enable.auto.commit"), Some("false"));
    assert_eq!(live.get("group.instance.id"), None);
}

#[test]
fn tls_finds_the_authorities_of_the_system_and_checks_the_host() {
    let mut config = KafkaConfig::new(["a:1"]);
    config.tls = Some(KafkaTls::default());
    let built = config.producer(Duration::ZERO).unwrap();
    assert_eq!(built.get("security.protocol"), Some("ssl"));
    assert_eq!(
        built.get("ssl.endpoint.identification.algorithm"),
        Some("https")
    );
    let expected = system_authorities().map(|path| path.to_string_lossy().into_owned());
    assert_eq!(built.get("ssl.ca.location"), expected.as_deref());
}

#[test]
fn durations_become_milliseconds() {
    for (duration, expected) in [
        (Duration::ZERO, "0"),
        (Duration::from_micros(500), "0.500"),
        (Duration::from_secs(45), "45000"),
    ] {
        assert_eq!(milliseconds(duration), expected);
    }
}

#[test]
fn a_serialised_configuration_shows_neither_secrets_nor_their_location() {
    let text = r#"{"brokers":"a","sasl":{"mechanism":"SCRAM-SHA-512","username":"u","password":{"env":"CANARY"}}}"#;
    let config = parse(text);
    assert!(!serde_json::to_string(&config).unwrap().contains("CANARY"));
    assert!(!format!("{config:?}").contains("CANARY"));
}

#[test]
fn a_secret_that_is_not_there_is_a_configuration_error() {
    let mut config = KafkaConfig::new(["a"]);
    config.sasl = Some(KafkaSasl {
        mechanism: SaslMechanism::ScramSha256,
        username: "u".to_owned(),
        password: Secret::env("A2ABUS_NOT_SET"),
        insecure_plaintext: false,
    });
    let error = config.producer(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::BadConfig);
}
