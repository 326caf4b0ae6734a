//! What does it cost to make an event of a payload? In nanoseconds per payload, beside serde_json's parse of the same.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::hint::black_box;

use a2abus_plugin::{EventId, Hint, Ids, Limits, MapContext, MapOptions, Source, map};
use bench_support::{Filling, SMALL_REQUEST, request};
use bytes::Bytes;
use cloudevents::{EventBuilder as _, EventBuilderV10};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};

fn one(group: &mut BenchmarkGroup<'_, WallTime>, payload: &Bytes) {
    group.throughput(Throughput::Bytes(payload.len() as u64));
    group.bench_function("map", |bencher| {
        let (hint, limits, options) = (Hint::default(), Limits::default(), MapOptions::default());
        let context = MapContext {
            source: Source::new("/bench").unwrap(),
            time: None,
            ids: Ids::Payload(&|| EventId::new("new").unwrap()),
        };
        bencher.iter(|| map(black_box(payload), &hint, &limits, &options, &context));
    });
    group.bench_function("baseline simdutf8 and serde_json IgnoredAny", |bencher| {
        bencher.iter(|| {
            let text = simdutf8::basic::from_utf8(black_box(payload)).unwrap();
            serde_json::from_str::<serde::de::IgnoredAny>(text)
        });
    });
    group.bench_function("baseline serde_json Value", |bencher| {
        bencher.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(payload)));
    });
    group.bench_function("baseline SDK event", |bencher| {
        bencher.iter(|| {
            EventBuilderV10::new()
                .id("req-0000000001")
                .source("/bench")
                .ty("org.apache.eventmesh.a2a.tools.call.req")
                .extension("targetagent", "weather")
                .data("application/json", black_box(payload).to_vec())
                .build()
        });
    });
}

fn codec(criterion: &mut Criterion) {
    let payloads = [
        ("158 B", Bytes::from_static(SMALL_REQUEST.as_bytes())),
        ("1 KB text", request(1_024, Filling::Text)),
        ("1 KB structured", request(1_024, Filling::Structured)),
        ("16 KB text", request(16_384, Filling::Text)),
        ("16 KB structured", request(16_384, Filling::Structured)),
    ];
    for (name, payload) in &payloads {
        let mut group = criterion.benchmark_group(*name);
        one(&mut group, payload);
        group.finish();
    }
    let batch = Bytes::from(format!("[{}]", vec![SMALL_REQUEST; 64].join(",")));
    let mut group = criterion.benchmark_group("batch of 64 x 158 B");
    one(&mut group, &batch);
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
