//! The bus itself: topics, groups, and the next deliveries. One small lock, never held over an await.
//!
//! Each change (a send, a verdict, a member that joins or leaves) immediately dispatches the messages that it made
//! deliverable, so there is no task between a sender and a receiver.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::delivery::Outcome;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{Address, Confirmation, Health, Receipt, TopicFilter};

use super::config::MemoryConfig;
use super::faults::{Faults, SendFault};
use super::lane::{Durability, Entry, LaneKey, TopicLog};

mod dispatch;
mod group;
mod membership;
mod unread;

pub(super) use group::{Budget, Member, MemberId, Role};

use group::Group;

/// How many topics for live readers alone are kept before those that have been read are forgotten.
const MAX_READ_TOPICS: usize = 64;

/// The bus that all connections share.
#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    room: Notify,
    health: watch::Sender<Health>,
    me: Weak<Store>,
}

#[derive(Debug)]
struct State {
    config: MemoryConfig,
    topics: Vec<TopicLog>,
    by_name: HashMap<Topic, usize>,
    /// Free indexes in `topics`.
    free: Vec<usize>,
    /// The topics that a first message created when only live readers matched them, oldest first.
    for_live_readers: VecDeque<usize>,
    unread: Unread,
    /// The first offset of a new topic: no forgotten topic had it, so positions stay unique.
    first_offset: u64,
    groups: BTreeMap<u64, Group>,
    by_group: HashMap<Text, u64>,
    next_id: u64,
    down: Option<Text>,
    faults: Faults,
    /// Topics that accept nothing, and the error of their senders.
    refused: HashMap<TopicFilter, TransportErrorKind>,
    /// Ends an outage of the fault plan.
    outage: Option<AbortOnDropHandle<()>>,
    /// The confirmations that the fault plan delays.
    late: JoinSet<()>,
    store: Weak<Store>,
}

/// The topics that nobody reads.
#[derive(Debug, Default)]
struct Unread {
    /// At least the bytes of their messages.
    bytes: usize,
    /// Whether one of them has given way, and those who wait for room do not know yet.
    has_given_way: bool,
    /// How many of their messages were dropped.
    dropped: u64,
    /// How many of these the log has reported, and when it did last.
    logged: u64,
    logged_at: Option<Instant>,
}

/// The result of sending a message.
pub(super) enum SendResult {
    Taken(Confirmation),
    /// The topic is full; here is the message again.
    Full(Message),
}

// === impl Store ===

impl Store {
    pub(super) fn new(config: MemoryConfig, faults: Faults) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            state: Mutex::new(State {
                config,
                topics: Vec::new(),
                by_name: HashMap::new(),
                free: Vec::new(),
                for_live_readers: VecDeque::new(),
                unread: Unread::default(),
                first_offset: 0,
                groups: BTreeMap::new(),
                by_group: HashMap::new(),
                next_id: 0,
                down: None,
                faults,
                refused: HashMap::new(),
                outage: None,
                late: JoinSet::new(),
                store: Weak::clone(me),
            }),
            room: Notify::new(),
            health: watch::Sender::new(Health::Up),
            me: Weak::clone(me),
        })
    }

    /// The state; every change is complete before its lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when some topic may have room again.
    pub(super) fn room(&self) -> Notified<'_> {
        self.room.notified()
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Stores a message if there is room for it.
    pub(super) fn offer(
        &self,
        to: &Address,
        message: Message,
    ) -> Result<SendResult, TransportError> {
        let mut state = self.lock();
        state.check_up("send to the memory bus")?;
        state.check_accepted(&to.topic)?;
        let size = message.size_bytes();
        let key = state.lane_for(to, &message, size);
        self.wake_if_given_way(&mut state);
        let key = key?;
        if !state.has_room(key.topic, size) {
            return Ok(SendResult::Full(message));
        }
        let fault = state.faults.of_send();
        match fault {
            Some(SendFault::Refuse) => {
                return Err(disconnected("send to the memory bus", "seeded refusal"));
            }
            Some(SendFault::DisconnectBefore(outage)) => {
                self.begin_outage(&mut state, outage);
                return Err(disconnected("send to the memory bus", "seeded outage"));
            }
            Some(SendFault::DropConfirmation | SendFault::DisconnectAfter(_)) | None => {}
        }
        let position = state.store(key, message, to.reply_to.clone(), size);
        self.wake_if_given_way(&mut state);
        if let Some(SendFault::DisconnectAfter(outage)) = fault {
            self.begin_outage(&mut state, outage);
        }
        let result = match fault {
            None => Ok(Receipt { position }),
            Some(_) => Err(disconnected(
                "confirm a message on the memory bus",
                "seeded fault",
            )),
        };
        Ok(SendResult::Taken(match state.faults.lateness() {
            None => Confirmation::ready(result),
            Some(after) => state.confirm_later(result, after),
        }))
    }

    pub(super) fn partitions(&self, topic: &Topic) -> Result<u32, TransportError> {
        let state = self.lock();
        state.check_up("look up a memory topic")?;
        let lanes = state
            .by_name
            .get(topic)
            .and_then(|index| state.topics.get(*index))
            .map_or(usize::from(state.config.partitions.get()), |topic| {
                topic.lanes.len()
            });
        Ok(u32::try_from(lanes).unwrap_or(u32::MAX))
    }

    pub(super) fn ensure_topic(
        &self,
        topic: &Topic,
        partitions: u32,
    ) -> Result<(), TransportError> {
        let mut state = self.lock();
        state.check_up("create a memory topic")?;
        let lanes = u16::try_from(partitions).ok().filter(|lanes| *lanes > 0);
        let lanes = lanes.ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::BadConfig,
                format!(
                    "create the memory topic {topic} with {partitions} partitions (1 to 65535)"
                ),
            )
        })?;
        let index = state.topic(topic, usize::from(lanes));
        self.wake_if_given_way(&mut state);
        if let Some(log) = state.topics.get_mut(index?) {
            log.is_asked_for = true;
        }
        Ok(())
    }

    pub(super) fn set_refused(&self, topics: TopicFilter, kind: Option<TransportErrorKind>) {
        let mut state = self.lock();
        match kind {
            Some(kind) => state.refused.insert(topics, kind),
            None => state.refused.remove(&topics),
        };
    }

    pub(super) fn set_down(&self, cause: Text) {
        let mut state = self.lock();
        state.outage = None;
        self.go_down(&mut state, cause);
    }

    pub(super) fn set_up(&self) {
        let mut state = self.lock();
        state.outage = None;
        state.down = None;
        self.health.send_replace(Health::Up);
        state.serve_all();
    }

    fn go_down(&self, state: &mut State, cause: Text) {
        state.down = Some(cause.clone());
        self.health.send_replace(Health::Down(cause));
    }

    /// Takes the bus down for a while; the task belongs to the state and ends with it.
    fn begin_outage(&self, state: &mut State, outage: Duration) {
        self.go_down(state, Text::from_static("seeded outage"));
        let store = Weak::clone(&self.me);
        state.outage = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(outage).await;
            if let Some(store) = store.upgrade() {
                store.set_up();
            }
        })));
    }

    /// Adds a reader, and hands out the messages for it.
    pub(super) fn join(
        &self,
        role: &Role,
        filters: &[TopicFilter],
        member: Member,
    ) -> Result<MemberId, TransportError> {
        let mut state = self.lock();
        state.check_up("subscribe to the memory bus")?;
        let joined = state.join(role, filters, member);
        self.wake_if_given_way(&mut state);
        joined
    }

    /// Whoever waits for room in a topic that has given way finds a new one.
    fn wake_if_given_way(&self, state: &mut State) {
        if std::mem::take(&mut state.unread.has_given_way) {
            self.room.notify_waiters();
        }
    }

    /// Hands out messages whose seeded delay is over. Returns when the next one of this group is due.
    pub(super) fn release(&self, seat: MemberId) -> Option<Instant> {
        self.lock().release(seat)
    }

    /// Gives the member no more messages. It keeps those that it has.
    pub(super) fn pause(&self, seat: MemberId) {
        self.lock().pause(seat);
    }

    /// How many deliveries the member has not settled.
    pub(super) fn in_flight(&self, seat: MemberId) -> usize {
        self.lock().in_flight(seat)
    }

    /// Removes the member; the rest of its group gets the messages that it had not settled. The member is returned so
    /// that the caller drops it without the lock: deliveries that it did not receive are abandoned when they are
    /// dropped.
    pub(super) fn leave(&self, seat: MemberId) -> Option<Member> {
        let mut state = self.lock();
        let member = state.leave(seat);
        self.room.notify_waiters();
        member
    }

    fn settle(&self, out: OutstandingDelivery, outcome: Outcome) -> Result<(), TransportError> {
        let mut state = self.lock();
        let (freed, result) = state.settle(out, outcome);
        if freed {
            self.room.notify_waiters();
        }
        result
    }

    /// How many messages were dropped that nobody read.
    pub(super) fn dropped(&self) -> u64 {
        self.lock().unread.dropped
    }

    /// Whether a delivery is still its member's to settle: when that has left, it is given out again.
    fn is_out(&self, out: &OutstandingDelivery) -> bool {
        let mut state = self.lock();
        let log = state.topics.get_mut(out.key.topic);
        let lane = log.and_then(|log| log.lanes.get_mut(out.key.lane));
        let cursor = lane.and_then(|lane| lane.cursor(out.seat.group));
        cursor.is_some_and(|cursor| cursor.is_out(out.offset, out.seat.member, out.attempt))
    }
}

// === impl State ===

impl State {
    fn check_up(&self, what: &str) -> Result<(), TransportError> {
        match &self.down {
            None => Ok(()),
            Some(cause) => Err(disconnected(what, cause)),
        }
    }

    fn confirm_later(
        &mut self,
        result: Result<Receipt, TransportError>,
        after: Duration,
    ) -> Confirmation {
        while self.late.try_join_next().is_some() {}
        let (decision, confirmation) = Confirmation::waiting();
        self.late.spawn(async move {
            tokio::time::sleep(after).await;
            decision.decide(result);
        });
        confirmation
    }

    fn check_accepted(&self, topic: &Topic) -> Result<(), TransportError> {
        let mut refusals = self.refused.iter();
        match refusals.find(|(topics, _)| topics.matches(topic)) {
            None => Ok(()),
            Some((_, kind)) => Err(TransportError::new(
                *kind,
                format!("send to the memory topic {topic}"),
            )),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The index of a topic, which is created if need be.
    fn topic(&mut self, name: &Topic, lanes: usize) -> Result<usize, TransportError> {
        match self.by_name.get(name) {
            Some(index) => Ok(*index),
            None => self.create(name, lanes),
        }
    }

    /// A new topic, for all groups that subscribed to its name.
    fn create(&mut self, name: &Topic, lanes: usize) -> Result<usize, TransportError> {
        if self.by_name.len() >= self.config.max_topics.get() {
            self.forget_read_topics();
        }
        if self.by_name.len() >= self.config.max_topics.get() {
            self.drop_oldest_topics();
        }
        if self.by_name.len() >= self.config.max_topics.get() {
            return Err(TransportError::new(
                TransportErrorKind::UnknownTopic,
                format!("create the memory topic {name}: there are max_topics already"),
            ));
        }
        let index = self.free.pop().unwrap_or(self.topics.len());
        let mut topic = TopicLog::new(name.clone(), lanes, self.first_offset);
        topic.created = self.new_id();
        for (id, group) in &self.groups {
            group.attach(*id, index, &mut topic);
        }
        match self.topics.get_mut(index) {
            Some(free) => *free = topic,
            None => self.topics.push(topic),
        }
        self.by_name.insert(name.clone(), index);
        Ok(index)
    }

    /// The topic of a first message, which creates it. If live readers alone match it and the message names no partition,
    /// it has one lane, as the reply subject of a call, which has one message.
    fn topic_of_first(&mut self, to: &Address) -> Result<usize, TransportError> {
        let mut readers = self.groups.values().filter(|group| group.reads(&to.topic));
        let is_live = readers.next().is_some_and(Group::is_live) && readers.all(Group::is_live);
        if !is_live || to.partition.is_some() {
            let lanes = usize::from(self.config.partitions.get());
            return self.create(&to.topic, lanes);
        }
        let index = self.create(&to.topic, 1)?;
        self.for_live_readers.push_back(index);
        // Two for each new one, so that read topics are found however many unread ones there are.
        for _ in 0..2 {
            if self.for_live_readers.len() <= MAX_READ_TOPICS {
                break;
            }
            if let Some(oldest) = self.for_live_readers.pop_front()
                && self.is_for_live_readers_alone(oldest)
                && !self.forget_if_read(oldest)
            {
                self.for_live_readers.push_back(oldest);
            }
        }
        Ok(index)
    }

    /// Makes room for topics: removes those that no reader has asked for by name and whose live readers have read
    /// everything, such as the reply subjects of ended calls.
    fn forget_read_topics(&mut self) {
        for index in 0..self.topics.len() {
            self.forget_if_read(index);
        }
        let Self {
            topics,
            for_live_readers,
            ..
        } = self;
        for_live_readers.retain(|index| {
            let log = topics.get(*index);
            log.is_some_and(|log| !log.lanes.is_empty())
        });
    }

    fn forget_if_read(&mut self, index: usize) -> bool {
        let Some(log) = self.topics.get(index) else {
            return false;
        };
        let is_read = log.is_for_live_readers_alone() && log.is_read();
        if is_read {
            self.forget(index);
        }
        is_read
    }

    fn forget(&mut self, index: usize) {
        let Some(log) = self.topics.get_mut(index) else {
            return;
        };
        if self.by_name.remove(&log.name).is_some() {
            self.first_offset = self.first_offset.max(log.end());
            *log = TopicLog::new(log.name.clone(), 0, 0);
            self.free.push(index);
        }
    }

    fn is_for_live_readers_alone(&self, index: usize) -> bool {
        let log = self.topics.get(index);
        log.is_some_and(TopicLog::is_for_live_readers_alone)
    }

    fn lane_for(
        &mut self,
        to: &Address,
        message: &Message,
        size: usize,
    ) -> Result<LaneKey, TransportError> {
        let (most, capacity) = (
            self.config.max_message_bytes.get(),
            self.config.capacity_bytes.get(),
        );
        let content = message.content_bytes();
        // A message that takes more memory than the topic has would wait forever for room.
        if content > most || size > capacity {
            let (largest, limit) = match content > most {
                true => (most, "max_message_bytes of its transport"),
                false => (
                    capacity,
                    "its memory, of which a message takes more than its content",
                ),
            };
            let limit = format!(
                "with its {} headers it is larger than the {largest} bytes that the memory topic {} takes ({limit})",
                message.headers.len(),
                to.topic
            );
            return Err(TransportError::too_large(content, limit));
        }
        let topic = match self.by_name.get(&to.topic) {
            Some(index) => *index,
            None => self.topic_of_first(to)?,
        };
        let unknown = || {
            TransportError::new(
                TransportErrorKind::UnknownTopic,
                format!("send to a partition the memory topic {} lacks", to.topic),
            )
        };
        let log = self.topics.get_mut(topic).ok_or_else(unknown)?;
        let lane = match to.partition {
            None => log.lane_of(message.key.as_deref()),
            Some(partition) => usize::try_from(partition)
                .ok()
                .filter(|lane| *lane < log.lanes.len())
                .ok_or_else(unknown)?,
        };
        Ok(LaneKey { topic, lane })
    }

    /// Whether the topic can hold that much more, once what live readers have read is forgotten.
    fn has_room(&mut self, topic: usize, size: usize) -> bool {
        let (messages, bytes) = (
            self.config.capacity_messages.get(),
            self.config.capacity_bytes.get(),
        );
        let Some(log) = self.topics.get_mut(topic) else {
            return false;
        };
        let fits =
            |log: &TopicLog| log.messages < messages && log.bytes.saturating_add(size) <= bytes;
        if !fits(log) {
            for lane in 0..log.lanes.len() {
                log.trim(lane);
            }
        }
        fits(log)
    }

    /// Appends to a lane and hands the message to every group that can take it now; returns its position.
    fn store(
        &mut self,
        key: LaneKey,
        mut message: Message,
        reply_to: Option<Topic>,
        size: usize,
    ) -> Option<Text> {
        let not_before = self.faults.delay().map(|delay| Instant::now() + delay);
        let log = self.topics.get_mut(key.topic)?;
        let lane = log.lanes.get_mut(key.lane)?;
        let position = position(&log.name, key.lane, lane.end());
        let is_unread = lane.cursors.is_empty();
        // The body of a message that nobody gets for now is copied: the memory of its sender, such as a request over
        // HTTP, and the budget of that would otherwise be used until somebody reads the topic.
        if lane.cursors.iter().all(|cursor| cursor.target.is_none()) {
            message.body = message.body.map(|body| Bytes::copy_from_slice(&body));
        }
        lane.push(Entry {
            message,
            reply_to,
            position: position.clone(),
            size,
            not_before,
        });
        log.messages += 1;
        log.bytes += size;
        log.was_read = false;
        let readers: Vec<u64> = lane.cursors.iter().map(|cursor| cursor.group).collect();
        for group in readers {
            self.offer_lane(group, key);
        }
        if is_unread {
            self.count_unread(key.topic, size);
        }
        Some(position)
    }

    /// Applies a verdict. Returns whether that made room, and the result for the caller of the verdict.
    fn settle(
        &mut self,
        out: OutstandingDelivery,
        outcome: Outcome,
    ) -> (bool, Result<(), TransportError>) {
        let MemberId { group, member } = out.seat;
        let down = self.check_up("settle on the memory bus");
        let twice = down.is_ok() && outcome == Outcome::Settled && out.attempt == 1;
        let twice = twice && self.faults.duplicates();
        let Some(log) = self.topics.get_mut(out.key.topic) else {
            return (false, stale(outcome));
        };
        let Some(lane) = log.lanes.get_mut(out.key.lane) else {
            return (false, stale(outcome));
        };
        let size = lane.entry(out.offset).map_or(0, |entry| entry.size);
        let Some(cursor) = lane
            .cursor(group)
            .filter(|cursor| cursor.is_out(out.offset, member, out.attempt))
        else {
            return (false, stale(outcome));
        };
        let again = match (cursor.keeping, outcome) {
            (Durability::Live, _) => false,
            (Durability::Durable, Outcome::Abandoned) => true,
            (Durability::Durable, Outcome::Settled) => twice || down.is_err(),
        };
        if again {
            cursor.give_back(out.offset);
        } else {
            cursor.settle(out.offset);
        }
        // Only what groups have read is forgotten at once. What live readers alone have read is kept for a later group
        // until a sender needs the room, or other topics of live readers do; that sender has to look again.
        let freed = !lane.has_durable_reader() || log.trim(out.key.lane);
        if let Some(member) = self.member(out.seat) {
            member.uncharge(size);
        }
        self.offer_lane(group, out.key);
        self.serve(out.seat);
        let settled = match outcome {
            Outcome::Settled if again => down,
            Outcome::Settled | Outcome::Abandoned => Ok(()),
        };
        (freed, settled)
    }
}

/// One unsettled delivery. Its fields distinguish it from an earlier delivery of the same message.
#[derive(Debug, Clone, Copy)]
struct OutstandingDelivery {
    seat: MemberId,
    key: LaneKey,
    offset: u64,
    attempt: u32,
}

fn position(topic: &Topic, lane: usize, offset: u64) -> Text {
    let (mut first, mut second) = (itoa::Buffer::new(), itoa::Buffer::new());
    let (lane, offset) = (first.format(lane), second.format(offset));
    Text::concat(&["m:", topic.as_str(), "/", lane, "/", offset])
}

/// The answer to a verdict about a delivery that is not out any more. To abandon it is what happened to it anyway.
fn stale(outcome: Outcome) -> Result<(), TransportError> {
    match outcome {
        Outcome::Abandoned => Ok(()),
        Outcome::Settled => Err(TransportError::new(
            TransportErrorKind::Closed,
            "settle a delivery after its subscription ended",
        )),
    }
}

fn disconnected(what: &str, cause: &str) -> TransportError {
    TransportError::new(TransportErrorKind::Disconnected, format!("{what}: {cause}"))
}
