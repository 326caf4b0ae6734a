//! Follows the data through a workflow, and checks that all values that are read exist and have the right type.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::a2e_workflow::facts::{Kind, Read, Requirement};
use crate::a2e_workflow::graph::{Graph, Node};
use crate::a2e_workflow::issue::{Code, Issue, Issues};
use crate::a2e_workflow::path::{OutputPath, Path, Segment};
use crate::a2e_workflow::policy::Policy;
use crate::json::Object;
use a2abus_plugin::Text;

/// The values that a loop sets for its body (docs/protocols/a2e-workflows.md §D7).
const RESERVED: [&str; 3] = ["item", "index", "parent"];

/// Checks reads and writes, and the total time of the waits that always run.
pub(super) fn check(
    graph: &Graph<'_>,
    policy: &Policy,
    inputs: [Option<&Object>; 2],
    issues: &mut Issues,
) {
    let mut walk = Walk {
        graph,
        known: KnownPaths::new(inputs),
        visited: HashSet::new(),
        reported: HashSet::new(),
        reserved: HashSet::new(),
        outputs: Vec::new(),
        issues,
    };
    walk.run();
    check_wait(graph, policy, issues);
}

fn check_wait(graph: &Graph<'_>, policy: &Policy, issues: &mut Issues) {
    let waits = graph
        .roots()
        .filter_map(|node| graph.node(node).content?.facts.wait);
    let total = waits.fold(Duration::ZERO, Duration::saturating_add);
    if total > policy.max_execution_time {
        let (total, most) = (total.as_millis(), policy.max_execution_time.as_millis());
        let message = format!("waits for {total} ms, but an execution may take only {most} ms");
        issues.push(Issue::new(Code::ExceedsExecutionTime, message));
    }
}

/// The context in which an operation runs.
#[derive(Clone, Copy)]
struct Context {
    /// The number of enclosing loops, at most two; more make no difference.
    loops: u8,
    /// Whether it always runs.
    always: bool,
}

enum Visit {
    Enter(usize, Context),
    Leave(usize, Context),
}

struct Walk<'a, 'g> {
    graph: &'g Graph<'a>,
    known: KnownPaths,
    /// Knowledge only grows, so a second visit at the same loop depth finds nothing new.
    visited: HashSet<(usize, u8)>,
    reported: HashSet<(usize, &'a Path)>,
    /// The operations for which a reserved path was reported.
    reserved: HashSet<usize>,
    /// The paths written so far, for suggestions.
    outputs: Vec<String>,
    issues: &'g mut Issues,
}

// === impl Walk ===

impl<'a> Walk<'a, '_> {
    fn run(&mut self) {
        let root = Context {
            loops: 0,
            always: true,
        };
        let mut steps: Vec<Visit> = self
            .graph
            .roots()
            .rev()
            .map(|node| Visit::Enter(node, root))
            .collect();
        while let Some(step) = steps.pop() {
            match step {
                Visit::Enter(node, context) if self.visited.insert((node, context.loops)) => {
                    self.enter(node, context);
                    self.descend(node, context, &mut steps);
                }
                Visit::Enter(..) => {}
                Visit::Leave(node, context) => self.leave(node, context),
            }
        }
    }

    /// Pushes the successors in reverse order. A loop writes after its body.
    fn descend(&self, node: usize, context: Context, steps: &mut Vec<Visit>) {
        let (branches, body) = self.graph.children(node);
        let in_branch = Context {
            always: false,
            ..context
        };
        let in_body = Context {
            always: false,
            loops: (context.loops + 1).min(2),
        };
        steps.push(Visit::Leave(node, context));
        steps.extend(body.iter().rev().map(|child| Visit::Enter(*child, in_body)));
        steps.extend(
            branches
                .iter()
                .rev()
                .map(|child| Visit::Enter(*child, in_branch)),
        );
    }

    fn enter(&mut self, index: usize, context: Context) {
        let graph = self.graph;
        let node = graph.node(index);
        let Some(content) = node.content else {
            return;
        };
        for read in &content.facts.reads {
            if !is_loop_variable(&read.path, context.loops)
                && !self.reported.contains(&(index, &read.path))
            {
                self.check_read(index, node, read);
            }
        }
    }

    fn check_read(&mut self, index: usize, node: &Node<'a>, read: &'a Read) {
        if read.path.storage().is_some() {
            self.reported.insert((index, &read.path));
            let message = format!("{} may not be stored", read.path);
            let issue = Issue::new(Code::PathMaybeMissing, message);
            return self.issues.push(issue.about(node.id).at(node.line));
        }
        let found = self.known.find(&read.path);
        let path = &read.path;
        let (code, message) = match found.presence {
            Presence::Missing if read.need != Requirement::Nothing => (
                Code::PathNotFound,
                format!("{path} does not exist: no earlier operation writes it"),
            ),
            Presence::Missing => (
                Code::PathMaybeMissing,
                format!("no earlier operation writes {path}"),
            ),
            Presence::Maybe => (
                Code::PathMaybeMissing,
                format!("{path} is written only in a branch or loop body"),
            ),
            Presence::Always if found.kind.fits(read.need) => return,
            Presence::Always => {
                let needed = match read.need {
                    Requirement::Array => "an array",
                    _ => "an array or an object",
                };
                (Code::TypeMismatch, format!("{path} is not {needed}"))
            }
        };
        self.reported.insert((index, path));
        let suggestion = if code == Code::PathNotFound {
            self.issues
                .nearest(&path.to_string(), self.outputs.iter().map(String::as_str))
        } else {
            None
        };
        let issue = Issue::new(code, message).about(node.id).at(node.line);
        self.issues.push(issue.suggest(suggestion));
    }

    fn leave(&mut self, index: usize, context: Context) {
        let graph = self.graph;
        let node = graph.node(index);
        let Some((output, kind)) = node
            .content
            .and_then(|content| content.facts.write.as_ref())
        else {
            return;
        };
        if context.loops > 0 && is_reserved(output) && self.reserved.insert(index) {
            let message = format!("{output} is reserved for the loop");
            self.issues.push(
                Issue::new(Code::ReservedPath, message)
                    .about(node.id)
                    .at(node.line),
            );
        }
        self.known.add(
            output.path().segments().iter().map(Segment::key),
            context.always,
            *kind,
        );
        if self.outputs.len() < 32 {
            self.outputs.push(output.to_string());
        }
    }
}

fn is_loop_variable(path: &Path, loops: u8) -> bool {
    let known = match loops {
        0 => &[],
        1 => &RESERVED[..2],
        _ => &RESERVED[..],
    };
    let first = path.segments().first();
    path.storage().is_none() && first.is_some_and(|first| known.contains(&first.key().as_str()))
}

fn is_reserved(output: &OutputPath) -> bool {
    let first = output.path().segments().first();
    first.is_some_and(|first| RESERVED.contains(&first.key().as_str()))
}

// === what is known ===

/// The paths written so far, as a tree of their keys.
struct KnownPaths {
    nodes: Vec<PathNode>,
    children: HashMap<(usize, Text), usize>,
    writes: usize,
}

/// What was written to a path and below it.
#[derive(Default)]
struct PathNode {
    /// To the path itself.
    here: Option<Write>,
    /// To a path below it.
    below: Presence,
}

#[derive(Clone, Copy)]
struct Write {
    presence: Presence,
    /// Of the latest write.
    kind: Kind,
    number: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Presence {
    #[default]
    Missing,
    Maybe,
    Always,
}

struct PathState {
    presence: Presence,
    kind: Kind,
}

// === impl KnownPaths ===

// Every index in `children` is one of `nodes`, and the root is always there.
impl KnownPaths {
    /// If several inputs have a member, the last one counts.
    fn new(inputs: [Option<&Object>; 2]) -> Self {
        let mut known = Self {
            nodes: vec![PathNode::default()],
            children: HashMap::new(),
            writes: 0,
        };
        for (name, value) in inputs.into_iter().flatten().flat_map(Object::iter) {
            known.add(std::iter::once(name.clone()), true, Kind::of(value));
        }
        known
    }

    fn add(&mut self, keys: impl Iterator<Item = Text>, always: bool, kind: Kind) {
        let presence = if always {
            Presence::Always
        } else {
            Presence::Maybe
        };
        let mut at = 0;
        for key in keys {
            self.nodes[at].below = self.nodes[at].below.max(presence);
            let next = self.nodes.len();
            at = *self.children.entry((at, key)).or_insert(next);
            if at == next {
                self.nodes.push(PathNode::default());
            }
        }
        self.writes += 1;
        let before = self.nodes[at]
            .here
            .map_or(Presence::Missing, |write| write.presence);
        self.nodes[at].here = Some(Write {
            presence: before.max(presence),
            kind: if always { kind } else { Kind::Unknown },
            number: self.writes,
        });
    }

    /// A path exists if it, a part of it, or something below it was written. Its type is that of the latest write to
    /// it, unless a part of it was written later.
    fn find(&self, path: &Path) -> PathState {
        let (mut at, mut latest) = (0, 0);
        let mut found = PathState {
            presence: Presence::Missing,
            kind: Kind::Unknown,
        };
        for segment in path.segments() {
            found.kind = Kind::Unknown;
            let Some(next) = self.children.get(&(at, segment.key())) else {
                return found;
            };
            at = *next;
            if let Some(write) = self.nodes[at].here {
                found.presence = found.presence.max(write.presence);
                if write.number > latest {
                    (latest, found.kind) = (write.number, write.kind);
                }
            }
        }
        found.presence = found.presence.max(self.nodes[at].below);
        found
    }
}
