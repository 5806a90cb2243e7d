//! What the admin endpoint shows about the configuration in force, and about a file that was refused.

use parking_lot::Mutex;
use serde_json::Value as Json;

use super::changes::Changes;
use super::tree::{self, FileText};
use crate::limit::time::Timestamp;

/// The most reloads of which the time is known.
const MOST_LOADS: usize = 1_000;

/// The record of a process, from its start on.
#[derive(Debug, Default)]
pub(crate) struct ConfigRecord(Mutex<ConfigNews>);

/// The state of the configuration. All times are times of day.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigNews {
    /// The file's name.
    pub(crate) file: String,
    /// 1 at the start, and 1 more with each reload.
    pub(crate) version: u64,
    /// When this version came into force.
    pub(crate) since: Timestamp,
    /// When each version came into force, the last ones.
    pub(crate) loads: Vec<Timestamp>,
    /// What the last reload changed. Empty before the first one.
    pub(crate) changed: Vec<String>,
    /// The fields of the file that need a restart. Their values of the start are still in force.
    pub(crate) restart: Vec<String>,
    /// Why the file was refused, and since when. `None` while the file is right.
    pub(crate) rejected: Option<(Vec<String>, Timestamp)>,
    /// The file in force.
    pub(crate) text: FileText,
    /// The file of the start.
    pub(crate) first: FileText,
}

impl ConfigRecord {
    /// The configuration of the start.
    pub(crate) fn started(&self, file: String, text: FileText, now: Timestamp) {
        let (version, first) = (1, text.clone());
        *self.0.lock() = ConfigNews {
            file,
            version,
            since: now,
            loads: vec![now],
            text,
            first,
            ..Default::default()
        };
    }

    /// A reload has put a new file in force.
    pub(crate) fn reloaded(&self, text: FileText, changes: Changes, now: Timestamp) {
        let mut news = self.0.lock();
        let Changes { changed, restart } = changes;
        let restart = restart.into_iter().map(|it| it.field).collect();
        (news.changed, news.restart, news.text) = (changed, restart, text);
        (news.since, news.rejected) = (now, None);
        if news.loads.len() == MOST_LOADS {
            news.loads.remove(0);
        }
        news.loads.push(now);
        news.version += 1;
    }

    /// The file was refused.
    pub(crate) fn rejected(&self, errors: Vec<String>, now: Timestamp) {
        let mut news = self.0.lock();
        let since = news.rejected.as_ref().map_or(now, |(_, since)| *since);
        news.rejected = Some((errors, since));
    }

    pub(crate) fn news(&self) -> ConfigNews {
        self.0.lock().clone()
    }
}

impl ConfigNews {
    /// When the version came into force that was in force at this time. `None` if nobody knows any more.
    pub(crate) fn loaded(&self, at: Timestamp) -> Option<Timestamp> {
        self.loads.iter().rev().find(|load| **load <= at).copied()
    }

    /// The line of a limit, or of its plan, in the file in force.
    pub(crate) fn line_of(&self, limit: &str, plan: Option<&str>) -> Option<usize> {
        match plan {
            Some(plan) => self.text.line_of(&["limits", limit, "plans", plan]),
            None => self.text.line_of(&["limits", limit]),
        }
    }

    /// The settings in force as JSON, with defaults and without secrets. `env` returns the value of an
    /// environment variable.
    pub(crate) fn settings(&self, env: &dyn Fn(&str) -> Option<String>) -> Json {
        let mut settings = self.text.tree(env).json();
        if !self.restart.is_empty() {
            let first = self.first.tree(env).json();
            self.restart.iter().for_each(|path| tree::keep(&mut settings, &first, path));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::config::changes::NeededRestart;

    fn text(listen: &str, retries: u32) -> FileText {
        let text = format!(
            "[server]\nlisten = \"{listen}\"\n\
             [upstreams.api]\nservers = [\"http://a\"]\nretries = {retries}\n"
        );
        FileText { text: text.into(), overrides: Overrides::default() }
    }

    #[test]
    fn a_refused_file_changes_nothing_but_the_errors() {
        let (record, at) = (ConfigRecord::default(), |micros| Timestamp::MIN.plus_micros(micros));
        record.started("proxy.toml".to_owned(), text("127.0.0.1:1", 1), at(1));
        record.rejected(vec!["one".to_owned()], at(2));
        record.rejected(vec!["two".to_owned()], at(3));
        let news = record.news();
        assert_eq!(news.rejected, Some((vec!["two".to_owned()], at(2))));
        assert_eq!((news.version, news.since, news.changed.len()), (1, at(1), 0));
        let changes = Changes {
            restart: vec![NeededRestart { field: "server.listen".to_owned(), line: String::new() }],
            changed: vec!["upstreams.api retries 1 -> 2".to_owned()],
        };
        record.reloaded(text("127.0.0.1:2", 2), changes, at(4));
        let news = record.news();
        assert_eq!((news.version, news.since, news.rejected.clone()), (2, at(4), None));
        let settings = news.settings(&|_| None);
        assert_eq!(settings["server"]["listen"][0], "127.0.0.1:1", "needs a restart");
        assert_eq!(settings["upstreams"]["api"]["retries"], 2);
    }

    #[test]
    fn files_that_say_the_same_have_the_same_version() {
        let version =
            |text: &str| FileText { text: text.into(), overrides: Overrides::default() }.version();
        let file = version(&text("127.0.0.1:1", 1).text);
        assert_eq!(file.len(), 12);
        let other_address = text("127.0.0.1:2", 1).text.replace("[server]", "# here\n\n[server]");
        assert_eq!(version(&other_address), file);
        assert_ne!(version(&text("127.0.0.1:1", 2).text), file);
        let limit = "[limits.listen]\nrate = \"1/s\"\n";
        assert_ne!(version(&format!("{}{limit}", text("127.0.0.1:1", 1).text)), file);
        let secret = |token: &str| version(&format!("[admin]\ntoken = \"{token}\""));
        assert_eq!(secret("one"), secret("another"), "nobody can guess at a secret");
    }

    #[test]
    fn the_command_line_replaces_settings() {
        let overrides = Overrides {
            upstream: Some("http://b".to_owned()),
            listen: Some("127.0.0.1:3".to_owned()),
            shadow: true,
            ..Overrides::default()
        };
        let limits = "[limits.a]\nrate = \"1/s\"\n[limits.b]\nrate = \"1/s\"\nmode = \"off\"\n";
        let text = format!("{}{limits}", text("127.0.0.1:1", 1).text).into();
        let settings = FileText { overrides, text }.tree(&|_| None).json();
        let modes = ["a", "b"].map(|name| settings["limits"][name]["mode"].as_str());
        assert_eq!(modes, [Some("shadow"), Some("off")]);
        assert_eq!(settings["server"]["listen"], serde_json::json!(["127.0.0.1:3"]));
        assert_eq!(settings["upstreams"]["api"]["servers"], serde_json::json!(["http://b"]));
    }
}
