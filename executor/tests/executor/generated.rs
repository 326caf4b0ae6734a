//! Does every workflow end within its limits, and does the cache change nothing?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::case::Recorded;
use a2abus_executor::{
    Agent, Caching, Clock as _, Environment, Executor, MemoryStore, OnError, Options, Random,
    Rates, Refusal, Request, Started, VirtualClock,
};
use a2abus_models::a2e_workflow::{Apis, Policy, Strictness};

/// Pseudo-random numbers (xorshift): the seed reproduces a failure.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % most
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn path(&mut self) -> &'static str {
        self.of(&[
            "/workflow/rows",
            "/workflow/rows[0]",
            "/workflow/rows.length",
            "/workflow/tree.a.b",
            "/workflow/tree",
            "/workflow/text",
            "/workflow/o1",
            "/workflow/o2",
            "/workflow/item",
            "/workflow/item.n",
            "/workflow/index",
            "/workflow/parent.item",
            "/workflow/none",
        ])
    }

    fn output(&mut self) -> &'static str {
        self.of(&[
            "/workflow/o1",
            "/workflow/o2",
            "/workflow/o2.x",
            "/workflow/rows",
            "/workflow/text.x",
        ])
    }

    fn field(&mut self) -> &'static str {
        self.of(&["n", "s", ".", "t[0]", "d.e", "none"])
    }

    fn ids(&mut self, of: usize, most: usize) -> String {
        let ids: Vec<String> = (0..1 + self.below(most))
            .map(|_| format!("\"p{}\"", self.below(of)))
            .collect();
        format!("[{}]", ids.join(","))
    }

    fn operation(&mut self, of: usize) -> String {
        let (input, output, field) = (self.path(), self.output(), self.field());
        match self.below(10) {
            0 => format!(
                r#""ApiCall":{{"method":"{}","url":"https://api.example.com/{}","headers":{{"X-H":"h{{{input}}}"}},"outputPath":"{output}"}}"#,
                self.of(&["GET", "GET", "POST", "DELETE"]),
                self.of(&["a", "b", "slow", "broken", "{/workflow/item.n}"]),
            ),
            1 => format!(
                r#""FilterData":{{"inputPath":"{input}","conditions":[{{"field":"{field}","operator":"{}","value":{}}}],"outputPath":"{output}"}}"#,
                self.of(&["==", "!=", ">", "<=", "in", "contains", "startsWith"]),
                self.of(&[
                    "1",
                    "\"x\"",
                    "null",
                    "[1,2]",
                    "{\"path\":\"/workflow/rows[0].n\"}"
                ]),
            ),
            2 => format!(
                r#""TransformData":{{"inputPath":"{input}","transform":"{}","config":{{"field":"{field}"}},"outputPath":"{output}"}}"#,
                self.of(&["sort", "select", "map", "group"]),
            ),
            3 => format!(
                r#""TransformData":{{"inputPath":"{input}","transform":"aggregate","config":{{"groupBy":"{field}","operation":"{}","field":"n"}},"outputPath":"{output}"}}"#,
                self.of(&[
                    "count",
                    "sum",
                    "avg",
                    "min",
                    "max",
                    "first",
                    "last",
                    "countDistinct"
                ]),
            ),
            4 => format!(
                r#""TransformData":{{"inputPath":"{input}","transform":"map","config":{{"fields":{{"k":{{"template":"{{n}}-{{s}}"}},"v":{{"path":"{}"}},"u":{{"field":"s","function":"upper"}}}},"merge":true,"limit":{}}},"outputPath":"{output}"}}"#,
                self.path(),
                self.below(5),
            ),
            5 | 6 => format!(
                r#""Conditional":{{"condition":{{"path":"{input}","operator":"{}"}},"ifTrue":{},"ifFalse":{}}}"#,
                self.of(&["exists", "empty"]),
                self.ids(of, 2),
                self.ids(of, 2),
            ),
            7 => format!(
                r#""Loop":{{"inputPath":"{input}","operations":{},"outputPath":"{output}"}}"#,
                self.ids(of, 3),
            ),
            8 => format!(r#""Wait":{{"duration":{}}}"#, self.below(4_000)),
            _ => format!(
                r#""MergeData":{{"sources":["{input}","{}"],"strategy":"{}","outputPath":"{output}"}}"#,
                self.path(),
                self.of(&["concat", "union", "intersect", "deepMerge"]),
            ),
        }
    }

    fn workflow(&mut self) -> String {
        let of = 1 + self.below(10);
        let mut lines = String::new();
        for index in 0..of {
            let operation = self.operation(of);
            lines += &format!(
                "{{\"type\":\"operationUpdate\",\"operationId\":\"p{index}\",\"operation\":{{{operation}}}}}\n"
            );
        }
        let order: Vec<String> = (0..of).map(|index| format!("\"p{index}\"")).collect();
        let order = order.get(..1 + self.below(of)).unwrap().join(",");
        lines
            + &format!(
                "{{\"type\":\"beginExecution\",\"executionId\":\"e\",\"operationOrder\":[{order}]}}"
            )
    }
}

struct Zero;

impl Random for Zero {
    fn bits(&self) -> u128 {
        0
    }
}

const INPUT: &str = r#"{"rows":[{"n":3,"s":"x","t":[1],"d":{"e":null}},{"n":1.0,"s":"y"},{"n":"3"},null,7,
    {"n":2,"s":"é","t":["x"]}],"tree":{"a":{"b":[1,[2],{"c":3}]}},"text":"word"}"#;
const ANSWERS: &str = r#"{"GET https://api.example.com/a":[{"status":200,"headers":{"content-type":"application/json"},"body":[{"n":1},{"n":2}]}],
    "POST https://api.example.com/a":[{"status":201,"headers":{"content-type":"application/json"},"body":{"n":1}}],
    "GET https://api.example.com/b":[{"status":200,"headers":{"content-type":"text/plain"},"body_text":"b"}],
    "DELETE https://api.example.com/b":[{"status":204}],
    "GET https://api.example.com/slow":[{"error":"timeout"}],
    "GET https://api.example.com/broken":[{"status":503,"headers":{"retry-after":"1"}}],
    "GET https://api.example.com/3":[{"status":404}]}"#;

/// The result of the run, without what the cache may change; `None` if the workflow is not valid.
async fn run(agent: &Arc<Agent>, workflow: &str, caching: Caching, seed: u64) -> Option<String> {
    let clock = VirtualClock::default();
    let answers = a2abus_executor::parse(ANSWERS.as_bytes()).unwrap();
    let environment = Environment {
        http: Arc::new(Recorded::new(answers.as_object().unwrap(), clock.clone())),
        clock: Arc::new(clock.clone()),
        random: Arc::new(Zero),
        store: Arc::new(MemoryStore::default()),
    };
    let mut options = Options::default();
    options.caching = caching;
    options.limits.max_operation_runs = 100;
    let executor = Executor::new(environment, options);
    let request = Request {
        workflow: workflow.to_owned().into(),
        input: a2abus_executor::parse(INPUT.as_bytes())
            .unwrap()
            .as_object()
            .unwrap()
            .clone(),
        on_error: if seed.is_multiple_of(2) {
            OnError::Stop
        } else {
            OnError::Continue
        },
        strictness: Strictness::Lenient,
        ..Request::default()
    };
    let record = match executor.execute(agent, request).await {
        Ok(Started::New(execution)) => execution.finish().await,
        Err(Refusal::Invalid(_)) => return None,
        other => panic!("seed {seed}: {other:?}"),
    };
    assert!(record.status().is_final(), "seed {seed}");
    // An attempt ends when the time is up, and nothing begins after that.
    assert!(
        clock.elapsed() <= Duration::from_secs(31),
        "seed {seed}: {:?}",
        clock.elapsed()
    );
    let record = record.to_value();
    let trace = record
        .get("operations")
        .unwrap()
        .as_array()
        .unwrap()
        .clone();
    let ran = trace
        .iter()
        .filter(|entry| entry.get("status").unwrap().as_str() != Some("skipped"));
    assert!(ran.count() <= 100, "seed {seed}");
    let of = |name: &str| record.get(name).cloned().unwrap_or_default().to_string();
    Some(format!(
        "{} {} {}",
        of("status"),
        of("results"),
        of("skipped")
    ))
}

#[tokio::test]
async fn generated_workflows_end_within_their_limits_and_the_cache_changes_nothing() {
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        apis: Apis::parse(["https://api.example.com"]).unwrap(),
        ..Policy::default()
    };
    let rates = Rates {
        api_calls_per_minute: 10_000,
        api_calls_per_hour: 10_000,
        ..Rates::default()
    };
    let agent = Arc::new(Agent::new("tester".into(), policy, BTreeMap::new(), rates));
    let (mut executed, mut succeeded) = (0, 0);
    for seed in 1..=10_000_u64 {
        let workflow = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).workflow();
        let with = run(&agent, &workflow, Caching::default(), seed).await;
        let without = run(&agent, &workflow, Caching::OFF, seed).await;
        // The time that the cache saves may decide between success and timeout.
        let is_timed = [&with, &without].iter().any(|ran| {
            ran.as_ref()
                .is_some_and(|ran| !ran.starts_with("\"success\""))
        }) && workflow.contains("ApiCall");
        assert!(
            is_timed || with == without,
            "seed {seed}:\n{workflow}\n{with:?}\n{without:?}"
        );
        executed += usize::from(with.is_some());
        succeeded += usize::from(with.is_some_and(|with| with.starts_with("\"success\"")));
    }
    assert!(
        executed >= 3_000 && succeeded >= 300,
        "{executed} executed, {succeeded} succeeded"
    );
}
