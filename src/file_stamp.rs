//! A file's stamp: metadata that changes when the file changes. To compare stamps costs less than to read
//! the file.

use std::fs;
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
