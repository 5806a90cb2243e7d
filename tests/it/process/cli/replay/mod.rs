//! `tidegate replay`, and the `[[tests]]` that `tidegate check` tries.

mod cases;
mod left_out;
mod logs;
mod own_log;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{ONE, folder, told};
use crate::support::tidegate::program;

/// The log of a real web site.
pub(super) fn real_log() -> String {
    let file = "tests/data/apache-access.log.gz";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file).display().to_string()
}

/// A file with a limit by address with these lines, and a route for everything.
fn limited(lines: &str) -> String {
    limited_by("ip", lines)
}

fn limited_by(key: &str, lines: &str) -> String {
    ONE.replace("\"ip\"", &format!("\"{key}\"")).replace("rate = \"100/s\"", lines)
}

pub(super) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, said, errors) = told(folder, &[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(&said).unwrap()
}

/// Lines of one client, a second apart, at this minute.
pub(super) fn lines(client: &str, minute: u32, count: u32) -> String {
    let line = |second: u32| {
        format!(
            "{client} - - [10/Oct/2026:13:{minute:02}:{second:02} +0200] \"GET /a?b=c HTTP/1.1\" 200 10 \
             \"-\" \"probe\"\n"
        )
    };
    (0..count).map(line).collect()
}

pub(super) fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A folder with a `proxy.toml`, and an `access.log` to replay.
struct LogFolder(TempDir);

impl LogFolder {
    fn of(file: &str, log: &str) -> Self {
        let folder = Self(folder(Some(file)));
        folder.write("access.log", log);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        write(self.path(), name, text);
    }

    /// The page that `--html out.html` has written.
    fn page(&self) -> String {
        fs::read_to_string(self.path().join("out.html")).unwrap()
    }

    fn told(&self, arguments: &[&str]) -> (i32, String, String) {
        told(self.path(), arguments)
    }

    /// What a replay of `access.log` says, with these further arguments.
    fn said(&self, more: &[&str]) -> String {
        let (code, said, errors) = self.told(&[&["replay", "access.log"], more].concat());
        assert_eq!((code, errors.as_str()), (0, ""));
        said
    }

    /// The same as JSON.
    fn report(&self, more: &[&str]) -> Value {
        json(self.path(), &[&["replay", "access.log"], more].concat())
    }

    /// The errors of a command that ends with this code.
    fn fails(&self, with: i32, arguments: &[&str]) -> String {
        let (code, _, errors) = self.told(arguments);
        assert_eq!(code, with, "{errors}");
        errors
    }
}

/// Counted by another program, by the log's own clock.
#[test]
fn a_real_log_gives_what_an_independent_count_gives() {
    let folder = LogFolder::of("", "");
    for (lines, rejected, clients) in [
        ("rate = \"20/s\"", 0, 0),
        ("rate = \"5/s\"", 3, 1),
        ("rate = \"1/s\"", 773, 186),
        ("rate = \"30/m\"", 92, 2),
        ("rate = \"30/h\"", 456, 31),
        ("rate = \"30/30d\"\nalgorithm = \"fixed-window\"", 2_160, 52),
        (
            "rate = \"30/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"\ntimezone = \"Europe/Berlin\"",
            1_389,
            43,
        ),
        // One token comes back each day.
        ("rate = \"30/30d\"", 2_117, 52),
    ] {
        folder.write("proxy.toml", &limited(lines));
        let report = json(folder.path(), &["replay", &real_log()]);
        let result = &report["result"];
        let found = [&result["requests"], &result["rejected"], &result["clients"]["seen"]];
        assert_eq!(found, [&10_000.into(), &Value::from(rejected), &1_753.into()], "{lines}");
        assert_eq!(result["clients"]["rejected"], clients, "{lines}");
        assert_eq!(result["limits"][0]["rejected"], rejected, "{lines}");
        let lines = &report["lines"];
        assert_eq!([&lines["steps_back"], &lines["furthest_back_ms"]], [4_915, 59_000]);
        assert_eq!(lines["late"], 0, "lines are sorted");
    }
}

#[test]
fn a_report_says_who_is_hit_when_and_by_which_limit() {
    let log = lines("192.0.2.1", 0, 9) + &lines("192.0.2.2", 1, 3);
    let folder = LogFolder::of(&limited("rate = \"3/m\"\nburst = 5"), &log);
    let (code, said, errors) = folder.told(&["replay", "access.log"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    for part in [
        "12 requests of 2 clients, from 2026-10-10T11:00:00Z to 2026-10-10T11:01:02Z (1m2s)",
        "rejected         4   33 %        1\n",
        "of all requests of these clients, 44 % are rejected; for the median client it is 44 %",
        "192.0.2.1                  9         4   44 %",
        "limit client: 3/m, burst 5, by ip",
        "rejects 4 of 12 requests (33 %), 1 of 2 keys",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let report = folder.report(&[]);
    let hardest = &report["result"]["clients"]["hardest"];
    assert_eq!(hardest.as_array().unwrap().len(), 1);
    assert_eq!(
        [&hardest[0]["name"], &hardest[0]["first"], &hardest[0]["last"]],
        ["192.0.2.1", "2026-10-10T11:00:05Z", "2026-10-10T11:00:08Z"]
    );
    let timeline = &report["result"]["timeline"];
    let counted: u64 =
        timeline["rejected"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum();
    assert_eq!((counted, &timeline["slice_ms"]), (4, &1_000.into()));
}

/// Two limits met the same request: one would have let it pass later, the other one rejected it.
#[test]
fn a_request_that_another_limit_rejects_is_not_held() {
    let file = limited("rate = \"1/s\"\nburst = 1\nwait = \"1m\"")
        .replace("[[routes]]", "[limits.all]\nkey = []\nrate = \"3/h\"\n[[routes]]");
    let folder = LogFolder::of(
        &file.replace("[\"client\"]", "[\"client\", \"all\"]"),
        &lines("192.0.2.1", 0, 1).repeat(5),
    );
    let report = folder.report(&[]);
    let counts = |of: &Value| ["requests", "delayed", "rejected"].map(|name| of[name].clone());
    let result = &report["result"];
    assert_eq!(counts(result), [5, 2, 2]);
    assert_eq!(counts(&result["limits"][0]), [5, 2, 0], "{}", result["limits"][0]);
    assert_eq!(counts(&result["limits"][1]), [5, 0, 2]);
    assert_eq!(result["limits"][0]["longest_wait_ms"], 2_000.0);
}

#[test]
fn two_files_stand_side_by_side() {
    let log = lines("192.0.2.1", 0, 9) + &lines("192.0.2.2", 1, 6);
    let folder = LogFolder::of(&limited("rate = \"3/m\"\nburst = 5"), &log);
    folder.write("old.toml", &limited("rate = \"3/m\"\nburst = 8"));
    let said = folder.said(&["--against", "old.toml"]);
    for part in [
        "old.toml  proxy.toml",
        "requests rejected  1 (6.7 %)    5 (33 %)",
        "1 client hit only by proxy.toml, 0 clients only by old.toml",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let report = folder.report(&["--against", "old.toml"]);
    assert_eq!(report["comparison"]["newly_hit_clients"], 1);
    assert_eq!(report["comparison"]["newly_hit_hardest"][0]["name"], "192.0.2.2");
    assert_eq!([&report["result"]["rejected"], &report["against"]["rejected"]], [5, 1]);
}

#[test]
fn a_share_that_is_exceeded_is_3() {
    let folder = LogFolder::of(&limited("rate = \"2/h\""), &lines("192.0.2.1", 0, 4));
    let fail_above = |share| folder.told(&["replay", "access.log", "--fail-above", share]);
    let (code, said, errors) = fail_above("49.9%");
    assert_eq!(code, 3);
    assert!(said.contains("rejects 2 of 4 requests"), "{said}");
    assert_eq!(errors, "error: 2 of 4 requests would be rejected; --fail-above allows 49.9 %\n");
    assert_eq!(fail_above("50%").0, 0);
    folder.write("access.log", &(lines("192.0.2.1", 0, 9) + &lines("192.0.2.2", 1, 1)));
    // As a binary fraction it is a little less than seven tenths.
    assert_eq!((fail_above("70%").0, fail_above("69.9%").0), (0, 3));
    assert_eq!(fail_above("0.5").0, 2, "a half, or the two-hundredth part?");
    // Nobody knows what a limit that was left out would have done.
    let by_key = ONE.replace("[\"ip\"]", "[\"header:x-api-key\"]");
    folder.write("proxy.toml", &by_key);
    let (code, _, errors) = fail_above("99%");
    assert_eq!(code, 3);
    assert!(errors.contains("10 might be: a limit was left out for them"), "{errors}");
}

#[test]
fn a_page_needs_nothing_else_and_keeps_what_strangers_wrote_apart() {
    let line = lines("192.0.2.1", 0, 4).replace("/a?b=c", "/<script>alert(1)</script>");
    let log = line.replace("<script>", "%3Cscript%3E'&");
    let folder = LogFolder::of(&limited_by("path", "rate = \"2/h\""), &log);
    folder.said(&["--html", "out.html"]);
    let page = folder.page();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for part in ["<script", "http://", "https://", "src=", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("light-dark(") && page.contains("<svg"));
    assert!(page.contains("&#39;&amp;"), "{page}");
}

#[test]
fn limits_that_no_request_met_stand_in_one_sentence() {
    let more = "[limits.login]\nkey = [\"ip\"]\nrate = \"1/s\"\n\
                [limits.upload]\nkey = [\"ip\"]\nrate = \"1/s\"\n\
                [limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/s\"\n\
                [[routes]]\npath = \"/login\"\nupstream = \"api\"\nlimits = [\"login\", \"upload\"]\n";
    let file = ONE.replace("limits = [\"client\"]", "limits = [\"client\", \"user\"]");
    let folder = LogFolder::of(&format!("{file}{more}"), &lines("192.0.2.1", 0, 2));
    let said = folder.said(&["--html", "out.html"]);
    let sentence = "request met these limits: login, upload";
    assert!(said.contains(&format!("no {sentence}\n")), "{said}");
    let page = folder.page();
    assert!(page.contains(&format!("No {sentence}.")), "{page}");
    assert!(!page.contains("<h3>Limit login"), "{page}");
    // Nobody knows which requests would have met this limit.
    assert!(said.contains("left out: limit user"), "{said}");
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let folder = LogFolder::of(ONE, &lines("192.0.2.1", 0, 1));
    for read in ["access.log", "./proxy.toml"] {
        let before = fs::read(folder.path().join(read)).unwrap();
        let errors = folder.fails(2, &["replay", "access.log", "--html", read]);
        assert!(errors.contains("would overwrite"), "{errors}");
        assert_eq!(fs::read(folder.path().join(read)).unwrap(), before);
    }
    let errors = folder.fails(1, &["replay", "access.log", "--html", "no/such/folder.html"]);
    assert!(errors.contains("no/such/folder.html"), "{errors}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let arguments = ["replay", "access.log"];
    let status =
        program().args(arguments).current_dir(folder.path()).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

/// A regression: a log of 300,000 paths of 3 KB took 1.4 GB, because the paths were kept whole.
#[test]
fn a_long_key_is_kept_by_its_hash() {
    let of_path = |path: &str| lines("192.0.2.1", 0, 3).replace("/a?b=c", path);
    let long = |last: &str| format!("/{}{last}", "a".repeat(3_000));
    let text: String = ["/a", &long("b"), &long("c")].map(of_path).concat();
    let folder = LogFolder::of(&limited_by("path", "rate = \"2/h\""), &text);
    let report = folder.report(&[]);
    let keys = &report["result"]["limits"][0]["keys"];
    assert_eq!([&keys["seen"], &keys["rejected"], &report["result"]["rejected"]], [3, 3, 3]);
    let names = keys["hardest"].as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_by_key(|name| name.len());
    assert_eq!(names[0], "/a");
    assert!(names[1..].iter().all(|name| name.starts_with("%~") && name.len() == 24), "{names:?}");
    assert_ne!(names[1], names[2]);
    let (_, said, _) = folder.told(&["suggest", "access.log", "--key", "path"]);
    assert!(said.contains("3 keys") && !said.contains("aaaa"), "{said}");
}
