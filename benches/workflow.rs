//! What does a workflow of 20 operations over 10,000 objects cost beside the same by hand? In milliseconds a run;
//! hand-written Rust over `serde_json::Value`, which copies no element it can borrow, is the baseline.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hint::black_box;
use std::sync::Arc;

use a2abus_executor::case::Recorded;
use a2abus_executor::{
    Agent, Caching, Environment, Executor, MemoryStore, Object, Options, Rates, Request, Started,
    Status, SystemRandom, VirtualClock,
};
use a2abus_models::a2e_workflow::Policy;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};

const ROWS: usize = 10_000;
const REGIONS: [&str; 4] = ["north", "east", "south", "west"];

/// Objects of six members, about 120 bytes each.
fn rows() -> Value {
    let row = |index: usize| {
        json!({
            "id": index,
            "name": format!("customer {:05}", index * 7919 % ROWS),
            "region": REGIONS[index % REGIONS.len()],
            "points": index * 31 % 1_000,
            "score": f64::from(u32::try_from(index * 17 % 997).unwrap()) / 10.0,
            "active": !index.is_multiple_of(3),
        })
    };
    (0..ROWS).map(row).collect()
}

fn workflow() -> String {
    let filter = |input: &str, field: &str, operator: &str, value: Value, output: &str| {
        json!({"FilterData": {"inputPath": input, "outputPath": output,
            "conditions": [{"field": field, "operator": operator, "value": value}]}})
    };
    let transform = |input: &str, name: &str, config: Value, output: &str| json!({"TransformData": {"inputPath": input, "transform": name, "config": config, "outputPath": output}});
    let merge = |sources: [&str; 2], strategy: &str, output: &str| json!({"MergeData": {"sources": sources, "strategy": strategy, "outputPath": output}});
    let w = |name: &str| format!("/workflow/{name}");
    let operations = [
        filter(&w("rows"), "active", "==", json!(true), &w("active")),
        filter(&w("rows"), "points", ">", json!(500), &w("rich")),
        filter(
            &w("rows"),
            "name",
            "startsWith",
            json!("customer 00"),
            &w("named"),
        ),
        filter(
            &w("active"),
            "region",
            "in",
            json!(["north", "west"]),
            &w("near"),
        ),
        transform(
            &w("active"),
            "sort",
            json!({"field": "points", "order": "desc"}),
            &w("by-points"),
        ),
        transform(&w("rich"), "sort", json!({"field": "name"}), &w("by-name")),
        transform(
            &w("rows"),
            "sort",
            json!({"by": [{"field": "region"}, {"field": "score", "order": "desc"}]}),
            &w("by-both"),
        ),
        transform(
            &w("active"),
            "group",
            json!({"field": "region"}),
            &w("regions"),
        ),
        transform(
            &w("rows"),
            "aggregate",
            json!({"groupBy": "region", "aggregations": [{"operation": "count"}, {"operation": "sum", "field": "points"}, {"operation": "avg", "field": "score"}]}),
            &w("figures"),
        ),
        transform(
            &w("rich"),
            "aggregate",
            json!({"operation": "max", "field": "score"}),
            &w("best"),
        ),
        transform(
            &w("rows"),
            "aggregate",
            json!({"operation": "countDistinct", "field": "points"}),
            &w("distinct"),
        ),
        transform(
            &w("by-points"),
            "map",
            json!({"fields": {"id": "id", "label": {"template": "{name} ({region})"}}}),
            &w("labels"),
        ),
        transform(
            &w("by-name"),
            "select",
            json!({"fields": ["id", "points"]}),
            &w("pairs"),
        ),
        merge(["/workflow/named", "/workflow/near"], "concat", &w("both")),
        merge(["/workflow/near", "/workflow/rich"], "union", &w("any")),
        merge(
            ["/workflow/active", "/workflow/rich"],
            "intersect",
            &w("all"),
        ),
        transform(
            &w("by-points"),
            "select",
            json!({"field": ".", "limit": 1_000}),
            &w("top"),
        ),
        json!({"Loop": {"inputPath": "/workflow/top", "operations": ["o18"], "outputPath": "/workflow/each"}}),
        transform(
            &w("item"),
            "select",
            json!({"fields": ["name", "score"]}),
            &w("one"),
        ),
        json!({"Conditional": {"condition": {"path": "/workflow/each.length", "operator": ">", "value": 0}, "ifTrue": []}}),
    ];
    let mut lines = String::new();
    for (index, operation) in operations.iter().enumerate() {
        let line = json!({"type": "operationUpdate", "operationId": format!("o{index}"), "operation": operation});
        lines += &format!("{line}\n");
    }
    let order: Vec<_> = (0..operations.len())
        .filter(|i| *i != 18)
        .map(|i| format!("o{i}"))
        .collect();
    lines
        + &json!({"type": "beginExecution", "executionId": "bench", "operationOrder": order})
            .to_string()
}

// === by hand ===

fn points(row: &Value) -> i64 {
    row["points"].as_i64().unwrap_or_default()
}

fn score(row: &Value) -> f64 {
    row["score"].as_f64().unwrap_or_default()
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn descending(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// The same results; what is only selected is borrowed.
fn by_hand(rows: &Value) -> usize {
    let rows = rows.as_array().unwrap();
    let active: Vec<_> = rows.iter().filter(|row| row["active"] == true).collect();
    let rich: Vec<_> = rows.iter().filter(|row| points(row) > 500).collect();
    let named: Vec<_> = rows
        .iter()
        .filter(|row| text(row, "name").starts_with("customer 00"))
        .collect();
    let near: Vec<_> = active
        .iter()
        .copied()
        .filter(|row| ["north", "west"].contains(&text(row, "region")))
        .collect();
    let mut by_points = active.clone();
    by_points.sort_by_key(|row| std::cmp::Reverse(points(row)));
    let mut by_name = rich.clone();
    by_name.sort_by(|a, b| text(a, "name").cmp(text(b, "name")));
    let mut by_both: Vec<_> = rows.iter().collect();
    by_both.sort_by(|a, b| {
        text(a, "region")
            .cmp(text(b, "region"))
            .then(descending(score(a), score(b)))
    });
    let mut regions: HashMap<&str, Vec<&Value>> = HashMap::new();
    for row in &active {
        regions.entry(text(row, "region")).or_default().push(row);
    }
    let mut aggregations: HashMap<&str, (u64, i64, f64)> = HashMap::new();
    for row in rows {
        let aggregation = aggregations.entry(text(row, "region")).or_default();
        *aggregation = (
            aggregation.0 + 1,
            aggregation.1 + points(row),
            aggregation.2 + score(row),
        );
    }
    let best = rich.iter().map(|row| score(row)).fold(f64::MIN, f64::max);
    let distinct: HashSet<_> = rows.iter().map(points).collect();
    let label = |row: &&Value| json!({"id": row["id"], "label": format!("{} ({})", text(row, "name"), text(row, "region"))});
    let labels: Vec<_> = by_points.iter().map(label).collect();
    let pairs: Vec<_> = by_name
        .iter()
        .map(|row| json!({"id": row["id"], "points": row["points"]}))
        .collect();
    let both: Vec<_> = named.iter().chain(&near).collect();
    let mut seen = HashSet::new();
    let any: Vec<_> = near
        .iter()
        .chain(&rich)
        .filter(|row| seen.insert(**row))
        .collect();
    let others: HashSet<&Value> = rich.iter().copied().collect();
    let mut seen = HashSet::new();
    let all: Vec<_> = active
        .iter()
        .filter(|row| others.contains(**row) && seen.insert(**row))
        .collect();
    let each: Vec<_> = by_points
        .iter()
        .take(1_000)
        .map(|row| json!({"name": row["name"], "score": row["score"]}))
        .collect();
    black_box(best);
    [
        by_both.len(),
        regions.len(),
        aggregations.len(),
        distinct.len(),
        labels.len(),
        pairs.len(),
        both.len(),
        any.len(),
        all.len(),
        each.len(),
    ]
    .iter()
    .sum()
}

// === the executor ===

fn executor() -> (Executor, Arc<Agent>) {
    let clock = VirtualClock::default();
    let environment = Environment {
        http: Arc::new(Recorded::new(&Object::default(), clock.clone())),
        clock: Arc::new(clock),
        random: Arc::new(SystemRandom::new().expect("there is randomness")),
        store: Arc::new(MemoryStore::default()),
    };
    let mut options = Options::default();
    options.caching = Caching::OFF;
    options.limits.max_operation_runs = 10_000;
    // All results together weigh more than the limit for one execution of an agent.
    options.limits.max_model_bytes = 1 << 30;
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        ..Policy::default()
    };
    let agent = Agent::new("bench".into(), policy, BTreeMap::new(), Rates::default());
    (Executor::new(environment, options), Arc::new(agent))
}

fn bench(criterion: &mut Criterion) {
    let rows = rows();
    let workflow = bytes::Bytes::from(workflow());
    let input = json!({"rows": rows}).to_string();
    let input = a2abus_executor::parse(input.as_bytes()).unwrap();
    let input = input.as_object().unwrap().clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut group = criterion.benchmark_group("workflow");
    group.sample_size(20);
    group.bench_function("by hand", |bencher| {
        bencher.iter(|| by_hand(black_box(&rows)))
    });
    group.bench_function("executor", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async {
                // A fresh one: the same execution is not run twice.
                let (executor, agent) = executor();
                let request = Request {
                    workflow: workflow.clone(),
                    input: input.clone(),
                    ..Request::default()
                };
                let Ok(Started::New(execution)) = executor.execute(&agent, request).await else {
                    panic!("the workflow is valid");
                };
                let record = execution.finish().await;
                assert_eq!(
                    record.status(),
                    Status::Success,
                    "{}",
                    record.answer().get("error").cloned().unwrap_or_default()
                );
                record
            })
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
