//! The logs that need no bus pass the battery of the state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::state::{AnyLog, EmbeddedLog, Kind, LogSpec, MemoryLog, TASKS};
use support::battery::{unique, within};
use support::logs::{self, CASES, History, Logs, commit};
use support::running::Running;
use tokio_util::sync::CancellationToken;

struct InMemory {
    partitions: u32,
    logs: Mutex<HashMap<String, MemoryLog>>,
}

impl Logs for InMemory {
    async fn create(&self, spec: LogSpec) -> String {
        let name = unique();
        let log = MemoryLog::partitioned(spec, 64 << 20, self.partitions);
        self.logs.lock().unwrap().insert(name.clone(), log);
        name
    }

    async fn open(&self, _spec: LogSpec, name: &str) -> AnyLog {
        self.logs.lock().unwrap()[name].clone().into()
    }

    fn oversize_bytes(&self) -> Option<usize> {
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_memory_passes_the_battery_of_the_state() {
    for partitions in [1, 5] {
        for case in CASES {
            println!("memory, {partitions} partitions: {case:?}");
            let logs = Mutex::default();
            logs::run(case, &InMemory { partitions, logs }).await;
        }
    }
}

/// Logs in files of one directory. A process has each of them once.
struct InFiles {
    directory: tempfile::TempDir,
    logs: Mutex<HashMap<String, EmbeddedLog>>,
}

impl InFiles {
    /// The previous owner of the file may still be closing it.
    async fn open_file(&self, spec: &LogSpec, name: &str) -> EmbeddedLog {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        within("the file is free", async {
            loop {
                match EmbeddedLog::open(spec.clone(), &directory) {
                    Ok(log) => return log,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await
    }
}

impl Logs for InFiles {
    async fn create(&self, _spec: LogSpec) -> String {
        unique()
    }

    async fn open(&self, spec: LogSpec, name: &str) -> AnyLog {
        let open = self.logs.lock().unwrap().get(name).cloned();
        let log = match open {
            Some(log) => log,
            None => self.open_file(&spec, name).await,
        };
        self.logs
            .lock()
            .unwrap()
            .insert(name.to_owned(), log.clone());
        log.into()
    }

    fn oversize_bytes(&self) -> Option<usize> {
        None
    }

    fn restart(&self, name: &str) {
        self.logs.lock().unwrap().remove(name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_a_file_passes_the_battery_of_the_state() {
    for case in CASES {
        println!("file: {case:?}");
        let files = InFiles {
            directory: tempfile::tempdir().unwrap(),
            logs: Mutex::default(),
        };
        logs::run(case, &files).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let spec = LogSpec {
        name: "tasks",
        kind: Kind::Latest,
    };
    let _first = EmbeddedLog::open(spec.clone(), directory.path()).unwrap();
    let error = EmbeddedLog::open(spec, directory.path()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("the state tasks: ") && text.contains("tasks.redb"),
        "{text}"
    );
    assert!(text.contains("already open"), "{text}");
}

/// A bridge on no bus, with this section of state.
async fn bridge_with(state: &str) -> Bridge {
    let text = format!(
        "transports: {{m: {{type: memory}}}}\nhttp: {{listen: '127.0.0.1:0'}}\nadmin: {{enabled: false}}\nstate: {state}\n"
    );
    let config = Config::read("test", &text, std::iter::empty()).unwrap();
    within("the files are free", async {
        loop {
            match Box::pin(Bridge::build(config.clone())).await {
                Ok(bridge) => return bridge,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_is_ready_when_its_state_has_caught_up_and_finds_it_again_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let state = format!("{{log: embedded, directory: {:?}}}", directory.path());
    for run in 1..=2_usize {
        let bridge = bridge_with(&state).await;
        let view = within("the file is free", async {
            loop {
                match bridge.state().view(TASKS, History).await {
                    Ok(view) => return view,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await;
        let (readiness, metrics) = (Arc::clone(bridge.readiness()), Arc::clone(bridge.metrics()));
        assert!(!readiness.is_ready(), "{:?}", readiness.report());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        within("the bridge is ready", async {
            while !readiness.is_ready() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        commit(&view, "task", format!("part {run}")).await;
        let parts = view.read(|tasks| tasks.get("task").map(|task| task.parts.len()));
        assert_eq!(parts, Some(run), "the parts of all runs");
        let line = "a2abus_state_entries{state=\"tasks\"} 1";
        within("the metrics", async {
            while !metrics.render().unwrap().lines().any(|one| one == line) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        stop.cancel();
        within("the bridge stops", running).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_bridge_is_degraded_while_a_file_of_its_state_is_not_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let bridge = Running::start(&format!(
        "transports: {{m: {{type: memory}}}}\nstate: {{log: embedded, directory: {:?}}}",
        directory.path()
    ))
    .await;
    let cause = || {
        let degraded = bridge.report().degraded.into_iter();
        let mut of_file = degraded.filter(|it| &*it.name == "file of state results");
        of_file.next().map(|it| it.cause)
    };
    let (file, away) = (
        directory.path().join("results.redb"),
        directory.path().join("away"),
    );
    std::fs::rename(&file, &away).unwrap();
    let why = within("the bridge notices it", async {
        loop {
            if let Some(cause) = cause() {
                return cause;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(why.contains("results.redb was moved away"), "{why}");
    assert!(bridge.report().ready);
    std::fs::rename(&away, &file).unwrap();
    within("the bridge notices that it is back", async {
        while cause().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_log_is_opened_once() {
    let bridge = bridge_with("{}").await;
    let first = bridge.state().open(TASKS).await.unwrap();
    first.append("task", Some("part".into())).await.unwrap();
    let second = bridge.state().open(TASKS).await.unwrap();
    let end = second.bounds().await.unwrap().end;
    assert_eq!(end.next(0), 1);
}
