//! Reads access logs of the usual servers, line by line, with flat memory.
//!
//! [`reader`] opens files, undoes gzip and zstd, and lends one [`record::LogRecord`] after the other.
//! [`container`] takes off what a container runtime has put around a line. A [`format::Format`] says how a line is read. There are two machines for it: a [`template`] for lines of
//! text, also for the combined format and for AWS's load balancer, and `json` for objects. Both put
//! what they find as a `LogField` into a `draft::RecordDraft`. `field` has the one table of names, and the draft
//! decides which of several times or addresses of a line counts.

mod address;
pub mod container;
mod draft;
mod escape;
mod field;
pub mod format;
mod input;
mod json;
mod lines;
pub mod reader;
pub mod record;
mod request_line;
pub mod template;
mod time;

pub use self::format::Format;
pub use self::reader::{LogInput, LogProgress, LogReader};
pub use self::record::{ClientOrigin, LineFault, LogRecord, Logged, LoggedHeaders, OtherHeaders};

#[cfg(test)]
mod producer_tests;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod testing;
