//! Files of the repository that tests generate.

use std::path::Path;

/// Compares a file with the generated text, or writes it with `A2ABUS_BLESS`. The path is relative to `bridge/`.
pub(crate) fn assert_written(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("A2ABUS_BLESS").is_some() {
        std::fs::write(&path, generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == generated,
        "{} is stale: run A2ABUS_BLESS=1 cargo test -p a2abus-bridge",
        path.display()
    );
}
