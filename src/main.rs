//! The `tidegate` program.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// The system's allocator does not give back the buffers of connections that became idle: small blocks of other
/// connections lie between these buffers. jemalloc puts blocks of one size together. One of its threads gives back
/// memory that has not been used for ten seconds.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
