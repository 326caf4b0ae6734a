//! Storages for values that outlive an execution.

wire_enum! {
    /// Where values are stored. Source: docs/protocols/a2e-workflows.md §4.6.
    Storage {
        /// Durable, per agent.
        Local = "localStorage",
        /// In memory, per agent and session.
        Session = "sessionStorage",
        /// A file.
        File = "file",
    }
}
