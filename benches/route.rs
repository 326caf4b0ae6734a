//! Do ten thousand routes cost what ten do? In nanoseconds per look-up; ten routes are the baseline.
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

/// Routes to the agents that `pattern` matches, in which `#` is the number of the route.
fn table(pattern: &str, routes: usize) -> RouteTable {
    let mut text = String::from("transports: { bus: { type: memory } }\nroutes:\n");
    for index in 0..routes {
        let target = pattern.replace('#', &index.to_string());
        text.push_str(&format!(
            "  - {{ name: r{index}, when: {{ targetagent: '{target}' }}, to: [{{ transport: bus, topic: agents.a{index} }}] }}\n"
        ));
    }
    let config = Config::read("bench", &text, std::iter::empty()).expect("the routes are legal");
    RouteTable::build(&config.routes, &[]).expect("the routes are legal")
}

fn event(target: &str) -> Event {
    let mut event = Event::new("1".into(), "/bench".into(), "t".into()).expect("legal");
    event.set("targetagent", target).expect("legal");
    event
}

fn route(criterion: &mut Criterion) {
    of(criterion, "exact routes", "agent-#", "agent-#");
    of(criterion, "globs", "agent-#-*", "agent-#-7");
    of(
        criterion,
        "globs with an end",
        "agent-#-*.eu",
        "agent-#-7.eu",
    );
}

fn of(criterion: &mut Criterion, name: &str, pattern: &str, target: &str) {
    let mut group = criterion.benchmark_group(name);
    for routes in [10_usize, 10_000] {
        let table = table(pattern, routes);
        let events: Vec<Event> = (0..routes)
            .step_by((routes / 10).max(1))
            .map(|index| event(&target.replace('#', &index.to_string())))
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
