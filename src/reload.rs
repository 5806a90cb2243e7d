//! Notices that the configuration's file has changed. `server` calls [`Reload::look`] a few times a second.
//!
//! Looking finds every kind of change, on every kind of file system: written in place, replaced by rename,
//! a swapped symlink above the file. Watching for events does not. The file is read and compared if its
//! stamp has changed, and otherwise at one look of four, because some file systems do not report changes.
//! The file is not read at every look: a file of ten thousand routes replaces all other data in a core's
//! cache.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, Loaded, Problems};
use crate::file::{self, ContentWatch, FileStamp};

/// How often the file is looked at. A change is used when two looks have read the same content: a file that
/// is still being written is not used.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// After this number of looks, the file is read even if its stamp is unchanged. Every change is then in force
/// within a second.
const LOOKS_TO_READ: u32 = 4;

/// Looks at the configuration's file, and remembers what was read.
#[derive(Debug)]
pub(crate) struct Reload {
    path: PathBuf,
    overrides: config::Overrides,
    /// The content of the configuration in force, or of the last rejected one. `None` where the file is to be
    /// loaded in any case.
    known: Option<FileContent>,
    /// Whether the configuration in force is that of a file. With `--upstream` a process may start without one.
    has_file: bool,
    watch: ContentWatch<FileStamp, FileContent>,
}

/// A file's content, or why the file could not be read.
type FileContent = Result<Vec<u8>, io::ErrorKind>;

impl Reload {
    /// Watches `path` for changes from its present content.
    pub(crate) fn new(path: PathBuf, overrides: config::Overrides) -> Self {
        let known = seen(&file::read_ordinary(&path));
        let (has_file, known) = (known.is_ok(), Some(known));
        Self { path, overrides, known, has_file, watch: ContentWatch::new(LOOKS_TO_READ) }
    }

    /// Looks at the file. Returns the loaded file, or its problems, when the file has changed and two looks
    /// have read the same content.
    pub(crate) fn look(&mut self) -> Option<Result<Loaded, Problems>> {
        if !self.watch.is_to_be_read(FileStamp::of(&self.path)) {
            return None;
        }
        let file = file::read_ordinary(&self.path);
        if file.as_ref().is_err_and(is_passing) {
            return None;
        }
        let known = self.known.as_ref().map(|known| known.as_ref().map_err(|kind| *kind));
        if Some(file.as_ref().map_err(io::Error::kind)) == known {
            self.watch.no_news();
            return None;
        }
        self.watch.has_settled(seen(&file)).then(|| self.load(file))
    }

    /// Reads the file now, changed or not.
    pub(crate) fn now(&mut self) -> Result<Loaded, Problems> {
        self.load(file::read_ordinary(&self.path))
    }

    /// Makes the next looks load the file, changed or not. The files that it names may have changed.
    pub(crate) fn forget(&mut self) {
        (self.known, self.watch) = (None, ContentWatch::new(LOOKS_TO_READ));
    }

    fn load(&mut self, file: io::Result<Vec<u8>>) -> Result<Loaded, Problems> {
        self.known = Some(seen(&file));
        self.watch.no_news();
        let is_there = file.is_ok();
        let (env, may_lack) = (&config::process_environment, !self.has_file);
        let loaded = config::load_again(&self.path, file, env, &self.overrides, may_lack);
        self.has_file |= is_there && loaded.is_ok();
        loaded
    }
}

/// Whether an error is about this process and not about the file, such as too few descriptors or too little
/// memory.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
    };
    ![FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied]
        .contains(&error.kind())
}

fn seen(file: &io::Result<Vec<u8>>) -> FileContent {
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

    /// Also if the stamp does not change: the file system does not report the change, or two changes have
    /// the same time.
    #[test]
    fn a_change_is_in_force_within_a_second() {
        let (_folder, mut reload) = file(FILE);
        for already in 0..2 * LOOKS_TO_READ {
            assert!((0..already).all(|_| reload.look().is_none()));
            reload.known = Some(Ok(FILE.replace(":1", ":2").into()));
            let looks = (1..).find(|_| reload.look().is_some()).unwrap();
            assert!(looks * LOOK <= Duration::from_secs(1), "{looks}");
        }
    }

    #[test]
    fn a_file_is_not_read_at_every_look() {
        let (_folder, mut reload) = file(FILE);
        let mut is_read = || reload.watch.is_to_be_read(FileStamp::of(&reload.path));
        assert!(is_read(), "the first");
        let reads = (0..10 * LOOKS_TO_READ).filter(|_| is_read());
        assert_eq!(reads.count(), 10);
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
