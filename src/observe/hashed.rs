//! A hasher for tables whose keys are hashes already.

use std::hash::{BuildHasherDefault, Hasher};

/// The hasher of such a table: a key is its own hash.
pub(super) type AsItIs = BuildHasherDefault<Hashed>;

/// Keeps a key as its own hash.
#[derive(Debug, Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write_u128(&mut self, hash: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
        let low = hash as u64;
        self.0 = low;
    }
}
