//! What a file system says of a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Differs once a file was written, or another took its place, also by a symlink swapped somewhere above
/// it, as Kubernetes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// `None` where there is no such file.
    pub(super) fn of(file: &Path) -> Option<Self> {
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
