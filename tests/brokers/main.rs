//! The transports against real servers: Apache Kafka and NATS. `tests/run` starts them.

mod kafka;
mod nats;
mod path;
mod plain;
