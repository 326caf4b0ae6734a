//! The control graph: branches, loop bodies, and the order of execution.

use std::collections::HashSet;

use crate::a2e_workflow::document::{Content, Document};
use crate::a2e_workflow::issue::{Code, Issue, Issues, quote_name};
use crate::a2e_workflow::message::Order;
use a2abus_plugin::Text;

/// The references of a workflow; operations by their index in the order of definition.
pub(super) struct Graph<'a> {
    document: &'a Document,
    order: &'a Order,
    nodes: Vec<Node<'a>>,
    /// The operations in the order, without duplicates.
    in_order: Vec<usize>,
}

pub(super) struct Node<'a> {
    pub(super) id: &'a Text,
    pub(super) line: u32,
    pub(super) content: Option<&'a Content>,
    /// The operations of its branches, then those of its body.
    children: Vec<usize>,
    /// How many of the children belong to branches.
    branches: usize,
    /// Its first index in the order.
    position: Option<usize>,
    /// Whether it runs, or may run.
    pub(super) is_used: bool,
    /// Whether an operation that is used controls it.
    pub(super) is_controlled: bool,
}

/// The result of a search from all operations.
struct Search {
    /// The operations in an order in which every operation precedes those that it controls, except for cycles.
    sorted: Vec<usize>,
    /// The operations at which a cycle was found.
    cycles: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Open,
    Done,
}

// Every index is one of a definition, and `nodes` has all of them.
impl<'a> Graph<'a> {
    pub(super) fn new(document: &'a Document, order: &'a Order) -> Self {
        let index = |id: &Text| document.definitions.get_index_of(id);
        let node = |(id, definition): (&'a Text, &'a super::document::Definition)| {
            let content = definition.content.as_ref();
            let branches = content
                .map(|c| c.facts.branches.as_slice())
                .unwrap_or_default();
            let body = content.map(|c| c.facts.body.as_slice()).unwrap_or_default();
            let mut children: Vec<_> = branches.iter().filter_map(index).collect();
            let branches = children.len();
            children.extend(body.iter().filter_map(index));
            Node {
                id,
                line: definition.line,
                content,
                children,
                branches,
                position: None,
                is_used: false,
                is_controlled: false,
            }
        };
        let mut graph = Self {
            document,
            order,
            nodes: document.definitions.iter().map(node).collect(),
            in_order: Vec::new(),
        };
        for (position, node) in order.ids.iter().enumerate() {
            if let Some(node) = index(node).filter(|node| graph.nodes[*node].position.is_none()) {
                graph.nodes[node].position = Some(position);
                graph.in_order.push(node);
            }
        }
        graph.mark_used();
        graph
    }

    fn mark_used(&mut self) {
        let mut open = self.in_order.clone();
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut self.nodes[node].is_used, true) {
                continue;
            }
            for child in self.nodes[node].children.clone() {
                self.nodes[child].is_controlled = true;
                open.push(child);
            }
        }
    }

    pub(super) fn node(&self, node: usize) -> &Node<'a> {
        &self.nodes[node]
    }

    /// The operations in the order that no other operation controls.
    pub(super) fn roots(&self) -> impl DoubleEndedIterator<Item = usize> {
        let is_root = |node: &usize| !self.nodes[*node].is_controlled;
        self.in_order.iter().copied().filter(is_root)
    }

    /// The operations of the branches and of the body of an operation.
    pub(super) fn children(&self, node: usize) -> (&[usize], &[usize]) {
        let node = &self.nodes[node];
        node.children.split_at(node.branches)
    }

    /// Checks references and order. Returns whether the data flow can be checked.
    pub(super) fn check(&self, issues: &mut Issues) -> bool {
        let known = self.check_references(issues);
        let unique = self.check_order(issues);
        let search = self.search();
        for node in &search.cycles {
            let message = "a cycle: its branches or body lead back to it";
            self.issue(issues, Code::CyclicReference, *node, message);
        }
        self.check_positions(&search.sorted, issues);
        for (index, _) in self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| !n.is_used && n.content.is_some())
        {
            let message = "it is neither in the order nor in a branch or body that runs";
            self.issue(issues, Code::UnusedOperation, index, message);
        }
        known && unique && search.cycles.is_empty()
    }

    fn issue(&self, issues: &mut Issues, code: Code, node: usize, message: &str) {
        let node = &self.nodes[node];
        issues.push(Issue::new(code, message).about(node.id).at(node.line));
    }

    fn check_references(&self, issues: &mut Issues) -> bool {
        let mut all_known = true;
        for id in self.unknown(self.order.ids.iter()) {
            self.refuse_unknown(id, id, self.order.line, issues);
            all_known = false;
        }
        for node in &self.nodes {
            let controls = node.content.into_iter().flat_map(|c| c.facts.controls());
            for id in self.unknown(controls) {
                self.refuse_unknown(id, node.id, node.line, issues);
                all_known = false;
            }
        }
        all_known
    }

    /// The undefined ids, without duplicates.
    fn unknown(&self, ids: impl Iterator<Item = &'a Text>) -> Vec<&'a Text> {
        let mut seen = HashSet::new();
        ids.filter(|id| !self.document.definitions.contains_key(*id) && seen.insert(*id))
            .collect()
    }

    fn refuse_unknown(&self, id: &Text, about: &Text, line: u32, issues: &mut Issues) {
        let known = self.document.definitions.keys().map(Text::as_str);
        let suggestion = issues.nearest(id, known);
        let message = format!("operation {} is not defined", quote_name(id));
        let issue = Issue::new(Code::UnknownOperation, message)
            .about(about)
            .at(line);
        issues.push(issue.suggest(suggestion));
    }

    fn check_order(&self, issues: &mut Issues) -> bool {
        let (mut seen, mut repeated) = (HashSet::new(), HashSet::new());
        for id in &self.order.ids {
            if !seen.insert(id) && repeated.insert(id) {
                let issue = Issue::new(Code::DuplicateInOrder, "operationOrder lists it twice");
                issues.push(issue.about(id).at(self.order.line));
            }
        }
        repeated.is_empty()
    }

    /// Depth-first from every operation in order of definition. Not recursive, because a chain may be
    /// as long as the document.
    fn search(&self) -> Search {
        let mut states = vec![State::New; self.nodes.len()];
        let mut reopened = HashSet::new();
        let mut search = Search {
            sorted: Vec::new(),
            cycles: Vec::new(),
        };
        for start in 0..self.nodes.len() {
            if states[start] != State::New {
                continue;
            }
            states[start] = State::Open;
            let mut path = vec![(start, self.nodes[start].children.iter())];
            while let Some((node, children)) = path.last_mut() {
                let Some(child) = children.next().copied() else {
                    states[*node] = State::Done;
                    search.sorted.push(*node);
                    path.pop();
                    continue;
                };
                match states[child] {
                    State::New => {
                        states[child] = State::Open;
                        path.push((child, self.nodes[child].children.iter()));
                    }
                    State::Open if reopened.insert(child) => search.cycles.push(child),
                    State::Open | State::Done => {}
                }
            }
        }
        search.sorted.reverse();
        search
    }

    /// In the order, an operation must precede those that it controls.
    fn check_positions(&self, sorted: &[usize], issues: &mut Issues) {
        let mut rank = vec![0; self.nodes.len()];
        for (place, node) in sorted.iter().enumerate() {
            rank[*node] = place;
        }
        let mut last_control: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for node in sorted {
            let control = self.nodes[*node].position.max(last_control[*node]);
            // A reference back closes a cycle, which is a separate issue.
            for child in self.nodes[*node]
                .children
                .iter()
                .filter(|child| rank[**child] > rank[*node])
            {
                last_control[*child] = last_control[*child].max(control);
            }
        }
        for node in &self.in_order {
            if last_control[*node] > self.nodes[*node].position {
                let message = "operationOrder lists it before an operation that controls it";
                self.issue(issues, Code::OrderConflict, *node, message);
            }
        }
    }
}
