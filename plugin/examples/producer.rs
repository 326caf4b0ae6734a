//! What a Kafka producer needs to send an event in binary content mode: a key, headers and a body. This example prints
//! them; pass them to your Kafka client.
//!
//! Source: CloudEvents Kafka protocol binding 1.0.2 section 3.2.

#![allow(clippy::print_stdout)] // It is a command.

use a2abus_plugin::{Event, Hint, Ids, Limits, MapContext, MapOptions, Source, extension, map};
use bytes::Bytes;

const CALL: &str = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather","name":"forecast"}}"#;

fn main() {
    let new_id = MapContext::counting("example");
    let source = match Source::new("/example/producer") {
        Ok(source) => source,
        Err(error) => return println!("{error}"),
    };
    let context = MapContext {
        source,
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let payload = Bytes::from_static(CALL.as_bytes());
    let (hint, limits, options) = (Hint::default(), Limits::default(), MapOptions::default());
    for unit in map(&payload, &hint, &limits, &options, &context) {
        match unit {
            Ok(unit) => print_record(&unit.event),
            Err(refused) => println!("refused: {}", refused.error),
        }
    }
}

fn print_record(event: &Event) {
    // Events of one agent stay in order.
    let key = event.extension_text(extension::TARGET_AGENT);
    println!("key: {}", key.map_or("none", |key| key.as_str()));
    for (name, value) in headers(event) {
        println!("header {name}: {value}");
    }
    println!("body: {}", String::from_utf8_lossy(&event.body()));
}

/// The attributes as Kafka headers; the values are UTF-8.
fn headers(event: &Event) -> Vec<(String, String)> {
    let core = event.core_attributes().map(|(name, value)| {
        let name = match name {
            "datacontenttype" => "content-type".to_owned(),
            name => format!("ce_{name}"),
        };
        (name, value.to_owned())
    });
    let extensions = event.extensions();
    let extensions = extensions.map(|(name, value)| (format!("ce_{name}"), value.to_string()));
    core.chain(extensions).collect()
}
