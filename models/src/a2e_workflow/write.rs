//! Writes a workflow in the flat dialect.

use std::fmt::Write as _;

use crate::a2e_workflow::workflow::{Operation, Workflow};
use crate::json::Json;
use a2abus_plugin::Text;

impl Workflow {
    /// Writes it as JSON Lines of the flat dialect, with each configuration unchanged, except that a branch of one
    /// operation becomes a list, as the flat dialect requires. Parsing the result gives the same workflow. `new_id`
    /// is the execution id for a workflow without one. Source: docs/protocols/a2e-workflows.md §1.
    #[must_use]
    pub fn to_jsonl(&self, new_id: &Text) -> String {
        let mut lines = String::new();
        for Operation {
            id, kind, config, ..
        } in &self.operations
        {
            let operation = Json::object([(kind.operation_type().as_str(), flat(&config.0))]);
            let message = Json::object([
                ("type", Json::from("operationUpdate")),
                ("operationId", id.clone().into()),
                ("operation", operation),
            ]);
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{message}");
        }
        let id = self.execution_id.as_ref().unwrap_or(new_id);
        let order: Vec<Json> = self.order.iter().cloned().map(Json::from).collect();
        let mut begin = vec![
            ("type", Json::from("beginExecution")),
            ("executionId", id.clone().into()),
            ("operationOrder", order.into()),
        ];
        begin.extend(self.agent.clone().map(|agent| ("_agentId", agent.into())));
        if !self.input.is_empty() {
            begin.push(("input", Json::Object(self.input.clone())));
        }
        let _ = writeln!(lines, "{}", Json::object(begin));
        lines
    }
}

fn flat(config: &Json) -> Json {
    let Some(members) = config.as_object() else {
        return config.clone();
    };
    let mut members = members.clone();
    for branch in ["ifTrue", "ifFalse"] {
        if let Some(Json::String(id)) = members.get(branch).cloned() {
            members.insert(branch, vec![Json::String(id)]);
        }
    }
    members.into()
}
