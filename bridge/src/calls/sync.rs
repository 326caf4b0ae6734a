//! Locks and tables that several tasks share. `pending` imports them by `super::sync`, so that its model test can compile
//! the same file with the primitives of a checker that tries interleavings.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::AtomicUsize;

pub(crate) use dashmap::DashMap;
