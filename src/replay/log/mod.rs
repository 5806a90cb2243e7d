//! Reads access logs of the usual servers, line by line, in bounded memory.
//!
//! A [`reader`] opens a file, decompresses gzip and zstd, and lends one [`record::LogRecord`] after the other.
//! [`sorted`] puts the records of several files into the order of their time. [`container`] removes what a container
//! runtime has put around a line. A [`format::Format`] says how the line is read. There are two readers: a [`template`]
//! for lines of text, also for the combined format and for AWS's load balancer, and `json` for objects. Both put each
//! value that they find into a `draft::RecordDraft`, as a `LogField`. `field` has the table of all names. The draft
//! decides which of several times or addresses of a line counts. `told` reads the values that only tidegate logs.

mod address;
pub mod container;
mod draft;
mod escape;
mod field;
pub mod format;
mod gaps;
mod input;
mod json;
mod lines;
pub mod reader;
pub mod record;
mod request_line;
pub mod sorted;
pub(crate) mod template;
mod time;
mod told;

pub(crate) use self::draft::CHANGES;
pub use self::format::Format;
pub use self::reader::{LogInput, LogReader};
pub use self::record::{ClientOrigin, LineFault, LogRecord, Logged, LoggedHeaders};
pub use self::sorted::{FaultyLine, LogOrder, SortedLogs};
pub use self::told::LoggedCounts;
pub(crate) use self::told::ToldChange;

#[cfg(test)]
mod producer_tests;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod testing;
