//! Parses lines into messages, and assembles the definitions of a workflow.

use bytes::Bytes;
use indexmap::IndexMap;
use indexmap::map::Entry;

use a2abus_plugin::json::BYTE_ORDER_MARK;

use crate::a2e_message::Secret;
use crate::a2e_workflow::config;
use crate::a2e_workflow::facts::Facts;
use crate::a2e_workflow::fields::Scope;
use crate::a2e_workflow::issue::{Code, Issue, Issues, Severity, quote_name};
use crate::a2e_workflow::message::{Begin, Message, Order, Reader, Update};
use crate::a2e_workflow::operation::{OperationKind, OperationType};
use crate::a2e_workflow::workflow::{Dialect, Operation, Workflow, WorkflowLimits};
use crate::json::{Json, Object};
use crate::wire_enum::WireEnum;
use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::{DecodeError, DecodeErrorKind};

/// A parsed workflow, with all issues of its form.
///
/// ```
/// use a2abus_models::a2e_workflow::{Document, Policy, Strictness, WorkflowLimits};
///
/// let lines = r#"{"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}}
/// {"type":"beginExecution","executionId":"e-1","operationOrder":["w"]}"#;
/// let document = Document::parse(&lines.into(), &WorkflowLimits::default());
/// let policy = Policy { operations: ["*"].into_iter().collect(), ..Policy::default() };
/// assert!(document.validate(&policy, None, Strictness::Moderate).is_valid());
/// assert_eq!(document.into_workflow().unwrap().operations.len(), 1);
/// ```
#[derive(Debug, Clone)]
pub struct Document {
    pub(super) execution_id: Option<Text>,
    pub(super) agent: Option<Text>,
    pub(super) input: Option<Object>,
    pub(super) dialect: Dialect,
    pub(super) definitions: IndexMap<Text, Definition>,
    pub(super) order: Option<Order>,
    /// Whether lines are missing because of their size.
    pub(super) is_truncated: bool,
    pub(super) issues: Issues,
}

/// The definition of an operation.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    pub(super) line: u32,
    /// `None` if it does not have exactly one known type.
    pub(super) content: Option<Content>,
}

#[derive(Debug, Clone)]
pub(super) struct Content {
    pub(super) of: OperationType,
    /// `None` when its configuration has an error.
    pub(super) kind: Option<OperationKind>,
    pub(super) config: Secret<Json>,
    pub(super) facts: Facts,
}

/// The state while lines are read. Configurations are parsed at the end, when it is known which definitions were
/// replaced.
struct Assembly<'a> {
    limits: &'a WorkflowLimits,
    dialect: Option<Dialect>,
    mixed: bool,
    updates: IndexMap<Text, Update>,
    begin: Option<Begin>,
    /// Whether lines are missing because of their size.
    is_truncated: bool,
    issues: Issues,
}

// === impl Document ===

impl Document {
    /// Parses JSON Lines: `\n` or `\r\n`, blank lines ignored, a byte order mark at the start accepted. Collects all
    /// issues; only the size limit ends parsing. Source: docs/protocols/a2e-workflows.md §1.
    #[must_use]
    pub fn parse(bytes: &Bytes, limits: &WorkflowLimits) -> Self {
        let mut assembly = Assembly::new(limits);
        if bytes.len() > limits.max_bytes {
            assembly.truncate();
            return assembly.finish();
        }
        let mark = if bytes.starts_with(BYTE_ORDER_MARK) {
            BYTE_ORDER_MARK.len()
        } else {
            0
        };
        let mut start = mark;
        for (number, line) in (1..).zip(bytes.slice(mark..).split(|b| *b == b'\n')) {
            let end = start + line.len();
            assembly.line(&bytes.slice(start..end), number);
            start = end + 1;
        }
        assembly.finish()
    }

    /// Parses lines that are already split, numbered from 1. Their total size is limited like that of a document.
    pub fn from_lines(lines: impl IntoIterator<Item = Bytes>, limits: &WorkflowLimits) -> Self {
        let mut assembly = Assembly::new(limits);
        let mut bytes = 0_usize;
        for (number, line) in (1..).zip(lines) {
            bytes = bytes.saturating_add(line.len() + 1);
            if bytes > limits.max_bytes.saturating_add(1) {
                assembly.truncate();
                break;
            }
            assembly.line(&line, number);
        }
        assembly.finish()
    }

    /// The issues of its form, found while parsing.
    #[must_use]
    pub fn issues(&self) -> &[Issue] {
        self.issues.as_slice()
    }

    /// The `executionId` of the begin message, if it is valid.
    #[must_use]
    pub fn execution_id(&self) -> Option<&Text> {
        self.execution_id.as_ref()
    }

    /// The workflow, if its form has no errors. [`Document::validate`] decides whether it may run.
    ///
    /// # Errors
    /// All issues of its form.
    pub fn into_workflow(self) -> Result<Workflow, Vec<Issue>> {
        let is_error = |issue: &Issue| issue.severity == Severity::Error;
        let Some(order) = self
            .order
            .filter(|_| !self.issues.as_slice().iter().any(is_error))
        else {
            return Err(self.issues.into_vec());
        };
        let contents = self
            .definitions
            .values()
            .filter_map(|it| it.content.as_ref());
        let reads = contents.flat_map(|content| &content.facts.reads);
        let stored = reads.filter_map(|read| {
            let key = read.path.segments().first()?.key();
            Some((read.path.storage()?, key))
        });
        let stored = stored.collect();
        let operation = |(id, definition): (Text, Definition)| {
            let content = definition.content?;
            Some(Operation {
                id,
                line: definition.line,
                kind: content.kind?,
                config: content.config,
            })
        };
        Ok(Workflow {
            execution_id: self.execution_id,
            agent: self.agent,
            input: self.input.unwrap_or_default(),
            dialect: self.dialect,
            operations: self.definitions.into_iter().filter_map(operation).collect(),
            order: order.ids,
            stored,
        })
    }
}

// === impl Workflow ===

impl Workflow {
    /// Parses a workflow; its form must be valid. [`Document::validate`] decides whether it may run.
    ///
    /// # Errors
    /// All issues of its form.
    pub fn parse(bytes: &Bytes, limits: &WorkflowLimits) -> Result<Self, Vec<Issue>> {
        Document::parse(bytes, limits).into_workflow()
    }
}

// === impl Assembly ===

impl<'a> Assembly<'a> {
    fn new(limits: &'a WorkflowLimits) -> Self {
        Self {
            limits,
            dialect: None,
            mixed: false,
            updates: IndexMap::new(),
            begin: None,
            is_truncated: false,
            issues: Issues::new(limits.max_issues),
        }
    }

    fn truncate(&mut self) {
        self.is_truncated = true;
        let message = format!("more than the limit of {} bytes", self.limits.max_bytes);
        self.issues
            .push(Issue::new(Code::WorkflowTooLarge, message));
    }

    fn line(&mut self, line: &Bytes, number: u32) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let json = match self.json(line) {
            Ok(json) => json,
            Err(error) => return self.unread(line, &error, number),
        };
        let mut reader = Reader {
            line: number,
            has_begun: self.begin.is_some(),
            issues: &mut self.issues,
        };
        let Some((dialect, message)) = reader.message(&json) else {
            return;
        };
        self.set_dialect(dialect, number);
        match message {
            Message::Updates(updates) => updates
                .into_iter()
                .for_each(|(id, update)| self.update(id, update)),
            Message::Begin(begin) => self.begin = Some(begin),
            Message::Nothing => {}
        }
    }

    /// Reports a line that cannot be read. If it is too large, whatever it defines is missing.
    fn unread(&mut self, line: &Bytes, error: &DecodeError, number: u32) {
        let most = self.limits.max_line_bytes;
        let (code, message) = match error.kind() {
            DecodeErrorKind::TooLarge if line.len() > most => {
                let message = format!("the line is larger than the limit of {most} bytes");
                (Code::WorkflowTooLarge, message)
            }
            DecodeErrorKind::TooLarge => (Code::WorkflowTooLarge, error.to_string()),
            _ => (Code::InvalidJson, error.to_string()),
        };
        self.is_truncated |= code == Code::WorkflowTooLarge;
        self.issues.push(Issue::new(code, message).at(number));
    }

    fn json(&self, line: &Bytes) -> Result<Json, DecodeError> {
        let mut limits = Limits::default();
        limits.max_bytes = self.limits.max_line_bytes;
        limits.max_depth = self.limits.max_depth;
        // The line without its end.
        let line = line.slice(..line.len() - usize::from(line.ends_with(b"\r")));
        Json::parse(&line, &limits)
    }

    fn set_dialect(&mut self, dialect: Dialect, line: u32) {
        let spoken = *self.dialect.get_or_insert(dialect);
        if spoken != dialect && !self.mixed {
            self.mixed = true;
            let message = "one workflow has messages with and without a type";
            self.issues
                .push(Issue::new(Code::MixedDialects, message).at(line));
        }
    }

    /// A later definition replaces an earlier one (docs/protocols/a2e-workflows.md §D2).
    fn update(&mut self, id: Text, update: Update) {
        match self.updates.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(update);
            }
            Entry::Occupied(mut entry) => {
                let message = format!("replaces the definition in line {}", entry.get().line);
                let issue = Issue::new(Code::OperationReplaced, message);
                self.issues.push(issue.about(entry.key()).at(update.line));
                entry.insert(update);
            }
        }
    }

    fn finish(mut self) -> Document {
        let dialect = self.dialect.unwrap_or(Dialect::Flat);
        if !self.is_truncated {
            self.check_complete();
        }
        let mut definitions = IndexMap::with_capacity(self.updates.len());
        for (id, update) in self.updates {
            let definition = Definition {
                line: update.line,
                content: content(&id, &update, dialect, &mut self.issues),
            };
            definitions.insert(id, definition);
        }
        let begin = self.begin.unwrap_or_default();
        let order = begin.order.or_else(|| {
            let root = begin.root?;
            let ids = order_from(&root, &definitions);
            Some(Order {
                line: begin.line,
                ids,
            })
        });
        Document {
            execution_id: begin.execution_id,
            agent: begin.agent,
            input: begin.input,
            dialect,
            definitions,
            order,
            is_truncated: self.is_truncated,
            issues: self.issues,
        }
    }

    fn check_complete(&mut self) {
        if self.updates.is_empty() {
            self.issues
                .push(Issue::new(Code::EmptyWorkflow, "no operation is defined"));
        }
        if self.begin.is_none() {
            let message = "no beginExecution message";
            self.issues
                .push(Issue::new(Code::MissingBeginExecution, message));
        }
    }
}

/// Parses the action of an operation.
fn content(id: &Text, update: &Update, dialect: Dialect, issues: &mut Issues) -> Option<Content> {
    let operation = update.operation.as_ref()?;
    let mut scope = Scope {
        id,
        line: update.line,
        dialect,
        facts: Facts::default(),
        issues,
    };
    let Some(object) = operation.as_object() else {
        return scope.invalid("operation", "an object");
    };
    scope.refuse_repeated(object, "operation");
    let mut types = object.iter();
    let (Some((name, config)), None) = (types.next(), types.next()) else {
        let message = format!("operation: expected one type, found {}", object.len());
        scope.issue(Code::MultipleOperationTypes, message);
        return None;
    };
    let Some(of) = OperationType::from_name(name) else {
        let message = format!("{} is not an operation type", quote_name(name));
        let suggestion = scope
            .issues
            .nearest(name, OperationType::NAMES.iter().copied());
        scope.suggest(Code::UnknownOperationType, message, suggestion);
        return None;
    };
    let kind = config::read(&mut scope, of, config);
    Some(Content {
        of,
        kind,
        config: Secret(config.clone()),
        facts: scope.facts,
    })
}

/// The order of the wrapped dialect: the root, then all uncontrolled operations in order of definition
/// (docs/protocols/a2e-workflows.md §D1).
fn order_from(root: &Text, definitions: &IndexMap<Text, Definition>) -> Vec<Text> {
    let contents = definitions
        .values()
        .filter_map(|definition| definition.content.as_ref());
    let controlled: std::collections::HashSet<&Text> = contents
        .flat_map(|content| content.facts.controls())
        .collect();
    let others = definitions
        .keys()
        .filter(|id| *id != root && !controlled.contains(id));
    std::iter::once(root).chain(others).cloned().collect()
}
