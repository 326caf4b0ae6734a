//! A workflow as the engine runs it: operations by index, and which of them controls which.

use std::collections::{HashMap, HashSet};

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{Operation, OperationKind, Workflow};
use a2abus_plugin::Text;

#[derive(Debug)]
pub(crate) struct Plan {
    operations: Vec<Operation>,
    indices: HashMap<Text, usize>,
    /// The top level: operations of the order that no other operation controls. Source: docs/protocols/a2e-workflows.md
    /// §D13.
    pub(crate) roots: Vec<usize>,
    /// The stored values that its paths read, each once.
    pub(crate) stored: HashSet<(Storage, Text)>,
}

// === impl Plan ===

impl Plan {
    pub(crate) fn new(workflow: Workflow) -> Self {
        let operations = workflow.operations;
        let ids = operations.iter().map(|operation| operation.id.clone());
        let indices: HashMap<_, _> = ids.zip(0..).collect();
        let mut plan = Self {
            operations,
            indices,
            roots: Vec::new(),
            stored: workflow.stored.into_iter().collect(),
        };
        let order = plan.indices(&workflow.order);
        let controlled = plan.reached_from(&order);
        plan.roots = order
            .into_iter()
            .filter(|index| !controlled.contains(index))
            .collect();
        plan
    }

    pub(crate) fn operation(&self, index: usize) -> Option<&Operation> {
        self.operations.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The indices of these ids; a valid workflow defines all of them.
    pub(crate) fn indices(&self, ids: &[Text]) -> Vec<usize> {
        ids.iter()
            .filter_map(|id| self.indices.get(id).copied())
            .collect()
    }

    /// The operations that an operation runs.
    fn children(&self, index: usize) -> Vec<usize> {
        match self.operation(index).map(|operation| &operation.kind) {
            Some(OperationKind::Conditional(conditional)) => {
                let mut children = self.indices(&conditional.if_true);
                children.extend(self.indices(&conditional.if_false));
                children
            }
            Some(OperationKind::Loop(r#loop)) => self.indices(&r#loop.operations),
            _ => Vec::new(),
        }
    }

    /// All operations that these run, directly or indirectly.
    pub(crate) fn reached_from(&self, indices: &[usize]) -> std::collections::BTreeSet<usize> {
        let mut reached = std::collections::BTreeSet::new();
        let mut open = indices.to_vec();
        while let Some(index) = open.pop() {
            let new = self
                .children(index)
                .into_iter()
                .filter(|child| reached.insert(*child));
            open.extend(new.collect::<Vec<_>>());
        }
        reached
    }
}
