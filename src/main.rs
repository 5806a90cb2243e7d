//! The `tidegate` program.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// The system's allocator keeps the buffers of connections that became idle, since small blocks of
/// those that live on lie between them. This one lays blocks of a size together and gives back what
/// has not been used for ten seconds, by a thread of its own.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
