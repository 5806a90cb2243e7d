//! `plans.file` of a running process: the table in force, and a look at the file from time to time.

use std::fs::{self, File};
use std::hash::Hasher as _;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::table::{TierTable, TierTableError, ValueForm};
use crate::file::{ContentWatch, FileStamp};
use crate::limit::name::Name;
use crate::request::key::KeySpec;

/// After this number of looks the file is read even if its stamp is unchanged.
const LOOKS_TO_READ: u32 = 30;

/// The most plans that are named as unknown.
const MOST_UNNAMED: usize = 10;

/// Bytes are read in pieces of this size.
const PIECE: usize = 1 << 16;

/// A file that says who has which plan.
#[derive(Debug)]
pub(crate) struct TierFile {
    path: PathBuf,
    by: KeySpec,
    loose_paths: bool,
    table: RwLock<Arc<TierTable>>,
    watch: Mutex<TierWatch>,
}

/// What the looks at a file have seen.
#[derive(Debug)]
struct TierWatch {
    content: ContentWatch<FileStamp, Result<u128, io::ErrorKind>>,
    /// The content that was read last: it came in force, or was rejected.
    judged: Result<u128, io::ErrorKind>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(crate) struct TierFileError {
    path: PathBuf,
    error: TierTableError,
}

impl TierFileError {
    /// The error, without the name of the file.
    pub(crate) fn reason(&self) -> &TierTableError {
        &self.error
    }

    /// What to do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self.error {
            TierTableError::Read(_) => "see that the file is there, and that tidegate may read it",
            TierTableError::Line { .. } => {
                "mend it: a line has a value, its plan and perhaps a name, as in `key-of-acme team Acme`"
            }
        }
    }
}

/// The result of a look at the file.
#[derive(Debug)]
pub(crate) enum TierLook {
    /// The table in force has not changed.
    Unchanged,
    /// A new table is in force now.
    Loaded(Arc<TierTable>),
    /// The new file cannot be used. The old table stays in force. Each new content is rejected once.
    Rejected(TierFileError),
}

impl TierFile {
    /// Reads the file. `by` is the part of a request that says who asks.
    ///
    /// # Errors
    /// Where the file cannot be read, or a line is wrong.
    pub(crate) fn open(
        path: PathBuf,
        by: &KeySpec,
        loose_paths: bool,
    ) -> Result<Self, TierFileError> {
        let by = by.clone();
        let table = match read(&path, ValueForm { by: &by, loose_paths }) {
            Ok(table) => table,
            Err(error) => return Err(TierFileError { path, error }),
        };
        let judged = Ok(table.digest);
        let content = ContentWatch::new(LOOKS_TO_READ);
        let (table, watch) =
            (RwLock::new(Arc::new(table)), Mutex::new(TierWatch { content, judged }));
        Ok(Self { path, by, loose_paths, table, watch })
    }

    /// The name of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The table in force.
    pub(crate) fn table(&self) -> Arc<TierTable> {
        Arc::clone(&self.table.read())
    }

    /// A sentence for each plan of the file that limits do not name, as `is_named` says. There are at most
    /// [`MOST_UNNAMED`].
    pub(crate) fn unnamed(&self, is_named: impl Fn(&str) -> bool) -> Vec<String> {
        let table = self.table();
        let plans = table.plans.iter().filter(|(plan, _)| !is_named(plan.as_str()));
        let sentence = |(plan, line): (&Name, &usize)| {
            format!("{}, line {line}: no limit names the plan \"{plan}\"", self.path.display())
        };
        plans.map(sentence).take(MOST_UNNAMED).collect()
    }

    /// Looks whether the file has changed. New content comes in force when two looks in a row have read the same
    /// content: a file that is still being written is not used. To be called about once a second. Blocks while the file
    /// is read, which takes about half a second for a million lines.
    pub(crate) fn look(&self) -> TierLook {
        let mut watch = self.watch.lock();
        if !watch.content.is_to_be_read(FileStamp::of(&self.path)) {
            return TierLook::Unchanged;
        }
        let seen = digest(&self.path).map_err(|error| error.kind());
        if seen == watch.judged {
            watch.content.no_news();
            return TierLook::Unchanged;
        }
        if !watch.content.has_settled(seen) {
            return TierLook::Unchanged;
        }
        watch.judged = seen;
        let form = ValueForm { by: &self.by, loose_paths: self.loose_paths };
        match read(&self.path, form) {
            Ok(table) => {
                // The file may have changed once more since its hash was read.
                watch.judged = Ok(table.digest);
                let table = Arc::new(table);
                // Requests may wait for this lock. So the old table is dropped after the lock has been released.
                let old = std::mem::replace(&mut *self.table.write(), Arc::clone(&table));
                drop(old);
                TierLook::Loaded(table)
            }
            Err(error) => TierLook::Rejected(TierFileError { path: self.path.clone(), error }),
        }
    }
}

/// Two files are equal where they are read alike from the same place. Their content may change at any time.
impl PartialEq for TierFile {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.by, self.loose_paths) == (&other.path, &other.by, other.loose_paths)
    }
}

impl Eq for TierFile {}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    Ok(BufReader::with_capacity(PIECE, File::open(path)?))
}

fn read(path: &Path, form: ValueForm<'_>) -> Result<TierTable, TierTableError> {
    TierTable::read(open(path)?, form)
}

/// The hash of a file, as [`TierTable::digest`] has it.
fn digest(path: &Path) -> io::Result<u128> {
    let (mut file, mut digest) = (open(path)?, SipHasher13::new());
    loop {
        let piece = file.fill_buf()?;
        if piece.is_empty() {
            return Ok(digest.finish128().as_u128());
        }
        digest.write(piece);
        let length = piece.len();
        file.consume(length);
    }
}
