//! Runs a workflow from a file with real HTTP and prints its events:
//! `cargo run -p a2abus-executor --example run -- WORKFLOW.jsonl`.
#![allow(clippy::print_stdout)] // It is a program.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use a2abus_executor::{
    Agent, Client, ClientOptions, Environment, Event, Executor, MemoryStore, Options, Rates,
    Request, Started, SystemClock, SystemRandom,
};
use a2abus_models::a2e_workflow::{Apis, Policy};
use futures_util::StreamExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("which file?")?;
    // Every operation, and every API that is globally reachable.
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        apis: Apis::parse(["*"])?,
        ..Policy::default()
    };
    let agent = Agent::new("me".into(), policy, BTreeMap::new(), Rates::default());
    let environment = Environment {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom::new()?),
        http: Arc::new(Client::new(&ClientOptions::default())?),
        store: Arc::new(MemoryStore::default()),
    };
    let executor = Executor::new(environment, Options::default());
    let request = Request {
        workflow: std::fs::read(file)?.into(),
        ..Request::default()
    };
    let Started::New(mut execution) = executor.execute(&Arc::new(agent), request).await? else {
        return Err("it has run already".into());
    };
    while let Some(event) = execution.next().await {
        match event {
            Event::Operation(progress) => println!("{}", progress.to_value()),
            Event::Ended { record, .. } => println!("{}", record.answer()),
            _ => {}
        }
    }
    Ok(())
}
