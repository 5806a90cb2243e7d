//! Files that an operator writes and a running process reads: `proxy.toml`, certificates. A file's stamp tells
//! whether the file may have changed, for less than to read the file. [`ContentWatch`] notices new content.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies one state of a file. It differs after the file was written, and after another file took
/// its place. Symlinks are followed, so it also differs after a symlink was swapped, as Kubernetes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of this file; `None` where there is no such file.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        let file = fs::metadata(file).ok()?;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// Notices new content `C` of files with the stamp `S`, by looking at them again and again.
#[derive(Debug)]
pub(crate) struct ContentWatch<S, C> {
    /// After this number of looks, the files are read even if their stamps are unchanged.
    looks_to_read: u32,
    stamp: Option<S>,
    /// How many looks have not read the files since they were last read.
    unread: u32,
    /// The content that the last look read, if the content was new.
    news: Option<C>,
}

impl<S: PartialEq, C: PartialEq> ContentWatch<S, C> {
    pub(crate) fn new(looks_to_read: u32) -> Self {
        Self { looks_to_read, stamp: None, unread: 0, news: None }
    }

    /// Whether this look is to read the files. `stamp` is their stamp now. Some file systems do not report
    /// changes, and two changes may have the same time. Therefore a look now and then reads in any case.
    pub(crate) fn is_to_be_read(&mut self, stamp: Option<S>) -> bool {
        let known = stamp.is_some() && stamp == self.stamp && self.news.is_none();
        self.stamp = stamp;
        self.unread += 1;
        let read = !known || self.unread >= self.looks_to_read;
        if read {
            self.unread = 0;
        }
        read
    }

    /// Whether new content counts. It does when two looks in a row have read it: a file that is still being
    /// written is not used.
    pub(crate) fn has_settled(&mut self, content: C) -> bool {
        let settled = self.news.as_ref() == Some(&content);
        self.news = (!settled).then_some(content);
        settled
    }

    /// The content that was read last is not new.
    pub(crate) fn no_news(&mut self) {
        self.news = None;
    }
}

/// Larger files are refused. A `proxy.toml` with 10,000 routes has about a tenth of this size, and a system's
/// whole bundle of authorities a quarter of a MiB.
const LARGEST: u64 = 16 << 20;

/// The content of an ordinary file.
///
/// # Errors
/// If `path` is not an ordinary file: a running process must not wait for the other end of a pipe. If the
/// file is larger than 16 MiB, or cannot be read.
pub(crate) fn read_ordinary(path: &Path) -> io::Result<Vec<u8>> {
    read_ordinary_up_to(path, LARGEST)
}

/// The same for a file of up to so many bytes.
///
/// # Errors
/// As [`read_ordinary`].
pub(crate) fn read_ordinary_up_to(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    read_up_to(File::open(path)?, largest)
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
