//! What the specifications ask for, from the vectors in `tests/vectors`; no network, no clock.

mod cloudevents;
mod decisions;
mod hostile;
mod payloads;
