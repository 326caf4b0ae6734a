//! Turns a record of librdkafka into a delivery.

use rdkafka::message::{BorrowedMessage, Message as _};

use super::super::intake::Intake;
use super::super::record;
use super::super::writer::position;
use crate::delivery::{Acknowledger, Delivery, Origin};
use crate::message::{Message, Topic};

/// A record on its way to the channel.
pub(super) struct Received {
    pub(super) lane: u32,
    pub(super) epoch: u64,
    pub(super) topic: Topic,
    pub(super) partition: i32,
    pub(super) offset: i64,
    time: Option<i64>,
    pub(super) message: Message,
}

/// Converts a record, and returns whether it is the first of its assignment; `None` if its partition is not assigned.
pub(super) fn receive(
    intake: &Intake,
    last_lane: &mut Option<(u32, Topic, i32)>,
    record: &BorrowedMessage<'_>,
) -> Option<(Received, bool)> {
    let (name, partition) = (record.topic(), record.partition());
    let known = last_lane
        .as_ref()
        .filter(|(_, topic, of)| *of == partition && topic.as_str() == name);
    let (lane, topic) = match known {
        Some((lane, topic, _)) => (*lane, topic.clone()),
        None => {
            let lane = intake.lane(name, partition)?;
            let topic = intake.topic(lane)?;
            *last_lane = Some((lane, topic.clone(), partition));
            (lane, topic)
        }
    };
    let (epoch, first) = intake.arrive(lane)?;
    let received = Received {
        lane,
        epoch,
        topic,
        partition,
        offset: record.offset(),
        time: record.timestamp().to_millis(),
        message: record::message(record),
    };
    Some((received, first))
}

// === impl Received ===

impl Received {
    pub(super) fn delivery(self, acknowledger: Acknowledger) -> Delivery {
        let origin = Origin {
            position: position(self.topic.as_str(), self.partition, self.offset),
            time: self.time,
        };
        Delivery {
            message: self.message,
            topic: self.topic,
            reply_to: None,
            origin: Some(origin),
            lane: self.lane,
            attempt: 1,
            acknowledger,
        }
    }
}
