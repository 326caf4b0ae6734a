//! Are A2E messages read and written as the sources say? Source: `vectors/a2e_message.json`,
//! docs/protocols/a2e-messages.md §1 to §6.

mod answers;
mod properties;
mod rules;
mod vectors;

use a2abus_models::a2e_message::{DecodeOptions, Message, Refusal, decode};
use a2abus_plugin::protocol::a2e_message::is_known;

fn read(line: &str) -> Result<Message, Refusal> {
    let line = line.to_owned().into();
    decode(&line, &DecodeOptions::default())
        .map(|message| message.expect("a line that is not blank"))
}

/// Whether the readers of the SDK know the type too; messages of others lose all but their base keys there.
fn is_registered(type_name: &str) -> bool {
    is_known(type_name) && !["mcp/server/push", "env/plan/req"].contains(&type_name)
}
