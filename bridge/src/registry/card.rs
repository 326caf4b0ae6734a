//! Reads and validates the cards of agents.
//!
//! A card has the format of A2A 0.3, A2A 1.0 or the JAF document; other members are kept and ignored. An extension of
//! the card says where the agent's requests go:
//!
//! ```json
//! {"capabilities": {"extensions": [{"uri": "urn:a2abus:bus", "params": {
//!   "agent": "weather", "transport": "kafka", "topic": "team-a.weather", "lease": "10m", "protocol": "a2a"}}]}}
//! ```

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use a2abus_plugin::Text;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::config::{AgentCardConfig, ProviderConfig, SkillConfig};
use crate::names::Name;

/// The extension that says how an agent is reached.
pub(crate) const EXTENSION: &str = "urn:a2abus:bus";

/// A card that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    /// The agent: `agent` of the extension, else the name in the card.
    pub(crate) agent: Option<Text>,
    /// The card as clients see it.
    pub(crate) shown: AgentCardConfig,
    /// The transport for its requests.
    pub(crate) transport: Option<Name>,
    /// The topic there.
    pub(crate) topic: Option<Text>,
    /// The lease that it asks for.
    pub(crate) lease: Option<Duration>,
}

/// All faults of a card, each with its JSON pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Faults(pub(crate) Vec<String>);

/// The skills of a server that are left out of its card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// The number of skills.
    pub(crate) count: usize,
    /// Why.
    pub(crate) faults: Faults,
}

/// Why a second skill with the same id is left out.
pub(crate) const TWICE: &str = "is the id of an earlier skill";
/// Why skills above the limit are left out.
const TOO_MANY: &str = "comes after 100 other skills";
/// The longest description, in characters.
const DESCRIPTION: usize = 4_096;
/// The longest name, id, tag or media type.
const NAME: usize = 256;
/// The longest version.
const VERSION: usize = 64;
/// The longest URL, in bytes.
const URL: usize = 2_048;
/// Maximum number of extensions of a card that are kept, and of bytes of each.
const EXTENSIONS: usize = 16;
const EXTENSION_BYTES: usize = 2 << 10;
/// Maximum number of skills of a card, and of tags, examples and media types of one list.
pub(crate) const ITEMS: usize = 100;
/// The longest name of an agent: the name of its route is longer by 6.
pub(crate) const AGENT_NAME: usize = 58;
/// The shortest lease.
pub(crate) const MIN_LEASE: Duration = Duration::from_secs(1);
/// Maximum number of faults that are reported.
const MAX_FAULTS: usize = 20;

// === impl Faults ===

impl Faults {
    /// A single fault.
    pub(crate) fn one(fault: impl Into<String>) -> Self {
        Self(vec![fault.into()])
    }

    /// The value, if there are no faults.
    pub(crate) fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }

    fn add(&mut self, place: &str, what: &str) {
        self.extend(&Self::one(format!("{place}: {what}")));
    }

    /// Adds other faults, up to the limit.
    pub(crate) fn extend(&mut self, others: &Self) {
        let room = MAX_FAULTS.saturating_sub(self.0.len());
        self.0.extend(others.0.iter().take(room).cloned());
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

// === impl Card ===

impl Card {
    /// Reads a card of at most `most_bytes` bytes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn read(document: &[u8], most_bytes: usize) -> Result<Self, Faults> {
        let (card, faults) = Self::read_with_faults(document, most_bytes)?;
        faults.into_result(card)
    }

    /// Like [`Card::read`], but returns the readable members together with the faults, so that the caller can add its
    /// own.
    ///
    /// # Errors
    /// When the document is too large or not a JSON object.
    pub(crate) fn read_with_faults(
        document: &[u8],
        most_bytes: usize,
    ) -> Result<(Self, Faults), Faults> {
        let (card, mut faults, left_out) = Self::parse(document, most_bytes)?;
        faults.extend(&left_out.faults);
        faults.extend(&repeated_members(document));
        Ok((card, faults))
    }

    /// Like [`Card::read`], but leaves out skills that cannot be used.
    ///
    /// # Errors
    /// The faults of the card itself, if there are any, followed by those of its skills.
    pub(crate) fn read_usable(
        document: &[u8],
        most_bytes: usize,
    ) -> Result<(Self, LeftOut), Faults> {
        let (card, mut faults, left_out) = Self::parse(document, most_bytes)?;
        if !faults.0.is_empty() {
            faults.extend(&left_out.faults);
        }
        faults.into_result((card, left_out))
    }

    /// A card, its own faults, and the skills that cannot be used.
    fn parse(document: &[u8], most_bytes: usize) -> Result<(Self, Faults, LeftOut), Faults> {
        if document.len() > most_bytes {
            return Err(Faults::one(too_large(document.len(), most_bytes)));
        }
        let value: Value = serde_json::from_slice(document)
            .map_err(|error| Faults::one(format!("the card is not JSON: {error}")))?;
        let Value::Object(members) = value else {
            return Err(Faults::one("the card is not a JSON object"));
        };
        let mut faults = Faults::default();
        let mut reader = Reader(&mut faults);
        let (mut card, skills) = (reader.card(&members), reader.array(&members, "", "skills"));
        let mut left_out = LeftOut::default();
        card.shown.skills = left_out.skills_of(skills);
        Ok((card, faults, left_out))
    }
}

// === impl LeftOut ===

impl LeftOut {
    /// Leaves a skill out. `place` is its position, and `why` its fault.
    pub(crate) fn add(&mut self, place: &str, why: &str) {
        self.count += 1;
        self.faults.add(place, why);
    }

    /// The skills of a card that can be used.
    fn skills_of(&mut self, items: &[Value]) -> Vec<SkillConfig> {
        let (mut seen, mut skills) = (HashSet::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            let place = format!("/skills/{index}");
            if skills.len() == ITEMS {
                self.count += items.len() - index;
                self.faults.add(&place, TOO_MANY);
                break;
            }
            let mut faults = Faults::default();
            let skill = Reader(&mut faults).skill(item, &place, &seen);
            match skill.filter(|_| faults.0.is_empty()) {
                Some(skill) => {
                    seen.insert(skill.id.clone());
                    skills.push(skill);
                }
                None => {
                    self.count += 1;
                    self.faults.extend(&faults);
                }
            }
        }
        skills
    }
}

/// The fault of a card with too many bytes.
pub(super) fn too_large(bytes: usize, most: usize) -> String {
    format!("the card has {bytes} bytes, more than the limit of {most} (registry.max_card)")
}

/// The fault of a card with a repeated member: another reader, such as a policy of the broker, may see the other value.
fn repeated_members(document: &[u8]) -> Faults {
    const MAX_SHOWN: usize = 100;
    match a2abus_executor::parse(document).map(|card| card.first_repeated()) {
        Ok(None) => Faults::default(),
        Ok(Some(member)) => {
            let member: String = member.chars().take(MAX_SHOWN).collect();
            Faults::one(format!("the member {member:?} is repeated"))
        }
        Err(error) => Faults::one(format!("the card is not JSON: {error}")),
    }
}

/// Who offers the agent, if the card says so in a valid way. Like the URLs, it is left out otherwise: a card is not
/// refused because of what clients only show.
fn provider(members: &Map<String, Value>) -> Option<ProviderConfig> {
    let provider = members.get("provider")?.as_object()?;
    let organization = provider.get("organization")?.as_str();
    Some(ProviderConfig {
        organization: organization.filter(|name| fits(name, NAME))?.to_owned(),
        url: url(provider, "url")?,
    })
}

/// The extensions of A2A that the agent supports, except that of the bridge. Like the URLs, unusable and large ones are
/// left out.
fn extensions(capabilities: &Map<String, Value>) -> Vec<Value> {
    let list = capabilities.get("extensions").and_then(Value::as_array);
    let usable = list.into_iter().flatten().filter_map(|extension| {
        let is_valid = |name: &str, value: &Value| match name {
            "uri" | "description" => value.is_string(),
            "required" => value.is_boolean(),
            "params" => value.is_object(),
            _ => false,
        };
        let mut members = extension.as_object()?.clone();
        members.retain(|name, value| is_valid(name, value));
        let uri = members.get("uri").and_then(Value::as_str)?;
        let is_uri = !uri.is_empty() && uri.bytes().all(|byte| byte.is_ascii_graphic());
        let extension = (is_uri && uri != EXTENSION).then_some(Value::Object(members))?;
        (extension.to_string().len() <= EXTENSION_BYTES).then_some(extension)
    });
    usable.take(EXTENSIONS).collect()
}

/// A URL for people, which the bridge never opens.
fn url(members: &Map<String, Value>, name: &str) -> Option<String> {
    let url = members.get(name)?.as_str()?;
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    let is_url = is_web && url.len() <= URL && url.bytes().all(|byte| byte.is_ascii_graphic());
    is_url.then(|| url.to_owned())
}

/// The members of a card about who offers an agent, its documentation and its icon.
pub(crate) fn about(card: &AgentCardConfig) -> Map<String, Value> {
    let members = [
        ("provider", json!(card.provider)),
        ("documentationUrl", json!(card.documentation_url)),
        ("iconUrl", json!(card.icon_url)),
    ];
    let present = members.into_iter().filter(|(_, value)| !value.is_null());
    present
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Checks the name of an announced agent: a valid configuration name, short enough for the name of its route.
pub(crate) fn check_name(name: &str) -> Result<Name, String> {
    let shown: String = name.chars().take(AGENT_NAME).collect();
    if name.len() > AGENT_NAME {
        return Err(format!(
            "{shown:?}... is too long: an agent's name has at most {AGENT_NAME} characters"
        ));
    }
    Name::new(name).map_err(|_| {
        format!(
            "{shown:?} is not a name: write 1 to {AGENT_NAME} letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    })
}

/// Reads the members of a card and collects its faults.
struct Reader<'f>(&'f mut Faults);

// === impl Reader ===

impl Reader<'_> {
    fn card(&mut self, members: &Map<String, Value>) -> Card {
        let name = self.text(members, "", "name", NAME, true);
        let description = self.text(members, "", "description", DESCRIPTION, true);
        let version = self.text(members, "", "version", VERSION, false);
        let empty = Map::new();
        let capabilities = self.object(members, "", "capabilities", &empty);
        let streaming = self.flag(capabilities, "/capabilities", "streaming");
        let (place, bus) = self.extension(capabilities).unwrap_or_default();
        let (place, bus) = (place.as_str(), &bus);
        let agent = self.text(bus, place, "agent", NAME, false);
        let transport = self.text(bus, place, "transport", NAME, false);
        let transport = transport.and_then(|name| match Name::new(&name) {
            Ok(name) => Some(name),
            Err(why) => {
                self.0.add(&format!("{place}/transport"), &why);
                None
            }
        });
        let topic = self.text(bus, place, "topic", NAME, false);
        // Without a valid transport, the topic cannot be checked: the default transport may be the wrong one.
        let is_unreadable = transport.is_none() && !bus.get("transport").is_none_or(Value::is_null);
        let topic = topic.filter(|_| !is_unreadable);
        let lease = self.text(bus, place, "lease", NAME, false);
        let protocol = self.member(bus, place, ("protocol", "is neither a2a nor mcp"));
        let dialect = ("dialect", "is neither a2a-0.3 nor jaf-doc");
        let dialect = self.member(bus, place, dialect);
        let lists = ("lists", "must be an object of whole numbers from 0");
        let lists = self.member(bus, place, lists);
        Card {
            agent: agent.or(name).map(Text::from),
            shown: AgentCardConfig {
                attach: None,
                description: description.unwrap_or_default(),
                version: version.unwrap_or_else(|| "1.0.0".to_owned()),
                to: None,
                skills: Vec::new(),
                protocol,
                dialect,
                provider: provider(members),
                documentation_url: url(members, "documentationUrl"),
                icon_url: url(members, "iconUrl"),
                extensions: extensions(capabilities),
                lists,
                streaming,
                input_modes: self.modes(members, ["defaultInputModes", "inputModes"]),
                output_modes: self.modes(members, ["defaultOutputModes", "outputModes"]),
            },
            transport,
            topic: topic.map(Text::from),
            lease: lease.and_then(|text| match humantime::parse_duration(&text) {
                Ok(lease) if lease >= MIN_LEASE => Some(lease),
                _ => {
                    let what =
                        "is not a duration of at least 1s: write for example 90s, 10m or 24h";
                    self.0.add(&format!("{place}/lease"), what);
                    None
                }
            }),
        }
    }

    /// The parameters of the extension `urn:a2abus:bus`, and their place.
    fn extension(
        &mut self,
        capabilities: &Map<String, Value>,
    ) -> Option<(String, Map<String, Value>)> {
        let place = "/capabilities/extensions";
        let list = match capabilities.get("extensions") {
            None | Some(Value::Null) => return None,
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.0.add(place, "is not an array");
                return None;
            }
        };
        let is_ours = |one: &Value| one.get("uri").and_then(Value::as_str) == Some(EXTENSION);
        let index = list.iter().position(is_ours)?;
        if list.iter().filter(|one| is_ours(one)).count() > 1 {
            self.0.add(place, "has urn:a2abus:bus more than once");
        }
        let place = format!("{place}/{index}/params");
        match list.get(index)?.get("params") {
            Some(Value::Object(params)) => Some((place, params.clone())),
            None => None,
            Some(_) => {
                self.0.add(&place, "is not an object");
                None
            }
        }
    }

    /// A member of the extension. `what` says what is wrong if it cannot be read.
    fn member<T: DeserializeOwned>(
        &mut self,
        bus: &Map<String, Value>,
        place: &str,
        (name, what): (&str, &str),
    ) -> Option<T> {
        let value = bus.get(name).filter(|value| !value.is_null())?;
        let value = T::deserialize(value);
        if value.is_err() {
            self.0.add(&format!("{place}/{name}"), what);
        }
        value.ok()
    }

    fn skill(&mut self, item: &Value, place: &str, seen: &HashSet<String>) -> Option<SkillConfig> {
        let Value::Object(skill) = item else {
            self.0.add(place, "is not an object");
            return None;
        };
        let id = self.text(skill, place, "id", NAME, true);
        let id = id.unwrap_or_default();
        if !id.is_empty() {
            let checked = SkillConfig::check_id(&id);
            let is_new = !seen.contains(&id);
            if let Err(why) = checked.and(is_new.then_some(()).ok_or(TWICE)) {
                self.0.add(&format!("{place}/id"), why);
            }
        }
        let description = self.text(skill, place, "description", DESCRIPTION, true);
        Some(SkillConfig {
            id,
            name: self.text(skill, place, "name", NAME, false),
            description: description.unwrap_or_default(),
            tags: self.texts(skill, place, "tags", NAME),
            examples: self.texts(skill, place, "examples", DESCRIPTION),
        })
    }

    /// Media types under the first of these names that exists.
    fn modes(&mut self, members: &Map<String, Value>, names: [&str; 2]) -> Vec<String> {
        let name = names.into_iter().find(|name| members.contains_key(*name));
        let modes = name.map(|name| self.texts(members, "", name, NAME));
        let modes = modes.filter(|modes| !modes.is_empty());
        modes.unwrap_or_else(|| ["text/plain", "application/json"].map(str::to_owned).into())
    }

    /// A list of strings. In the JAF document, an example is an object with `input`.
    fn texts(
        &mut self,
        members: &Map<String, Value>,
        place: &str,
        name: &str,
        most: usize,
    ) -> Vec<String> {
        let mut texts = Vec::new();
        for (index, item) in self.list(members, place, name).iter().enumerate() {
            let text = item.as_str().or_else(|| item.get("input")?.as_str());
            match text.filter(|text| fits(text, most)) {
                Some(text) => texts.push(text.to_owned()),
                None => {
                    let place = format!("{place}/{name}/{index}");
                    self.0.add(
                        &place,
                        &format!("must be a string of 1 to {most} characters"),
                    );
                }
            }
        }
        texts
    }

    fn list<'v>(
        &mut self,
        members: &'v Map<String, Value>,
        place: &str,
        name: &str,
    ) -> &'v [Value] {
        let items = self.array(members, place, name);
        if items.len() > ITEMS {
            let what = format!("has {} items, more than the limit of {ITEMS}", items.len());
            self.0.add(&format!("{place}/{name}"), &what);
            return &[];
        }
        items
    }

    fn array<'v>(
        &mut self,
        members: &'v Map<String, Value>,
        place: &str,
        name: &str,
    ) -> &'v [Value] {
        match members.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.0.add(&format!("{place}/{name}"), "is not an array");
                &[]
            }
        }
    }

    fn object<'v>(
        &mut self,
        members: &'v Map<String, Value>,
        place: &str,
        name: &str,
        empty: &'v Map<String, Value>,
    ) -> &'v Map<String, Value> {
        match members.get(name) {
            None | Some(Value::Null) => empty,
            Some(Value::Object(object)) => object,
            Some(_) => {
                self.0.add(&format!("{place}/{name}"), "is not an object");
                empty
            }
        }
    }

    fn flag(&mut self, members: &Map<String, Value>, place: &str, name: &str) -> bool {
        match members.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.0
                    .add(&format!("{place}/{name}"), "is neither true nor false");
                false
            }
        }
    }

    fn text(
        &mut self,
        members: &Map<String, Value>,
        place: &str,
        name: &str,
        most: usize,
        is_required: bool,
    ) -> Option<String> {
        let place = format!("{place}/{name}");
        match members.get(name) {
            None | Some(Value::Null) if !is_required => None,
            None | Some(Value::Null) => {
                self.0.add(&place, "is missing");
                None
            }
            Some(Value::String(text)) if fits(text, most) => Some(text.clone()),
            Some(_) => {
                let what = format!("must be a string of 1 to {most} characters");
                self.0.add(&place, &what);
                None
            }
        }
    }
}

fn fits(text: &str, most: usize) -> bool {
    !text.trim().is_empty() && text.chars().count() <= most && !text.contains('\0')
}

#[cfg(test)]
mod tests;
