//! The system's metrics about the process. The metrics have the names that Prometheus's
//! client libraries use. They are read from `/proc`. A metric that cannot be read is left out.

use std::fs;

use super::prometheus::Page;

/// Clock ticks a second in `/proc`: the same on every Linux (`man 5 proc`, USER_HZ).
const TICKS: f64 = 100.0;

/// Writes the metrics that can be read.
pub(super) fn write(page: &mut Page) {
    let mut one = |kind, name, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            page.family(kind, name, help);
            page.sample(&[], &value);
        }
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let cpu = field(&stat, 14).zip(field(&stat, 15)).map(|(user, system)| (user + system) / TICKS);
    one("counter", "process_cpu_seconds_total", "CPU time of the process.", cpu);
    let started = field(&stat, 22)
        .zip(number("/proc/stat", "btime"))
        .map(|(ticks, boot)| boot + ticks / TICKS);
    one("gauge", "process_start_time_seconds", "When the process started.", started);
    let kibibytes = |name| number("/proc/self/status", name).map(|number| number * 1024.0);
    let resident = kibibytes("VmRSS:");
    one("gauge", "process_resident_memory_bytes", "Memory that is in use.", resident);
    let virtual_size = kibibytes("VmSize:");
    one("gauge", "process_virtual_memory_bytes", "Memory that is reserved.", virtual_size);
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    one("gauge", "process_open_fds", "Open files.", open);
    let most = number("/proc/self/limits", "Max open files");
    one("gauge", "process_max_fds", "Open files that are allowed.", most);
}

/// A number of `/proc/self/stat`, by its index from 1. The second field is the program's name, which may
/// hold any characters.
fn field(stat: &str, index: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(index.checked_sub(3)?)?.parse().ok()
}

/// Finds the first line of the file that begins with `name`, and reads the number after `name`.
fn number(file: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_of_this_process() {
        let mut page = Page::default();
        write(&mut page);
        let page = page.finish();
        let value = |name: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_virtual_memory_bytes ") > value("process_resident_memory_bytes "));
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_max_fds ") >= value("process_open_fds "));
        assert!(value("process_start_time_seconds ") > 1.6e9);
        assert!(value("process_cpu_seconds_total ") >= 0.0);
    }

    #[test]
    fn a_name_with_spaces_and_brackets_moves_no_field() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12";
        assert_eq!([field(stat, 4), field(stat, 14)], [Some(1.0), Some(11.0)]);
    }
}
