//! Agents: how they are reached, and attached agents.

use super::*;

#[test]
fn agents_are_reached_and_their_cards_can_be_served() {
    let agents = "
agents:
  weather: {description: W, to: {transport: k, topic: agents.weather}}
  maps: {description: M, skills: [{id: a, description: A}, {id: a, description: B}]}
";
    check_more(
        &format!(
            "{agents}\nroutes: [{{name: agent-weather, to: [{{transport: k, topic: a}}]}}]\na2a: {{default_agent: wether}}\nhttp: {{allowed_hosts: ['*']}}\n"
        ),
        &[
            "f:2:12: warning: agents.weather: never matches: the earlier route agent-weather matches every event that meets its conditions",
            "f:2:33: agents.weather.to: its route is named agent-weather, as routes[0].name is already: rename that one",
            "f:3:65: agents.maps.skills[1].id: is already the id of agents.maps.skills[0]: choose another one",
            "f:6:6: a2a.public_url: is missing: http.allowed_hosts accepts any name, so the URLs of agent cards cannot be built from Host",
            "f:6:22: a2a.default_agent: there is no agent wether: did you mean weather?",
        ],
    );
    let config = read(
        &format!(
            "{BASE}agents: {{weather: {{description: W, to: {{transport: k, topic: agents.weather}}}}}}\n"
        ),
        &[],
    );
    let routes = config.unwrap().routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].name.as_str(), "agent-weather");
    check_more(
        "agents: {w: {description: W, to: {transport: x, topic: a}}}\n",
        &["f:1:46: agents.w.to.transport: there is no transport x: did you mean k?"],
    );
    // Agents that announce themselves have cards too.
    check_more(
        "http: {allowed_hosts: ['*']}\nregistry: {enabled: true, destinations: [{to: {transport: k, topic: a}}]}\n",
        &[
            "f:2:1: a2a.public_url: is missing: http.allowed_hosts accepts any name, so the URLs of agent cards cannot be built from Host",
        ],
    );
}

#[test]
fn an_attached_agent_is_a_program_or_a_server() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: a}, attach: {}}
  b: {to: {transport: k, topic: b}, attach: {command: [x], url: 'http://b/'}}
  c: {to: {transport: k, topic: c}, attach: {command: [x], protocol: a2a, headers: {x-a: b}}}
  d: {to: {transport: k, topic: d}, attach: {url: 'http://d/', env: {A: b}, directory: /d}}
  e: {to: {transport: k, topic: e}, attach: {url: 'ftp://e/'}}
  f: {to: {transport: k, topic: f}, attach: {url: 'http://f/', headers: {host: f, 'a b': c}}}
  g: {to: {transport: k, topic: g}}
  h: {to: {transport: k, topic: h}, attach: {url: 'https://h/mcp', headers: {authorization: {env: T}, x-h: h}}}
  i: {to: {transport: k, topic: i}, attach: {command: [x], env: {'A=B': c, D: e}}}
",
        &[
            "f:2:45: agents.a.attach: needs either command or url",
            "f:3:45: agents.b.attach: set only one of command and url",
            "f:4:70: agents.c.attach.protocol: needs url: a program is an MCP server",
            "f:4:84: agents.c.attach.headers: needs url: a program takes no headers",
            "f:5:69: agents.d.attach.env: needs command: an HTTP server is not started by the bridge",
            "f:5:88: agents.d.attach.directory: needs command: an HTTP server is not started by the bridge",
            "f:6:51: agents.e.attach.url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:7:80: agents.f.attach.headers.host: is set by the bridge itself",
            "f:7:90: agents.f.attach.headers[\"a b\"]: is not a valid header name",
            "f:8:6: agents.g.description: is missing: what the agent does, for people and for models that choose an agent",
            "f:10:73: agents.i.attach.env[\"A=B\"]: is not the name of an environment variable: it is empty, or has '=' or a NUL",
        ],
    );
}

#[test]
fn environment_values_and_headers_of_attached_servers_are_text() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: a}, attach: {command: [x], env: {PORT: 80, ON: true, KEY: {env: K}}}}
  b: {to: {transport: k, topic: b}, attach: {url: 'http://b/', headers: {x-tenant: 1.10}}}
",
        &[
            "f:2:72: agents.a.attach.env.PORT: expected a string, not a number: put it in quotes",
            "f:2:80: agents.a.attach.env.ON: expected a string, not true or false: put it in quotes",
            "f:3:84: agents.b.attach.headers.x-tenant: expected a string, not a number: put it in quotes",
        ],
    );
}

#[test]
fn a_card_is_not_announced_where_something_else_is_read() {
    check(
        "\
transports:
  k: {type: kafka, brokers: ['b:1']}
  n: {type: nats, servers: ['nats://b:1'], jetstream: {manage: true, streams: [{name: D, subjects: [a2abus.dlq]}]}}
calls: {reply_topic: answers}
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x], announce: t.a}}
  b: {to: {transport: k, topic: t.b}, attach: {command: [x], announce: t.a}}
  c: {to: {transport: k, topic: t.c}, attach: {command: [x], announce: answers}}
  d: {to: {transport: k, topic: t.d}, attach: {command: [x], announce: mine.d, reply_topics: ['mine.*']}}
  e: {to: {transport: n, topic: t.e}, attach: {command: [x], announce: answers.e}}
  f: {to: {transport: n, topic: t.f}, attach: {command: [x], announce: t.a}}
  g: {to: {transport: k, topic: t.g}, attach: {command: [x], announce: answers.g}}
",
        &[
            "f:6:72: agents.a.attach.announce: is the request topic of agent a, which reads no cards: use a topic for cards only, such as agents.discovery",
            "f:7:72: agents.b.attach.announce: is the request topic of agent a, which reads no cards: use a topic for cards only, such as agents.discovery",
            "f:8:72: agents.c.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
            "f:9:72: agents.d.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
            "f:10:72: agents.e.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
        ],
    );
}

#[test]
fn dead_letters_of_an_attached_agent_on_core_nats_may_be_lost() {
    check(
        "\
transports: {n: {type: nats, servers: ['nats://b:1']}}
agents:
  a: {to: {transport: n, topic: t.a}, attach: {url: 'http://a/mcp'}}
  b: {to: {transport: n, topic: t.b}, attach: {url: 'http://b/mcp', stream: S, durable: D}}
",
        &[
            "f:3:47: warning: agents.a.attach.dead_letter: dead letters of core NATS are lost unless a JetStream stream stores a2abus.dlq: `a2abus topics apply` creates one, and `a2abus check --connect` looks for it",
        ],
    );
}

#[test]
fn an_agent_on_the_topic_of_an_attached_agent_is_a_warning() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x]}}
  b: {description: B, to: {transport: k, topic: t.a}}
  c: {description: C, to: {transport: n, topic: t.a}}
",
        &[
            "f:3:49: warning: agents.b.to.topic: is the request topic of the attached agent a, so its server also receives these requests: use one topic per agent",
        ],
    );
}

#[test]
fn nothing_else_goes_to_the_topic_of_an_attached_agent() {
    check_more(
        "
bindings: [{name: in, transport: k, topics: [in], dead_letter: {topic: t.a}}]
default_route: [{transport: k, topic: out}]
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x], dead_letter: t.a}}
  b: {to: {transport: k, topic: t.a}, attach: {command: [x], dead_letter: t.b}}
  c: {to: {transport: n, topic: t.a}, attach: {command: [x], dead_letter: a2abus.dlq}}
",
        &[
            "f:1:72: bindings[0].dead_letter.topic: t.a is read by the binding agent-a: its dead letters would loop forever",
            "f:4:75: agents.a.attach.dead_letter: t.a is read by the binding agent-a: its dead letters would loop forever",
            "f:5:33: agents.b.to.topic: is also the request topic of the attached agent a, so each would refuse the requests of the other: use one topic per agent",
        ],
    );
}

#[test]
fn an_attached_agent_reads_one_topic() {
    check_more(
        "
agents:
  a: {description: A, attach: {command: [x]}}
  b: {description: B, to: {transport: k, topic: 'agents.{targetagent}'}, attach: {command: [x]}}
  c: {description: C, to: {transport: k, topic: c}, attach: {command: [''], stream: s}}
",
        &[
            "f:2:6: agents.a.to: is missing: an attached agent reads its requests there",
            "f:3:49: agents.b.to.topic: must be one topic: an attached agent reads it",
            "f:4:61: agents.c.attach.durable: is missing: stream needs it",
            "f:4:72: agents.c.attach.command[0]: is empty: write the program",
            "f:4:85: agents.c.attach.stream: is only for JetStream, on a transport of type nats",
        ],
    );
    let config = read(
        &format!(
            "{BASE}agents: {{a: {{description: A, to: {{transport: k, topic: a}}, attach: {{command: [x]}}}}}}\n"
        ),
        &[],
    );
    let bindings = config.unwrap().bindings;
    let attached = bindings.iter().find(|binding| binding.role == Role::Agent);
    let attached = attached.unwrap();
    assert_eq!(attached.name.as_str(), "agent-a");
    assert_eq!(attached.group.as_str(), "agent-a");
    assert_eq!(attached.topics[0].as_str(), "a");
}
