//! Answers to requests with an `Idempotency-Key`: kept on a log, so that a request that is sent again is not done again,
//! whichever replica gets it.
//!
//! ```text
//! request ── claim ──> log ──> Ours ──────> work ── keep ──> log
//!                       ├────> Running ───> wait ──────────> Answered
//!                       └────> Answered, Differs, …
//! ```
//!
//! A key belongs to its caller. The log decides which request has claimed it first: every replica sees the same claim,
//! and the same answer. Source: docs/design.md §7.5.

mod fold;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use sha2::{Digest as _, Sha256};
use tokio_util::task::TaskTracker;
use tracing::Level;

pub(crate) use self::fold::{Claim, Kept};

use self::fold::{Claimed, Event, Outcome, ResultFold};
use crate::clock;
use crate::seldom::{LogLimits, Seldom};
use crate::state::body;
use crate::state::{Logs, RESULTS, StateError, View};

/// The answers that are kept.
#[derive(Debug)]
pub(crate) struct Results {
    view: View<ResultFold>,
    work: TaskTracker,
    lost: Seldom,
}

/// What has become of the request with a key.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// This call is to answer it.
    Ours,
    /// The key was used for another request, of this call.
    Differs(Text),
    /// It is being answered by this call.
    Running(Text),
    /// It was answered.
    Answered(Arc<Kept>),
    /// It was taken by this call, and its answer is not known: it was not kept, or its replica has ended.
    Lost(Text),
    /// It was answered, and that is forgotten.
    Forgotten,
}

/// How long the log may take to show what was appended.
const APPLIED: Duration = Duration::from_secs(10);
/// Records that a waiting request may be behind before it looks again.
const BEHIND: usize = 8;

// === impl Results ===

impl Results {
    /// The answers that the log has.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) async fn open(logs: &Logs, log: &LogLimits) -> Result<Arc<Self>, StateError> {
        Ok(Arc::new(Self {
            view: logs.view(RESULTS, ResultFold).await?,
            work: TaskTracker::new(),
            lost: log.seldom(Level::ERROR, "more answers were not kept"),
        }))
    }

    /// Claims a key for a request, unless another request has it.
    ///
    /// # Errors
    /// When the log cannot be asked: nobody may do the work then.
    pub(crate) async fn claim(&self, key: &str, claim: &Claim) -> Result<Standing, StateError> {
        if let Some(standing) = self.standing(key, claim) {
            return Ok(standing);
        }
        let claimed = body::write(&Event::Claimed(claim.clone()));
        self.view.commit(key, Some(claimed), APPLIED).await?;
        Ok(self.standing(key, claim).unwrap_or(Standing::Forgotten))
    }

    fn standing(&self, key: &str, claim: &Claim) -> Option<Standing> {
        let now = clock::milliseconds(clock::now());
        self.view
            .read(|keys| Some(standing(keys.get(key)?, claim, now)))
    }

    /// Waits until the call that has claimed a key has answered, or given it back.
    pub(crate) async fn until_settled(&self, key: &str) {
        loop {
            let (is_running, mut following) = self.view.follow(Some(key), BEHIND, |keys| {
                keys.get(key)
                    .is_some_and(|claimed| claimed.outcome.is_none())
            });
            if !is_running || matches!(following.next().await, Ok(None)) {
                return;
            }
        }
    }

    /// Keeps the answer to a claimed request. One that the log does not take is not kept.
    pub(crate) async fn keep(&self, key: &str, call: &Text, response: Kept) {
        let answered = Event::Answered {
            call: call.clone(),
            response,
        };
        let Err(error) = self.append(key, &answered).await else {
            return;
        };
        self.report(call, &error);
        self.give_up(key, call).await;
    }

    /// Notes that the answer to a claimed request is not kept.
    pub(crate) async fn give_up(&self, key: &str, call: &Text) {
        let call = call.clone();
        self.note(key, Event::Unkept { call }).await;
    }

    /// Gives a key back: no agent can have got its request.
    pub(crate) async fn release(&self, key: &str, call: &Text) {
        let call = call.clone();
        self.note(key, Event::Released { call }).await;
    }

    async fn note(&self, key: &str, event: Event) {
        if let Err(error) = self.append(key, &event).await
            && let Event::Unkept { call } | Event::Released { call } = &event
        {
            self.report(call, &error);
        }
    }

    async fn append(&self, key: &str, event: &Event) -> Result<(), StateError> {
        self.view
            .append(key, Some(body::write(event)))
            .await
            .map(drop)
    }

    fn report(&self, call: &Text, error: &StateError) {
        if let Some(suppressed) = self.lost.allow() {
            tracing::error!(
                %call, %error, suppressed,
                "the answer to a request with an Idempotency-Key was not kept: sent again, it gets an error"
            );
        }
    }

    /// Runs work that goes on when its caller leaves.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.work.spawn(work);
    }

    /// Waits until all that was claimed here is answered and kept.
    pub(crate) async fn until_kept(&self) {
        self.work.close();
        self.work.wait().await;
    }
}

fn standing(claimed: &Claimed, claim: &Claim, now: u64) -> Standing {
    let Claimed { claim: first, .. } = claimed;
    if first.digest != claim.digest {
        return Standing::Differs(first.call.clone());
    }
    match &claimed.outcome {
        Some(Outcome::Answered(kept)) => Standing::Answered(Arc::clone(kept)),
        Some(Outcome::Unkept) => Standing::Lost(first.call.clone()),
        None if first.call == claim.call => Standing::Ours,
        None if first.until < now => Standing::Lost(first.call.clone()),
        None => Standing::Running(first.call.clone()),
    }
}

/// The key of a request in the log: of its caller and of the key that the caller chose.
pub(crate) fn key_of(caller: &str, key: &str) -> String {
    format!("key-{}", digest_of([caller.as_bytes(), key.as_bytes()]))
}

/// The hash of some texts, one after the other.
pub(crate) fn digest_of<const N: usize>(texts: [&[u8]; N]) -> Text {
    let mut hash = Sha256::new();
    for text in texts {
        // With its length before it, so that no two lists of texts are alike.
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let bytes = hash.finalize();
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Text::from(digits.collect::<String>())
}
