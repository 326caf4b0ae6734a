//! Locks and tables that several tasks share. `pending` and `exchange/running` import them by `super::sync`, so that
//! their model tests can compile the same files with the primitives of a checker that tries interleavings.

pub(crate) use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use dashmap::DashMap;
pub(crate) use dashmap::mapref::entry::Entry;
