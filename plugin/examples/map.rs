//! Maps standard input to CloudEvents in structured mode, one per line: `cargo run --example map < payload.json`.

#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a command.

use std::io::{Read, Write};

use a2abus_plugin::{Hint, Ids, Limits, MapContext, MapOptions, Source, format, map};
use bytes::Bytes;

fn main() -> std::io::Result<()> {
    let mut payload = Vec::new();
    std::io::stdin().lock().read_to_end(&mut payload)?;
    // Unique per run of this source. On a bus, use UUIDs.
    let new_id = MapContext::counting("unit");
    let context = MapContext {
        source: Source::new(format!("/example/{}", std::process::id()))
            .map_err(std::io::Error::other)?,
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let units = map(
        &Bytes::from(payload),
        &Hint::default(),
        &Limits::default(),
        &MapOptions::default(),
        &context,
    );
    let mut out = std::io::stdout().lock();
    for unit in units {
        match unit {
            Ok(unit) => {
                let mut line = Vec::new();
                format::write(&unit.event, &mut line);
                // JSON data keep their line ends, which have no meaning between tokens.
                line.iter_mut()
                    .filter(|byte| matches!(byte, b'\n' | b'\r'))
                    .for_each(|byte| *byte = b' ');
                line.push(b'\n');
                out.write_all(&line)?;
            }
            Err(refused) => eprintln!("unit {}: {}", refused.index, refused.error),
        }
    }
    Ok(())
}
