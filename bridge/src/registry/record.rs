//! Records of the agent log: the last announcement of each agent.
//!
//! A record is an announcement written by a bridge, or a card written by an agent that has access to the log; the key
//! is the agent. The fold reads only the last record of a key, so a replica that has lost earlier records to compaction
//! has the same state. A record that cannot be used ends the previous announcement.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::card::{Card, Faults, check_name};
use crate::clock;
use crate::names::Name;
use crate::state::{Applied, Fold, Position, Record};

/// The largest card in the log. It does not depend on `registry.max_card`, because all replicas must reach the same
/// state.
const LARGEST: usize = 512 << 10;
/// How far the time of a record may be ahead of this replica's clock.
const AHEAD: Duration = Duration::from_secs(10 * 60);

/// An agent in the log.
#[derive(Debug, Clone)]
pub(crate) struct AnnouncedAgent {
    /// The record. A record with the same bytes only renews the lease.
    pub(crate) body: Bytes,
    pub(crate) card: Arc<Card>,
    /// The card as the agent wrote it.
    pub(crate) document: Bytes,
    pub(crate) owner: Owner,
    /// The transport on which it announced itself, for a card that names none.
    pub(crate) transport: Option<Name>,
    lease: Option<Duration>,
    /// When it was last renewed, in milliseconds since 1970.
    pub(crate) renewed: u64,
    /// The position of the record.
    pub(super) at: Position,
}

/// The owner of an agent, if known: the organisation and its unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) org: Option<Text>,
    pub(crate) unit: Option<Text>,
}

/// An announcement written by a bridge.
#[derive(Serialize, Deserialize)]
struct AnnouncementRecord<'a> {
    /// The version of this format.
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(borrow)]
    card: &'a RawValue,
}

/// The lengths of leases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leases {
    pub(crate) default: Duration,
    pub(crate) longest: Duration,
}

/// The fold of the log.
#[derive(Debug)]
pub(crate) struct AgentFold;

/// The body of a record.
///
/// # Errors
/// When the card is not JSON.
pub(super) fn write(
    card: &[u8],
    owner: &Owner,
    transport: Option<&Name>,
    lease: Option<Duration>,
) -> Result<Bytes, serde_json::Error> {
    let written = AnnouncementRecord {
        v: 1,
        org: owner.org.as_ref().map(Text::to_string),
        unit: owner.unit.as_ref().map(Text::to_string),
        transport: transport.map(Name::to_string),
        lease_ms: lease.map(clock::whole_milliseconds),
        card: serde_json::from_slice(card)?,
    };
    serde_json::to_vec(&written).map(Bytes::from)
}

// === impl AnnouncedAgent ===

impl AnnouncedAgent {
    /// Reads a record.
    ///
    /// # Errors
    /// All faults of the record.
    pub(crate) fn read(record: &Record, body: &Bytes) -> Result<Self, Faults> {
        let agent = record.key.as_str();
        check_name(agent).map_err(Faults::one)?;
        let written: Option<AnnouncementRecord<'_>> = serde_json::from_slice(body).ok();
        let document = match &written {
            Some(written) => body.slice_ref(written.card.get().as_bytes()),
            None => body.clone(),
        };
        let card = Card::read(&document, LARGEST)?;
        let Some(written) = written else {
            // No bridge has checked this card.
            if card.agent.as_deref() != Some(agent) {
                let named = card.agent.as_deref().unwrap_or_default();
                return Err(Faults::one(format!(
                    "the card is of {named:?}, but the key of its record is {agent:?}"
                )));
            }
            return Ok(Self {
                lease: card.lease,
                card: Arc::new(card),
                body: body.clone(),
                document,
                owner: Owner::default(),
                transport: None,
                renewed: record.time,
                at: record.position,
            });
        };
        let transport = written.transport.as_deref();
        Ok(Self {
            lease: written.lease_ms.map(Duration::from_millis).or(card.lease),
            card: Arc::new(card),
            body: body.clone(),
            document,
            owner: Owner {
                org: written.org.map(Text::from),
                unit: written.unit.map(Text::from),
            },
            transport: transport.and_then(|name| Name::new(name).ok()),
            renewed: record.time,
            at: record.position,
        })
    }

    /// The length of its lease.
    pub(crate) fn lease(&self, leases: Leases) -> Duration {
        self.lease.unwrap_or(leases.default).min(leases.longest)
    }

    /// When its lease runs out, in milliseconds since 1970.
    pub(crate) fn expires(&self, leases: Leases) -> u64 {
        let lease = clock::whole_milliseconds(self.lease(leases));
        self.renewed.saturating_add(lease)
    }

    /// Whether its lease is valid. A record is ignored if its time is more than 10 minutes ahead of this clock.
    pub(crate) fn is_live(&self, now: u64, leases: Leases) -> bool {
        let ahead = clock::whole_milliseconds(AHEAD);
        self.renewed <= now.saturating_add(ahead) && now < self.expires(leases)
    }

    /// The transport for its requests, from its card or its announcement.
    pub(crate) fn transport(&self) -> Option<&Name> {
        self.card.transport.as_ref().or(self.transport.as_ref())
    }
}

// === impl AgentFold ===

impl Fold for AgentFold {
    type Entry = AnnouncedAgent;

    fn apply(&self, entry: &mut Option<AnnouncedAgent>, record: &Record) -> Applied {
        let Some(body) = &record.body else {
            return Applied::Unknown;
        };
        if let Some(known) = entry
            && known.body == *body
        {
            known.renewed = record.time;
            known.at = record.position;
            return Applied::Changed;
        }
        // Followers read an invalid record again to log its faults.
        *entry = AnnouncedAgent::read(record, body).ok();
        Applied::Changed
    }

    fn size_bytes(&self, entry: &AnnouncedAgent) -> usize {
        size_of::<AnnouncedAgent>() + size_of::<Card>() + entry.body.len() * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = r#"{"name":"weather","description":"The weather."}"#;
    const LEASES: Leases = Leases {
        default: Duration::from_secs(60),
        longest: Duration::from_secs(600),
    };

    fn record(offset: u64, time: u64, body: &str) -> Record {
        Record {
            key: "weather".into(),
            position: Position::at(offset),
            time,
            body: Some(Bytes::copy_from_slice(body.as_bytes())),
        }
    }

    fn folded(records: &[Record]) -> Option<AnnouncedAgent> {
        let mut entry = None;
        for record in records {
            AgentFold.apply(&mut entry, record);
        }
        entry
    }

    #[test]
    fn the_last_record_alone_decides() {
        let other = CARD.replace("The weather", "Rain");
        let records = [
            record(0, 1_000, CARD),
            record(1, 2_000, "{"),
            record(2, 3_000, &other),
            record(3, 4_000, &other),
        ];
        for start in 0..records.len() {
            let state = folded(&records[start..]).unwrap();
            assert_eq!(
                (state.renewed, state.body.as_ref()),
                (4_000, other.as_bytes())
            );
        }
        assert!(folded(&records[..2]).is_none());
    }

    #[test]
    fn leases_are_counted_from_the_record() {
        let state = folded(&[record(0, 1_000, CARD)]).unwrap();
        assert!(state.is_live(60_999, LEASES) && !state.is_live(61_000, LEASES));
        let body = write(
            CARD.as_bytes(),
            &Owner::default(),
            None,
            Some(LEASES.longest * 9),
        )
        .unwrap();
        let state = AnnouncedAgent::read(&record(0, 0, ""), &body).unwrap();
        assert_eq!(state.expires(LEASES), 600_000);
        assert_eq!(state.document, CARD);
        let future = folded(&[record(0, 4_000_000, CARD)]).unwrap();
        assert!(!future.is_live(1_000, LEASES));
    }

    #[test]
    fn a_card_under_another_key_is_forged() {
        let other = Record {
            key: "maps".into(),
            ..record(0, 0, CARD)
        };
        let forged = AnnouncedAgent::read(&other, &Bytes::from_static(CARD.as_bytes()));
        assert!(forged.unwrap_err().to_string().contains("maps"));
    }
}
