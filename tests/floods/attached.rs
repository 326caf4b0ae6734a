//! The memory that an idle attached server costs the bridge.

use std::net::SocketAddr;

use support::server::{Kind, named};

use super::{NEIGHBOUR, Target, exchange, until};

const FEW: usize = 1;
const MANY: usize = 33;
/// Bytes of the bridge for each idle server, at most.
const MOST: usize = 1 << 20;

/// So many MCP servers over stdio.
fn config(count: usize, nats: &str, subjects: &str, door: SocketAddr, admin: SocketAddr) -> String {
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/support/idle_server.sh");
    let agent = |n| {
        format!(
            "idle{n}: {{ to: {{ transport: bus, topic: {subjects}.idle{n} }}, attach: {{ command: [sh, {server}] }} }}"
        )
    };
    let agents: Vec<String> = (0..count).map(agent).collect();
    format!(
        r#"
transports: {{ bus: {{ type: nats, servers: ["{nats}"] }} }}
agents: {{ {} }}
http: {{ listen: "{door}" }}
admin: {{ listen: "{admin}" }}
"#,
        agents.join(", ")
    )
}

/// The resident memory of a bridge once all its servers are up.
async fn resident(nats: &str, count: usize) -> usize {
    let target = Target::start(nats, |nats, subjects, door, admin| {
        config(count, nats, subjects, door, admin)
    })
    .await;
    let list = "GET /a2a/agents HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    until("all servers are up", async || {
        let agents = exchange(NEIGHBOUR, target.door, list).await;
        agents.is_ok_and(|agents| agents.matches("The MCP server idle.").count() >= count)
    })
    .await;
    target.resident()
}

#[tokio::test]
async fn idle_servers_need_little() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let few = resident(&nats, FEW).await;
    let many = resident(&nats, MANY).await;
    let each = many.saturating_sub(few) / (MANY - FEW);
    println!(
        "an idle attached server needs {} KiB of the bridge",
        each >> 10
    );
    assert!(each < MOST, "{each} bytes for each idle server");
}
