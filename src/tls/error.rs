//! The error of certificates and keys.

use std::io;
use std::path::{Path, PathBuf};

use crate::file::is_passing;

/// Why a certificate or a key cannot be used. The messages never quote a file: by mistake it may hold a
/// private key.
#[derive(Debug, thiserror::Error)]
#[error("{}{fault}", .file.as_ref().map_or(String::new(), |file| format!("{} ", file.display())))]
pub struct TlsError {
    /// The file that the error is about.
    pub(crate) file: Option<PathBuf>,
    /// The end of a sentence that begins with the file's name.
    pub(crate) fault: String,
    /// What the operator can do.
    pub(crate) advice: &'static str,
    is_passing: bool,
}

impl TlsError {
    /// `fault` is the end of a sentence that begins with the file's name. It names no other file, because a
    /// file's name may come from the environment and must then not be shown.
    pub(super) fn of(file: &Path, fault: impl Into<String>, advice: &'static str) -> Self {
        Self { file: Some(file.to_owned()), fault: fault.into(), advice, is_passing: false }
    }

    pub(super) fn without_file(fault: String, advice: &'static str) -> Self {
        Self { file: None, fault, advice, is_passing: false }
    }

    /// The file cannot be read.
    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let advice = "expected a file that tidegate's user may read";
        let is_passing = is_passing(error);
        Self { is_passing, ..Self::of(file, format!("cannot be read: {error}"), advice) }
    }

    /// Whether the error is about this process and not about the file.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }
}

impl From<rustls::Error> for TlsError {
    /// The TLS library refuses the configuration, or has no randomness.
    fn from(error: rustls::Error) -> Self {
        let fault = format!("TLS cannot be set up: {error}");
        Self::without_file(fault, "look at the certificates that were named")
    }
}
