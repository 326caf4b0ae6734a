//! Sessions: the result of `initialize`, which later requests repeat as `Mcp-Session-Id`.
//!
//! The id contains everything that the bridge knows about a session. So replicas store no sessions, and a session can
//! continue on any replica. The id grants no permissions, so inventing one gains nothing.

use a2abus_plugin::Text;
use http::{HeaderMap, HeaderName, StatusCode};

use super::revision::Revision;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::Abilities;
use crate::doors::door::Refusal;
use crate::results::{Results, digest_of};

/// The header with the session id.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    /// `2025-11-25.ser.` and random characters. The letters between the dots are the kinds of questions that the client
    /// supports.
    id: Text,
    revision: Revision,
    abilities: Abilities,
}

/// The prefix of the log keys of sessions.
pub(super) const KEY: &str = "mcp-session-";

// === impl Session ===

impl Session {
    /// A new one.
    pub(super) fn new(revision: Revision, abilities: Abilities, random: CallId) -> Self {
        let letters: String = letters(abilities)
            .into_iter()
            .filter_map(|(letter, has)| has.then_some(letter))
            .collect();
        let id = format!("{}.{letters}.{random}", revision.as_str()).into();
        Self {
            id,
            revision,
            abilities,
        }
    }

    fn parse(id: &str) -> Option<Self> {
        let (revision, rest) = id.split_once('.')?;
        let (letters, random) = rest.split_once('.')?;
        let revision = Revision::of(revision).filter(|revision| revision.has_sessions())?;
        let abilities = Abilities {
            sampling: letters.contains('s'),
            elicitation: letters.contains('e'),
            url_elicitation: letters.contains('u'),
            roots: letters.contains('r'),
        };
        let session = Self::new(revision, abilities, random.parse().ok()?);
        (session.id == id).then_some(session)
    }

    /// The session of a request, if it names one.
    ///
    /// # Errors
    /// When there is no such session, or it has ended; the client must then open a new one.
    pub(super) fn of(headers: &HeaderMap, results: &Results) -> Result<Option<Self>, Refusal> {
        let Some(named) = headers.get(SESSION) else {
            return Ok(None);
        };
        let session = named.to_str().ok().and_then(Self::parse);
        let session = session.filter(|session| !results.is_over(&session.key()));
        session.map(Some).ok_or_else(|| {
            let message = "there is no such session, or it has ended: send initialize without Mcp-Session-Id to open one";
            let failure = Failure::new(Reason::InvalidRequest, message);
            (StatusCode::NOT_FOUND, failure)
        })
    }

    /// The same for a message of a client. In revision 2026-07-28, which has no sessions, the id of an earlier one
    /// counts as none.
    ///
    /// # Errors
    /// In an older revision, when there is no such session, or it has ended.
    pub(super) fn of_message(
        headers: &HeaderMap,
        results: &Results,
    ) -> Result<Option<Self>, Refusal> {
        let session = Self::of(headers, results);
        match Revision::named(headers) {
            Some(name) if name == Revision::V2026_07_28.as_str() => Ok(session.unwrap_or_default()),
            _ => session,
        }
    }

    pub(super) fn id(&self) -> &Text {
        &self.id
    }

    /// Its log key. It does not reveal the id, because anyone who knows the id can end the session.
    pub(super) fn key(&self) -> Text {
        format!("{KEY}{}", digest_of([self.id.as_bytes()])).into()
    }

    /// The log key of one of its requests; `id` is JSON.
    pub(super) fn key_of(&self, id: &str) -> Text {
        format!(
            "mcp-request-{}",
            digest_of([self.id.as_bytes(), id.as_bytes()])
        )
        .into()
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// The kinds of questions that its client supports.
    pub(super) fn abilities(&self) -> Abilities {
        self.abilities
    }
}

fn letters(abilities: Abilities) -> [(char, bool); 4] {
    [
        ('s', abilities.sampling),
        ('e', abilities.elicitation),
        ('u', abilities.url_elicitation),
        ('r', abilities.roots),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    #[test]
    fn an_id_contains_the_whole_session() {
        let able = Abilities {
            elicitation: true,
            roots: true,
            ..Abilities::default()
        };
        let session = Session::new(
            Revision::V2025_06_18,
            able,
            CallId::new(Replica(7)).unwrap(),
        );
        assert!(
            session
                .id()
                .bytes()
                .all(|byte| (0x21..=0x7e).contains(&byte))
        );
        assert_eq!(Session::parse(session.id()), Some(session.clone()));
        for bad in [
            "",
            "nope",
            "2025-06-18.",
            "2025-06-18..",
            "2026-07-28..aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "2025-06-18.s.x y",
        ] {
            assert_eq!(Session::parse(bad), None, "{bad:?}");
        }
        // Nothing that the bridge does not write itself: an ended id is kept.
        let padded = session
            .id()
            .replace(".er.", &format!(".er{}.", "r".repeat(60_000)));
        assert_ne!(padded, session.id().as_str());
        assert_eq!(Session::parse(&padded), None);
        assert!(!session.key().contains(session.id().as_str()));
        assert_ne!(session.key_of("1"), session.key_of("\"1\""));
    }
}
