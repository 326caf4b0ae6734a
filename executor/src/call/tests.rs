//! Calls against a scripted client, on a virtual clock.

mod caching;
mod deadlines;
#[cfg(feature = "client")]
mod network;
mod permissions;
mod requests;
mod responses;
mod retries;
mod secrets;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::operation::ApiCall;
use a2abus_models::a2e_workflow::{Allowed, Apis, OperationKind, Policy, Workflow, WorkflowLimits};
use a2abus_plugin::Text;
use bytes::Bytes;

use super::{CallCost, Caller, Redactor, RetryUnsafe, call};
use crate::agent::{Agent, Credential, CredentialKind, Rates, Secret};
use crate::cache::{Cache, Caching};
use crate::environment::{Clock, Environment, HttpClient, HttpRequest};
use crate::failure::{Failure, FailureCode};
use crate::model::Model;
use crate::quota::Quotas;
use crate::testing::{FixedBits, NoStore, ScriptedClient, ScriptedResponse, VirtualClock};

const API: &str = "https://api.example.com";

/// Everything that a call needs, and a record of what it did.
struct Harness {
    clock: Arc<VirtualClock>,
    client: Arc<ScriptedClient>,
    environment: Environment,
    cache: Cache,
    quotas: Quotas,
    redactor: Redactor,
    agent: Agent,
    input: Json,
    deadline: Duration,
    retry_unsafe: RetryUnsafe,
    max_retries: u32,

    retries: Mutex<Vec<(u32, Duration)>>,
    hooks: AtomicU32,
    fail_hook: AtomicBool,
}

impl Harness {
    fn new(responses: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let client = Arc::new(ScriptedClient::new(&clock, responses));
        let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let http: Arc<dyn HttpClient> = Arc::<ScriptedClient>::clone(&client);
        Self {
            environment: Environment {
                clock: Arc::clone(&shared),
                random: Arc::new(FixedBits(0)),
                http,
                store: Arc::new(NoStore),
            },
            cache: Cache::new(Arc::clone(&shared), Caching::default()),
            quotas: Quotas::new(shared, 100),
            redactor: Redactor::default(),
            agent: agent("agent", &[API], []),
            input: Json::object::<Text>([]),
            deadline: Duration::from_secs(1_000),
            retry_unsafe: RetryUnsafe::default(),
            max_retries: 3,
            retries: Mutex::default(),
            hooks: AtomicU32::new(0),
            fail_hook: AtomicBool::new(false),
            clock,
            client,
        }
    }

    fn input(mut self, input: &str) -> Self {
        self.input = crate::parse(input.as_bytes()).unwrap();
        self
    }

    async fn call(&self, config: &str) -> CallResult {
        self.call_as(&self.agent, config).await
    }

    async fn call_as(&self, agent: &Agent, config: &str) -> CallResult {
        let model = Model::new(self.input.as_object().unwrap().clone());
        let caller = Caller {
            agent,
            environment: &self.environment,
            cache: &self.cache,
            quotas: &self.quotas,
            redactor: &self.redactor,
            deadline: self.deadline,
            retry_unsafe: self.retry_unsafe,
            max_retries: self.max_retries,
            max_response_bytes: 10 << 20,
            on_retry: &|attempts, delay| self.retries.lock().unwrap().push((attempts, delay)),
            before_unsafe: &|| {
                self.hooks.fetch_add(1, Ordering::SeqCst);
                Box::pin(async {
                    if self.fail_hook.load(Ordering::SeqCst) {
                        return Err(Failure::new(FailureCode::StorageFailed, "no record"));
                    }
                    Ok(())
                })
            },
        };
        let operation = operation(config);
        // The executor moves calls between threads.
        fn sendable<F: Future + Send>(future: F) -> F {
            future
        }
        let mut cost = CallCost::default();
        let result = sendable(call(&operation, &model, &caller, &mut cost)).await;
        CallResult {
            attempts: cost.attempts,
            cached: cost.is_cached,
            result,
        }
    }

    fn requests(&self) -> Vec<HttpRequest> {
        self.client.requests()
    }
}

/// The result of a call.
#[derive(Debug)]
struct CallResult {
    attempts: u32,
    cached: bool,
    result: Result<Json, Failure>,
}

/// An ApiCall with this configuration; `outputPath` may be omitted.
fn operation(config: &str) -> ApiCall {
    let config = config.replace("\n", " ");
    let config = config.trim_end().strip_suffix('}').unwrap();
    let lines = format!(
        concat!(
            r#"{{"type":"operationUpdate","operationId":"g","operation":{{"ApiCall":{},"outputPath":"/workflow/o"}}}}}}"#,
            "\n",
            r#"{{"type":"beginExecution","executionId":"e","operationOrder":["g"]}}"#
        ),
        config
    );
    let workflow = Workflow::parse(&Bytes::from(lines), &WorkflowLimits::default());
    let kind = workflow.unwrap().operations.remove(0).kind;
    match kind {
        OperationKind::ApiCall(operation) => operation,
        other => panic!("{other:?}"),
    }
}

fn get(url: &str) -> String {
    format!(r#"{{"method":"GET","url":"{url}"}}"#)
}

fn credential(kind: CredentialKind, secret: &str, apis: &[&str]) -> Credential {
    Credential {
        kind,
        secret: Secret::new(secret.to_owned()),
        apis: Apis::parse(apis.iter().copied()).unwrap(),
        description: None,
    }
}

fn agent<'a>(
    id: &str,
    apis: &[&str],
    credentials: impl IntoIterator<Item = (&'a str, Credential)>,
) -> Agent {
    let policy = Policy {
        operations: Allowed::All,
        apis: Apis::parse(apis.iter().copied()).unwrap(),
        credentials: Allowed::All,
        ..Policy::default()
    };
    let credentials: BTreeMap<Text, Credential> = credentials
        .into_iter()
        .map(|(id, credential)| (id.into(), credential))
        .collect();
    Agent::new(id.into(), policy, credentials, Rates::default())
}

fn failed(called: &CallResult) -> (&'static str, &'static str) {
    let code = called.result.as_ref().unwrap_err().code;
    (code.type_name(), code.as_str())
}

fn detail(called: &CallResult, name: &str) -> Option<Json> {
    let failure = called.result.as_ref().unwrap_err();
    failure.details.get(name).cloned()
}

fn header<'a>(request: &'a HttpRequest, name: &str) -> Option<&'a str> {
    let header = request.headers.iter().find(|(other, _)| other == name);
    header.map(|(_, value)| value.as_str())
}
