//! Locks that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even after a panic of another holder: every change leaves the value consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
