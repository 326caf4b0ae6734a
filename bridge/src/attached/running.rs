//! The requests of an attached agent in progress, so that a cancel finds them.

use std::collections::HashMap;

use a2abus_plugin::Text;
use tokio_util::sync::CancellationToken;

/// The requests in progress, by the requester's own id.
#[derive(Debug, Default)]
pub(super) struct Running {
    last: u64,
    by_id: HashMap<Text, HashMap<u64, Entered>>,
}

/// One delivery of a request.
#[derive(Debug)]
struct Entered {
    /// The identity of the request, which all its deliveries share. A request without one is not redelivered.
    identity: Option<Text>,
    cancelled: CancellationToken,
    /// Whether this bridge executes the request.
    is_executed: bool,
}

/// What a cancel has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A request that this bridge executes, or that no other bridge can get.
    Here,
    /// A request that this bridge does not execute: another one may do so.
    Waiting,
    /// Several requests; none is cancelled.
    Several,
    Nothing,
}

// === impl Running ===

impl Running {
    /// Enters a delivery of a request. Returns its number, and a token that a cancel of the request cancels.
    pub(super) fn enter(&mut self, id: &Text, identity: Option<&Text>) -> (u64, CancellationToken) {
        let cancelled = CancellationToken::new();
        self.last += 1;
        let entered = Entered {
            identity: identity.cloned(),
            cancelled: cancelled.clone(),
            is_executed: false,
        };
        let same = self.by_id.entry(id.clone()).or_default();
        same.insert(self.last, entered);
        (self.last, cancelled)
    }

    /// Notes that this bridge executes the request of a delivery, and so of all its deliveries.
    pub(super) fn execute(&mut self, id: &Text, number: u64) {
        let Some(same) = self.by_id.get_mut(id) else {
            return;
        };
        let identity = same.get(&number).and_then(|own| own.identity.clone());
        for (other, entered) in same {
            let is_same = identity.is_some() && entered.identity == identity;
            entered.is_executed |= *other == number || is_same;
        }
    }

    /// Whether this bridge executes a delivery.
    pub(super) fn is_executed(&self, id: &Text, number: u64) -> bool {
        let same = self.by_id.get(id);
        same.and_then(|same| same.get(&number))
            .is_some_and(|entered| entered.is_executed)
    }

    pub(super) fn leave(&mut self, id: &Text, number: u64) {
        if let Some(same) = self.by_id.get_mut(id) {
            same.remove(&number);
            if same.is_empty() {
                self.by_id.remove(id);
            }
        }
    }

    /// Whether a request with this id is in progress.
    pub(super) fn has(&self, id: &Text) -> bool {
        self.by_id.contains_key(id)
    }

    /// Cancels all deliveries of the request with this id, unless several requests have it.
    pub(super) fn cancel(&self, id: &Text) -> Found {
        let Some(same) = self.by_id.get(id) else {
            return Found::Nothing;
        };
        let identity = same.values().find_map(|entered| entered.identity.as_ref());
        let is_of_one =
            |entered: &Entered| identity.is_some() && entered.identity.as_ref() == identity;
        if same.len() > 1 && !same.values().all(is_of_one) {
            return Found::Several;
        }
        same.values().for_each(|entered| entered.cancelled.cancel());
        let is_here = |entered: &Entered| entered.is_executed || entered.identity.is_none();
        match same.values().any(is_here) {
            true => Found::Here,
            false => Found::Waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters deliveries with these identities under one id, numbered from 1. Returns their tokens.
    fn entered(running: &mut Running, identities: &[Option<&str>]) -> Vec<CancellationToken> {
        let identities = identities.iter().map(|identity| identity.map(Text::from));
        identities
            .map(|identity| running.enter(&"1".into(), identity.as_ref()).1)
            .collect()
    }

    /// Cancels the id, and returns also which of the deliveries are cancelled.
    fn cancel(running: &Running, tokens: &[CancellationToken]) -> (Found, Vec<bool>) {
        let found = running.cancel(&"1".into());
        let cancelled = tokens.iter().map(CancellationToken::is_cancelled);
        (found, cancelled.collect())
    }

    #[test]
    fn a_cancel_ends_all_deliveries_of_one_request() {
        let mut running = Running::default();
        let tokens = entered(&mut running, &[Some("a"), Some("a")]);
        running.execute(&"1".into(), 2);
        let found = cancel(&running, &tokens);
        assert_eq!(found, (Found::Here, vec![true, true]));
    }

    #[test]
    fn a_request_that_only_waits_may_be_executed_elsewhere() {
        let mut running = Running::default();
        assert_eq!(running.cancel(&"1".into()), Found::Nothing);
        let tokens = entered(&mut running, &[Some("a")]);
        // Another request, with another id.
        let (number, _) = running.enter(&"2".into(), Some(&"b".into()));
        running.execute(&"2".into(), number);
        assert_eq!(cancel(&running, &tokens), (Found::Waiting, vec![true]));
        running.leave(&"1".into(), 1);
        assert_eq!(running.cancel(&"1".into()), Found::Nothing);
    }

    #[test]
    fn requests_with_the_same_id_are_executed_separately() {
        for (identities, executed) in [
            ([None, None], [true, false]),
            ([Some("a"), Some("b")], [true, false]),
            ([Some("a"), Some("a")], [true, true]),
        ] {
            let mut running = Running::default();
            entered(&mut running, &identities);
            running.execute(&"1".into(), 1);
            let is_executed = [1, 2].map(|number| running.is_executed(&"1".into(), number));
            assert_eq!(is_executed, executed, "{identities:?}");
        }
    }

    #[test]
    fn a_request_that_is_not_redelivered_is_executed_nowhere_else() {
        let mut running = Running::default();
        let tokens = entered(&mut running, &[None]);
        assert_eq!(cancel(&running, &tokens), (Found::Here, vec![true]));
    }

    #[test]
    fn an_id_of_several_requests_cancels_none() {
        for identities in [
            [Some("a"), Some("b")],
            [Some("a"), None],
            [None, Some("a")],
            [None, None],
        ] {
            let mut running = Running::default();
            let tokens = entered(&mut running, &identities);
            let found = cancel(&running, &tokens);
            assert_eq!(found, (Found::Several, vec![false; 2]), "{identities:?}");
        }
    }
}
