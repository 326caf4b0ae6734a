//! Messages for requests in progress: answers to open questions, cancels and notifications. On NATS, any of the bridges
//! that attach a server and share the state may get a message about a request of another one, and passes it on. A bridge
//! whose server reports a changed list, or gets a new log level, tells the others, too.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use a2abus_executor::{Limit, Window};
use a2abus_plugin::protocol::jsonrpc::Id;
use a2abus_plugin::{Text, Unit, decode};
use bytes::Bytes;

use super::ask::Ask;
use super::link::is_question_id;
use super::log_level::level_in;
use super::{AttachedBinding, Upstream};
use crate::pipeline::held::Held;
use crate::results::message_for_agent;
use crate::state::Lagged;

/// The limits of messages that are passed on to other bridges: their number, and the bytes of each.
const PASSED_PER_MINUTE: [Limit; 1] = [Limit::new(6_000, Window::Minute)];
const LARGEST_PASSED: usize = 256 << 10;
/// Makes the other bridges read all lists of their session with the server again, not only the tools.
const LIST_CHANGED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

// === impl AttachedBinding ===

impl AttachedBinding {
    /// Passes an answer to an open question on to the server, or to the bridge that has asked it. Others are dropped:
    /// anyone who can write to the topic can send them.
    pub(super) async fn reply(&self, body: Bytes, id: Option<Id>, held: Arc<Held>) {
        let is_taken = self.is_answer(&body, id.as_ref()).await
            || (id.as_ref().is_some_and(is_question_id) && self.pass_to_others(&body).await);
        if !is_taken {
            self.dropped(&held, "unasked_answer");
        }
        held.done();
    }

    /// Passes an answer on to the server. Returns whether it answers an open question of this bridge.
    async fn is_answer(&self, body: &Bytes, id: Option<&Id>) -> bool {
        match (self.now_up(), id) {
            // If the server has ended since, its questions are no longer open.
            (Some(up), Some(id)) => up.link.reply(body, id).await.unwrap_or(false),
            _ => false,
        }
    }

    /// Cancels a request of another bridge.
    pub(super) async fn cancel_elsewhere(&self, id: Text, held: Arc<Held>) {
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        self.pass_to_others(cancel.as_bytes()).await;
        held.done();
    }

    /// Passes a message on to the other bridges that attach this server and share the state. On NATS, any of them may
    /// get a message about a request of another one. Returns whether it is passed on.
    async fn pass_to_others(&self, body: &[u8]) -> bool {
        let agent = self.reply_publisher.agent();
        if !self.results.is_shared()
            || body.len() > LARGEST_PASSED
            || self.passed_on.admit(agent, &PASSED_PER_MINUTE).is_err()
        {
            return false;
        }
        match self.results.pass_to_agent(agent, body).await {
            Ok(()) => {
                self.upstream.log().passed_on.inc();
                true
            }
            Err(error) => {
                if let Some(suppressed) = self.log.unpassed.allow() {
                    tracing::warn!(%agent, %error, suppressed, "an answer, a cancel, a changed list or a log level was not passed on to the other bridges that attach this server");
                }
                false
            }
        }
    }

    /// Takes the messages that other bridges pass on.
    pub(super) async fn take_passed(&self) -> Infallible {
        let agent = self.reply_publisher.agent();
        let limits = self.reply_publisher.publisher.outbound().rules().limits;
        let mut following = self.results.follow_new().await;
        while self.results.is_shared() {
            let next = tokio::select! {
                next = following.next() => next,
                () = self.list_change() => {
                    Box::pin(self.pass_to_others(LIST_CHANGED)).await;
                    continue;
                }
                message = self.log_level_change() => {
                    Box::pin(self.pass_to_others(message.as_bytes())).await;
                    continue;
                }
            };
            let body = match next {
                Ok(Some(record)) => message_for_agent(&record, agent),
                Ok(None) => break,
                Err(Lagged) => {
                    tracing::warn!(%agent, "answers and cancels that other bridges passed on may be lost: the log was read too slowly");
                    following = self.results.follow_new().await;
                    None
                }
            };
            let Some(body) = body else { continue };
            if let Some(level) = level_in(&body) {
                self.follow_log_level(level);
            } else if let Ok(Ok(unit)) = decode(&body, &self.intake.hint, &limits).into_only() {
                self.take_unit(&unit).await;
            }
        }
        pending().await
    }

    /// Takes a message that another bridge has passed on. This bridge may have neither its request nor its question.
    async fn take_unit(&self, unit: &Unit) {
        if let Some(id) = Ask::cancelled_by(unit) {
            self.cancel(&id);
        } else if unit.bytes == LIST_CHANGED {
            if let Some(up) = self.now_up() {
                up.link.reread_lists();
            }
        } else if let Some(message) = &unit.json_rpc {
            self.is_answer(&unit.bytes, message.id.as_ref()).await;
        }
    }

    /// Waits until the server reports that one of its lists has changed. It may report that in one of its sessions only.
    async fn list_change(&self) {
        match &*self.upstream {
            Upstream::Mcp(server) => server.lifecycle.watched.list_change().await,
            Upstream::Plain(_) => pending().await,
        }
    }

    /// Waits until a client of this bridge sets the level of the server's log messages. Returns the message for the other
    /// bridges.
    async fn log_level_change(&self) -> String {
        match &*self.upstream {
            Upstream::Mcp(server) => server.lifecycle.log_level.next_message().await,
            Upstream::Plain(_) => pending().await,
        }
    }

    /// Takes the level that a client has set at some bridge. All bridges read these messages in the same order, so they
    /// agree about the last one.
    fn follow_log_level(&self, level: Text) {
        if let Upstream::Mcp(server) = &*self.upstream {
            server.lifecycle.log_level.follow(level);
        }
    }

    /// Passes a message without an id on to the server. An MCP server gets notifications only: it would ignore a request
    /// without an id, or a message of A2A, and nobody would know.
    pub(super) async fn pass_on(&self, method: String, message: Bytes, held: Arc<Held>) {
        match (&*self.upstream, self.now_up()) {
            (Upstream::Plain(plain), _) => plain.notify(&method, message).await,
            (Upstream::Mcp(_), _) if !method.starts_with("notifications/") => {
                self.dropped(&held, "no_id");
            }
            (Upstream::Mcp(_), Some(up)) if up.link.send(message).await.is_ok() => {}
            // It does not run, or has just ended.
            (Upstream::Mcp(_), _) => self.dropped(&held, "not_running"),
        }
        held.done();
    }
}
