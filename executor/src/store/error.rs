//! Why a store on disk cannot be opened.

use std::path::PathBuf;

/// Why a store on disk cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses it, and only one may.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// It cannot be read or written, or is not a store.
    #[error(
        "{} cannot be opened as a store (this user must be able to read and write it; if it is damaged, restore it from a backup or move it away)",
        path.display()
    )]
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
