//! What an executor needs of the world: time, chance, HTTP and storage, each behind a small trait,
//! so that a test runs on a virtual clock without a network.

mod system;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_models::a2e_workflow::operation::Method;
use a2abus_models::a2e_workflow::target::Target;
use bytes::Bytes;
use futures_util::future::BoxFuture;

pub use system::{SystemClock, SystemRandom};

/// Time.
pub trait Clock: Send + Sync {
    /// How long it has run; never goes back.
    fn elapsed(&self) -> Duration;

    /// The time of day.
    fn now(&self) -> SystemTime;

    /// Ends when so much time has passed.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Chance.
pub trait Random: Send + Sync {
    /// 128 bits that nobody can guess.
    fn bits(&self) -> u128;
}

/// One HTTP request at a time.
pub trait HttpClient: Send + Sync {
    /// Sends a request and reads the whole answer. It follows no redirect, uses no proxy, and
    /// connects to no address that [`HttpRequest::reach`] does not permit. It repeats nothing.
    ///
    /// # Errors
    /// Why there is no answer.
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
    /// The headers in order; values are of bytes HTTP permits.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Bytes>,
    /// The longest it may take, from the first connection to the last byte of the answer.
    pub timeout: Duration,
    /// The largest body of an answer, in bytes.
    pub max_response_bytes: usize,
    /// Which addresses may be connected to.
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

/// An answer. `Debug` shows neither headers nor body: a service may send back what it was sent.
#[derive(Clone)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// No connection: nothing was sent.
    #[error("no connection")]
    Connect,
    /// The connection broke before the answer was whole: something may have been sent.
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

/// A table of bytes by key. Keys are ordered as their bytes are.
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

    /// Sets the values of some keys, or removes them where there is none; all or nothing, durable
    /// when it returns.
    ///
    /// # Errors
    /// If the store fails; then nothing has changed.
    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The first keys that begin with `prefix` and come after `after`, in order, with their values. The empty key comes
    /// before all others.
    ///
    /// # Errors
    /// If the store fails.
    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>>;

    /// Whether other processes use the store at the same time. The methods below are for such stores.
    fn is_shared(&self) -> bool {
        false
    }

    /// As [`Store::write`], with the record of an execution that begins, and that has ended at `until` at the latest.
    /// `false`, and nothing is written, where another process has begun it.
    ///
    /// # Errors
    /// As [`Store::write`].
    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        _until: SystemTime,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.write(changes).await.map(|()| true) })
    }

    /// Whether another process runs the execution of this key of [`Table::Executions`], as far as is known.
    fn runs_elsewhere(&self, _key: &str) -> bool {
        false
    }

    /// Waits as long as another process runs the execution of this key.
    fn until_idle<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Asks the other process that runs the execution of this key to cancel it; whether there is one.
    ///
    /// # Errors
    /// If the store fails.
    fn cancel<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Waits until another process asks for the execution of this key to be cancelled.
    fn until_cancelled<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

/// The tables of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// What StoreData keeps in `localStorage`.
    Local,
    /// The records of executions.
    Executions,
    /// What lists show of them, newest first.
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

/// A store failed; its text says how, for logs alone.
#[derive(Debug, thiserror::Error)]
#[error("the store failed")]
pub struct StoreError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// A [`StoreError`] with this inside says that something has to go before more fits.
#[derive(Debug, thiserror::Error)]
#[error("the store is full: its limit is {max_bytes} bytes")]
pub struct StoreFull {
    /// Its limits.
    pub max_bytes: usize,
}

/// All of it.
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

/// Shows neither headers nor body, where secrets are.
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
