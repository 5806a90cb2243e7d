//! Who asks: what a request says of its sender, beyond its address.
//!
//! [`tier`] has the plans of customers.

pub(crate) mod tier;
