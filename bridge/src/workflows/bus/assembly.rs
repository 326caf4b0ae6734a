//! Workflows that arrive line by line, each line as a separate event.
//!
//! Lines with the same requester and `collaborationid` form one workflow. If all have `seq`, they are sorted by it, and
//! the workflow is complete when none is missing; a line replaces an earlier one with the same `seq` and another text.
//! Otherwise they stay in the order of arrival, and the `beginExecution` line is the last. The deliveries stay
//! unsettled meanwhile, within the budget of the subscription. Incomplete workflows must not fill it, so they get half
//! of it. When that is used up, the oldest workflow of the requester that holds most is answered as incomplete. None
//! waits longer than [`LIFETIME`]. Copies of the lines of a workflow that is complete are dropped, unless they make all
//! of it again. Source: docs/protocols/a2e-workflows.md §11.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::Request;
use a2abus_models::a2e_workflow::{Code, Document, Issue, Policy, Strictness, WorkflowLimits};
use a2abus_plugin::Text;
use a2abus_plugin::protocol::jsonrpc::code;
use bytes::Bytes;
use tokio::time::Instant;

use super::ask::{Action, Cancel, Job};
use super::client::{WorkflowClient, identity};
use super::refused::WorkflowRefusal;
use crate::pipeline::held::Held;
use crate::recent::Recent;

/// How long to wait for the next line.
const IDLE: Duration = Duration::from_secs(60);
/// How long to wait for all lines.
const LIFETIME: Duration = Duration::from_secs(300);
/// Maximum number of incomplete workflows of a binding.
const MAX_OPEN: usize = 256;
/// How often a workflow is parsed to find out whether it lacks line 0: once for each different `beginExecution` line,
/// and after a line is replaced. It is parsed on the task that serves the binding, so a sender must not be able to
/// repeat that at will.
const MAX_CHECKS: u32 = 4;
/// Maximum number of complete workflows whose lines are remembered.
const MAX_REMEMBERED: usize = 256;
/// Maximum number of lines of such a workflow. Those of a longer one are not remembered.
const MAX_REMEMBERED_LINES: usize = 256;

/// The incomplete workflows.
#[derive(Debug)]
pub(super) struct Assemblies {
    open: HashMap<AssemblyKey, Assembly>,
    /// The latest complete workflows.
    complete: Recent<AssemblyKey, Complete>,
    limits: WorkflowLimits,
    bounds: Budget,
}

/// The limits of a binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Messages.
    pub(super) messages: usize,
    /// Bytes of their bodies.
    pub(super) bytes: usize,
}

/// What becomes of a line.
#[derive(Debug)]
pub(super) enum Added {
    /// It waits for other lines.
    Waits,
    /// It makes its workflow complete or too large.
    Whole(CompleteWorkflow),
    /// It is the `beginExecution` line of a workflow that was sent again after its cancel.
    Cancelled(CompleteWorkflow),
    /// Its workflow was answered before.
    Late(Arc<Held>),
    /// It and the lines before it are copies of lines of a complete workflow.
    Copies(Vec<Arc<Held>>),
}

/// Lines that wait no longer.
#[derive(Debug)]
pub(super) enum GivenUp {
    /// An incomplete workflow, which is answered.
    Incomplete {
        part: CompleteWorkflow,
        why: Incomplete,
        /// The lines that have arrived, for people.
        arrived: String,
    },
    /// Copies of lines of a complete workflow.
    Copies(Vec<Arc<Held>>),
}

/// Why an incomplete workflow is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incomplete {
    /// The next line did not arrive in time.
    Idle,
    /// The last line did not arrive in time.
    Overdue,
    /// There are too many incomplete workflows.
    Crowded,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AssemblyKey {
    requester: Option<Text>,
    collaboration_id: Text,
}

#[derive(Debug)]
struct Assembly {
    lines: Vec<Line>,
    bytes: usize,
    begin: Option<Box<Job>>,
    held: Vec<Arc<Held>>,
    began: Instant,
    touched: Instant,
    /// Why it is over. Its further lines are dropped.
    over: Option<Over>,
    /// Whether operations were missing although all lines from 1 were there. Then only line 0 completes the workflow.
    is_lacking: bool,
    /// How often the workflow was parsed to find that out.
    checks: u32,
}

/// Why an assembly takes no further lines.
#[derive(Debug)]
enum Over {
    /// It was cancelled, and answered.
    Cancelled(Sent),
    TooLarge,
}

/// What shows that a cancelled workflow is sent again: a new line with the number of its first one.
#[derive(Debug)]
struct Sent {
    /// The `seq` and the identity of the first numbered line before the cancel.
    first: Option<(i64, Text)>,
    is_repeated: bool,
}

/// A workflow that was complete.
#[derive(Debug)]
struct Complete {
    /// The hashes of its lines.
    lines: HashSet<Text>,
    /// The identity of its `beginExecution` line.
    begin: Text,
    since: Instant,
}

/// How an assembly relates to the complete workflow of its requester and `collaborationid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeats {
    /// It has other lines, or there is no such workflow.
    Nothing,
    /// It has copies of some lines, and no others.
    Part,
    /// It has copies of all lines, and no others: the workflow is sent again.
    Everything,
}

#[derive(Debug)]
struct Line {
    client: WorkflowClient,
    body: Bytes,
    /// A hash of its `seq` and text.
    digest: Text,
    /// The identities of the lines that it has replaced. They may be redelivered.
    replaced: Vec<Text>,
}

/// A workflow and its deliveries.
#[derive(Debug)]
pub(super) struct CompleteWorkflow {
    pub(super) job: Box<Job>,
    pub(super) held: Vec<Arc<Held>>,
}

// === impl Assemblies ===

impl Assemblies {
    /// The assemblies of a binding with this budget.
    pub(super) fn new(limits: WorkflowLimits, budget: Budget) -> Self {
        Self {
            open: HashMap::new(),
            complete: Recent::new(MAX_REMEMBERED),
            limits,
            bounds: Budget {
                messages: budget.messages / 2,
                bytes: budget.bytes / 2,
            },
        }
    }

    /// Adds a line.
    pub(super) fn line(&mut self, client: WorkflowClient, body: Bytes, held: Arc<Held>) -> Added {
        let Some(key) = AssemblyKey::of(&client) else {
            return Added::Waits;
        };
        let assembly = self.open.entry(key.clone()).or_insert_with(Assembly::new);
        assembly.touched = Instant::now();
        if let Some(over) = &mut assembly.over {
            over.note(&client);
            return Added::Late(held);
        }
        assembly.held.push(held);
        assembly.add(Line::new(client, body));
        if assembly.bytes > self.limits.max_bytes {
            assembly.over = Some(Over::TooLarge);
            return Added::of(assembly.take());
        }
        self.if_whole(&key)
    }

    /// Whether this line replaces an earlier one.
    pub(super) fn replaces(&self, client: &WorkflowClient, body: &Bytes) -> bool {
        let open = AssemblyKey::of(client).and_then(|key| self.open.get(&key));
        open.and_then(|assembly| assembly.lines.iter().find(|line| line.is(client)))
            .is_some_and(|line| line.differs(client, body))
    }

    /// Adds the `beginExecution` line.
    pub(super) fn begin(&mut self, job: Box<Job>, held: Arc<Held>) -> Added {
        let key = AssemblyKey::of(&job.client);
        let is_known = key
            .as_ref()
            .is_some_and(|key| self.open.contains_key(key) || self.complete.contains(key));
        // A single line can be a complete workflow.
        let (Some(key), true) = (key, is_known || job.client.seq.is_some_and(|seq| seq > 0)) else {
            let held = vec![held];
            return Added::Whole(CompleteWorkflow { job, held });
        };
        let assembly = self.open.entry(key.clone()).or_insert_with(Assembly::new);
        assembly.touched = Instant::now();
        if let Some(mut over) = assembly.over.take() {
            over.note(&job.client);
            self.open.remove(&key);
            return match over {
                // The sender of the new workflow waits for an answer.
                Over::Cancelled(sent) if sent.is_repeated => {
                    let held = vec![held];
                    Added::Cancelled(CompleteWorkflow { job, held })
                }
                Over::Cancelled(_) | Over::TooLarge => Added::Late(held),
            };
        }
        assembly.held.push(held);
        let mut job = job;
        if self.complete.contains(&key) {
            job.read_execution_id(&self.limits);
        }
        assembly.begin_with(job);
        self.if_whole(&key)
    }

    fn if_whole(&mut self, key: &AssemblyKey) -> Added {
        let Some(assembly) = self.open.get_mut(key) else {
            return Added::Waits;
        };
        if assembly.repeats(self.complete.get(key)) == Repeats::Part {
            // Without `seq`, the `beginExecution` line is the last.
            let begin = assembly.begin.as_ref();
            if begin.is_none_or(|begin| begin.client.seq.is_some()) {
                return Added::Waits;
            }
            let copies = self.open.remove(key);
            return Added::Copies(copies.map_or_else(Vec::new, |copies| copies.held));
        }
        if !assembly.is_whole(&self.limits) {
            return Added::Waits;
        }
        let Some(whole) = self.open.remove(key) else {
            return Added::Waits;
        };
        if whole.lines.len() < MAX_REMEMBERED_LINES
            && let Some(begin) = &whole.begin
        {
            let complete = Complete {
                lines: whole.digests().collect(),
                begin: begin.client.identity.clone(),
                since: Instant::now(),
            };
            self.complete.insert(key.clone(), complete);
        }
        Added::of(whole.into_whole())
    }

    /// When the first workflow times out.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.open.values().map(Assembly::due).min()
    }

    /// The workflows that have timed out, and those for which there is no room. Forgets those that are over.
    pub(super) fn given_up(&mut self) -> Vec<GivenUp> {
        let now = Instant::now();
        let due = self.open.extract_if(|_, assembly| assembly.due() <= now);
        let mut given_up: Vec<(AssemblyKey, Assembly, Incomplete)> = due
            .map(|(key, assembly)| {
                let why = if assembly.touched + IDLE <= now {
                    Incomplete::Idle
                } else {
                    Incomplete::Overdue
                };
                (key, assembly, why)
            })
            .collect();
        while self.is_crowded() {
            let Some(key) = self.next_to_go() else { break };
            let Some(assembly) = self.open.remove(&key) else {
                break;
            };
            given_up.push((key, assembly, Incomplete::Crowded));
        }
        // If all lines have moved to another bridge meanwhile, that bridge answers.
        let is_ours = |assembly: &Assembly| assembly.held.iter().any(|held| held.is_current());
        given_up
            .into_iter()
            .filter(|(_, assembly, _)| is_ours(assembly))
            .filter_map(|(key, assembly, why)| {
                if assembly.repeats(self.complete.get(&key)) != Repeats::Nothing {
                    return Some(GivenUp::Copies(assembly.held));
                }
                let arrived = assembly.arrived();
                let part = assembly.into_whole()?;
                Some(GivenUp::Incomplete { part, why, arrived })
            })
            .collect()
    }

    fn is_crowded(&self) -> bool {
        let messages: usize = self.open.values().map(|one| one.held.len()).sum();
        let bytes: usize = self.open.values().map(Assembly::held_bytes).sum();
        self.open.len() > MAX_OPEN || messages > self.bounds.messages || bytes > self.bounds.bytes
    }

    /// The oldest workflow of the requester that holds most deliveries.
    fn next_to_go(&self) -> Option<AssemblyKey> {
        let mut holds: HashMap<Option<&Text>, usize> = HashMap::new();
        for (key, assembly) in &self.open {
            // An ended workflow holds no deliveries, but still counts.
            *holds.entry(key.requester.as_ref()).or_default() += 1 + assembly.held.len();
        }
        let (most, _) = holds.into_iter().max_by_key(|(_, held)| *held)?;
        let own = self
            .open
            .iter()
            .filter(|(key, _)| key.requester.as_ref() == most);
        let (oldest, _) = own.min_by_key(|(_, assembly)| assembly.began)?;
        Some(oldest.clone())
    }

    /// Cancels the workflow with this name, if it is here, and returns its lines. Its further lines are dropped.
    pub(super) fn cancel(&mut self, cancel: &Cancel) -> Option<CompleteWorkflow> {
        let key = AssemblyKey {
            requester: cancel.requester.clone(),
            collaboration_id: cancel.name.clone(),
        };
        let assembly = self.open.get_mut(&key)?;
        assembly.touched = Instant::now();
        if assembly.over.is_none() {
            assembly.over = Some(Over::Cancelled(assembly.sent()));
        }
        assembly.take()
    }

    /// Removes all workflows, which are incomplete.
    pub(super) fn give_up(&mut self) -> Vec<CompleteWorkflow> {
        let complete = &self.complete;
        let left = self.open.drain().filter_map(|(key, assembly)| {
            if assembly.repeats(complete.get(&key)) != Repeats::Nothing {
                // Their workflow has an answer of its own.
                assembly.held.into_iter().for_each(Held::give_up);
                return None;
            }
            assembly.into_whole()
        });
        left.collect()
    }
}

// === impl Added ===

impl Added {
    fn of(whole: Option<CompleteWorkflow>) -> Self {
        whole.map_or(Self::Waits, Self::Whole)
    }
}

// === impl Incomplete ===

impl Incomplete {
    /// The refusal of an incomplete workflow.
    pub(super) fn refused(self) -> WorkflowRefusal {
        let (kind, reason) = match self {
            Self::Idle | Self::Overdue => ("TimeoutError", "incomplete_workflow"),
            Self::Crowded => ("ExecutionError", "too_many_incomplete"),
        };
        let suggestion = match self {
            Self::Idle | Self::Overdue => {
                "send the workflow as one event; if several replicas read this topic, another one may have the other lines: on Kafka, give all lines of a workflow the same key"
            }
            Self::Crowded => "send the workflow as one event",
        };
        WorkflowRefusal::new(
            code::INTERNAL_ERROR,
            kind,
            reason,
            self.message(),
            suggestion,
        )
    }

    /// A description for people.
    pub(super) fn message(self) -> String {
        match self {
            Self::Idle => format!(
                "no line of the workflow arrived for {} s, and it is incomplete",
                IDLE.as_secs()
            ),
            Self::Overdue => format!(
                "the workflow was incomplete {} s after its first line",
                LIFETIME.as_secs()
            ),
            Self::Crowded => format!(
                "too many incomplete workflows on this binding: at most {MAX_OPEN}, in half of its budget_messages and budget_bytes"
            ),
        }
    }
}

// === impl Over ===

impl Over {
    /// Notes a line that arrives afterwards.
    fn note(&mut self, client: &WorkflowClient) {
        if let Self::Cancelled(sent) = self
            && let Some((seq, identity)) = &sent.first
        {
            // A redelivered line has the same identity.
            sent.is_repeated |= client.seq == Some(*seq) && client.identity != *identity;
        }
    }
}

// === impl AssemblyKey ===

impl AssemblyKey {
    fn of(client: &WorkflowClient) -> Option<Self> {
        Some(Self {
            requester: client.requester.clone(),
            collaboration_id: client.collaboration_id.clone()?,
        })
    }
}

// === impl Assembly ===

impl Assembly {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            lines: Vec::new(),
            bytes: 0,
            begin: None,
            held: Vec::new(),
            began: now,
            touched: now,
            over: None,
            is_lacking: false,
            checks: 0,
        }
    }

    /// Sets the `beginExecution` line. A repeated one changes nothing.
    fn begin_with(&mut self, job: Box<Job>) {
        let known = self.begin.as_ref();
        let is_same = known.is_some_and(|known| {
            known.request.workflow == job.request.workflow && known.client.seq == job.client.seq
        });
        if !is_same {
            self.is_lacking = self.checks >= MAX_CHECKS;
        }
        self.begin = Some(job);
    }

    /// Which lines have arrived: how many, the first few of their numbers, and whether the last one is among them.
    fn arrived(&self) -> String {
        const MAX_SHOWN: usize = 16;
        let begin = self.begin.iter().map(|begin| begin.client.seq);
        let all = self.lines.iter().map(|line| line.client.seq).chain(begin);
        let seqs: BTreeSet<i64> = all.flatten().collect();
        let shown = seqs.iter().take(MAX_SHOWN).map(i64::to_string);
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = seqs.len().saturating_sub(MAX_SHOWN);
        let count = self.lines.len() + usize::from(self.begin.is_some());
        let begin = match self.begin {
            Some(_) => "with",
            None => "without",
        };
        match (shown.is_empty(), more) {
            (true, _) => format!("{count} {begin} beginExecution, no seq"),
            (false, 0) => format!("{count} {begin} beginExecution, seq {shown}"),
            (false, more) => {
                format!("{count} {begin} beginExecution, seq {shown} and {more} more")
            }
        }
    }

    /// The hashes of its lines.
    fn digests(&self) -> impl Iterator<Item = Text> {
        let begin = self.begin.as_ref();
        let begin = begin.map(|begin| digest(&begin.client, &begin.request.workflow));
        let lines = self.lines.iter().map(|line| line.digest.clone());
        lines.chain(begin)
    }

    /// How it relates to a complete workflow.
    fn repeats(&self, complete: Option<&Complete>) -> Repeats {
        let Some(complete) = complete.filter(|complete| complete.since.elapsed() < LIFETIME) else {
            return Repeats::Nothing;
        };
        // Another `beginExecution` line that names no execution begins a new one, whose requester waits for an answer.
        let is_new =
            |begin: &Job| begin.execution_id.is_none() && begin.client.identity != complete.begin;
        if self.begin.as_deref().is_some_and(is_new) {
            return Repeats::Nothing;
        }
        let mut own = HashSet::new();
        for line in self.digests() {
            if !complete.lines.contains(&line) {
                return Repeats::Nothing;
            }
            own.insert(line);
        }
        match own.len() == complete.lines.len() {
            true => Repeats::Everything,
            false => Repeats::Part,
        }
    }

    /// When it times out.
    fn due(&self) -> Instant {
        (self.touched + IDLE).min(self.began + LIFETIME)
    }

    fn held_bytes(&self) -> usize {
        let bodies = self
            .held
            .iter()
            .filter_map(|held| held.message.body.as_ref());
        bodies.map(Bytes::len).sum()
    }

    /// Adds a line, unless it was already delivered. Its sender may have started again with another workflow, so it
    /// replaces a different line with the same number.
    fn add(&mut self, mut line: Line) {
        match self.lines.iter_mut().find(|known| known.is(&line.client)) {
            None => {
                self.bytes += line.body.len() + 1;
                self.lines.push(line);
            }
            Some(known) if known.differs(&line.client, &line.body) => {
                self.bytes = self.bytes - known.body.len() + line.body.len();
                line.replaced = std::mem::take(&mut known.replaced);
                line.replaced.push(known.client.identity.clone());
                *known = line;
                self.is_lacking = self.checks >= MAX_CHECKS;
            }
            Some(_) => {}
        }
    }

    /// The first line, by which a workflow that is sent again is recognised.
    fn sent(&self) -> Sent {
        let begin = self.begin.iter().map(|begin| &begin.client);
        let clients = self.lines.iter().map(|line| &line.client).chain(begin);
        let numbered = clients.filter_map(|client| Some((client.seq?, client.identity.clone())));
        Sent {
            first: numbered.min_by_key(|(seq, _)| *seq),
            is_repeated: false,
        }
    }

    fn is_whole(&mut self, limits: &WorkflowLimits) -> bool {
        let Some(begin) = &self.begin else {
            return false;
        };
        let Some(last) = begin.client.seq else {
            return true;
        };
        let places: Option<BTreeMap<i64, ()>> = self
            .lines
            .iter()
            .map(|line| line.client.seq.map(|seq| (seq, ())))
            .collect();
        let Some(places) = places else {
            return true;
        };
        let before = |first: i64| {
            let there = places.range(first..last.max(first)).count();
            i64::try_from(there).is_ok_and(|there| last.checked_sub(first) == Some(there))
        };
        if before(0) {
            return true;
        }
        if !before(1) || self.is_lacking {
            return false;
        }
        // Some clients count from 1. Then only the workflow itself shows that there is no line 0.
        self.checks += 1;
        self.is_lacking = !self.defines_its_operations(limits);
        !self.is_lacking
    }

    /// Whether all operations that the workflow names are defined, whatever else is wrong with it.
    fn defines_its_operations(&self, limits: &WorkflowLimits) -> bool {
        let text = self.text(self.begin.as_deref());
        let document = Document::parse(&text, limits);
        let report = document.validate(&Policy::default(), None, Strictness::default());
        let is_missing =
            |issue: &Issue| matches!(issue.code, Code::UnknownOperation | Code::EmptyWorkflow);
        !report.errors.iter().any(is_missing)
    }

    /// The lines in order, with the `beginExecution` line last.
    fn text(&self, begin: Option<&Job>) -> Bytes {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        if lines.iter().all(|line| line.client.seq.is_some()) {
            lines.sort_by_key(|line| line.client.seq);
        }
        let begin = begin.map(|begin| &begin.request.workflow);
        let bodies = lines.iter().map(|line| &line.body).chain(begin);
        let mut text = Vec::with_capacity(self.bytes + begin.map_or(0, Bytes::len));
        for body in bodies {
            text.extend_from_slice(body.trim_ascii());
            text.push(b'\n');
        }
        text.into()
    }

    /// The lines so far as a workflow, with their deliveries.
    fn take(&mut self) -> Option<CompleteWorkflow> {
        let whole = Self {
            lines: std::mem::take(&mut self.lines),
            begin: self.begin.take(),
            held: std::mem::take(&mut self.held),
            over: None,
            ..*self
        };
        whole.into_whole()
    }

    fn into_whole(self) -> Option<CompleteWorkflow> {
        let workflow = self.text(self.begin.as_deref());
        let mut job = match (self.begin, self.lines.into_iter().next()) {
            (Some(begin), _) => begin,
            (None, Some(first)) => Box::new(Job {
                action: Action::Execute,
                request: Request::default(),
                client: first.client,
                is_begin_line: false,
                execution_id: None,
            }),
            (None, None) => return None,
        };
        job.request.workflow = workflow;
        Some(CompleteWorkflow {
            job,
            held: self.held,
        })
    }
}

// === impl Line ===

impl Line {
    fn new(client: WorkflowClient, body: Bytes) -> Self {
        Self {
            digest: digest(&client, &body),
            client,
            body,
            replaced: Vec::new(),
        }
    }

    /// Whether a line is this one, or has the same number.
    fn is(&self, client: &WorkflowClient) -> bool {
        let known = &self.client;
        known.identity == client.identity || (known.seq.is_some() && known.seq == client.seq)
    }

    /// Whether a line with the same number is a new one. A line that its sender repeats has the same text.
    fn differs(&self, client: &WorkflowClient, body: &Bytes) -> bool {
        let is_known =
            self.client.identity == client.identity || self.replaced.contains(&client.identity);
        !is_known && self.body.trim_ascii() != body.trim_ascii()
    }
}

/// A hash of the `seq` and the text of a line, which its sender repeats when it sends the line again.
fn digest(client: &WorkflowClient, line: &Bytes) -> Text {
    let seq = client.seq.map(i64::to_be_bytes);
    let seq = seq.as_ref().map_or(&b""[..], |seq| &seq[..]);
    identity([seq, line.trim_ascii()])
}

#[cfg(test)]
mod tests {
    use super::super::client::{AnswerForm, Progress};
    use super::*;

    fn client(seq: i64) -> WorkflowClient {
        WorkflowClient {
            identity: format!("line-{seq}").into(),
            source: Text::from_static("/reporter"),
            requester: None,
            reply_to: None,
            progress: Progress::Nowhere,
            address_refused: None,
            form: AnswerForm::Events,
            collaboration_id: Some(Text::from_static("c-1")),
            call_id: None,
            key: None,
            correlation: None,
            deadline: None,
            seq: Some(seq),
            has_bad_seq: false,
            trace: Vec::new(),
            headers: Vec::new(),
        }
    }

    fn begin(seq: i64, order: &str) -> Box<Job> {
        let line = format!(
            r#"{{"type":"beginExecution","executionId":"e-1","operationOrder":["{order}"]}}"#
        );
        Box::new(Job {
            action: Action::Execute,
            request: Request {
                workflow: line.into(),
                ..Request::default()
            },
            client: client(seq),
            is_begin_line: true,
            execution_id: None,
        })
    }

    #[test]
    fn a_begin_line_is_checked_once_however_often_it_is_sent() {
        let limits = WorkflowLimits::default();
        let mut assembly = Assembly::new();
        let line =
            r#"{"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":1}}}"#;
        assembly.add(Line::new(client(1), Bytes::from_static(line.as_bytes())));
        for _ in 0..10 {
            assembly.begin_with(begin(2, "missing"));
            assert!(!assembly.is_whole(&limits));
        }
        assert_eq!(assembly.checks, 1);
        for number in 0..10 {
            assembly.begin_with(begin(2, &format!("missing-{number}")));
            assert!(!assembly.is_whole(&limits));
        }
        assert_eq!(assembly.checks, MAX_CHECKS);
        // Line 0 completes it nevertheless.
        let line = Bytes::from_static(line.as_bytes());
        assembly.add(Line::new(client(0), line.clone()));
        assert!(assembly.is_whole(&limits));

        let mut assembly = Assembly::new();
        assembly.add(Line::new(client(1), line));
        assembly.begin_with(begin(2, "missing"));
        assert!(!assembly.is_whole(&limits));
        assembly.begin_with(begin(2, "w"));
        assert!(assembly.is_whole(&limits), "another line is checked again");
    }

    #[test]
    fn an_incomplete_workflow_shows_which_lines_have_arrived() {
        let mut assembly = Assembly::new();
        let line = |seq| Line::new(client(seq), Bytes::from_static(b"{}"));
        assembly.add(line(2));
        assembly.add(line(0));
        assert_eq!(assembly.arrived(), "2 without beginExecution, seq 0, 2");
        assembly.begin_with(begin(3, "w"));
        assert_eq!(assembly.arrived(), "3 with beginExecution, seq 0, 2, 3");
        (4..20).for_each(|seq| assembly.add(line(seq)));
        let shown = assembly.arrived();
        assert!(shown.ends_with(", 15, 16 and 3 more"), "{shown}");

        let mut assembly = Assembly::new();
        let unnumbered = WorkflowClient {
            seq: None,
            ..client(0)
        };
        assembly.add(Line::new(unnumbered, Bytes::from_static(b"{}")));
        assert_eq!(assembly.arrived(), "1 without beginExecution, no seq");
    }

    #[test]
    fn a_line_that_was_replaced_does_not_come_back_when_it_is_redelivered() {
        let named = |identity: &str, seq| WorkflowClient {
            identity: identity.into(),
            ..client(seq)
        };
        let mut assembly = Assembly::new();
        // Lines that were replaced are redelivered.
        for (identity, body, expected) in [
            ("first", "one", "one"),
            ("copy", "one\n", "one"),
            ("second", "two", "two"),
            ("first", "one", "two"),
            ("third", "three", "three"),
            ("first", "one", "three"),
            ("second", "two", "three"),
        ] {
            assembly.add(Line::new(named(identity, 1), body.into()));
            assert_eq!(assembly.lines.len(), 1);
            assert_eq!(assembly.lines[0].body, expected, "{identity}");
            assert_eq!(assembly.bytes, expected.len() + 1, "{identity}");
        }
        assembly.add(Line::new(named("other", 2), "one".into()));
        assert_eq!(assembly.lines.len(), 2);
    }
}
