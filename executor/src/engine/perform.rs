//! One operation of each type.

use std::time::Duration;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::operation::{ApiCall, StoreData, Wait};
use a2abus_models::a2e_workflow::transform::{Expression, Projection, Transform};
use a2abus_models::a2e_workflow::{Operand, Operation, OperationKind, OperationType, Path};
use a2abus_plugin::Text;

use futures_util::future::BoxFuture;

use super::{Engine, Halt, OperationOutcome, check_depth};
use crate::cache::Key;
use crate::call::{self, CallCost, Caller};
use crate::failure::Failure;
use crate::meter::{Meter, execution_timeout, too_heavy};
use crate::operation::{self, Scope};
use crate::store;
use crate::trace::{OperationStatus, Progress};

/// From this input size on, a cache lookup is cheaper than computing the result again.
const CACHED_FROM_BYTES: usize = 64 << 10;

impl Engine<'_> {
    pub(super) async fn perform(&mut self, operation: &Operation) -> OperationOutcome {
        match &operation.kind {
            OperationKind::ApiCall(call) => self.call(operation, call).await,
            OperationKind::FilterData(filter) => {
                let inputs = [&filter.input];
                self.cached(operation, &inputs, |scope| operation::filter(filter, scope))
            }
            OperationKind::TransformData(transform) => {
                let inputs = [&transform.input];
                self.cached(operation, &inputs, |scope| {
                    operation::transform(transform, scope)
                })
            }
            OperationKind::MergeData(merge) => {
                let inputs: Vec<_> = merge.sources.iter().collect();
                self.cached(operation, &inputs, |scope| operation::merge(merge, scope))
            }
            OperationKind::Conditional(conditional) => self.conditional(conditional).await.into(),
            OperationKind::Loop(body) => self.run_loop(&operation.id, body).await.into(),
            OperationKind::StoreData(store) => self.store(store).await.into(),
            OperationKind::Wait(wait) => self.wait(wait).await.into(),
        }
    }

    /// Runs an operation without I/O, within the remaining time and memory.
    pub(super) fn compute<R>(
        &self,
        operation: impl FnOnce(&Scope<'_>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let shared = self.run.shared;
        let clock = shared.environment.clock.as_ref();
        let meter = Meter::new(clock, self.run.deadline, shared.limits.max_model_bytes);
        operation(&Scope {
            model: &self.model,
            meter: &meter,
        })
    }

    /// The same for an operation whose result may be cached. Source: docs/protocols/a2e-workflows.md §6.
    fn cached(
        &self,
        operation: &Operation,
        inputs: &[&Path],
        compute: impl FnOnce(&Scope<'_>) -> Result<Json, Failure>,
    ) -> OperationOutcome {
        let Some(key) = self.key(operation, inputs) else {
            return OperationOutcome::of(self.compute(compute));
        };
        let cache = &self.run.shared.cache;
        match cache.get(&key) {
            Ok(value) => OperationOutcome {
                is_cached: true,
                ..OperationOutcome::of(Ok(value))
            },
            Err(miss) => {
                let result = self.compute(compute);
                if let Ok(value) = &result {
                    cache.insert(key, &miss, value.clone(), None);
                }
                OperationOutcome::of(result)
            }
        }
    }

    /// The configuration, the values of its references, and the inputs. Large values are identified by address, because
    /// hashing one costs as much as the operation.
    fn key(&self, operation: &Operation, inputs: &[&Path]) -> Option<Key> {
        let values: Vec<_> = inputs
            .iter()
            .map(|path| self.model.get(path))
            .collect::<Option<_>>()?;
        if values.iter().map(Json::weight).sum::<usize>() < CACHED_FROM_BYTES {
            return None;
        }
        let key = Key::new(self.run.agent.id(), operation.kind.operation_type());
        let mut key = key.config(&operation.config.0);
        for path in references(&operation.kind) {
            key = key.identity(&self.model.get(path)?);
        }
        Some(values.iter().fold(key, |key, value| key.identity(value)))
    }

    async fn call(&mut self, operation: &Operation, call: &ApiCall) -> OperationOutcome {
        let (report, shared) = (self.run.report, self.run.shared);
        let iteration = self.model.iteration();
        let on_retry = |attempts: u32, delay: Duration| {
            let status = OperationStatus::Retrying;
            report(Progress {
                iteration,
                attempts,
                duration: delay,
                ..Progress::new(&operation.id, OperationType::ApiCall, status)
            });
        };
        let before_unsafe = || -> BoxFuture<'_, _> { (self.run.before_unsafe)() };
        let caller = Caller {
            agent: self.run.agent,
            environment: &shared.environment,
            cache: &shared.cache,
            quotas: &shared.quotas,
            redactor: &self.redactor,
            deadline: self.run.deadline,
            retry_unsafe: shared.retry_unsafe,
            max_retries: shared.limits.max_retries,
            max_response_bytes: shared.limits.max_response_bytes,
            on_retry: &on_retry,
            before_unsafe: &before_unsafe,
        };
        let mut cost = CallCost::default();
        let called = self
            .or_cancelled(call::call(call, &self.model, &caller, &mut cost))
            .await;
        OperationOutcome {
            result: called.and_then(|called| called.map_err(Halt::from)),
            attempts: cost.attempts,
            is_cached: cost.is_cached,
        }
    }

    async fn store(&mut self, operation: &StoreData) -> Result<Json, Halt> {
        let value = self.model.read(&operation.input)?;
        check_depth(&value, 0)?;
        let place = (operation.storage, Text::from(operation.key.as_str()));
        let is_read = self.run.plan.stored.contains(&place);
        let max = self.run.shared.limits.max_model_bytes;
        if is_read && self.model.stored_weight_with(place.0, &place.1, &value) > max {
            return Err(too_heavy(max).into());
        }
        let storages = &self.run.shared.storages;
        // Not interrupted at the deadline, because it would then be unknown whether the value was stored.
        let (agent, session) = (self.run.agent.id(), self.run.session);
        let stored = store::store(operation, value.clone(), storages, agent, session).await?;
        if is_read {
            self.model.put_stored(place.0, place.1, value);
        }
        Ok(stored)
    }

    async fn wait(&mut self, wait: &Wait) -> Result<Json, Halt> {
        if wait.duration > self.left() {
            return Err(execution_timeout().into());
        }
        // A timer takes a millisecond even for this, and a loop may wait a thousand times.
        if wait.duration.is_zero() {
            return Ok(Json::Null);
        }
        let slept = self.run.shared.environment.clock.sleep(wait.duration);
        self.or_cancelled(slept).await.map(|()| Json::Null)
    }

    async fn or_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => Err(Halt { failure: self.cancelled(), is_fatal: true }),
            done = work => Ok(done),
        }
    }
}

/// The references of an operation without I/O, in addition to its inputs.
fn references<'a>(kind: &'a OperationKind) -> Vec<&'a Path> {
    match kind {
        OperationKind::FilterData(filter) => {
            let operands = filter.conditions.iter().map(|condition| &condition.value);
            let path = |operand| match operand {
                &Operand::Literal(_) => None,
                Operand::Reference(path) => Some(path),
            };
            operands.filter_map(path).collect()
        }
        OperationKind::TransformData(data) => match &data.transform {
            Transform::Map(Projection::Computed(members, _), _)
            | Transform::Select(Projection::Computed(members, _), _) => {
                let path = |(_, expression): &'a (_, _)| match expression {
                    Expression::Reference(path) => Some(path),
                    Expression::Field(..) | Expression::Value(_) | Expression::Template(_) => None,
                };
                members.iter().filter_map(path).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
