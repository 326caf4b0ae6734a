//! Validates and executes A2E workflows. In lines of JSON, an agent describes *what* to do; the executor does it,
//! within limits that an operator sets.
//!
//! ```text
//! JSON Lines ── validate ──> Report { errors, warnings }
//!            └─ execute ───> Execution: Stream of Event ──> Record { status, results, trace }
//!                             │ one operation after the other, on one data model
//!                             └ Environment: Clock, Random, HttpClient, Store
//! ```
//!
//! # A first workflow
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//!
//! use a2abus_executor::case::Recorded;
//! use a2abus_executor::{
//!     Agent, Environment, Executor, MemoryStore, Options, Rates, Request, Started, SystemRandom,
//!     Json, VirtualClock,
//! };
//! use a2abus_models::a2e_workflow::{Apis, Policy};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async {
//! // What the agent may do: every operation, and calls of one API.
//! let policy = Policy {
//!     operations: ["*"].into_iter().collect(),
//!     apis: Apis::parse(["https://api.example.com"]).unwrap(),
//!     ..Policy::default()
//! };
//! let agent = Arc::new(Agent::new("reporter".into(), policy, BTreeMap::new(), Rates::default()));
//!
//! // The environment: here recorded responses and a virtual clock; in production `Client` and `SystemClock`.
//! let answers = r#"{"GET https://api.example.com/users": [{"status": 200,
//!     "headers": {"content-type": "application/json"},
//!     "body": [{"name": "Ana", "points": 120}, {"name": "Bo", "points": 80}]}]}"#;
//! let answers = a2abus_executor::parse(answers.as_bytes()).unwrap();
//! let clock = VirtualClock::default();
//! let http = Recorded::new(answers.as_object().unwrap(), clock.clone());
//! let environment = Environment {
//!     clock: Arc::new(clock),
//!     random: Arc::new(SystemRandom::new().unwrap()),
//!     http: Arc::new(http),
//!     store: Arc::new(MemoryStore::default()),
//! };
//! let executor = Executor::new(environment, Options::default());
//!
//! let workflow = r#"
//! {"type":"operationUpdate","operationId":"fetch","operation":{"ApiCall":{"method":"GET","url":"https://api.example.com/users","outputPath":"/workflow/users"}}}
//! {"type":"operationUpdate","operationId":"best","operation":{"FilterData":{"inputPath":"/workflow/users","conditions":[{"field":"points","operator":">","value":100}],"outputPath":"/workflow/best"}}}
//! {"type":"beginExecution","executionId":"exec-1","operationOrder":["fetch","best"]}"#;
//! let request = Request { workflow: workflow.into(), ..Request::default() };
//! let Ok(Started::New(execution)) = executor.execute(&agent, request).await else {
//!     panic!("the workflow is valid and new");
//! };
//! let record = execution.finish().await;
//! assert_eq!(
//!     record.answer().get("results").unwrap().get("best").unwrap().to_string(),
//!     r#"[{"name":"Ana","points":120}]"#
//! );
//! # });
//! ```
//!
//! # Operations
//!
//! | type | members (`?`: optional) | value |
//! |---|---|---|
//! | `ApiCall` | `method`, `url`, `outputPath`, `headers`?, `body`?, `timeout`? (ms) | the body of the response: JSON, text, or `null` if empty |
//! | `FilterData` | `inputPath`, `conditions` (`field`, `operator`, `value`), `outputPath` | the elements that match all conditions |
//! | `TransformData` | `inputPath`, `transform` (`map`, `sort`, `group`, `aggregate`, `select`), `config`?, `outputPath` | the array, object or aggregate |
//! | `Conditional` | `condition` (`path`, `operator`, `value`), `ifTrue`, `ifFalse`? | which branch ran, and what ran in it |
//! | `Loop` | `inputPath`, `operations`, `outputPath`? | for each item the value of the last operation that produced data |
//! | `StoreData` | `inputPath`, `storage` (`localStorage`, `sessionStorage`, `file`), `key` | how many bytes were stored |
//! | `Wait` | `duration` (ms) | `null` |
//! | `MergeData` | `sources`, `strategy` (`concat`, `union`, `intersect`, `deepMerge`), `outputPath` | the array or object |
//!
//! | `transform` | members of `config` | value |
//! |---|---|---|
//! | `sort` | `field`?, `order`? (`asc`, `desc`), or `by` (a list of `field`?, `order`?); `offset`?, `limit`? | the elements in order, those without the field last |
//! | `select` | `field`, or `fields` (a list of fields, or an object of expressions); `offset`?, `limit`? | the field or an object of the fields; for an array, one for each element |
//! | `map` | `field` with `function`?, or `fields` with `merge`?, or `template`; `offset`?, `limit`? | for each element a value, an object, a text |
//! | `group` | `field` | an object of lists of elements, by the text of the field |
//! | `aggregate` | `operation`, `field`?, or `aggregations` (a list of `operation`, `field`?, `as`?); `groupBy`? | a value; an object of values; with `groupBy` an array of objects |
//!
//! An expression is a field, `{"field","function"?}`, `{"value"}`, `{"path"}` or `{"template"}`. Functions: `upper`, `lower`,
//! `trim`, `length`, `number`, `string`, `abs`, `round`, `floor`, `ceil`, `not`. Aggregates: `count`, which needs no field, `sum`,
//! `avg`, `min`, `max`, `first`, `last`, `countDistinct`.
//!
//! Operators: `==`, `!=`, `>`, `<`, `>=`, `<=`, `in`, `contains`, `startsWith`, `endsWith`; in a Conditional also
//! `exists`, `empty` and `isEmpty`, which take no value. A missing field reads as `null`.
//!
//! Paths begin with `/workflow/`: `/workflow/users[0].name`, `/workflow/users.length`. A field is a path without that
//! prefix: `name`, `addr.city`, and `.` for the element itself. In the body of a Loop `/workflow/item` and
//! `/workflow/index` are the item and its index, and `/workflow/parent` those of the enclosing loop.
//! `{"path":"/workflow/x"}` in a configuration stands for the value, `{/workflow/x}` within text for its text. In the
//! template of a `map` the form is `{field}`, and `{{` and `}}` are braces.
//!
//! Outside loops an operation runs at most once. An operation in a branch or the body of a loop runs only where its
//! parent does, wherever it stands in the order.
//!
//! # Retries
//!
//! An ApiCall is tried up to four times ([`Limits::max_retries`]): again after about 1, 2 and 4 s, or after the time in
//! `Retry-After`, if there is no connection or no response in time, and after 408, 429 and 500 to 599. A POST or PATCH
//! without an `Idempotency-Key` is retried only if it has not acted: without a connection, and after 408, 429 and 503
//! ([`RetryUnsafe`]). A wait longer than 60 s, or than the time left for the execution, ends it at once.
//!
//! # Limits
//!
//! | limit | default | set by |
//! |---|---|---|
//! | line, workflow, depth of JSON | 256 KiB, 1 MiB, 64 | [`Limits::workflow`] |
//! | operations defined | 20 | [`Policy::max_operations`](a2abus_models::a2e_workflow::Policy) |
//! | time of an execution | 30 s | [`Policy::max_execution_time`](a2abus_models::a2e_workflow::Policy) |
//! | runs of operations, items of a loop, loops in loops | 20,000, 1,000, 3 | [`Limits`] |
//! | data model, in memory; all results together | 32 MiB | [`Limits::max_model_bytes`] |
//! | response of an API | 10 MiB | [`Limits::max_response_bytes`] |
//! | concurrent executions of an agent | 16 | [`Limits::max_concurrent`] |
//! | records of an agent; above it, its oldest executions lose their results | 64 MiB | [`Limits::max_record_bytes`] |
//! | one stored value, all stored values of an agent | 10 MiB, 100 MiB | fixed |
//! | API calls | 30 a minute, 500 an hour | [`Rates`] |
//!
//! # What the executor refuses, and why
//!
//! A workflow is validated on five levels before any step runs, and all problems are reported together: the form, the
//! operations, the permissions, whether everything that is read exists, and whether it has the right type.
//!
//! - Anything that the agent is not granted: an empty list grants nothing.
//! - A repeated member in a line or a configuration: two readers could see two different workflows.
//! - Calls into the operator's own network: every address of a name must be globally reachable, unless that base URL
//!   was registered. Redirects are not followed, proxies are not used, and the connection goes to the checked address.
//! - Credentials in a body, or for an API that they are not bound to. A secret in a response is stored as `[REDACTED]`.
//! - Retrying a POST or PATCH that may have acted already, unless it has an `Idempotency-Key`.
//! - File names that could lead out of the directory of the agent, and symbolic links in the path.
//! - Another workflow under a used execution id. The same workflow is answered from its record; nothing runs twice.
//!
//! # How to test a workflow
//!
//! A [`case`] is a JSON file with the workflow, recorded responses and the expected outcome. It runs on a virtual
//! clock, so that an hour of waiting takes no time. `a2abus workflow test CASE.json` does the same from the command
//! line.
//!
//! Source: docs/protocols/a2e-workflows.md.

mod agent;
mod archive;
mod cache;
mod call;
pub mod case;
#[cfg(feature = "client")]
mod client;
mod engine;
mod environment;
mod executor;
mod failure;
mod meter;
mod model;
mod operation;
mod plan;
mod quota;
mod record;
mod shared;
mod store;
mod system;
#[cfg(test)]
mod testing;
mod trace;
mod value;
mod virtual_clock;

pub use a2abus_models::{Array, Json, Object};
pub use agent::{Agent, Credential, CredentialKind, Rates, Secret};
pub use cache::Caching;
pub use call::RetryUnsafe;
#[cfg(feature = "client")]
pub use client::{Client, ClientError, ClientOptions, NoResponse, Resolve, SystemResolver};
pub use environment::{
    Change, Clock, Environment, HttpClient, HttpError, HttpRequest, HttpResponse, Random, Reach,
    RecordForgotten, Store, StoreDelayed, StoreError, StoreFull, StoreTooLarge, Table,
};
pub use executor::{
    Event, Execution, Executor, Options, Refusal, Request, RunningElsewhere, Started,
};
pub use failure::{Failure, FailureCode};
pub use quota::{Admitted, Exceeded, Limit, Quotas, Usage, Window};
pub use record::{Record, Status};
pub use shared::{Limits, OnError};
pub use store::{FileStore, MemoryStore, OpenError, StoredValue};
#[cfg(feature = "redb")]
pub use store::{RedbStore, open_database};
pub use system::{SystemClock, SystemRandom};
pub use trace::{OperationStatus, Progress};
pub use value::parse;
pub use virtual_clock::VirtualClock;
