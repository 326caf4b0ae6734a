//! Runs one operation of a workflow on a model.

use std::time::{Duration, SystemTime};

use a2abus_models::Json;
use a2abus_models::a2e_workflow::{OperationKind, Workflow, WorkflowLimits};
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{Scope, filter, holds, merge, transform};
use crate::environment::Clock;
use crate::failure::{Failure, FailureCode};
use crate::meter::Meter;
use crate::model::Model;

/// A clock that does not advance.
pub(crate) struct FrozenClock(pub(crate) Duration);

impl Clock for FrozenClock {
    fn elapsed(&self) -> Duration {
        self.0
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// The operation with this configuration.
pub(crate) fn operation(of: &str, config: &str) -> OperationKind {
    let text = format!(
        r#"{{"type":"operationUpdate","operationId":"o","operation":{{"{of}":{config}}}}}
{{"type":"beginExecution","executionId":"e","operationOrder":["o"]}}"#
    );
    let workflow = Workflow::parse(&Bytes::from(text), &WorkflowLimits::default()).unwrap();
    workflow.operations.into_iter().next().unwrap().kind
}

pub(crate) fn parse(text: &str) -> Json {
    crate::parse(text.as_bytes()).unwrap()
}

/// Runs it with this memory limit and deadline.
pub(crate) fn run_within(
    operation: &OperationKind,
    model: &Json,
    max_weight: usize,
    elapsed: Duration,
) -> Result<Json, Failure> {
    let clock = FrozenClock(elapsed);
    let meter = Meter::new(&clock, Duration::from_secs(1), max_weight);
    let model = Model::new(model.as_object().unwrap().clone());
    let scope = Scope {
        model: &model,
        meter: &meter,
    };
    match operation {
        OperationKind::FilterData(operation) => filter(operation, &scope),
        OperationKind::TransformData(operation) => transform(operation, &scope),
        OperationKind::MergeData(operation) => merge(operation, &scope),
        OperationKind::Conditional(operation) => holds(operation, &scope).map(Json::from),
        other => panic!("{other:?} does not only compute"),
    }
}

pub(crate) fn run(operation: &OperationKind, model: &Json) -> Result<Json, Failure> {
    run_within(operation, model, 32 << 20, Duration::ZERO)
}

/// Runs operations of one type, each on the same model, and compares the results.
pub(crate) fn check(of: &str, model: &str, cases: &[(&str, &str)]) {
    let model = parse(model);
    for (config, expected) in cases {
        let made = run(&operation(of, config), &model);
        assert_eq!(made, Ok(parse(expected)), "{of} {config}");
    }
}

/// The same for operations that fail.
pub(crate) fn check_fails(of: &str, model: &str, cases: &[(&str, FailureCode)]) {
    let model = parse(model);
    for (config, expected) in cases {
        let made = run(&operation(of, config), &model);
        assert_eq!(made.map_err(|e| e.code), Err(*expected), "{of} {config}");
    }
}

/// Runs an operation with exactly the memory it needs, and with less.
pub(crate) fn check_weight(of: &str, config: &str, model: &str) {
    let (operation, model) = (operation(of, config), parse(model));
    let made = run(&operation, &model).unwrap();
    let within = |max| run_within(&operation, &model, max, Duration::ZERO).map_err(|e| e.code);
    assert_eq!(within(made.weight()).as_ref(), Ok(&made), "{of} {config}");
    let too_little = made.weight() - Json::WEIGHT - 1;
    assert_eq!(
        within(too_little),
        Err(FailureCode::LimitExceeded),
        "{of} {config}"
    );
}
