//! The state of the connection: whether it is up, whether it is still the same one, and why it is down.
//!
//! ```text
//! client --events--> Link { connection: watch, health: watch, refusals: broadcast, dropped: counter }
//!            state --every 250 ms--^   (the client drops events when many come at once)
//! ```
//! Each client has a link of its own. When another client takes its place, only the health and the number of
//! dropped messages go on.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::connection::State;
use async_nats::{Client, ClientError, ConnectOptions, Event, ServerError};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Fuse, FusedFuture as _};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::NatsConfig;
use super::diagnose::Probe;
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::Health;

/// The connection at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) up: bool,
    /// How often it came up: two successive connections differ even if nobody saw the time in between.
    pub(super) epoch: u64,
}

/// A permission that the server refused, read from its error text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Publish(Text),
    Subscribe { subject: Text, queue: RefusedQueue },
}

/// The queue group of a refused subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RefusedQueue {
    /// It is in none.
    Without,
    Named(Text),
    /// Not known: when a server takes a permission away, it does not name the group.
    Unnamed,
}

/// The state of the connection. One for all clones of a transport.
#[derive(Debug)]
pub(super) struct Link {
    connection: watch::Sender<Connection>,
    health: watch::Sender<Health>,
    refusals: broadcast::Sender<Refusal>,
    /// How often the client itself has dropped a message. It does not name the subscription.
    overrun: watch::Sender<u64>,
    /// Messages that were received and dropped because they were not read in time.
    dropped: AtomicU64,
    logged: std::sync::Mutex<Logged>,
    logged_refusals: std::sync::Mutex<LoggedRefusals>,
    /// The subjects that the server does not permit core NATS publications on, each with the time of its last refusal.
    refused: std::sync::Mutex<HashMap<Text, Instant>>,
    /// Whether there is one: every message asks.
    has_refused: AtomicBool,
    /// Cancelled once nothing can be sent any more with this client.
    closed: CancellationToken,
    /// The same, without a lock: every message asks.
    is_closed: AtomicBool,
    /// Cancelled when the client has ended, whatever the reason.
    ended: CancellationToken,
    /// The client has ended by itself, and another one takes its place, so this link no longer reports the health.
    is_replaced: AtomicBool,
    /// Whether this client takes the place of one that has ended by itself.
    replaces: bool,
    faults: std::sync::Mutex<Faults>,
    /// The servers and the user, for messages.
    servers: Text,
    user: Text,
    /// The fix when the server refuses the login.
    login_cure: &'static str,
    /// Examines the servers when the client does not report the cause.
    probe: Probe,
    /// Whether the client has reported a failure without its cause since the last examination.
    is_unclear: AtomicBool,
}

/// The log line about dropped messages.
#[derive(Debug, Default)]
struct Logged {
    at: Option<Instant>,
    /// How many there had been by then.
    total: u64,
}

/// The log lines about refused permissions.
#[derive(Debug)]
struct LoggedRefusals {
    publish: LoggedSubjects,
    subscribe: LoggedSubjects,
}

/// The subjects whose refusal the log has named.
#[derive(Debug)]
struct LoggedSubjects {
    /// Those with a line that is not old yet, and those of which lines were left out.
    named: HashMap<Text, NamedSubject>,
    /// At most this many subjects with the same first word are named at a time.
    max_alike: usize,
    /// How many lines about other subjects were left out since the last one, and when the first of them was.
    suppressed: u64,
    suppressed_since: Option<Instant>,
}

/// A subject that the log has named.
#[derive(Debug)]
struct NamedSubject {
    at: Instant,
    /// How many lines about it were left out since then.
    suppressed: u64,
}

/// Why the transport is not healthy.
#[derive(Debug)]
struct Faults {
    /// Nothing is known about the connection yet.
    is_connecting: bool,
    /// The last report about the connection.
    connection: Text,
    /// Why the JetStream API does not work, if it does not.
    api: Option<Text>,
    /// When the question that led to `api` was asked, or when the connection came up, if that was later.
    api_asked_at: Instant,
    /// Subscriptions that cannot go on, and other parts that do not work, and why.
    subscriptions: BTreeMap<Text, Text>,
}

/// How often the client's own state is compared with its events.
const COMPARE_EVERY: Duration = Duration::from_millis(250);

/// Refused permissions kept for slow listeners, at most. More than the 128 events that the client can queue, so that no
/// listener misses a refusal among many others.
const REFUSALS: usize = 256;

/// How often the log reports that a permission is refused.
const REFUSAL_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The prefix of the reply subjects of messages that JetStream pushes. These are for acknowledgements, not for answers.
pub(super) const ACKNOWLEDGEMENTS: &str = "$JS.ACK.";

/// The subjects of all acknowledgements, as one.
const ALL_ACKNOWLEDGEMENTS: &str = "$JS.ACK.>";

/// How long a refusal may take to be reported after the server has read what it refuses: the client reports refusals
/// and messages separately.
pub(super) const REFUSAL_GRACE: Duration = Duration::from_millis(10);

/// The same for a publication, which would be lost if its confirmation came first. Only the first publications on a
/// subject that is permitted again wait for it.
pub(super) const PUBLICATION_GRACE: Duration = Duration::from_millis(250);

/// The beginning of the reply subjects of NATS clients, and all of them as one.
const INBOX: &str = "_INBOX.";
const ALL_INBOXES: &str = "_INBOX.>";

/// The number of characters of the last word of a reply subject of a bridge: two ids in base32.
const REPLY_ID_CHARS: usize = 52;

/// At most this many refused subjects are remembered, half of them with the same first word; the one that was refused
/// longest ago gives way. A subject that is forgotten loses its next message, so there is room for all agents.
const MAX_REFUSED: usize = 1024;

/// How long a subject is remembered after its last refusal.
const REFUSED_FOR: Duration = Duration::from_secs(5 * 60);

/// The health names at most this many parts that do not work, each with its cause.
const MAX_PARTS: usize = 8;

/// At most this many subjects are logged in that time.
const MAX_LOGGED: usize = 64;

/// At most this many publish subjects with the same first word are named in the log or the health: they may come from
/// messages, as those of answers do.
const MAX_ALIKE: usize = 8;

/// How often the log reports dropped messages.
const DROPS_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The pause of a closed client: it cannot be told to give up, only to wait.
const CLOSED_PAUSE: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Receives the events of the client, which drops it when it ends.
struct Events(Arc<Link>);

impl Drop for Events {
    fn drop(&mut self) {
        self.0.ended.cancel();
    }
}

// === impl Link ===

impl Link {
    /// Starts a client that connects when the server is up, with an empty state, perhaps in place of an earlier one
    /// that has ended.
    pub(super) async fn connect(
        config: &NatsConfig,
        subscription_capacity: usize,
        earlier: Option<&Self>,
    ) -> Result<(Arc<Self>, Client), TransportError> {
        let servers = Text::from(config.server_names());
        let connecting = Text::from(format!("connecting to NATS at {servers}"));
        let health = match earlier {
            Some(earlier) => earlier.health.clone(),
            None => watch::Sender::new(Health::Connecting(connecting.clone())),
        };
        let dropped = earlier.map_or(0, Self::dropped);
        let link = Arc::new(Self {
            connection: watch::Sender::new(Connection {
                up: false,
                epoch: 0,
            }),
            health,
            refusals: broadcast::Sender::new(REFUSALS),
            overrun: watch::Sender::new(0),
            dropped: AtomicU64::new(dropped),
            logged: std::sync::Mutex::new(Logged {
                at: None,
                total: dropped,
            }),
            logged_refusals: std::sync::Mutex::default(),
            refused: std::sync::Mutex::default(),
            has_refused: AtomicBool::new(false),
            closed: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
            ended: CancellationToken::new(),
            is_replaced: AtomicBool::new(false),
            replaces: earlier.is_some(),
            faults: std::sync::Mutex::new(Faults::new(earlier.is_none(), connecting)),
            servers,
            user: Text::from(config.user_name()),
            login_cure: config.login_cure(),
            probe: Probe::new(config)?,
            is_unclear: AtomicBool::new(false),
        });
        let (events, pauses) = (Events(Arc::clone(&link)), Arc::clone(&link));
        let options: ConnectOptions = config
            .options()?
            .subscription_capacity(subscription_capacity)
            .event_callback(move |event| {
                events.0.on_event(&event);
                std::future::ready(())
            })
            .reconnect_delay_callback(move |attempts| pauses.pause(attempts));
        let client = options
            .connect(config.addresses()?)
            .await
            .map_err(|error| {
                TransportError::new(TransportErrorKind::BadConfig, "start the NATS client")
                    .caused_by(error)
            })?;
        Ok((link, client))
    }

    /// Compares the client's state with its events, until stopped. Events are lost when more arrive at once than the
    /// client can queue, and without this check a lost "disconnected" would never be noticed. Also reports the end of
    /// the client: not in the destructor of its events, because that runs also when the process ends. Returns whether
    /// the client has ended by itself.
    pub(super) async fn watch(&self, client: &Client, stop: &CancellationToken) -> bool {
        let mut differed = false;
        let mut every = tokio::time::interval(COMPARE_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // It may take long if servers do not answer. The comparisons continue in the meantime.
        let mut diagnosis: Fuse<BoxFuture<'_, Option<String>>> = Fuse::terminated();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = self.ended.cancelled() => return self.client_ended(),
                found = &mut diagnosis => {
                    let found = found.map_or_else(|| self.describe("no connection"), Text::from);
                    self.not_connected(found);
                    continue;
                }
                _ = every.tick() => {}
            }
            self.report_refusals(Instant::now());
            self.forget_refused(Instant::now());
            let up = client.connection_state() == State::Connected && !self.is_closed();
            let reported = *self.connection.borrow();
            let differs = up != reported.up || connects(client) != reported.epoch;
            // One difference may be an event on its way; two are a lost event.
            if differs && differed {
                self.set_connection(up, connects(client));
            }
            differed = differs;
            if diagnosis.is_terminated() && self.is_unclear.swap(false, Ordering::Relaxed) {
                let was_connected = self.replaces || reported.epoch > 0;
                diagnosis = self.probe.diagnose(was_connected).boxed().fuse();
            }
        }
    }

    fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => {
                tracing::debug!(servers = %self.servers, "connected to NATS");
                let epoch = self.connection.borrow().epoch + 1;
                self.set_connection(true, epoch);
            }
            Event::Disconnected => {
                let epoch = self.connection.borrow().epoch;
                self.set_connection(false, epoch);
                tracing::debug!(cause = %self.cause(), "lost the connection to NATS");
            }
            Event::Closed => {
                let epoch = self.connection.borrow().epoch;
                self.close();
                self.set_connection(false, epoch);
            }
            Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
            Event::Draining => tracing::debug!("draining the NATS connection"),
            Event::SlowConsumer(id) => {
                self.overrun.send_modify(|times| *times += 1);
                self.drop_message("?", &format!("{id}"));
            }
            Event::ServerError(error) => self.server_error(error),
            Event::ClientError(error) => self.client_error(error),
        }
    }

    fn server_error(&self, error: &ServerError) {
        match error {
            ServerError::AuthorizationViolation => {
                self.blame(self.describe("authorization violation"))
            }
            ServerError::SlowConsumer(_) => {
                tracing::warn!(
                    "the NATS server says that this client reads too slowly: the server drops messages, or closes the connection"
                );
            }
            ServerError::Other(text) => match Refusal::parse(text) {
                Some(refusal) => {
                    self.log_refusal(&refusal, text);
                    // Nobody listens when no request is open; then the log line is enough.
                    let _ = self.refusals.send(refusal);
                }
                None => {
                    tracing::warn!(error = %text, "the NATS server reported an error");
                    self.blame(self.describe(text));
                }
            },
        }
    }

    fn log_refusal(&self, refusal: &Refusal, text: &str) {
        let Some(suppressed) = self.logged_refusals().allow(refusal, Instant::now()) else {
            return;
        };
        let error = match refusal {
            Refusal::Publish(subject) => text.replace(subject.as_str(), &shown(subject)),
            Refusal::Subscribe { .. } => text.to_owned(),
        };
        tracing::error!(
            user = %self.user,
            %error,
            suppressed,
            "NATS refused a permission: `a2abus topics plan --acls` prints the permissions to grant"
        );
    }

    /// Logs how many lines about refusals were left out, if no later line has reported it, and the server is not known
    /// to have permitted the publication since.
    fn report_refusals(&self, now: Instant) {
        let mut logged = self.logged_refusals();
        let (repeated, suppressed) = (logged.repeated(now), logged.unreported(now));
        drop(logged);
        for (subject, suppressed) in repeated {
            let subject = shown(&subject);
            tracing::error!(user = %self.user, %subject, suppressed, "NATS refused a permission again after the last line about it: if it is still missing, `a2abus topics plan --acls` prints the permissions to grant");
        }
        if suppressed > 0 {
            tracing::error!(user = %self.user, suppressed, "NATS refused more permissions: `a2abus topics plan --acls` prints the permissions to grant");
        }
    }

    /// Never held over an await. A panic while it is held cannot leave it half written.
    fn logged_refusals(&self) -> std::sync::MutexGuard<'_, LoggedRefusals> {
        let refusals = self.logged_refusals.lock();
        refusals.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Remembers that the server has refused a publication which waits for no answer: a message of core NATS, or an
    /// acknowledgement. Requests to the API fail with the refusal. Reply subjects are remembered as one: each is used
    /// for one answer.
    pub(super) fn note_refused(&self, subject: &str) {
        let shown = shown(subject);
        let subject = match subject.starts_with(ACKNOWLEDGEMENTS) {
            true => ALL_ACKNOWLEDGEMENTS,
            false if subject.starts_with('$') => return,
            false if subject.starts_with(INBOX) => ALL_INBOXES,
            false => &*shown,
        };
        let mut refused = self.refused();
        let is_known = refused.contains_key(subject);
        let forgotten = (!is_known).then(|| gives_way(&refused, subject)).flatten();
        if let Some(forgotten) = &forgotten {
            refused.remove(forgotten);
        }
        refused.insert(subject.into(), Instant::now());
        self.has_refused.store(true, Ordering::Release);
        drop(refused);
        if let Some(forgotten) = forgotten {
            self.report(&publishing_to(&forgotten), None);
        }
        let part = publishing_to(subject);
        if self.has_room_for(&part) {
            let user = &self.user;
            let effect = match subject {
                ALL_ACKNOWLEDGEMENTS => "messages are read again and again after ack_wait",
                _ => "what is published there is lost or refused",
            };
            let trouble = format!(
                "NATS does not permit it to {user}, so {effect}: grant the permission (`a2abus topics plan --acls` prints it)"
            );
            self.report(&part, Some(trouble.into()));
        }
    }

    /// Whether the health does not name this part yet, and fewer than [`MAX_ALIKE`] that begin like it.
    fn has_room_for(&self, part: &str) -> bool {
        let faults = self.faults();
        let known = &faults.subscriptions;
        let is_alike = |known: &&Text| first_word(known) == first_word(part);
        !known.contains_key(part) && known.keys().filter(is_alike).count() < MAX_ALIKE
    }

    /// Whether the server has refused a publication on this subject, and has not permitted one since.
    pub(super) fn is_refused(&self, subject: &str) -> bool {
        self.has_refused.load(Ordering::Acquire) && self.refused().contains_key(subject)
    }

    /// The server has permitted a publication on this subject.
    pub(super) fn note_permitted(&self, subject: &str) {
        if let Some(named) = self.logged_refusals().publish.named.get_mut(subject) {
            named.suppressed = 0;
        }
        let mut refused = self.refused();
        let was_refused = refused.remove(subject).is_some();
        self.has_refused
            .store(!refused.is_empty(), Ordering::Release);
        drop(refused);
        if was_refused {
            tracing::info!(subject = %shown(subject), "NATS permits publishing on this subject again");
            self.report(&publishing_to(subject), None);
        }
    }

    /// Forgets the subjects that were not refused for long.
    fn forget_refused(&self, now: Instant) {
        if !self.has_refused.load(Ordering::Acquire) {
            return;
        }
        let mut refused = self.refused();
        let old = refused.extract_if(|_, at| now >= *at + REFUSED_FOR);
        let old: Vec<Text> = old.map(|(subject, _)| subject).collect();
        self.has_refused
            .store(!refused.is_empty(), Ordering::Release);
        drop(refused);
        for subject in old {
            self.report(&publishing_to(&subject), None);
        }
    }

    /// Never held over an await. A panic while it is held cannot leave it half written.
    fn refused(&self) -> std::sync::MutexGuard<'_, HashMap<Text, Instant>> {
        let refused = self.refused.lock();
        refused.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A message of a server or the client, with the servers that it concerns.
    fn describe(&self, text: &str) -> Text {
        let (servers, user) = (&self.servers, &self.user);
        let is_log_in = ["uthorization", "uthentication", "signing nonce"]
            .iter()
            .any(|first| text.contains(first));
        Text::from(if is_log_in {
            format!("{servers}: {text} for {user}: {}", self.login_cure)
        } else {
            format!("{servers}: {text}")
        })
    }

    /// Changes when the client itself drops a message.
    pub(super) fn overrun(&self) -> watch::Receiver<u64> {
        self.overrun.subscribe()
    }

    /// The name of the user in messages.
    pub(super) fn user(&self) -> &Text {
        &self.user
    }

    fn client_error(&self, error: &ClientError) {
        match error {
            // The kind of an error, without its text.
            ClientError::Other(text)
                if matches!(
                    text.as_str(),
                    "IO error" | "timed out" | "TLS error" | "DNS error"
                ) =>
            {
                self.is_unclear.store(true, Ordering::Relaxed);
            }
            ClientError::Other(text) => self.not_connected(self.describe(text)),
            ClientError::MaxReconnects | ClientError::ServerNotInPool => {
                self.not_connected(self.describe(&error.to_string()));
            }
        }
    }

    fn not_connected(&self, cause: Text) {
        if self.is_up() {
            return;
        }
        if self.cause() != cause {
            tracing::debug!(%cause, "no connection to NATS");
        }
        self.blame(cause);
    }

    fn set_connection(&self, up: bool, epoch: u64) {
        if up {
            // The cause of the next loss, unless a later report replaces it.
            let lost = self.describe("the connection was lost");
            let mut faults = self.faults();
            faults.blame_connection(lost);
            // What the API did on the earlier connection says nothing about this one.
            (faults.api, faults.api_asked_at) = (None, Instant::now());
        }
        self.connection.send_if_modified(|now| {
            let next = Connection { up, epoch };
            std::mem::replace(now, next) != next
        });
        self.publish_health();
    }

    /// Remembers the probable cause of a loss of the connection.
    fn blame(&self, cause: Text) {
        self.faults().blame_connection(cause);
        self.publish_health();
    }

    /// Reports a subscription that cannot continue, or another part that does not work, or, with `None`, that it works
    /// again.
    pub(super) fn report(&self, subscription: &Text, trouble: Option<Text>) {
        match trouble {
            Some(trouble) => {
                self.faults()
                    .subscriptions
                    .insert(subscription.clone(), trouble);
            }
            None => {
                self.faults().subscriptions.remove(subscription);
            }
        }
        self.publish_health();
    }

    /// Reports why the JetStream API does not work, or, with `None`, that it does: the result of a question that was
    /// asked at this time. Many questions are open at once, so a result may arrive after that of a later question. Then
    /// it is out of date.
    pub(super) fn report_api(&self, asked_at: Instant, trouble: Option<Text>) {
        let mut faults = self.faults();
        if asked_at < faults.api_asked_at {
            return;
        }
        (faults.api, faults.api_asked_at) = (trouble, asked_at);
        drop(faults);
        self.publish_health();
    }

    fn publish_health(&self) {
        // Computed inside, so that of two concurrent updates the later one includes both.
        self.health.send_if_modified(|now| {
            if self.is_replaced.load(Ordering::Relaxed) {
                return false;
            }
            let up = self.connection.borrow().up;
            let faults = self.faults();
            let next = match faults.parts() {
                _ if !up && faults.is_connecting => Health::Connecting(faults.connection.clone()),
                _ if !up => Health::Down(faults.connection.clone()),
                Some(parts) => Health::Impaired(Text::from(parts)),
                None => Health::Up,
            };
            let changed = *now != next;
            *now = next;
            changed
        });
    }

    /// Never held over an await. A panic while it is held cannot leave it half written.
    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Why the connection is down.
    pub(super) fn cause(&self) -> Text {
        self.faults().connection.clone()
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(super) fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    pub(super) fn refusals(&self) -> broadcast::Receiver<Refusal> {
        self.refusals.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.borrow().up
    }

    /// Whether a message can be sent now.
    pub(super) fn is_usable(&self) -> bool {
        self.is_up() && !self.is_closed()
    }

    /// Waits until the connection is up, or closed, or until the deadline.
    pub(super) async fn up(&self, deadline: Instant) -> Result<(), TransportError> {
        if self.is_usable() {
            return Ok(());
        }
        let mut connection = self.connection.subscribe();
        let came_up = async { connection.wait_for(|now| now.up).await.is_ok() };
        let came_up = self.closed.run_until_cancelled(came_up);
        match tokio::time::timeout_at(deadline, came_up).await {
            _ if self.is_closed() => Err(self.gone()),
            Ok(Some(true)) => Ok(()),
            Ok(Some(false) | None) | Err(_) => Err(self.disconnected("reach NATS")),
        }
    }

    /// The error of everything that uses a client that has ended. If another one takes its place, it may work later.
    pub(super) fn gone(&self) -> TransportError {
        match self.is_replaced.load(Ordering::Relaxed) {
            true => self.disconnected("use NATS"),
            false => TransportError::new(
                TransportErrorKind::Closed,
                "use a closed connection to NATS",
            ),
        }
    }

    /// Whether this client takes the place of one that has ended by itself, perhaps because of a message that a stream
    /// stores.
    pub(super) fn replaces(&self) -> bool {
        self.replaces
    }

    pub(super) fn disconnected(&self, what: &str) -> TransportError {
        TransportError::new(
            TransportErrorKind::Disconnected,
            format!("{what}: {}", self.cause()),
        )
    }

    /// Counts a message that was not read in time. At most once in [`DROPS_LOGGED_EVERY`] the log names its subject and
    /// its subscription, if known, with the count since the last line.
    pub(super) fn drop_message(&self, subject: &str, subscription: &str) {
        let total = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = self
            .logged
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        if logged.at.is_some_and(|at| now < at + DROPS_LOGGED_EVERY) {
            return;
        }
        let dropped = total - logged.total;
        *logged = Logged {
            at: Some(now),
            total,
        };
        drop(logged);
        tracing::warn!(
            topic = subject,
            subscription,
            dropped,
            dropped_total = total,
            reason = "slow_consumer",
            "core NATS messages are dropped: the bridge is too slow, and the server does not store them"
        );
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.end();
        self.blame(Text::from_static("closed"));
    }

    /// The client has ended. If nobody has closed it, it has panicked, and its state does not show that. Returns
    /// whether that is so.
    fn client_ended(&self) -> bool {
        if self.is_closed() {
            return false;
        }
        let epoch = self.connection.borrow().epoch;
        let ended = "the NATS client has ended by itself, perhaps because of a message with a carriage return within a header: another client takes its place";
        tracing::error!(servers = %self.servers, "{ended}");
        self.blame(Text::from_static(ended));
        self.set_connection(false, epoch);
        // Whoever sees the end sees these too.
        self.is_replaced.store(true, Ordering::Relaxed);
        self.end();
        true
    }

    fn end(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.closed.cancel();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// The pause before an attempt to connect: doubled from 100 ms to 5 s, of which the second half is random, so that
    /// clients do not all return to a restarted server at once.
    fn pause(&self, attempts: usize) -> Duration {
        if self.is_closed() {
            return CLOSED_PAUSE;
        }
        let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        if doublings == 0 {
            return jitter(Duration::from_millis(50));
        }
        let pause = Duration::from_millis(100)
            .saturating_mul(2_u32.saturating_pow(doublings - 1))
            .min(MAX_PAUSE);
        pause / 2 + jitter(pause / 2)
    }
}

// === impl Faults ===

impl Faults {
    /// Of a client that connects.
    fn new(is_connecting: bool, connection: Text) -> Self {
        Self {
            is_connecting,
            connection,
            api: None,
            api_asked_at: Instant::now(),
            subscriptions: BTreeMap::new(),
        }
    }

    fn blame_connection(&mut self, connection: Text) {
        self.connection = connection;
        self.is_connecting = false;
    }

    /// The parts that do not work, and why: [`MAX_PARTS`] of them, and how many more. Of the API only the API, because
    /// the others may fail because of it.
    fn parts(&self) -> Option<String> {
        if let Some(trouble) = &self.api {
            return Some(format!("JetStream: {trouble}"));
        }
        let parts = self.subscriptions.iter().take(MAX_PARTS);
        let mut parts: Vec<String> = parts
            .map(|(part, trouble)| format!("{part}: {trouble}"))
            .collect();
        let more = self.subscriptions.len() - parts.len();
        if more > 0 {
            parts.push(format!("and {more} more"));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

// === impl LoggedRefusals ===

impl Default for LoggedRefusals {
    fn default() -> Self {
        Self {
            publish: LoggedSubjects::new(MAX_ALIKE),
            // They are those of the configuration.
            subscribe: LoggedSubjects::new(MAX_LOGGED),
        }
    }
}

impl LoggedRefusals {
    /// Whether to log a line about a refusal now, and how many were left out since the last one.
    fn allow(&mut self, refusal: &Refusal, now: Instant) -> Option<u64> {
        match refusal {
            Refusal::Publish(subject) => self.publish.allow(subject, now),
            Refusal::Subscribe { subject, .. } => self.subscribe.allow(subject, now),
        }
    }

    /// How many lines about subjects that the log has not named were left out, once they are old enough to be reported
    /// separately.
    fn unreported(&mut self, now: Instant) -> u64 {
        self.publish.unreported(now) + self.subscribe.unreported(now)
    }

    /// The subjects that the log has named and of which lines were left out since, with the number of these lines, once
    /// they are old enough to be reported.
    fn repeated(&mut self, now: Instant) -> Vec<(Text, u64)> {
        let publish = self.publish.repeated(now);
        publish.chain(self.subscribe.repeated(now)).collect()
    }
}

// === impl LoggedSubjects ===

impl LoggedSubjects {
    fn new(max_alike: usize) -> Self {
        Self {
            named: HashMap::new(),
            max_alike,
            suppressed: 0,
            suppressed_since: None,
        }
    }

    fn allow(&mut self, subject: &Text, now: Instant) -> Option<u64> {
        self.named
            .retain(|_, named| named.suppressed > 0 || !named.is_old(now));
        if let Some(named) = self.named.get_mut(subject) {
            let is_old = named.is_old(now);
            if !is_old {
                named.suppressed += 1;
            }
            return is_old.then(|| named.take(now));
        }
        let first = first_word(subject);
        let alike = self.named.keys();
        let alike = alike.filter(|known| first_word(known) == first).count();
        if self.named.len() >= MAX_LOGGED || alike >= self.max_alike {
            self.suppressed += 1;
            self.suppressed_since.get_or_insert(now);
            return None;
        }
        let named = NamedSubject {
            at: now,
            suppressed: 0,
        };
        self.named.insert(subject.clone(), named);
        Some(self.take())
    }

    fn repeated(&mut self, now: Instant) -> impl Iterator<Item = (Text, u64)> {
        let named = self.named.iter_mut();
        let repeated = named.filter(move |(_, named)| named.suppressed > 0 && named.is_old(now));
        repeated.map(move |(subject, named)| (subject.clone(), named.take(now)))
    }

    fn unreported(&mut self, now: Instant) -> u64 {
        match self.suppressed_since {
            Some(since) if now >= since + REFUSAL_LOGGED_EVERY => self.take(),
            Some(_) | None => 0,
        }
    }

    fn take(&mut self) -> u64 {
        self.suppressed_since = None;
        std::mem::take(&mut self.suppressed)
    }
}

// === impl NamedSubject ===

impl NamedSubject {
    /// Whether the next line about it may be written.
    fn is_old(&self, now: Instant) -> bool {
        now >= self.at + REFUSAL_LOGGED_EVERY
    }

    /// How many lines were left out until now, when the next one is written.
    fn take(&mut self, now: Instant) -> u64 {
        self.at = now;
        std::mem::take(&mut self.suppressed)
    }
}

// === impl Refusal ===

impl Refusal {
    /// Reads `Permissions Violation for Publish to "a.b"` and `... for Subscription to "a.b" using queue "g"`. A server
    /// that takes a permission away writes `(sid "1")` in place of the queue.
    fn parse(text: &str) -> Option<Self> {
        let lower = text.to_ascii_lowercase();
        let mut parts = text.split('"').skip(1);
        if lower.starts_with("permissions violation for publish") {
            parts.next().map(|subject| Self::Publish(subject.into()))
        } else if lower.starts_with("permissions violation for subscription") {
            let subject = parts.next()?.into();
            let queue = match (parts.next().map(str::trim), parts.next()) {
                (None | Some(""), _) => RefusedQueue::Without,
                (Some("using queue"), Some(queue)) => RefusedQueue::Named(queue.into()),
                _ => RefusedQueue::Unnamed,
            };
            Some(Self::Subscribe { subject, queue })
        } else {
            None
        }
    }
}

// === impl RefusedQueue ===

impl RefusedQueue {
    /// Whether a subscription in this group may be the refused one.
    pub(super) fn may_be(&self, group: Option<&Text>) -> bool {
        match self {
            Self::Without => group.is_none(),
            Self::Named(queue) => group == Some(queue),
            Self::Unnamed => true,
        }
    }
}

/// A part of the health of the transport.
fn publishing_to(subject: &str) -> Text {
    Text::from(format!("publishing to {subject}"))
}

pub(super) fn unauthorised(what: &str, user: &str) -> TransportError {
    TransportError::new(
        TransportErrorKind::Unauthorised,
        format!("{what}: NATS does not permit it to {user}"),
    )
}

/// The refused subject that gives way to another one: of those with the same first word, if there are many.
fn gives_way(refused: &HashMap<Text, Instant>, subject: &str) -> Option<Text> {
    let is_alike = |known: &Text| first_word(known) == first_word(subject);
    let is_crowded = refused.keys().filter(|known| is_alike(known)).count() >= MAX_REFUSED / 2;
    let candidates = refused.iter();
    let candidates = candidates.filter(|(known, _)| !is_crowded || is_alike(known));
    let oldest = candidates.min_by_key(|(_, at)| **at);
    let oldest = oldest.filter(|_| is_crowded || refused.len() >= MAX_REFUSED);
    oldest.map(|(oldest, _)| oldest.clone())
}

/// A subject for the log and the health. The last word of a reply subject of a bridge is left out: whoever knows it can
/// answer the call.
fn shown(subject: &str) -> Cow<'_, str> {
    let is_reply_id = |word: &str| {
        word.len() == REPLY_ID_CHARS && word.bytes().all(|c| matches!(c, b'a'..=b'z' | b'2'..=b'7'))
    };
    match subject.rsplit_once('.') {
        Some((rest, last)) if is_reply_id(last) => format!("{rest}.*").into(),
        _ => subject.into(),
    }
}

/// Up to the first dot.
pub(super) fn first_word(subject: &str) -> &str {
    subject.split('.').next().unwrap_or_default()
}

/// How many connections the client has had.
pub(super) fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Acquire)
}

/// A random part of a duration; all of it if the system has no random numbers.
pub(super) fn jitter(most: Duration) -> Duration {
    getrandom::u32().map_or(most, |random| {
        most.mul_f64(f64::from(random) / f64::from(u32::MAX))
    })
}

#[cfg(test)]
mod tests;
