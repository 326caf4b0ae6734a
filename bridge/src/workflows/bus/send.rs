//! Publishes the answers and progress of the executor.

use a2abus_plugin::Event;
use a2abus_transports::{Address, Confirmation};
use bytes::Bytes;

use super::WorkflowBinding;
use super::answer::{AnswerSize, ProgressMessage, WorkflowAnswer};
use super::ask::Action;
use super::client::{Progress, WorkflowClient};
use crate::bus::deadletter::{Reason, Undeliverable};
use crate::bus::outbound::{Outgoing, RoutingError};
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
        let dead_letters = &self.intake.dead_letters;
        let dead_letter = dead_letters.dead_letter(&held.undelivered(), body, reason);
        dead_letters.store(dead_letter, &self.publisher).await;
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
            let (name, headers) = (&self.intake.name, &client.headers);
            return self.outbound.route_own(event, name, headers);
        };
        // The reply address of a call belongs to that call alone, and no stream stores what is sent there.
        let may_be_stored =
            self.intake.reads_jetstream && !self.places.named.is_of_call(&address.topic);
        let to = (self.intake.bus, address);
        let headers = (client.correlation.as_ref(), client.headers.as_slice());
        let mut copy = self
            .outbound
            .to_address(event, to, headers, may_be_stored)?;
        // Otherwise the `collaborationid`.
        copy.message.key = client.key.clone().or(copy.message.key);
        Ok(vec![copy])
    }
}
