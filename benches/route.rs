//! Do ten thousand exact routes cost what ten do? In nanoseconds per look-up; ten routes are the baseline.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::hint::black_box;

use a2abus_bridge::config::Config;
use a2abus_bridge::route::RouteTable;
use a2abus_plugin::Event;
use criterion::{Criterion, criterion_group, criterion_main};

fn table(routes: usize) -> RouteTable {
    let mut text = String::from("transports: { bus: { type: memory } }\nroutes:\n");
    for index in 0..routes {
        text.push_str(&format!(
            "  - {{ name: r{index}, when: {{ targetagent: agent-{index} }}, to: [{{ transport: bus, topic: agents.a{index} }}] }}\n"
        ));
    }
    let config = Config::read("bench", &text, std::iter::empty()).expect("the routes are legal");
    RouteTable::build(&config.routes, &[], 8).expect("the routes are legal")
}

fn event(target: &str) -> Event {
    let mut event = Event::new("1".into(), "/bench".into(), "t".into()).expect("legal");
    event.set("targetagent", target).expect("legal");
    event
}

fn route(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("exact routes");
    for routes in [10_usize, 10_000] {
        let table = table(routes);
        let events: Vec<Event> = (0..routes)
            .step_by((routes / 10).max(1))
            .map(|i| event(&format!("agent-{i}")))
            .collect();
        group.bench_function(format!("{routes}"), |bencher| {
            let mut next = events.iter().cycle();
            bencher.iter(|| table.route(black_box(next.next()?), "in"));
        });
    }
    group.finish();
}

criterion_group!(benches, route);
criterion_main!(benches);
