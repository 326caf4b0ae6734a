//! Prints the family of each file, and why: `cargo run --example detect -- message.json other.jsonl`.

#![allow(clippy::print_stdout)] // It is a command.

use a2abus_plugin::{Hint, Limits, Refused, Unit, decode};
use bytes::Bytes;

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        let payload = Bytes::from(std::fs::read(&path)?);
        for unit in decode(&payload, &Hint::default(), &Limits::default()) {
            println!("{}: {}", path.display(), verdict(&unit));
        }
    }
    Ok(())
}

fn verdict(unit: &Result<Unit, Refused>) -> String {
    match unit {
        Ok(unit) => {
            let detection = unit.detection;
            let family = detection.family.as_str();
            let (rule, member) = (detection.rule, detection.member);
            format!(
                "unit {} is {family}, by rule {rule} and the member {member:?}",
                unit.index
            )
        }
        Err(refused) => {
            let error = &refused.error;
            let place = match error.pointer() {
                "" => String::new(),
                pointer => format!(" at {pointer}"),
            };
            let (kind, offset) = (error.kind(), error.offset());
            format!(
                "unit {} is refused: {kind}{place}, byte {offset}: {error}",
                refused.index
            )
        }
    }
}
