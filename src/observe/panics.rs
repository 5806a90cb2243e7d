//! Logs and counts panics. A panic is a fault of the program.

use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

use super::events;

/// Panics since the start. Rust has one hook for all threads of a process, so they have one count too.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// From now on, a panic is a line of the log and no plain text on standard error.
pub(super) fn log() {
    panic::set_hook(Box::new(report));
}

/// How many panics there were.
pub(crate) fn total() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

fn report(panic: &PanicHookInfo<'_>) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let text = panic.payload().downcast_ref::<String>().map(String::as_str);
    let error = text.or_else(|| panic.payload().downcast_ref::<&str>().copied());
    let place = panic.location().map_or_else(|| "-".to_owned(), ToString::to_string);
    events::panicked(error.unwrap_or("without a message"), &place);
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;
    use crate::observe::testing;

    #[test]
    fn a_panic_is_one_line_with_its_error_and_place() {
        let before = total();
        let lines = testing::lines(|| {
            let others = panic::take_hook();
            log();
            let number = 7;
            let panicking: [fn(u8); 3] =
                [|_| panic!("a fault"), |number| panic!("fault {number}"), |_| panic_any(())];
            for panicking in panicking {
                assert!(panic::catch_unwind(|| panicking(number)).is_err());
            }
            panic::set_hook(others);
        });
        let errors: Vec<_> = lines.iter().map(|line| line["error"].as_str().unwrap()).collect();
        assert_eq!(errors, ["a fault", "fault 7", "without a message"]);
        for line in &lines {
            assert_eq!((&line["message"], &line["level"]), (&"panic".into(), &"ERROR".into()));
            assert!(line["place"].as_str().unwrap().contains("panics.rs:"), "{line}");
        }
        assert!(total() >= before + 3, "tests of other threads may panic meanwhile");
    }
}
