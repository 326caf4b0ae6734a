//! The locks and tables that tasks share. `pending` and `exchange/running` import them through `super::sync`, so that
//! their model tests can compile the same files with primitives that explore interleavings.

pub(crate) use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use dashmap::DashMap;
pub(crate) use dashmap::mapref::entry::Entry;
