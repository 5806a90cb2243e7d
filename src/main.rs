//! The `tidegate` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}
