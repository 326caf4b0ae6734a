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
    #[error("{} cannot be opened as a store", path.display())]
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
