//! One table of cases and one kind of random histories for all algorithms, held against every place that
//! decides: the pure functions, the store of the process, the script in a real Redis by a clock that is
//! moved by hand, and the store in Redis where time makes no difference.

pub(crate) mod algorithms;
pub(crate) mod all_players;
pub(crate) mod bytes;
mod histories;
mod history;
pub(crate) mod players;
mod run;
pub(crate) mod script;
mod table;
