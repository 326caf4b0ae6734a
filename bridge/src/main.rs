//! The program `a2abus`: parses the command line, runs one command, and prints its error in one line.

use std::process::ExitCode;

use a2abus_bridge::cli;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let error = match cli::run() {
        Ok(status) => return status.into(),
        Err(error) => error,
    };
    if let Some(status) = cli::quiet_status(&error) {
        return status.into();
    }
    cli::complain(&error);
    cli::status_of(&error).into()
}
