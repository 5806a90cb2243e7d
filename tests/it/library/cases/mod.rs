//! One table of cases and one kind of random histories for all algorithms, held against every place that
//! decides: the pure functions, the store of the process, the script in a real Redis by a clock that is
//! moved by hand, and the store in Redis where time makes no difference.

pub(crate) mod algorithms;
pub(crate) mod bytes;
mod histories;
mod history;
mod players;
mod run;
mod script;
mod table;
