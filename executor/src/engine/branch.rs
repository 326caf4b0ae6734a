//! The operations that run others: Conditional and Loop.

use a2abus_models::a2e_workflow::operation::{Conditional, Loop};
use a2abus_models::{Array, Json};
use a2abus_plugin::Text;

use super::{Engine, Halt};
use crate::failure::{Failure, FailureCode};
use crate::meter::too_heavy;
use crate::model;

impl Engine<'_> {
    /// Source: docs/protocols/a2e-workflows.md §4.4.
    pub(super) async fn conditional(&mut self, conditional: &Conditional) -> Result<Json, Halt> {
        let holds = self.compute(|scope| crate::operation::holds(conditional, scope))?;
        let (branch, taken, other) = if holds {
            ("ifTrue", &conditional.if_true, &conditional.if_false)
        } else {
            ("ifFalse", &conditional.if_false, &conditional.if_true)
        };
        let plan = self.run.plan;
        let other = plan.indices(other);
        self.not_taken.extend(&other);
        let executed = self.sequence(&plan.indices(taken)).await?;
        let skipped: Vec<usize> = other
            .into_iter()
            .filter(|i| !self.ran.contains(i))
            .collect();
        Ok(Json::object([
            ("condition", Json::Bool(holds)),
            ("branch", branch.into()),
            ("executed", self.ids(&executed)),
            ("skipped", self.ids(&skipped)),
        ]))
    }

    fn ids(&self, indices: &[usize]) -> Json {
        let operations = indices
            .iter()
            .filter_map(|index| self.run.plan.operation(*index));
        operations
            .map(|operation| operation.id.clone().into())
            .collect::<Array>()
            .into()
    }

    /// Source: docs/protocols/a2e-workflows.md §4.5.
    pub(super) async fn run_loop(&mut self, id: &Text, body: &Loop) -> Result<Json, Halt> {
        let items = self.items(body)?;
        let indices = self.run.plan.indices(&body.operations);
        let max = self.run.shared.limits.max_model_bytes;
        let outer = std::mem::take(&mut self.ran);
        self.loops.push(id.clone());
        let mut values = Vec::new();
        let mut weight = 0_usize;
        let mut ended = Ok(());
        for (index, item) in items.iter().enumerate() {
            self.ran.clear();
            self.last_data = Json::Null;
            self.model.enter(model::Iteration {
                item: item.clone(),
                index,
            });
            let iteration = self.sequence(&indices).await;
            self.model.leave();
            let value = std::mem::take(&mut self.last_data);
            ended = match iteration {
                Ok(_) => self
                    .weigh(&value, &mut weight, max)
                    .map(|()| values.push(value)),
                Err(halt) => self.continue_after(halt).map(|()| values.push(Json::Null)),
            };
            if ended.is_err() {
                break;
            }
        }
        self.loops.pop();
        self.ran = outer;
        ended.map(|()| values.into())
    }

    fn weigh(&self, value: &Json, weight: &mut usize, max: usize) -> Result<(), Halt> {
        *weight = weight.saturating_add(value.weight());
        if *weight > max {
            return Err(too_heavy(max).into());
        }
        Ok(())
    }

    /// The elements as they are at the start.
    fn items(&self, body: &Loop) -> Result<Array, Failure> {
        let limits = &self.run.shared.limits;
        let Json::Array(items) = self.model.read(&body.input)? else {
            let message = format!("{} is not an array", body.input);
            return Err(Failure::new(FailureCode::TypeMismatch, message)
                .with("path", body.input.to_string()));
        };
        let exceeded = |limit: &'static str, message: String, max: usize| {
            Err(Failure::new(FailureCode::LimitExceeded, message)
                .with("limit", limit)
                .with("max", max))
        };
        if items.len() > limits.max_loop_items {
            let max = limits.max_loop_items;
            let message = format!("{} items, more than the limit of {max}", items.len());
            return exceeded("loop_items", message, max);
        }
        if self.loops.len() >= limits.max_loop_depth {
            let max = limits.max_loop_depth;
            return exceeded("loop_depth", format!("more than {max} nested loops"), max);
        }
        Ok(items)
    }
}
