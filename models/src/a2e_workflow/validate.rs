//! Validation beyond the form. Source: docs/protocols/a2e-workflows.md §3.

use std::collections::BTreeSet;

use crate::a2e_workflow::document::{Content, Document};
use crate::a2e_workflow::flow;
use crate::a2e_workflow::graph::Graph;
use crate::a2e_workflow::issue::{Code, Issue, Issues, Report, Strictness, nearest, quote_name};
use crate::a2e_workflow::policy::{CredentialRefusal, Policy, Refusal};
use crate::a2e_workflow::storage::Storage;
use crate::json::Object;
use a2abus_plugin::Text;

impl Document {
    /// Validates the workflow on all five levels: its form, the permissions, and, if there is an order, whether
    /// references exist and have the right type. `input` is the initial data of the request, in addition to the `input`
    /// of the begin line.
    #[must_use]
    pub fn validate(
        &self,
        policy: &Policy,
        input: Option<&Object>,
        strictness: Strictness,
    ) -> Report {
        let mut issues = self.issues.clone();
        if self.definitions.len() > policy.max_operations {
            let (defined, most) = (self.definitions.len(), policy.max_operations);
            let message = format!("{defined} operations, more than the limit of {most}");
            issues.push(Issue::new(Code::TooManyOperations, message));
        }
        self.check_permissions(policy, &mut issues);
        // What a missing line defines would be reported as unknown.
        let order = self.order.as_ref().filter(|_| !self.is_truncated);
        if let Some(order) = order {
            let graph = Graph::new(self, order);
            if graph.check(&mut issues) {
                let inputs = [self.input.as_ref(), input];
                flow::check(&graph, policy, inputs, &mut issues);
            }
        }
        Report::new(issues.into_vec(), strictness)
    }

    fn check_permissions(&self, policy: &Policy, issues: &mut Issues) {
        for (id, definition) in &self.definitions {
            if let Some(content) = &definition.content {
                let mut report = |code, message: String, suggestion| {
                    let issue = Issue::new(code, message).about(id).at(definition.line);
                    issues.push(issue.suggest(suggestion));
                };
                check_operation(content, policy, &mut report);
            }
        }
    }
}

/// Reports a code, a message and a suggestion.
type ReportIssue<'a> = dyn FnMut(Code, String, Option<String>) + 'a;

fn check_operation(content: &Content, policy: &Policy, report: &mut ReportIssue<'_>) {
    if !policy.permits_operation(content.of) {
        let message = format!("{} is not permitted", content.of.as_str());
        report(Code::OperationNotPermitted, message, None);
    }
    let read = content
        .facts
        .reads
        .iter()
        .filter_map(|read| read.path.storage());
    let storages = content.facts.storage.into_iter().chain(read);
    let refused: BTreeSet<&str> = storages
        .filter(|storage| !policy.permits_storage(*storage))
        .map(Storage::as_str)
        .collect();
    for storage in refused {
        let message = format!("storage {storage} is not permitted");
        report(Code::StorageNotPermitted, message, None);
    }
    if let Some(target) = &content.facts.target
        && let Err(refusal) = policy.check_target(target)
    {
        let (code, message) = match refusal {
            Refusal::Forbidden(why) => {
                let host = target.host().unwrap_or("it");
                let message = format!("url: {host} may not be called: {why}");
                (Code::ForbiddenTarget, message)
            }
            Refusal::NotPermitted => {
                let message = "url: no permitted API covers it";
                (Code::ApiNotPermitted, message.to_owned())
            }
        };
        report(code, message, permitted_apis(policy));
    }
    for (at, id) in &content.facts.credentials {
        check_credential((at.as_str(), id), content, policy, report);
    }
}

/// Lists the APIs that an agent may call, as its capabilities do.
fn permitted_apis(policy: &Policy) -> Option<String> {
    const NAMED: usize = 5;
    let bases = policy.apis.bases.iter().take(NAMED);
    let bases: Vec<_> = bases.map(ToString::to_string).collect();
    (!bases.is_empty()).then(|| format!("permitted: {}", bases.join(", ")))
}

fn check_credential(
    (at, id): (&str, &Text),
    content: &Content,
    policy: &Policy,
    report: &mut ReportIssue<'_>,
) {
    // Suggest only permitted names, because the others are confidential.
    let permitted = || {
        let known = policy.bindings.keys().map(Text::as_str);
        nearest(id, known.filter(|known| policy.credentials.contains(known)))
    };
    let (code, reason, suggestion) =
        match policy.check_credential(id, content.facts.target.as_ref()) {
            Ok(()) => return,
            Err(CredentialRefusal::NotFound) => (
                Code::CredentialNotFound,
                "there is no such credential",
                permitted(),
            ),
            Err(CredentialRefusal::NotPermitted) => (
                Code::CredentialNotPermitted,
                "it is not permitted, or not for this API",
                None,
            ),
        };
    report(
        code,
        format!("{at}: credential {}: {reason}", quote_name(id)),
        suggestion,
    );
}
