//! Notices that the configuration's file has changed.
//!
//! The file is read a few times a second and compared. That sees every way in which people change
//! a file (written in place, replaced by rename, a symlink swapped somewhere above it) on every
//! kind of file system, which watching for events does not.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, Loaded, Problems};

/// How often the file is looked at. A change is in force after the second look that finds it the
/// same: a file that is being written is not read in halves.
pub const LOOK: Duration = Duration::from_millis(200);

/// The configuration's file, and what was last made of it.
#[derive(Debug)]
pub struct Reload {
    path: PathBuf,
    overrides: config::Overrides,
    /// What the configuration in force, or the last rejected one, was read from.
    known: Seen,
    /// What the last look found, where that was something new.
    news: Option<Seen>,
}

/// A file's content, or why there is none.
type Seen = Result<Vec<u8>, io::ErrorKind>;

impl Reload {
    /// Notices changes of `path` from what it holds now.
    pub fn new(path: PathBuf, overrides: config::Overrides) -> Self {
        let known = seen(&config::read_again(&path));
        Self { path, overrides, known, news: None }
    }

    /// Looks at the file; what was made of it, once it has changed and stayed the same for two
    /// looks.
    pub fn look(&mut self) -> Option<Result<Loaded, Problems>> {
        let file = config::read_again(&self.path);
        let seen = seen(&file);
        if seen == self.known {
            self.news = None;
            return None;
        }
        if self.news.as_ref() != Some(&seen) {
            self.news = Some(seen);
            return None;
        }
        Some(self.load(file))
    }

    /// Reads the file now, changed or not.
    pub fn now(&mut self) -> Result<Loaded, Problems> {
        self.load(config::read_again(&self.path))
    }

    fn load(&mut self, file: io::Result<Vec<u8>>) -> Result<Loaded, Problems> {
        self.known = seen(&file);
        self.news = None;
        config::load_from(&self.path, file, &config::process_environment, &self.overrides)
    }
}

fn seen(file: &io::Result<Vec<u8>>) -> Seen {
    file.as_ref().cloned().map_err(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FILE: &str = "[upstreams.api]\nservers = [\"http://127.0.0.1:1\"]\n\
                        [[routes]]\npath = \"/\"\nupstream = \"api\"\n";

    fn file(text: &str) -> (tempfile::TempDir, Reload) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        fs::write(&path, text).unwrap();
        let reload = Reload::new(path, config::Overrides::default());
        (folder, reload)
    }

    #[test]
    fn an_untouched_file_is_no_news() {
        let (_folder, mut reload) = file(FILE);
        assert!((0..3).all(|_| reload.look().is_none()));
    }

    #[test]
    fn a_change_counts_once_it_has_settled() {
        let (folder, mut reload) = file(FILE);
        let path = folder.path().join("proxy.toml");
        fs::write(&path, "[upstre").unwrap();
        assert!(reload.look().is_none(), "half written");
        fs::write(&path, FILE.replace(":1", ":2")).unwrap();
        assert!(reload.look().is_none(), "just written");
        assert!(reload.look().is_some_and(|read| read.is_ok()));
        assert!(reload.look().is_none(), "known by now");
    }

    #[test]
    fn a_file_that_vanishes_for_a_moment_is_no_news() {
        let (folder, mut reload) = file(FILE);
        let path = folder.path().join("proxy.toml");
        let aside = folder.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        assert!(reload.look().is_none());
        fs::rename(&aside, &path).unwrap();
        assert!((0..3).all(|_| reload.look().is_none()));
    }

    #[test]
    fn a_broken_file_is_said_once() {
        let (folder, mut reload) = file(FILE);
        fs::write(folder.path().join("proxy.toml"), "nonsense").unwrap();
        let said: Vec<_> = (0..5).filter_map(|_| reload.look()).collect();
        assert_eq!(said.len(), 1);
        assert!(said[0].is_err());
    }

    #[test]
    fn a_swapped_symlink_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("one", FILE.to_owned()), ("two", FILE.replace(":1", ":2"))] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("proxy.toml"), text).unwrap();
        }
        let link = folder.path().join("data");
        std::os::unix::fs::symlink("one", &link).unwrap();
        let mut reload = Reload::new(link.join("proxy.toml"), config::Overrides::default());
        std::os::unix::fs::symlink("two", folder.path().join("new")).unwrap();
        fs::rename(folder.path().join("new"), &link).unwrap();
        assert!((0..2).any(|_| reload.look().is_some_and(|read| read.is_ok())));
    }
}
