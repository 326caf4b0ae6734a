//! Cards, and the faults in them.

use super::*;
use crate::config::{AgentProtocol, ClientDialect};

fn read(card: &Value) -> Result<Card, Faults> {
    read_text(&card.to_string())
}

fn read_text(card: &str) -> Result<Card, Faults> {
    Card::read(card.as_bytes(), 64 << 10)
}

#[test]
fn a_small_card_is_enough() {
    let card = read(&json!({"name": "weather", "description": "The weather."})).unwrap();
    assert_eq!(card.agent.as_deref(), Some("weather"));
    assert_eq!(card.shown.version, "1.0.0");
    assert!(!card.shown.streaming);
    assert_eq!(card.shown.input_modes, ["text/plain", "application/json"]);
    assert!(about(&card.shown).is_empty());
}

#[test]
fn a_card_keeps_the_extensions_of_the_agent() {
    let ui = json!({"uri": "https://example.com/ui/v1", "description": "UI", "required": false, "params": {"a": [1]}});
    let mut more = ui.clone();
    more["other"] = json!(1);
    more["description"] = json!(2);
    let large = json!({"uri": "urn:large", "params": {"a": "x".repeat(EXTENSION_BYTES)}});
    let list = json!([ui, {"uri": EXTENSION, "params": {}}, more, large, {"uri": ""}, {"uri": "a b"}, {"params": {}}, 7]);
    let card = json!({"name": "weather", "description": "The weather.", "capabilities": {"extensions": list}});
    let mut reduced = ui.clone();
    reduced.as_object_mut().unwrap().remove("description");
    assert_eq!(read(&card).unwrap().shown.extensions, [ui, reduced]);
}

#[test]
fn a_card_keeps_what_it_says_about_its_people() {
    let members = json!({
        "provider": {"organization": "Example", "url": "https://example.com"},
        "documentationUrl": "https://example.com/docs",
        "iconUrl": "https://example.com/icon.png",
    });
    let mut card = json!({"name": "weather", "description": "The weather."});
    let Value::Object(all) = &mut card else {
        panic!("{card}")
    };
    all.extend(members.as_object().unwrap().clone());
    let shown = read(&card).unwrap().shown;
    assert_eq!(Value::Object(about(&shown)), members);

    for (provider, url) in [
        (
            json!({"organization": "", "url": "https://example.com"}),
            json!(""),
        ),
        (
            json!({"organization": "Example"}),
            json!("javascript:alert(1)"),
        ),
        (json!("Example"), json!(2)),
        (
            json!(null),
            json!(format!("https://example.com/{}", "x".repeat(URL))),
        ),
    ] {
        let card = json!({
            "name": "w", "description": "d", "provider": provider, "iconUrl": url, "documentationUrl": url,
        });
        assert!(about(&read(&card).unwrap().shown).is_empty(), "{card}");
    }
}

#[test]
fn the_extension_has_the_agent_and_its_destination() {
    let params = json!({"agent": "w-1", "transport": "kafka", "topic": "t.w", "lease": "10m", "protocol": "mcp", "dialect": "jaf-doc", "lists": {"tools": 7}});
    let card = json!({
        "name": "Weather of today", "description": "d",
        "capabilities": {"streaming": true, "extensions": [{"uri": "urn:other"}, {"uri": EXTENSION, "params": params}]},
        "skills": [{"id": "a", "description": "x", "examples": ["one", {"input": "two", "output": "three"}]}],
    });
    let card = read(&card).unwrap();
    assert_eq!(card.agent.as_deref(), Some("w-1"));
    assert_eq!(card.transport, Name::new("kafka").ok());
    assert_eq!(card.topic.as_deref(), Some("t.w"));
    assert_eq!(card.lease, Some(Duration::from_secs(600)));
    assert_eq!(card.shown.skills[0].examples, ["one", "two"]);
    assert_eq!(card.shown.speaks(), Some(AgentProtocol::Mcp));
    assert_eq!(card.shown.dialect, Some(ClientDialect::JafDoc));
    let tools = card.shown.lists.unwrap().tools;
    assert_eq!(tools, 7);
}

#[test]
fn a_card_says_nothing_twice() {
    let refused = |card: &str| read_text(card).unwrap_err().to_string();
    let two_names = r#"{"name":"a","description":"d","name":"b"}"#;
    assert!(refused(two_names).contains("\"name\" is repeated"));
    let topics = r#"{"name":"a","description":"d","capabilities":{"extensions":[
            {"uri":"urn:a2abus:bus","params":{"topic":"t","topic":"u"}}]}}"#;
    let member = "capabilities.extensions[0].params.topic";
    assert!(refused(topics).contains(member), "{}", refused(topics));
    let bus = |agent: &str| json!({"uri": EXTENSION, "params": {"agent": agent}});
    let list = json!([bus("a"), bus("b")]);
    let card = json!({"name": "a", "description": "d", "capabilities": {"extensions": list}});
    let faults = read(&card).unwrap_err().to_string();
    assert!(faults.contains("more than once"), "{faults}");
}

#[test]
fn a_lease_is_at_least_a_second() {
    let read = |lease: &str| {
        let bus = json!([{"uri": EXTENSION, "params": {"lease": lease}}]);
        read(&json!({"name": "a", "description": "d", "capabilities": {"extensions": bus}}))
    };
    assert_eq!(read("1s").unwrap().lease, Some(MIN_LEASE));
    for lease in ["0s", "1ns", "999ms"] {
        let faults = read(lease).unwrap_err().to_string();
        assert!(faults.contains("at least 1s"), "{faults}");
    }
}

#[test]
fn every_fault_is_reported_with_its_place() {
    let card = json!({
        "name": 7, "version": "", "capabilities": {"streaming": "yes", "extensions": [{"uri": EXTENSION, "params": {"lease": "soon", "transport": "/", "protocol": "acp", "dialect": "a2a-1.0", "lists": {"tools": -1}}}]},
        "skills": [{"id": "a", "description": "x"}, {"id": "a"}, 3],
        "defaultInputModes": "text",
    });
    let faults = read(&card).unwrap_err().0;
    for place in [
        "/name:",
        "/description: is missing",
        "/version:",
        "/capabilities/streaming:",
        "/capabilities/extensions/0/params/lease:",
        "/capabilities/extensions/0/params/transport:",
        "/capabilities/extensions/0/params/protocol:",
        "/capabilities/extensions/0/params/dialect:",
        "/capabilities/extensions/0/params/lists:",
        "/skills/1/id: is the id of an earlier",
        "/skills/1/description: is missing",
        "/skills/2: is not an object",
        "/defaultInputModes: is not an array",
    ] {
        assert!(
            faults.iter().any(|fault| fault.starts_with(place)),
            "{place} in {faults:#?}"
        );
    }
    assert!(read(&json!([])).is_err());
    assert!(Card::read(b"{", 10).is_err());
    assert!(
        Card::read(b"{}          ", 10)
            .unwrap_err()
            .to_string()
            .contains("12 bytes")
    );
}

#[test]
fn a_server_is_known_without_the_skills_that_cannot_be_used() {
    let skill = |id: &str| json!({ "id": id, "description": "d" });
    let skills = ["a", "b", "a", "c\u{0}", "d\ne"].map(skill);
    let card = json!({ "name": "n", "description": "d", "skills": skills });
    let document = card.to_string();
    assert_eq!(
        Card::read(document.as_bytes(), 1 << 10)
            .unwrap_err()
            .0
            .len(),
        3
    );
    let (card, left_out) = Card::read_usable(document.as_bytes(), 1 << 10).unwrap();
    let ids: Vec<_> = card.shown.skills.iter().map(|skill| &skill.id).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(left_out.count, 3);
    assert_eq!(
        left_out.faults.0[0],
        "/skills/2/id: is the id of an earlier skill"
    );
}

#[test]
fn only_the_first_skills_are_used_above_the_limit() {
    let skill = |id: usize| json!({ "id": format!("s{id}"), "description": "d" });
    let unusable = json!({ "id": "s7" });
    let skills: Vec<_> = [unusable].into_iter().chain((0..150).map(skill)).collect();
    let card = json!({ "name": "n", "description": "d", "skills": skills });
    assert!(read(&card).is_err());
    let (card, left_out) = Card::read_usable(card.to_string().as_bytes(), 1 << 20).unwrap();
    assert_eq!(card.shown.skills.len(), ITEMS);
    // A skill that is left out does not reserve its id.
    assert_eq!(card.shown.skills[7].id, "s7");
    assert_eq!(left_out.count, 51);
    assert_eq!(left_out.faults.0.len(), 2, "{}", left_out.faults);
    let card = json!({ "name": "n", "description": "d", "skills": "all" });
    let faults = Card::read_usable(card.to_string().as_bytes(), 1 << 20).unwrap_err();
    assert_eq!(faults.0, ["/skills: is not an array"]);
}

#[test]
fn names_are_those_of_the_configuration() {
    for name in ["weather", "Weather-2", "a.b_c"] {
        assert!(check_name(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "../x", "a/b", "-a", "ä", &"a".repeat(59)] {
        assert!(check_name(name).is_err(), "{name}");
    }
}
