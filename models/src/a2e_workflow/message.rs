//! Parses one line into a message of either dialect.

use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::a2e_workflow::fields::repeated;
use crate::a2e_workflow::issue::{Code, Issue, Issues, quote_name};
use crate::a2e_workflow::workflow::Dialect;
use crate::json::{Json, Object};
use a2abus_plugin::Text;
use a2abus_plugin::protocol::{is_operation_id, is_target};

/// The content of a message.
pub(super) enum Message {
    Updates(IndexMap<Text, Update>),
    Begin(Begin),
    Nothing,
}

/// A definition whose configuration is not parsed yet; `operation` is `None` when it is absent.
pub(super) struct Update {
    pub(super) line: u32,
    pub(super) operation: Option<Json>,
}

#[derive(Default)]
pub(super) struct Begin {
    pub(super) line: u32,
    pub(super) execution_id: Option<Text>,
    pub(super) agent: Option<Text>,
    pub(super) input: Option<Object>,
    /// In the flat dialect.
    pub(super) order: Option<Order>,
    /// In the wrapped dialect.
    pub(super) root: Option<Text>,
}

/// The order of execution, and its line.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) line: u32,
    pub(super) ids: Vec<Text>,
}

/// Reads the message of one line.
pub(super) struct Reader<'a> {
    pub(super) line: u32,
    pub(super) has_begun: bool,
    pub(super) issues: &'a mut Issues,
}

const UPDATE: &str = "operationUpdate";
const BEGIN: &str = "beginExecution";
const DATA_MODEL_UPDATE: &str = "dataModelUpdate";
const AGENT: &str = "_agentId";
const INPUT: &str = "input";

impl Reader<'_> {
    /// The message and its dialect; `None` if it is not a message.
    pub(super) fn message(&mut self, json: &Json) -> Option<(Dialect, Message)> {
        let Some(object) = json.as_object() else {
            let message = format!("expected an object, found {}", json.kind());
            self.issue(Code::NotAnObject, message, None);
            return None;
        };
        let message = match object.get("type") {
            None => {
                return self
                    .wrapped(object)
                    .map(|message| (Dialect::Wrapped, message));
            }
            Some(kind) => match kind.as_str() {
                Some(UPDATE) => self.flat_update(object),
                Some(BEGIN) => self.begin(|reader| reader.flat_begin(object)),
                word => {
                    let suggestion =
                        word.and_then(|word| self.issues.nearest(word, [UPDATE, BEGIN]));
                    let message = match word {
                        Some(word) => {
                            format!("a workflow has no messages of type {}", quote_name(word))
                        }
                        None => format!("the type of a message is a string, not {}", kind.kind()),
                    };
                    self.unknown(message, suggestion);
                    return None;
                }
            },
        };
        Some((Dialect::Flat, message))
    }

    // === the flat dialect ===

    fn flat_update(&mut self, object: &Object) -> Message {
        let id = object.get("operationId").and_then(Json::as_text).cloned();
        if self.is_after_begin(id.as_ref()) {
            return Message::Nothing;
        }
        self.check_members(object, &["type", "operationId", "operation"], id.as_ref());
        let update = self.definition(object, "operationId");
        Message::Updates(update.into_iter().collect())
    }

    fn flat_begin(&mut self, object: &Object) -> Begin {
        self.check_members(
            object,
            &["type", "executionId", "operationOrder", AGENT, INPUT],
            None,
        );
        Begin {
            line: self.line,
            execution_id: self.execution_id(object),
            agent: self.agent(object),
            input: self.input(object),
            order: self.order(object),
            root: None,
        }
    }

    fn execution_id(&mut self, object: &Object) -> Option<Text> {
        let id = self.required(object, "executionId", None)?;
        match id.as_text().filter(|id| is_operation_id(id)) {
            Some(id) => Some(id.clone()),
            None => self.invalid("executionId: expected 1 to 100 of A-Z a-z 0-9 _ -", None),
        }
    }

    fn order(&mut self, object: &Object) -> Option<Order> {
        const MAX_IDS: usize = 100;
        const EXPECTED: &str = "operationOrder: expected 1 to 100 strings";
        let order = self.required(object, "operationOrder", None)?;
        let ids = order.as_array().filter(|ids| !ids.is_empty());
        let ids = ids.and_then(|ids| ids.iter().map(|id| id.as_text().cloned()).collect());
        let Some(ids): Option<Vec<Text>> = ids else {
            return self.invalid(EXPECTED, None);
        };
        if ids.len() > MAX_IDS {
            self.issue(Code::InvalidField, EXPECTED.into(), None);
        }
        Some(Order {
            line: self.line,
            ids,
        })
    }

    // === the wrapped dialect ===

    fn wrapped(&mut self, object: &Object) -> Option<Message> {
        let names = [UPDATE, BEGIN, DATA_MODEL_UPDATE];
        let Some(name) = names.into_iter().find(|name| object.contains(name)) else {
            self.unknown("a message must have a type".into(), None);
            return None;
        };
        let known = [name, AGENT];
        let known = if name == BEGIN {
            &known
        } else {
            known.get(..1).unwrap_or_default()
        };
        self.check_members(object, known, None);
        let Some(content) = object.get(name).and_then(Json::as_object) else {
            return self.invalid(&format!("{name}: expected an object"), None);
        };
        Some(match name {
            UPDATE => self.wrapped_update(content),
            BEGIN => self.begin(|reader| reader.wrapped_begin(object, content)),
            _ => {
                if !self.is_after_begin(None) {
                    let message = format!("{DATA_MODEL_UPDATE}: data is sent with the request");
                    self.issue(Code::IgnoredMessage, message, None);
                }
                Message::Nothing
            }
        })
    }

    fn wrapped_update(&mut self, content: &Object) -> Message {
        if self.is_after_begin(None) {
            return Message::Nothing;
        }
        self.check_members(content, &["workflowId", "operations"], None);
        let mut updates = IndexMap::new();
        let items = self
            .required(content, "operations", None)
            .and_then(|items| {
                let items = items.as_array();
                items.or_else(|| self.invalid("operations: expected an array", None))
            });
        for item in items.into_iter().flatten() {
            let Some(item) = item.as_object() else {
                self.issue(
                    Code::InvalidField,
                    "operations: expected objects".into(),
                    None,
                );
                continue;
            };
            let id = item.get("id").and_then(Json::as_text);
            self.check_members(item, &["id", "operation"], id);
            let Some((id, update)) = self.definition(item, "id") else {
                continue;
            };
            match updates.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(update);
                }
                Entry::Occupied(entry) => {
                    let message = "the id occurs twice in one list of operations";
                    self.issue(Code::DuplicateOperation, message.into(), Some(entry.key()));
                }
            }
        }
        Message::Updates(updates)
    }

    fn wrapped_begin(&mut self, object: &Object, content: &Object) -> Begin {
        self.check_members(content, &["workflowId", "root", INPUT], None);
        let root = self.required(content, "root", None);
        let root = root.and_then(|root| match root.as_text() {
            Some(root) => Some(root.clone()),
            None => self.invalid("root: expected a string", None),
        });
        Begin {
            line: self.line,
            execution_id: None,
            agent: self.agent(object),
            input: self.input(content),
            order: None,
            root,
        }
    }

    // === both ===

    fn definition(&mut self, object: &Object, id_name: &str) -> Option<(Text, Update)> {
        let id = match self.required(object, id_name, None) {
            Some(Json::String(id)) => Some(id.clone()),
            Some(_) => self.invalid(&format!("{id_name}: expected a string"), None),
            None => None,
        };
        let operation = self.required(object, "operation", id.as_ref()).cloned();
        let id = id?;
        if !is_operation_id(&id) {
            let message = format!("{id_name}: expected 1 to 100 of A-Z a-z 0-9 _ -");
            self.issue(Code::InvalidField, message, Some(&id));
        }
        Some((
            id,
            Update {
                line: self.line,
                operation,
            },
        ))
    }

    /// Nothing may follow the begin message (docs/protocols/a2e-workflows.md §D3).
    fn begin(&mut self, read: impl FnOnce(&mut Self) -> Begin) -> Message {
        if self.has_begun {
            let message = "a second message begins the execution";
            self.issue(Code::MultipleBeginExecution, message.into(), None);
            return Message::Nothing;
        }
        Message::Begin(read(self))
    }

    fn is_after_begin(&mut self, id: Option<&Text>) -> bool {
        if self.has_begun {
            let message = "nothing may follow the message that begins execution";
            self.issue(Code::UpdateAfterBegin, message.into(), id);
        }
        self.has_begun
    }

    fn agent(&mut self, object: &Object) -> Option<Text> {
        let agent = object.get(AGENT)?;
        match agent.as_text().filter(|agent| is_target(agent)) {
            Some(agent) => Some(agent.clone()),
            None => self.invalid(
                "_agentId: expected 1 to 256 of A-Z a-z 0-9 . _ - / : @ +",
                None,
            ),
        }
    }

    /// The initial data. An extension that corresponds to the `input` of a request, because lines on the bus have no
    /// enclosing request. Source: docs/protocols/a2e-workflows.md §D5.
    fn input(&mut self, object: &Object) -> Option<Object> {
        match object.get(INPUT)? {
            Json::Null => None,
            Json::Object(input) => Some(input.clone()),
            _ => self.invalid("input: expected an object", None),
        }
    }

    fn required<'o>(
        &mut self,
        object: &'o Object,
        name: &str,
        id: Option<&Text>,
    ) -> Option<&'o Json> {
        let member = object.get(name);
        if member.is_none() {
            self.issue(Code::MissingField, format!("{name} is missing"), id);
        }
        member
    }

    fn invalid<T>(&mut self, message: &str, id: Option<&Text>) -> Option<T> {
        self.issue(Code::InvalidField, message.to_owned(), id);
        None
    }

    fn unknown(&mut self, message: String, suggestion: Option<String>) {
        let issue = Issue::new(Code::UnknownMessageType, message).at(self.line);
        self.issues.push(issue.suggest(suggestion));
    }

    /// Warns about unknown members of a message (docs/protocols/a2e-workflows.md §D4), and refuses repeated ones.
    fn check_members(&mut self, object: &Object, known: &[&str], id: Option<&Text>) {
        for name in object.repeated() {
            self.issue(Code::InvalidField, repeated(name), id);
        }
        for (name, _) in object
            .iter()
            .filter(|(name, _)| !known.contains(&name.as_str()))
        {
            self.issue(
                Code::UnknownField,
                format!("unknown member {}", quote_name(name)),
                id,
            );
        }
    }

    fn issue(&mut self, code: Code, message: String, id: Option<&Text>) {
        let mut issue = Issue::new(code, message).at(self.line);
        issue.operation_id = id.cloned();
        self.issues.push(issue);
    }
}
