//! One program for all fuzz targets: `TIDEGATE_FUZZ_TARGET` names the one that libFuzzer runs.

#![no_main]
#![allow(missing_docs)]

use std::cell::LazyCell;

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/it/library/fuzz/targets/mod.rs"]
mod targets;

thread_local! {
    static CHECK: LazyCell<fn(&[u8])> = LazyCell::new(|| {
        let name = std::env::var("TIDEGATE_FUZZ_TARGET").unwrap_or_default();
        let target = targets::TARGETS.into_iter().find(|target| target.name == name);
        target.unwrap_or_else(|| panic!("TIDEGATE_FUZZ_TARGET names no target: `{name}`")).check
    });
}

fuzz_target!(|input: &[u8]| CHECK.with(|check| check(input)));
