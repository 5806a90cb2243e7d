//! Notices that the configuration's file has changed. `server` calls [`Reload::look`] a few times a second.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, Loaded, Problems};
use crate::file::{self, FileWatch};

/// How often the file is looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// After this number of looks, the file is read even if its stamp is unchanged. Every change is then in force within a
/// second. It is not read at every look: a file of ten thousand routes replaces all other data in a core's cache.
const LOOKS_TO_READ: u32 = 4;

/// Looks at the configuration's file.
#[derive(Debug)]
pub(crate) struct Reload {
    path: PathBuf,
    overrides: config::Overrides,
    /// Whether the configuration in force is that of a file. With `--upstream` a process may start without one.
    has_file: bool,
    watch: FileWatch,
}

impl Reload {
    /// Watches `path` for changes from its present content.
    pub(crate) fn new(path: PathBuf, overrides: config::Overrides) -> Self {
        let mut watch = FileWatch::new(vec![path.clone()], file::LARGEST, LOOKS_TO_READ);
        watch.catch_up();
        Self { has_file: file::open(&path).is_ok(), path, overrides, watch }
    }

    /// Looks at the file. Returns the loaded file, or its problems, when the file has new content.
    pub(crate) fn look(&mut self) -> Option<Result<Loaded, Problems>> {
        self.watch.look().then(|| self.load())
    }

    /// Reads the file now, changed or not.
    pub(crate) fn now(&mut self) -> Result<Loaded, Problems> {
        self.watch.catch_up();
        self.load()
    }

    /// Makes the next looks load the file, changed or not. The files that it names may have changed.
    pub(crate) fn forget(&mut self) {
        self.watch.forget();
    }

    fn load(&mut self) -> Result<Loaded, Problems> {
        let file = file::read_ordinary(&self.path);
        let is_there = file.is_ok();
        let (env, may_lack) = (&config::process_environment, !self.has_file);
        let loaded = config::load_again(&self.path, file, env, &self.overrides, may_lack);
        self.has_file |= is_there && loaded.is_ok();
        loaded
    }
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
    fn a_forgotten_file_is_loaded_once_more() {
        let (folder, mut reload) = file(FILE);
        fs::write(folder.path().join("proxy.toml"), "nonsense").unwrap();
        for _ in 0..2 {
            let said: Vec<_> = (0..5).filter_map(|_| reload.look()).collect();
            assert_eq!(said.len(), 1);
            reload.forget();
        }
        fs::remove_file(folder.path().join("proxy.toml")).unwrap();
        assert!((0..2).any(|_| reload.look().is_some_and(|read| read.is_err())));
    }

    /// Otherwise nothing would be limited while an editor or a deployment has moved the file away.
    #[test]
    fn a_file_that_is_removed_does_not_end_its_limits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        let upstream = Some("http://127.0.0.1:1".to_owned());
        let overrides = config::Overrides { upstream, ..config::Overrides::default() };
        let mut reload = Reload::new(path.clone(), overrides);
        assert!(reload.now().is_ok(), "there was no file at the start");
        fs::write(&path, FILE).unwrap();
        assert!(reload.now().is_ok());
        fs::remove_file(&path).unwrap();
        assert!((0..2).any(|_| reload.look().is_some_and(|read| read.is_err())));
        assert!(reload.now().is_err(), "it is still gone");
    }

    #[test]
    fn a_change_is_in_force_within_a_second() {
        assert!((LOOKS_TO_READ + 1) * LOOK <= Duration::from_secs(1));
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
