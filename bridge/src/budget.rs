//! The memory that requests and answers in progress may use together.
//!
//! One budget, in bytes, is charged for everything that a client can make large: heads and bodies of requests while
//! they arrive and wait, calls that wait for answers, E2A records that are collected for one answer, and parts of
//! answers that wait for their callers. One client may use at most half of it. Anything beyond that is refused with an
//! error. Bodies that are still being received may use at most half of the budget, and those of one client a quarter:
//! senders that do not finish must not take the memory of requests that are complete, and of answers.
//!
//! ```text
//! Budget ── ClientBudget ── Charge: a number of bytes, released when it is dropped
//!                       ├─ Bytes with their charge, released when the last clone is dropped
//!                       └─ Arriving: how much of the charges is for a body that is being received
//! ```

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use prometheus::{IntCounter, IntGauge};
use tracing::Level;

use crate::log_limit::{LogLimit, LogLimits};
use crate::shares::{Holder, Share, Shares, client};

/// The bytes that all clients may use together.
#[derive(Debug)]
pub struct Budget {
    /// The used bytes. The metric is the count itself, because all requests of all threads change it.
    held: IntGauge,
    max_bytes: i64,
    of_clients: Arc<Shares<IpAddr>>,
    /// The part of the used bytes that is for bodies that are being received, of each client and of all.
    arriving_of_clients: Arc<Shares<IpAddr>>,
    arriving: Arc<Shares<()>>,
    refused: IntCounter,
    lines: LogLimit,
}

/// The part of a [`Budget`] that one client may use. Cheap to clone: a clone changes only this client's reference
/// count, not one that all clients share.
#[derive(Debug, Clone)]
pub struct ClientBudget(Arc<Client>);

#[derive(Debug)]
struct Client {
    budget: Arc<Budget>,
    /// `None` if no client is charged.
    holder: Option<Arc<Holder<IpAddr>>>,
}

/// Bytes taken from a budget. Dropping the charge releases them.
#[derive(Debug)]
#[must_use = "dropping a charge releases it"]
pub struct Charge {
    of: ClientBudget,
    bytes: usize,
}

/// The bytes of one body that is being received. They are charged too.
#[derive(Debug)]
#[must_use = "dropping it means that the body is complete"]
pub(crate) struct Arriving {
    of: ClientBudget,
    of_client: Option<Share<IpAddr>>,
    of_all: Share<()>,
    bytes: usize,
}

/// The budget, or the half of the client, is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory for requests and answers (calls.budget_bytes) is used up")]
pub struct BudgetExhausted;

/// Bytes with their charge.
struct ChargedBytes {
    bytes: Bytes,
    _charge: Charge,
}

/// The overhead per item: the buffers and tables around its bytes.
const OVERHEAD: usize = 256;

// === impl Budget ===

impl Budget {
    /// A budget of `max_bytes` bytes. `held` shows the used bytes, `refused` counts refusals.
    #[must_use]
    pub fn new(
        max_bytes: usize,
        held: IntGauge,
        refused: IntCounter,
        log: &LogLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            held,
            max_bytes: signed(max_bytes),
            of_clients: Shares::new(max_bytes / 2),
            arriving_of_clients: Shares::new(max_bytes / 4),
            arriving: Shares::new(max_bytes / 2),
            refused,
            lines: log.limit(
                Level::WARN,
                "more requests and answers were refused for lack of memory (calls.budget_bytes)",
            ),
        })
    }

    /// The budget of the client at this address.
    #[must_use]
    pub fn for_client(self: &Arc<Self>, address: Option<IpAddr>) -> ClientBudget {
        ClientBudget(Arc::new(Client {
            budget: Arc::clone(self),
            holder: address.map(|address| self.of_clients.holder(&client(address))),
        }))
    }

    /// Takes bytes if they fit. Bytes that do not fit count for a moment too, so it may refuse others, but never accepts
    /// too many.
    fn take(&self, bytes: usize) -> bool {
        if signed(bytes) > self.max_bytes {
            return false;
        }
        self.held.add(signed(bytes));
        let fits = self.held.get() <= self.max_bytes;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Takes bytes also if they do not fit, while the others use at most half.
    fn take_large(&self, bytes: usize) -> bool {
        self.held.add(signed(bytes));
        let held = self.held.get();
        let others = held.saturating_sub(signed(bytes));
        let fits = held <= self.max_bytes || others <= self.max_bytes / 2;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.held.sub(signed(bytes));
    }

    /// Counts and logs that bytes of a client are refused.
    fn refuse(&self, holder: Option<&Holder<IpAddr>>) -> BudgetExhausted {
        self.refused.inc();
        if let Some(suppressed) = self.lines.allow() {
            let client = holder.map(|holder| holder.key().to_string());
            let of_client = holder.map(|holder| self.of_clients.held_by(holder.key()));
            let (held, arriving) = (self.held.get(), self.arriving.held_by(&()));
            tracing::warn!(
                client,
                of_client,
                held,
                arriving,
                limit = self.max_bytes,
                suppressed,
                "a request or an answer is refused: the memory for requests and answers (calls.budget_bytes) is used up, or one client's half of it, or the half of it for bodies that are still being received"
            );
        }
        BudgetExhausted
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// === impl ClientBudget ===

impl ClientBudget {
    /// Charges this many bytes and the overhead per item.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn charge(&self, bytes: usize) -> Result<Charge, BudgetExhausted> {
        let mut charge = self.nothing();
        charge.grow(bytes.saturating_add(OVERHEAD))?;
        Ok(charge)
    }

    /// Charges bytes that replace charged ones, which the caller drops now. This always succeeds.
    #[must_use]
    pub fn replace(&self, bytes: Bytes) -> Bytes {
        let mut charge = self.nothing();
        charge.grow_anyway(bytes.len() + OVERHEAD);
        charge.carried_by(bytes)
    }

    /// A body that is being received, of which nothing counts so far.
    pub(crate) fn arriving(&self) -> Arriving {
        let Client { budget, holder } = &*self.0;
        let of_client = holder.as_ref();
        Arriving {
            of_client: of_client.map(|holder| budget.arriving_of_clients.begin(holder.key())),
            of_all: budget.arriving.begin(&()),
            of: self.clone(),
            bytes: 0,
        }
    }

    /// An error if bodies that are being received use so much that a slow one, which uses `own` bytes of it, must make
    /// room. A body need not hurry if that would release nothing, or if it is the only one and leaves room for the
    /// beginning of others.
    ///
    /// # Errors
    /// [`BudgetExhausted`].
    pub(crate) fn check_crowd(&self, own: usize) -> Result<(), BudgetExhausted> {
        let Client { budget, holder } = &*self.0;
        let (held, limit) = (budget.arriving.held_by(&()), budget.arriving.limit());
        let is_alone = held <= own;
        let most = if is_alone { limit / 4 * 3 } else { limit / 2 };
        if own == 0 || held <= most {
            return Ok(());
        }
        Err(budget.refuse(holder.as_deref()))
    }

    fn nothing(&self) -> Charge {
        Charge {
            of: self.clone(),
            bytes: 0,
        }
    }

    /// Charges bytes until the last clone of them is dropped.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, BudgetExhausted> {
        Ok(self.charge(bytes.len())?.carried_by(bytes))
    }

    /// Like [`ClientBudget::hold`], but the bytes may exceed the half of the client, or the budget, if at most half of
    /// it is used so far: otherwise its client could never get a document that is larger. Then it gets one at a time.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn hold_large(&self, bytes: Bytes) -> Result<Bytes, BudgetExhausted> {
        let mut charge = self.nothing();
        let size = bytes.len().saturating_add(OVERHEAD);
        charge.grow_by(size, Holder::take_large, Budget::take_large)?;
        Ok(charge.carried_by(bytes))
    }
}

// === impl Charge ===

impl Charge {
    /// Charges more bytes.
    ///
    /// # Errors
    /// When they do not fit; the earlier charge does not change.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.grow_by(bytes, Holder::take, Budget::take)
    }

    fn grow_by(
        &mut self,
        bytes: usize,
        of_client: impl FnOnce(&Holder<IpAddr>, usize) -> bool,
        of_all: impl FnOnce(&Budget, usize) -> bool,
    ) -> Result<(), BudgetExhausted> {
        let Client { budget, holder } = &*self.of.0;
        let holder = holder.as_deref();
        let fits = holder.is_none_or(|holder| of_client(holder, bytes));
        if fits && of_all(budget, bytes) {
            self.bytes += bytes;
            return Ok(());
        }
        if let Some(holder) = holder.filter(|_| fits) {
            holder.release(bytes);
        }
        Err(budget.refuse(holder))
    }

    fn grow_anyway(&mut self, bytes: usize) {
        let Client { budget, holder } = &*self.of.0;
        if let Some(holder) = holder {
            holder.take_anyway(bytes);
        }
        budget.held.add(signed(bytes));
        self.bytes += bytes;
    }

    /// The charged bytes, including the overhead per item.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes, which release the charge when their last clone is dropped.
    #[must_use]
    pub fn carried_by(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ChargedBytes {
            bytes,
            _charge: self,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Client { budget, holder } = &*self.of.0;
        if let Some(holder) = holder {
            holder.release(self.bytes);
        }
        budget.release(self.bytes);
    }
}

// === impl Arriving ===

impl Arriving {
    /// Counts this many bytes of the body in all.
    ///
    /// # Errors
    /// When they do not fit.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let more = bytes.saturating_sub(self.bytes);
        let of_client = self.of_client.as_mut();
        let fits = of_client.is_none_or(|share| share.grow_large(more));
        if fits && self.of_all.grow_large(more) {
            self.bytes += more;
            return Ok(());
        }
        // The request is refused, so what the client has grown by is released soon.
        let Client { budget, holder } = &*self.of.0;
        Err(budget.refuse(holder.as_deref()))
    }
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(max_bytes: usize) -> Arc<Budget> {
        let held = IntGauge::new("held", "Bytes.").unwrap();
        let refused = IntCounter::new("refused", "Refusals.").unwrap();
        Budget::new(max_bytes, held, refused, &LogLimits::default())
    }

    #[test]
    fn unfinished_bodies_leave_half_to_complete_requests_and_answers() {
        let budget = budget(100_000);
        let [one, two, three] =
            [1, 2, 3].map(|last| budget.for_client(Some([192, 0, 2, last].into())));
        let mut unfinished = Vec::new();
        for client in [&one, &two] {
            for _ in 0..5 {
                let mut body = client.arriving();
                body.count(1_000).unwrap();
                body.count(5_000).unwrap();
                unfinished.push(body);
            }
            assert_eq!(client.arriving().count(1), Err(BudgetExhausted));
        }
        assert_eq!(three.arriving().count(1), Err(BudgetExhausted));
        assert_eq!(one.check_crowd(5_000), Err(BudgetExhausted));
        three.check_crowd(0).unwrap();
        drop(three.charge(40_000).unwrap());
        unfinished.truncate(5);
        one.check_crowd(5_000).unwrap();
        // One large body is received if the others are small.
        let mut large = three.arriving();
        large.count(10_000).unwrap();
        large.count(90_000).unwrap();
        drop((large, unfinished));
        assert_eq!(budget.arriving.held_by(&()), 0);
        assert!(budget.arriving_of_clients.is_empty());
    }

    #[test]
    fn bytes_carry_their_charge_until_the_last_slice_is_dropped() {
        let budget = budget(10_000);
        let client_budget = budget.for_client(None);
        let bytes = client_budget.hold(Bytes::from(vec![7; 5_000])).unwrap();
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(budget.held.get(), 5_256);
        assert_eq!(
            client_budget.hold(Bytes::from(vec![7; 5_000])),
            Err(BudgetExhausted)
        );
        assert_eq!((&slice[..], budget.refused.get()), (&[7; 10][..], 1));
        drop(slice);
        assert_eq!(budget.held.get(), 0);
        assert!(client_budget.hold(Bytes::from(vec![7; 5_000])).is_ok());
    }

    #[test]
    fn replacing_bytes_always_succeeds() {
        let budget = budget(1_000);
        let client_budget = budget.for_client(Some([192, 0, 2, 1].into()));
        let part = client_budget.hold(Bytes::from(vec![7; 200])).unwrap();
        let frame = client_budget.replace(Bytes::from(vec![7; 900]));
        drop(part);
        assert_eq!(budget.held.get(), 1_156);
        assert_eq!(client_budget.charge(1).unwrap_err(), BudgetExhausted);
        drop((frame, client_budget));
        assert_eq!(budget.held.get(), 0);
        assert!(budget.of_clients.is_empty());
    }

    #[test]
    fn a_client_gets_one_large_document_at_a_time() {
        let budget = budget(10_000);
        let one = budget.for_client(Some([192, 0, 2, 1].into()));
        let head = one.charge(100).unwrap();
        let large = Bytes::from(vec![7; 8_000]);
        let first = one.hold_large(large.clone()).unwrap();
        assert_eq!(one.hold_large(large.clone()), Err(BudgetExhausted));
        let other = budget.for_client(Some([192, 0, 2, 2].into()));
        assert_eq!(other.hold_large(large.clone()), Err(BudgetExhausted));
        let small = other.hold_large(Bytes::from(vec![7; 500])).unwrap();
        drop(first);
        let again = one.hold_large(large).unwrap();
        drop((again, small, head));
        assert_eq!(budget.held.get(), 0);
        drop((one, other));
        assert!(budget.of_clients.is_empty());
    }

    #[test]
    fn one_client_leaves_half_to_the_others() {
        let budget = budget(10_000);
        let one = budget.for_client(Some([192, 0, 2, 1].into()));
        let mut charge = one.charge(4_000).unwrap();
        assert_eq!(charge.grow(1_000), Err(BudgetExhausted));
        assert_eq!(charge.bytes(), 4_256);
        let other = budget.for_client(Some([192, 0, 2, 2].into()));
        let others = other.charge(4_000).unwrap();
        drop(charge);
        let again = one.charge(4_000).unwrap();
        drop((again, others));
        assert_eq!(budget.held.get(), 0);
        drop((one, other));
        assert!(budget.of_clients.is_empty());
    }

    #[test]
    fn a_charge_that_the_whole_budget_refuses_is_released_for_the_client() {
        let budget = budget(1_000);
        let mut held = Vec::new();
        for last in 1..=3 {
            let client_budget = budget.for_client(Some([192, 0, 2, last].into()));
            held.extend(client_budget.charge(100));
        }
        assert_eq!(held.len(), 2);
        drop(held);
        assert!(budget.of_clients.is_empty());
    }
}
