//! The environment of an executor: time, randomness, HTTP and storage, each behind a small trait, so that tests use a
//! virtual clock and no network.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_models::a2e_workflow::operation::Method;
use a2abus_models::a2e_workflow::target::Target;
use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::future::BoxFuture;

/// Time.
pub trait Clock: Send + Sync {
    /// Monotonic time since the start.
    fn elapsed(&self) -> Duration;

    /// The time of day.
    fn now(&self) -> SystemTime;

    /// Completes after this time.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Chance.
pub trait Random: Send + Sync {
    /// 128 unpredictable bits.
    fn bits(&self) -> u128;
}

/// Sends HTTP requests.
pub trait HttpClient: Send + Sync {
    /// Sends a request and reads the whole response. Follows no redirects, uses no proxy, and connects only to
    /// addresses that [`HttpRequest::reach`] permits. Repeats nothing.
    ///
    /// # Errors
    /// Why there is no response.
    ///
    /// # Cancel safety
    /// The future may be dropped; the request may then have been sent or not.
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>>;
}

/// A request that is ready to be sent. `Debug` shows neither headers nor body.
#[derive(Clone)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// Where to.
    pub target: Target,
    /// The headers; their values contain only bytes that HTTP permits.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Bytes>,
    /// The timeout, from the first connection to the last byte of the response.
    pub timeout: Duration,
    /// The largest response body, in bytes. With 0 it is not read: the response is complete after its head.
    pub max_response_bytes: usize,
    /// Which addresses it may connect to.
    pub reach: Reach,
}

/// Which addresses a request may connect to. Source: docs/protocols/a2e-workflows.md §7, SSRF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Any: the operator registered the base.
    Registered,
    /// Those that are globally reachable.
    Global,
}

/// A response. `Debug` shows neither headers nor body, because a service may echo the request.
#[derive(Clone)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// No connection: nothing was sent.
    #[error("no connection")]
    Connect,
    /// The connection broke before the response was complete: something may have been sent.
    #[error("the connection broke")]
    Broken,
    /// It took longer than the request permits.
    #[error("no response in time")]
    Timeout,
    /// The body is larger than the request permits.
    #[error("the response is too large")]
    TooLarge,
    /// The name resolves to an address that the request may not reach.
    #[error("an address that is not globally reachable")]
    Forbidden,
}

/// Tables that map keys to bytes. Keys are ordered by their bytes.
pub trait Store: Send + Sync {
    /// The value of a key.
    ///
    /// # Errors
    /// If the store fails.
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// Sets the values of some keys, or removes keys without a value. All or nothing, and durable when it returns.
    ///
    /// # Errors
    /// If the store fails; then nothing has changed.
    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Like [`Store::write`], for the last record of an execution that nobody waits for: it may try again for much
    /// longer than a caller would wait.
    ///
    /// # Errors
    /// As for [`Store::write`].
    fn write_late(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.write(changes)
    }

    /// Why it has failed recently, for operators; `None` if it works, as far as is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The first keys with `prefix` after `after`, in order, with their values. The empty key precedes all others.
    ///
    /// # Errors
    /// If the store fails.
    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>>;

    /// Whether other processes use the store at the same time. The methods below are for such stores.
    fn is_shared(&self) -> bool {
        false
    }

    /// Like [`Store::write`], with the record of an execution that starts now and will have ended by `until`. Returns
    /// `false`, and writes nothing, if another process has started it. [`Store::cancel_named`] finds it by each of the
    /// `names`.
    ///
    /// # Errors
    /// As for [`Store::write`]; with [`RecordForgotten`] as the cause if it can start under another id only.
    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        _until: SystemTime,
        _names: Vec<Text>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.write(changes).await.map(|()| true) })
    }

    /// Whether another process runs the execution with this key of [`Table::Executions`], as far as is known.
    fn runs_elsewhere(&self, _key: &str) -> bool {
        false
    }

    /// Waits while another process runs the execution with this key.
    fn until_idle<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Asks the other process that runs the execution with this key to cancel it. Returns whether there is one.
    ///
    /// # Errors
    /// If the store fails.
    fn cancel<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Asks the other processes that run executions of this agent with this name to cancel them. Returns whether there
    /// are any.
    ///
    /// # Errors
    /// If the store fails.
    fn cancel_named<'a>(
        &'a self,
        _agent: &'a str,
        _name: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Waits until another process asks to cancel the execution with this key.
    fn until_cancelled<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

/// The tables of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// The values of `localStorage`.
    Local,
    /// The records of executions.
    Executions,
    /// The summaries of the records, newest first.
    Summaries,
}

/// One change of a [`Store`].
#[derive(Debug, Clone)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: String,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// A store failed. The text is for logs only.
#[derive(Debug, thiserror::Error)]
#[error("the store failed")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// The cause of a [`StoreError`] when the store must be cleaned up before it accepts more.
#[derive(Debug, thiserror::Error)]
#[error("the store is full: its limit is {max_bytes} bytes")]
pub struct StoreFull {
    /// Its limits.
    pub max_bytes: usize,
}

/// The cause of a [`StoreError`] when the store refuses a value because of its size, however often that is tried. The
/// text is for agents too, and names the size and the limit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreTooLarge(pub Box<dyn std::error::Error + Send + Sync>);

/// The cause of a [`StoreError`] when the store has not written in time, and may do so later: see
/// [`Store::write_late`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreDelayed(pub Box<dyn std::error::Error + Send + Sync>);

/// The cause of a [`StoreError`] when the record of an execution was removed for lack of memory. The store does not know
/// what became of the execution, and starts no other one under its id until that record would have expired.
#[derive(Debug, thiserror::Error)]
#[error("the record of this execution was removed because memory is full")]
pub struct RecordForgotten;

/// Everything that an executor needs from outside.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub random: Arc<dyn Random>,
    /// HTTP.
    pub http: Arc<dyn HttpClient>,
    /// Storage.
    pub store: Arc<dyn Store>,
}

// === impl HttpRequest ===

/// Shows neither headers nor body, which may contain secrets.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("target", &self.target)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

// === impl HttpResponse ===

impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl HttpResponse {
    /// The first header of this name, in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(header, _)| header == name);
        header.map(|(_, value)| value.as_str())
    }
}

// === impl Environment ===

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}
