//! `plans.file` of a running process: the table in force, and a look at the file from time to time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::table::{PlanFileError, PlanLineCounts, PlanTable};
use crate::file::{FileWatch, FilesContent, LastRead, is_passing, read_ordinary_up_to};
use crate::request::key::KeySpec;

/// After this number of looks the file is read even if its stamp is unchanged.
const LOOKS_TO_READ: u32 = 15;

/// The most plans that are named as unknown.
const MOST_UNNAMED: usize = 10;

/// Larger files are refused. A million lines have about 30 MiB.
const LARGEST: u64 = 1 << 30;

/// A file that has lost one of so many parts of its lines is told of.
pub(crate) const MANY: usize = 10;

/// A file of `plans.file`: who has which plan.
#[derive(Debug)]
pub(crate) struct PlanFile {
    path: PathBuf,
    by: KeySpec,
    loose_paths: bool,
    table: RwLock<Arc<PlanTable>>,
    watch: Mutex<FileWatch>,
    pub(crate) last_read: LastRead,
}

impl PlanFile {
    /// Reads the file. `by` is the part of a request that says who asks.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is wrong.
    pub(crate) fn open(
        path: PathBuf,
        by: &KeySpec,
        loose_paths: bool,
    ) -> Result<Self, PlanFileError> {
        let mut watch = FileWatch::new(vec![path.clone()], LARGEST, LOOKS_TO_READ);
        watch.catch_up();
        let table = PlanTable::read(&read_ordinary_up_to(&path, LARGEST)?, by, loose_paths)?;
        let (table, watch) = (RwLock::new(Arc::new(table)), Mutex::new(watch));
        Ok(Self { path, by: by.clone(), loose_paths, table, watch, last_read: LastRead::default() })
    }

    /// Goes on with the table of `before`, if this is the same file and has lost lines since. The next look decides what
    /// becomes of them: `proxy.toml` may have been written at the same time, by the same hand.
    pub(crate) fn go_on_from(&self, before: &Self) {
        let identity = |it: &Self| (it.path.clone(), it.by.clone(), it.loose_paths);
        if identity(self) == identity(before) && self.lost_since(before).is_some() {
            *self.table.write() = before.table();
            self.watch.lock().forget();
        }
    }

    /// The lines of the table in force and those of `before`, if many are gone.
    pub(crate) fn lost_since(&self, before: &Self) -> Option<PlanLineCounts> {
        Some(PlanLineCounts::of(&before.table(), &self.table()))
            .filter(|it| it.have_lost_one_of(MANY))
    }

    /// The name of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of the file, as it was last read.
    pub(crate) fn content(&self) -> Option<FilesContent> {
        self.watch.lock().known().cloned()
    }

    /// The table in force.
    pub(crate) fn table(&self) -> Arc<PlanTable> {
        Arc::clone(&self.table.read())
    }

    /// A sentence for each plan of the file that limits do not name, as `is_named` says. There are at most
    /// [`MOST_UNNAMED`].
    pub(crate) fn unnamed(&self, is_named: impl Fn(&str) -> bool) -> Vec<String> {
        let table = self.table();
        let plans = table.plans().filter(|(plan, _)| !is_named(plan));
        let sentence = |(plan, line)| {
            format!("{}, line {line}: no limit names the plan \"{plan}\"", self.path.display())
        };
        plans.map(sentence).take(MOST_UNNAMED).collect()
    }

    /// Looks whether the file has changed. `None` if it has not. New content comes into force when two looks in a
    /// row have read the same content: a file that is still being written is not used. To be called about once a
    /// second. Blocks while the file is read, which takes about half a second for a million lines.
    ///
    /// # Errors
    /// If the new content cannot be used, or half of the lines is lost: a program that writes the file may have failed, and
    /// whoever has no line would lose what he pays for. The table from before stays in force. Content that stays wrong is
    /// an error every five minutes.
    pub(crate) fn look(&self) -> Option<Result<PlanLineCounts, PlanFileError>> {
        let old = self.table();
        let read = || {
            let content = read_ordinary_up_to(&self.path, LARGEST)?;
            let table = PlanTable::read(&content, &self.by, self.loose_paths)?;
            let counts = PlanLineCounts::of(&old, &table);
            match counts.have_lost_one_of(2) {
                true => Err(PlanFileError::Cut(counts)),
                false => Ok((Arc::new(table), counts)),
            }
        };
        let is_passing = |error: &PlanFileError| matches!(error, PlanFileError::Read(error) if is_passing(error));
        // `None` while another look reads.
        let read = self.watch.try_lock()?.read(read, is_passing)?;
        let failure =
            |it: &PlanFileError| format!("{}: {it}; {}", self.path.display(), it.advice());
        self.last_read.note(read.as_ref().err().map(failure));
        Some(read.map(|(table, counts)| {
            // Requests may wait for this lock. `old` keeps the old table until the lock has been released.
            *self.table.write() = table;
            counts
        }))
    }
}
