//! Files that an operator writes and a running process reads: `proxy.toml`, certificates, keys, plans. [`FileWatch`]
//! notices that they have changed.

use std::fs::{self, File};
use std::hash::Hasher as _;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::time::Instant;

/// Identifies one state of a file, without reading the file: device, inode, length, and the times of the last changes.
/// It differs after the file was written, and after another file took its place. Symlinks are followed, so it also
/// differs after a symlink was swapped, as Kubernetes does.
type FileStamp = (u64, u64, u64, [i64; 4]);

/// The stamp of this file; `None` if there is no such file.
fn stamp(file: &Path) -> Option<FileStamp> {
    let file = fs::metadata(file).ok()?;
    let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
    Some((file.dev(), file.ino(), file.len(), times))
}

/// The time between two log lines about a file that stays wrong.
pub(crate) const STILL_WRONG: Duration = Duration::from_secs(300);

/// How the last reading went of something that is read again and again. What was read before stays in force if it failed.
#[derive(Debug, Default)]
pub(crate) struct LastRead(Mutex<(Option<Instant>, Option<String>)>);

impl LastRead {
    /// Notes a reading, with its error if it failed.
    pub(crate) fn note(&self, error: Option<String>) {
        let (read, failure) = &mut *self.0.lock();
        *read = if error.is_none() { Some(Instant::now()) } else { *read };
        *failure = error;
    }

    /// Why the last reading failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.lock().1.clone()
    }

    /// The time since a reading succeeded, if one did.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.0.lock().0.map(|read| read.elapsed())
    }
}

/// Notices that files have new content, because it looks at them again and again. At first all content is new.
///
/// Looking finds every kind of change, on every kind of file system: written in place, replaced by rename, a swapped
/// symlink above the file. Waiting for events does not.
#[derive(Debug)]
pub(crate) struct FileWatch {
    files: Vec<PathBuf>,
    /// The most bytes of a file. A larger file cannot be used, and its content is not compared.
    largest: u64,
    /// After this number of looks, the files are read even if their stamps are unchanged.
    looks_to_read: u32,
    stamps: Vec<Option<FileStamp>>,
    /// How many looks have not read the files since they were last read.
    unread: u32,
    /// The content that is not new.
    known: Option<FilesContent>,
    /// The content that the last look read, if it was new.
    news: Option<FilesContent>,
    /// When the known content was rejected, if it was.
    rejected: Option<Instant>,
}

/// For each file a hash of its content, or why it cannot be read.
pub(crate) type FilesContent = Vec<Result<u128, io::ErrorKind>>;

impl FileWatch {
    pub(crate) fn new(files: Vec<PathBuf>, largest: u64, looks_to_read: u32) -> Self {
        let stamps = Vec::new();
        let (known, news, rejected) = Default::default();
        Self { files, largest, looks_to_read, stamps, unread: 0, known, news, rejected }
    }

    /// From now on, only content that differs from the present content is new. Call this before the files are read:
    /// then a change between the two is noticed.
    pub(crate) fn catch_up(&mut self) {
        (self.known, self.news) = (Some(self.content()), None);
    }

    /// The content that is not new.
    pub(crate) fn known(&self) -> Option<&FilesContent> {
        self.known.as_ref()
    }

    /// All content is new again.
    pub(crate) fn forget(&mut self) {
        (self.known, self.news) = (None, None);
    }

    /// Looks at the files. Returns whether they have new content. Content counts when two looks in a row have read it:
    /// a file that is still being written is not used. Blocks while the files are read.
    pub(crate) fn look(&mut self) -> bool {
        if !self.is_to_be_read() {
            return false;
        }
        let content = self.content();
        if self.known.as_ref() == Some(&content) {
            self.news = None;
            return false;
        }
        if self.news.as_ref() != Some(&content) {
            self.news = Some(content);
            return false;
        }
        self.known = self.news.take();
        true
    }

    /// Reads the files if a look finds new content. `None` if it does not. What was read counts only if it is this
    /// content: otherwise the files are new again. So are files after an error that `is_passing`, which is returned once,
    /// and rejected content after [`STILL_WRONG`].
    pub(crate) fn read<T, E>(
        &mut self,
        read: impl FnOnce() -> Result<T, E>,
        is_passing: impl Fn(&E) -> bool,
    ) -> Option<Result<T, E>> {
        if self.rejected.is_some_and(|rejected| rejected.elapsed() >= STILL_WRONG) {
            self.rejected = None;
            self.forget();
        }
        if !self.look() {
            return None;
        }
        let read = read();
        let passes = read.as_ref().is_err_and(is_passing);
        if passes || self.known != Some(self.content()) {
            self.forget();
            if !passes || self.rejected.is_some() {
                return None;
            }
        }
        self.rejected = read.is_err().then(Instant::now);
        Some(read)
    }

    /// Whether this look is to read the files. Some file systems do not report changes, and two changes may have the
    /// same time. Therefore a look now and then reads in any case.
    fn is_to_be_read(&mut self) -> bool {
        let stamps: Vec<_> = self.files.iter().map(|file| stamp(file)).collect();
        let is_settled = self.known.is_some() && self.news.is_none() && self.stamps == stamps;
        self.stamps = stamps;
        self.unread += 1;
        let is_read = !is_settled || self.unread >= self.looks_to_read;
        if is_read {
            self.unread = 0;
        }
        is_read
    }

    fn content(&self) -> FilesContent {
        let content = |file: &PathBuf| digest(file, self.largest).map_err(|error| error.kind());
        self.files.iter().map(content).collect()
    }
}

/// Whether an error is about this process and not about the file, such as too few descriptors or too little memory.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
    };
    ![FileTooLarge, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied]
        .contains(&error.kind())
}

/// A hash of a file's content. The file may be large, so it is read in pieces.
fn digest(file: &Path, largest: u64) -> io::Result<u128> {
    let mut file = BufReader::with_capacity(PIECE, open(file)?.take(largest + 1));
    let mut digest = SipHasher13::new();
    loop {
        let piece = file.fill_buf()?;
        if piece.is_empty() {
            break;
        }
        digest.write(piece);
        let length = piece.len();
        file.consume(length);
    }
    match file.into_inner().limit() {
        0 => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(digest.finish128().as_u128()),
    }
}

/// Files are hashed in pieces of this size.
const PIECE: usize = 1 << 16;

/// [`read`] refuses larger files. A `proxy.toml` with 10,000 routes has about a tenth of this size, and a system's
/// whole bundle of authorities a quarter of a MiB.
pub(crate) const LARGEST: u64 = 16 << 20;

/// Opens an ordinary file.
///
/// # Errors
/// If `path` is not an ordinary file, or cannot be opened. A running process must not wait for the other end of a pipe.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    File::open(path)
}

/// The content of an ordinary file.
///
/// # Errors
/// Those of [`open`]. If the file is larger than 16 MiB, or cannot be read.
pub(crate) fn read_ordinary(path: &Path) -> io::Result<Vec<u8>> {
    read_ordinary_up_to(path, LARGEST)
}

/// The same for a file of at most `largest` bytes.
///
/// # Errors
/// As [`read_ordinary`].
pub(crate) fn read_ordinary_up_to(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    read_up_to(open(path)?, largest)
}

/// The content of an open file. The file may be a pipe.
///
/// # Errors
/// If the file is larger than 16 MiB, or cannot be read.
pub(crate) fn read(file: File) -> io::Result<Vec<u8>> {
    read_up_to(file, LARGEST)
}

fn read_up_to(file: File, largest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > largest) {
        let message = format!("it is larger than {} MiB", largest >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS_TO_READ: u32 = 4;

    /// A file, and a watch that knows its content.
    fn watched(text: &str) -> (tempfile::TempDir, PathBuf, FileWatch) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, text).unwrap();
        let mut watch = FileWatch::new(vec![file.clone()], LARGEST, LOOKS_TO_READ);
        watch.catch_up();
        (folder, file, watch)
    }

    #[test]
    fn content_is_new_once_and_only_when_it_has_settled() {
        let (_folder, file, mut watch) = watched("a");
        assert!((0..10).all(|_| !watch.look()));
        for text in ["half", "whole"] {
            fs::write(&file, text).unwrap();
            assert!(!watch.look(), "{text} was just written");
        }
        assert!(watch.look());
        assert!((0..10).all(|_| !watch.look()));
        fs::write(&file, "whole").unwrap();
        assert!((0..10).all(|_| !watch.look()), "other times, and the same content");
        watch.forget();
        assert_eq!([0; 10].map(|_| watch.look()).iter().filter(|is_new| **is_new).count(), 1);
    }

    #[test]
    fn a_file_that_is_away_is_a_change_and_so_is_its_return() {
        let (_folder, file, mut watch) = watched("a");
        fs::remove_file(&file).unwrap();
        assert!(!watch.look());
        fs::write(&file, "a").unwrap();
        assert!((0..10).all(|_| !watch.look()), "it was away for a moment");
        for change in [|file: &Path| fs::remove_file(file), |file: &Path| fs::write(file, "a")] {
            change(&file).unwrap();
            assert_eq!([watch.look(), watch.look(), watch.look()], [false, true, false]);
        }
    }

    /// One look with too few descriptors kept an old certificate in force until the file changed once more.
    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_read_or_was_rejected_is_read_again() {
        let (_folder, file, mut watch) = watched("a");
        fs::write(&file, "b").unwrap();
        let is_passing = |error: &&str| *error == "passing";
        let mut look = |read| watch.read(|| read, is_passing);
        let passing = Some(Err("passing"));
        assert_eq!([0; 4].map(|_| look(Err("passing"))), [None, passing, None, None], "said once");
        assert_eq!([look(Ok(())), look(Err("wrong"))], [None, Some(Err("wrong"))]);
        tokio::time::advance(STILL_WRONG).await;
        assert_eq!([look(Ok(())), look(Err("wrong"))], [None, Some(Err("wrong"))], "said again");
        tokio::time::advance(STILL_WRONG).await;
        assert_eq!([look(Ok(())), look(Ok(()))], [None, Some(Ok(()))]);
        tokio::time::advance(STILL_WRONG).await;
        assert_eq!([look(Ok(())), look(Ok(()))], [None; 2]);
        let mut changed = || watch.read(|| fs::write(&file, "c"), |_| false).is_some();
        fs::write(&file, "d").unwrap();
        assert_eq!([changed(), changed()], [false; 2], "what was read may be either content");
        assert_eq!([changed(), changed()], [false, true]);
    }

    #[test]
    fn each_of_several_files_counts() {
        let (folder, file, _) = watched("a");
        let other = folder.path().join("other");
        let mut watch = FileWatch::new(vec![file.clone(), other.clone()], LARGEST, LOOKS_TO_READ);
        watch.catch_up();
        for file in [other, file] {
            fs::write(&file, "b").unwrap();
            assert_eq!([watch.look(), watch.look(), watch.look()], [false, true, false]);
        }
    }

    #[test]
    fn a_giant_is_not_read_to_its_end() {
        let (_folder, file, mut watch) = watched("a");
        File::create(&file).unwrap().set_len(1 << 40).unwrap();
        assert_eq!([watch.look(), watch.look(), watch.look()], [false, true, false]);
        for (length, is_too_large) in [(LARGEST, false), (LARGEST + 1, true)] {
            File::create(&file).unwrap().set_len(length).unwrap();
            assert_eq!(digest(&file, LARGEST).is_err(), is_too_large, "{length}");
        }
    }

    /// The file system may not report the change, or two changes may have the same time.
    #[test]
    fn a_change_is_found_where_the_stamp_is_the_same() {
        for already in 0..2 * LOOKS_TO_READ {
            let (_folder, _, mut watch) = watched("a");
            assert!((0..already).all(|_| !watch.look()));
            watch.known = Some(vec![Ok(0)]);
            let looks = (1..).find(|_| watch.look()).unwrap();
            assert!(looks <= LOOKS_TO_READ + 1, "{looks}");
        }
    }

    #[test]
    fn files_are_not_read_at_every_look() {
        let (_folder, _, mut watch) = watched("a");
        assert!(watch.is_to_be_read(), "the first");
        let reads = (0..10 * LOOKS_TO_READ).filter(|_| watch.is_to_be_read());
        assert_eq!(reads.count(), 10);
    }
}
