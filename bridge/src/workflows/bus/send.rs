//! Publishes the answers and progress of the executor.

use a2abus_plugin::{Event, Text};
use a2abus_transports::{Address, Confirmation, TransportError};
use bytes::Bytes;

use super::WorkflowBinding;
use super::answer::{AnswerSize, ProgressMessage, WorkflowAnswer};
use super::ask::Action;
use super::client::{Progress, WorkflowClient};
use crate::bus::deadletter::{Reason, Undeliverable};
use crate::bus::outbound::{Outgoing, Provenance, RoutingError, confirmed};
use crate::calls::reply::spring;
use crate::pipeline::held::Held;

// === impl WorkflowBinding ===

impl WorkflowBinding {
    /// Publishes the answer and waits for the confirmation. If it is too large, its results are left out. If it is
    /// undeliverable, the request becomes a dead letter; sending the request again gives the recorded answer.
    pub(super) async fn answer(
        &self,
        client: &WorkflowClient,
        action: Action,
        answer: &WorkflowAnswer,
        held: &Held,
    ) {
        let whole = self
            .send_answer(client, action, answer, AnswerSize::Whole)
            .await;
        let sent = match whole {
            Err(error) if error.is_too_large() => {
                if let Some(suppressed) = self.log.answers.allow() {
                    tracing::warn!(binding = %self.intake.name, %error, suppressed, "an answer is sent without its results");
                }
                self.send_answer(client, action, answer, AnswerSize::Reduced)
                    .await
            }
            sent => sent,
        };
        if let Err(error) = sent {
            if let Some(suppressed) = self.log.answers.allow() {
                tracing::warn!(binding = %self.intake.name, %error, suppressed, "an answer cannot be delivered");
            }
            self.dead_letter(held, None, &error.reason()).await;
        }
    }

    async fn send_answer(
        &self,
        client: &WorkflowClient,
        action: Action,
        answer: &WorkflowAnswer,
        size: AnswerSize,
    ) -> Result<(), Undeliverable> {
        let event = self.events.answer(client, action, answer, size);
        let event = event.map_err(RoutingError::Unwritable)?;
        for copy in self.copies(client, client.reply_to.as_ref(), &event)? {
            self.publisher
                .until_confirmed(&copy)
                .await
                .map_err(Undeliverable::Transport)?;
        }
        Ok(())
    }

    /// Publishes a dead letter for a message, or for one unit of it, and waits for the confirmation.
    pub(super) async fn dead_letter(&self, held: &Held, body: Option<Bytes>, reason: &Reason) {
        let of = held.undelivered();
        let dead_letter = self.intake.dead_letters.dead_letter(&of, body, reason);
        let replacement =
            |copy, error: &TransportError| self.intake.dead_letters.replacement(copy, error);
        // `until_settled` counts and logs a dead letter that cannot be stored.
        drop(self.publisher.until_settled(dead_letter, replacement).await);
    }

    /// Publishes a progress message if the bus accepts it at once. Otherwise it is dropped.
    pub(super) async fn publish_progress(
        &self,
        client: &WorkflowClient,
        progress: &ProgressMessage,
    ) {
        let place = match &client.progress {
            Progress::Nowhere => return,
            Progress::BesideTheAnswer => client.reply_to.as_ref(),
            Progress::At(place) => Some(place),
        };
        let event = self
            .events
            .progress(client, progress)
            .map_err(RoutingError::Unwritable);
        let copies = event.and_then(|event| self.copies(client, place, &event));
        match copies {
            Ok(copies) => {
                for copy in copies {
                    match self.publisher.send(&copy).await {
                        // Its confirmation does not matter; only the answer must be confirmed.
                        Ok(confirmation) => drop::<Confirmation>(confirmation),
                        Err(error) => {
                            tracing::debug!(binding = %self.intake.name, %error, "progress was not published");
                        }
                    }
                }
            }
            Err(error) => {
                tracing::debug!(binding = %self.intake.name, %error, "progress cannot be delivered")
            }
        }
    }

    /// The copies of an event: to an address, or to the destinations of its route.
    fn copies(
        &self,
        client: &WorkflowClient,
        place: Option<&Address>,
        event: &Event,
    ) -> Result<Vec<Outgoing>, RoutingError> {
        let Some(address) = place else {
            let rules = self.outbound.rules();
            let event_id = event.id().clone().into();
            let from = Provenance {
                rules: &rules,
                binding: &self.intake.name,
                reader: "",
                // Without a source key, the events are ordered per execution.
                key: None,
                origin: Some((&event_id, 0)),
                headers: &client.headers,
            };
            return self.outbound.route(&mut event.clone(), from, None);
        };
        let correlation = client.correlation.iter();
        let own = correlation.map(|id| (Text::from_static(spring::CORRELATION_ID), id.clone()));
        let headers = (own.collect(), client.headers.as_slice());
        let address = match self.intake.reads_jetstream {
            true => confirmed(address),
            false => address.clone(),
        };
        let mut copy = self
            .outbound
            .to_address(self.intake.bus, event, headers, address)?;
        // Otherwise the `collaborationid`.
        copy.message.key = client.key.clone().or(copy.message.key);
        Ok(vec![copy])
    }
}
