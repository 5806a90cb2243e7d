//! What calls the library, and runs no process of ours.

mod allocations;
mod cases;
mod circles;
mod clocks;
mod config;
mod contract;
mod deploy;
mod dockerfile;
mod ends;
mod expiry;
mod fuzz;
mod known;
mod layers;
mod outage;
mod overrides;
mod paths;
mod redis_store;
mod redisson;
mod replay;
mod time_of_day;
mod twin;
mod usage;
