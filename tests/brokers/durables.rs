//! Durable consumers of JetStream that others have made, and streams that several deployments share.

use std::time::Duration;

use a2abus_transports::nats::{Nats, NatsConfig};
use a2abus_transports::{AnyTransport, LogPosition, LogSource};
use async_nats::jetstream::{self, stream};
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::access::until_reported;
use crate::plain::{jetstream_of, nats_client, unique};
use crate::topics::{a2abus, written};

/// A stream `name` with the subjects `name.>`, and one for dead letters.
async fn streams(nats: &str, name: &str) -> (async_nats::Client, stream::Stream) {
    let client = nats_client(nats).await;
    let jetstream = jetstream_of(client.clone());
    let config = |name: String, subject: String| stream::Config {
        name,
        subjects: vec![subject],
        ..stream::Config::default()
    };
    for (name, subject) in [("", ".>"), ("-dlq", "-dlq"), ("-out", "-out.>")]
        .map(|(of, subject)| (format!("{name}{of}"), format!("{name}{subject}")))
    {
        jetstream
            .create_stream(config(name, subject))
            .await
            .unwrap();
    }
    let stream = jetstream.get_stream(format!("{name}-out")).await.unwrap();
    (client, stream)
}

fn config(nats: &str, name: &str, durable: &str, to: &str) -> String {
    format!(
        "
transports:
  nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: false }} }}
bindings:
  - name: in
    transport: nats
    topics: ['{name}.>']
    stream: {name}
    durable: {durable}
    dead_letter: {{ topic: {name}-dlq }}
default_route: [{{ transport: nats, topic: {to}, stored: true }}]
calls: {{ enabled: false }}"
    )
}

/// Makes a durable consumer with these settings.
async fn durable(client: &async_nats::Client, stream: &str, name: &str, settings: Value) {
    let mut config =
        json!({ "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all" });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    let request = json!({ "stream_name": stream, "config": config });
    let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
    let answer = client.request(subject, request.to_string().into()).await;
    let answer: Value = serde_json::from_slice(&answer.unwrap().payload).unwrap();
    assert!(answer["error"].is_null(), "{answer}");
}

fn event(id: usize) -> String {
    json!({ "jsonrpc": "2.0", "method": "notifications/x", "params": { "id": id } }).to_string()
}

/// Publishes this many events.
async fn publish(client: &async_nats::Client, name: &str, count: usize) {
    for id in 0..count {
        let sent = client.publish(format!("{name}.a"), event(id).into()).await;
        sent.unwrap();
    }
    client.flush().await.unwrap();
}

/// Waits until a stream has stored this many messages, and no more.
async fn until_stored(stream: &mut stream::Stream, count: usize) {
    within("the events are stored", async {
        while stream.info().await.unwrap().state.messages < count as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(stream.cached_info().state.messages, count as u64);
}

/// Their bindings and routes have the same names, and the stream drops messages with the same id.
#[tokio::test(flavor = "multi_thread")]
async fn two_deployments_that_read_and_write_the_same_streams_each_store_every_event() {
    const EVENTS: usize = 20;
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("shared").replace('.', "-");
    let (client, mut stored) = streams(&nats, &name).await;
    for durable_name in ["one", "two"] {
        durable(&client, &name, durable_name, json!({})).await;
    }
    let to = format!("{name}-out.same");
    let bridges = [
        Running::start(&config(&nats, &name, "one", &to)).await,
        Running::start(&config(&nats, &name, "two", &to)).await,
    ];
    publish(&client, &name, EVENTS).await;
    until_stored(&mut stored, 2 * EVENTS).await;
    for bridge in bridges {
        bridge.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_that_would_lose_messages_is_not_read() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("unfit").replace('.', "-");
    let (client, _) = streams(&nats, &name).await;
    for (durable_name, settings, why) in [
        ("headers", json!({ "headers_only": true }), "headers only"),
        (
            "groups",
            json!({ "priority_groups": ["g"], "priority_policy": "overflow" }),
            "priority groups",
        ),
    ] {
        durable(&client, &name, durable_name, settings).await;
        let to = format!("{name}-out.a");
        let bridge = Running::launch(&config(&nats, &name, durable_name, &to)).await;
        within("the binding says why it is not ready", async {
            while !format!("{:?}", bridge.report()).contains(why) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        bridge.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_that_would_never_get_a_message_is_neither_created_nor_ready() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("starved").replace('.', "-");
    let (client, out) = streams(&nats, &name).await;
    let (jetstream, read) = (jetstream_of(client), format!("{name}-read"));
    let config = config(&nats, &name, "d", &format!("{name}-out.a"))
        .replace("manage: false", "manage: true")
        .replace(&format!("['{name}.>']"), &format!("['{read}']"))
        .replace(
            &format!("stream: {name}\n"),
            &format!("stream: {name}-out\n"),
        );
    let lacks = format!("the stream {name}-out does not store {read}: ");
    let bridge = Running::launch(&config).await;
    until_reported(&bridge, "the binding says what is missing", |report| {
        !report.ready && format!("{:?}", report.not_ready).contains(&lacks)
    })
    .await;
    assert!(out.consumer_info("d").await.is_err());
    let directory = tempfile::tempdir().unwrap();
    let file = written(&directory, &config);
    let (text, _, status) = a2abus(&["check", "--connect"], &file).await;
    let failed = format!(
        "FAILED   nats: consumer d of stream {name}-out (binding in): read consumer d of stream {name}-out: {lacks}"
    );
    assert!(text.contains(&failed) && status == 1, "{failed}\n{text}");
    let store = async |more: Option<&str>| {
        let mut changed = out.cached_info().config.clone();
        changed.subjects.extend(more.map(str::to_owned));
        jetstream.update_stream(changed).await.unwrap();
    };
    store(Some(&read)).await;
    until_reported(&bridge, "the binding is ready", |report| report.ready).await;
    assert!(out.consumer_info("d").await.is_ok());
    // Others change the stream while it is read.
    store(None).await;
    until_reported(&bridge, "the transport is degraded", |report| {
        report.ready && format!("{:?}", report.degraded).contains(&lacks)
    })
    .await;
    store(Some(&read)).await;
    until_reported(&bridge, "the transport works again", |report| {
        report.degraded.is_empty()
    })
    .await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_stream_that_cannot_be_created_is_reported_until_it_can() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("overlap").replace('.', "-");
    let (client, _) = streams(&nats, &name).await;
    let bridge = Running::start(&format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true, streams: [{{ name: {name}-mine, subjects: ['{name}.*'] }}] }} }} }}
bindings: [{{ name: in, transport: nats, topics: [{name}-in], dead_letter: {{ topic: {name}-dlq }} }}]
default_route: [{{ transport: nats, topic: {name}-agents }}]
calls: {{ enabled: false }}"
    ))
    .await;
    let part = format!("managed stream {name}-mine: ");
    until_reported(&bridge, "the transport is degraded", |report| {
        report.ready && format!("{:?}", report.degraded).contains(&part)
    })
    .await;
    jetstream_of(client).delete_stream(&name).await.unwrap();
    until_reported(&bridge, "the transport works again", |report| {
        report.degraded.is_empty()
    })
    .await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_with_a_limit_of_bytes_is_read() {
    const EVENTS: usize = 20;
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("limited").replace('.', "-");
    let (client, mut stored) = streams(&nats, &name).await;
    durable(&client, &name, "small", json!({ "max_bytes": 200 })).await;
    let to = format!("{name}-out.a");
    let bridge = Running::start(&config(&nats, &name, "small", &to)).await;
    publish(&client, &name, EVENTS).await;
    until_stored(&mut stored, EVENTS).await;
    bridge.stop().await;
}

/// Publishes a message whose headers no client library would send.
pub(crate) async fn publish_raw(nats: &str, subject: &[u8], headers: &[u8], body: &str) {
    let address = nats.strip_prefix("nats://").unwrap();
    let mut connection = TcpStream::connect(address).await.unwrap();
    let (head, all) = (headers.len(), headers.len() + body.len());
    let mut sent = b"CONNECT {\"verbose\":false,\"headers\":true}\r\nHPUB ".to_vec();
    sent.extend_from_slice(subject);
    sent.extend_from_slice(format!(" {head} {all}\r\n").as_bytes());
    sent.extend_from_slice(headers);
    sent.extend_from_slice(body.as_bytes());
    sent.extend_from_slice(b"\r\nPING\r\n");
    connection.write_all(&sent).await.unwrap();
    let mut answer = Vec::new();
    within("the server has the message", async {
        while !answer.windows(4).any(|found| found == b"PONG") {
            connection.read_buf(&mut answer).await.unwrap();
        }
    })
    .await;
}

/// The client closes its connection when it gets such a message, and JetStream delivers it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_message_is_delivered_and_does_not_interrupt_the_connection_for_ever() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("malformed").replace('.', "-");
    let (client, mut stored) = streams(&nats, &name).await;
    durable(&client, &name, "in", json!({ "ack_wait": 1_000_000_000 })).await;
    let to = format!("{name}-out.a");
    let bridge = Running::start(&config(&nats, &name, "in", &to)).await;
    let malformed: [&[u8]; 6] = [
        b"NATS/1.0\r\nx-file: caf\xe9.txt\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/2.0\r\n\r\n",
        b"NATS/1.0 abc\r\n\r\n",
        b"NATS/1.0\r\n no header\r\n\r\n",
        b"NATS/1.0\r\na: b\r\n\r\n no header\r\n\r\n",
    ];
    let subject = format!("{name}.a");
    let mut count = 0;
    // Alone, and among others.
    for headers in malformed {
        publish_raw(&nats, subject.as_bytes(), headers, &event(count)).await;
        count += 1;
        until_stored(&mut stored, count).await;
    }
    for headers in malformed {
        publish_raw(&nats, subject.as_bytes(), headers, &event(count)).await;
        client
            .publish(subject.clone(), event(count + 1).into())
            .await
            .unwrap();
        count += 2;
    }
    let illegal = format!("{name}.a").into_bytes();
    for word in [&b"\xff"[..], "\u{3000}b".as_bytes()] {
        let subject = [illegal.as_slice(), word].concat();
        publish_raw(&nats, &subject, b"NATS/1.0\r\n\r\n", &event(count)).await;
        count += 1;
        until_stored(&mut stored, count).await;
    }
    // The client panics at this one, and another one takes its place.
    let panicking = b"NATS/1.0\r\na: b\rc\r\n\r\n";
    publish_raw(&nats, subject.as_bytes(), panicking, &event(count)).await;
    count += 1;
    until_stored(&mut stored, count).await;
    let jetstream = jetstream_of(client);
    let mut consumer: jetstream::consumer::PullConsumer = jetstream
        .get_consumer_from_stream("in", &name)
        .await
        .unwrap();
    within("all of them are acknowledged", async {
        loop {
            let info = consumer.info().await.unwrap();
            if (info.num_ack_pending, info.num_pending) == (0, 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    bridge.stop().await;
}

/// A log is read without acknowledgements, so its reader itself has to pass such a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_record_of_a_log_is_skipped() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("malformed-log").replace('.', "-");
    let (client, _) = streams(&nats, &name).await;
    let (jetstream, subject) = (jetstream_of(client), format!("{name}.a"));
    let publish = async || {
        let stored = jetstream.publish(subject.clone(), "good".into()).await;
        stored.unwrap().await.unwrap();
    };
    let malformed = b"NATS/1.0\r\nno colon\r\n\r\n";
    publish().await;
    publish_raw(&nats, subject.as_bytes(), malformed, "bad").await;
    publish_raw(&nats, subject.as_bytes(), malformed, "bad").await;
    publish().await;
    // The client panics at this one.
    let panicking = b"NATS/1.0\r\na: b\rc\r\n\r\n";
    publish_raw(&nats, subject.as_bytes(), panicking, "bad").await;
    publish().await;
    let transport = Nats::connect(NatsConfig::new([nats.as_str()])).await;
    let transport = AnyTransport::from(transport.unwrap());
    let (source, mut next, mut good) = (LogSource::Stream(name), 1, Vec::new());
    within("the whole log is read", async {
        while good.len() < 6 {
            let from = [LogPosition::at(next)];
            // It cannot be opened while the connection is lost.
            let Ok(mut reader) = transport.read_log(&source, &from).await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            while good.len() < 6
                && let Some(batch) = reader.next().await
            {
                for record in batch.records {
                    assert_eq!(record.position.offset, next);
                    next += 1;
                    good.push(record.body.as_deref() == Some(&b"good"[..]));
                }
            }
        }
    })
    .await;
    assert_eq!(good, [true, false, false, true, false, true]);
}
