//! Files that an operator writes and a running process reads: `proxy.toml`, certificates. A file's stamp tells
//! whether the file may have changed, for less than to read the file.

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

/// Larger files are refused. A `proxy.toml` with 10,000 routes has about a tenth of this size, and a system's
/// whole bundle of authorities a quarter of a MiB.
const LARGEST: u64 = 16 << 20;

/// The content of an ordinary file.
///
/// # Errors
/// If `path` is not an ordinary file: a running process must not wait for the other end of a pipe. If the
/// file is larger than 16 MiB, or cannot be read.
pub(crate) fn read_ordinary(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    read(File::open(path)?)
}

/// The content of a file that is open, be it ordinary or a pipe.
///
/// # Errors
/// If the file is larger than 16 MiB, or cannot be read.
pub(crate) fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST) {
        let message = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
