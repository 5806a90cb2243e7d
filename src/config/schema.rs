//! Schema.
