//! The errors of certificates and keys.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What a PEM file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Certificates.
    Certificate,
    /// A private key.
    PrivateKey,
}

/// Why a certificate or a key cannot be used. The messages never quote a file: by mistake it may hold a
/// private key.
#[derive(Debug)]
pub enum TlsError {
    /// The file is not there, or may not be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A section of the file has no end. The file may still be written at this moment.
    HalfWritten {
        /// The file.
        file: PathBuf,
    },
    /// A section of the file is not PEM.
    NoPem {
        /// The file.
        file: PathBuf,
    },
    /// The file does not have the content that it was read for.
    Lacks {
        /// The file.
        file: PathBuf,
        /// The content that the file was read for.
        wanted: Content,
        /// Whether the file has the other content: a key in place of a certificate, or the reverse.
        swapped: bool,
    },
    /// The private key has a password.
    Encrypted {
        /// The file.
        file: PathBuf,
    },
    /// A certificate cannot be parsed.
    BadCertificate {
        /// The file.
        file: PathBuf,
        /// The number of the certificate in the file, from 1.
        number: usize,
        /// Why.
        source: rustls::Error,
    },
    /// The private key cannot be used.
    BadKey {
        /// The file.
        file: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The private key belongs to another certificate.
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// The machine has no root certificates.
    NoRoots {
        /// The first error of the search. `None` where the search had no error.
        source: Option<rustls_native_certs::Error>,
    },
    /// The TLS library refuses the configuration, or has no randomness.
    Refused(rustls::Error),
}

impl TlsError {
    /// The file that the error is about.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Unreadable { file, .. }
            | Self::HalfWritten { file }
            | Self::NoPem { file }
            | Self::Lacks { file, .. }
            | Self::Encrypted { file }
            | Self::BadCertificate { file, .. }
            | Self::BadKey { file, .. }
            | Self::OtherKey { key: file, .. } => Some(file),
            Self::NoRoots { .. } | Self::Refused(_) => None,
        }
    }

    /// The error without the file's name, as the end of a sentence that begins with the file's name.
    pub fn fault(&self) -> String {
        let named = |content: &Content| match content {
            Content::Certificate => "certificate",
            Content::PrivateKey => "private key",
        };
        match self {
            Self::Unreadable { source, .. } => format!("cannot be read: {source}"),
            Self::HalfWritten { .. } => "ends in the middle of a PEM section".to_owned(),
            Self::NoPem { .. } => "has a section that is no PEM".to_owned(),
            Self::Lacks { wanted, swapped: false, .. } => format!("has no {}", named(wanted)),
            Self::Lacks { wanted: Content::Certificate, .. } => {
                "has a private key and no certificate".to_owned()
            }
            Self::Lacks { wanted: Content::PrivateKey, .. } => {
                "has a certificate and no private key".to_owned()
            }
            Self::Encrypted { .. } => "has a private key with a password".to_owned(),
            Self::BadCertificate { number, source, .. } => {
                format!("cannot be used: {source} (certificate {number} of the file)")
            }
            Self::BadKey { source, .. } => format!("has a key that cannot be used: {source}"),
            Self::OtherKey { .. } => "is the private key of another certificate".to_owned(),
            Self::NoRoots { .. } => "this machine has no root certificates".to_owned(),
            Self::Refused(source) => format!("TLS cannot be set up: {source}"),
        }
    }

    /// What the operator can do.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "expected a file that tidegate's user may read",
            Self::HalfWritten { .. } | Self::NoPem { .. } => {
                "expected whole sections, \"-----BEGIN …-----\" to \"-----END …-----\""
            }
            Self::Lacks { wanted: Content::Certificate, swapped: true, .. } => {
                "expected the certificate's file: this is a key's"
            }
            Self::Lacks { wanted: Content::PrivateKey, swapped: true, .. } => {
                "expected the key's file: this is a certificate's"
            }
            Self::Lacks { wanted: Content::Certificate, .. } => {
                "expected PEM with \"-----BEGIN CERTIFICATE-----\""
            }
            Self::Lacks { wanted: Content::PrivateKey, .. } => {
                "expected PEM with \"-----BEGIN PRIVATE KEY-----\""
            }
            Self::Encrypted { .. } => {
                "expected one without: `openssl pkey -in KEY -out NEW` takes it away"
            }
            Self::BadCertificate { .. } => "expected X.509 certificates of version 3",
            Self::BadKey { .. } => "expected an RSA key of 2048 to 8192 bits, ECDSA or Ed25519",
            Self::OtherKey { .. } => {
                "expected the key that was made for the first certificate in `cert`"
            }
            Self::NoRoots { .. } => {
                "install them (Debian: ca-certificates), or name the authority: `ca = \"ca.pem\"`"
            }
            Self::Refused(_) => "look at the certificates that were named",
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherKey { key, cert } => {
                let (key, cert) = (key.display(), cert.display());
                write!(f, "{key} is not the private key of the certificate in {cert}")
            }
            other => match other.file() {
                Some(file) => write!(f, "{} {}", file.display(), other.fault()),
                None => f.write_str(&other.fault()),
            },
        }
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::BadCertificate { source, .. }
            | Self::BadKey { source, .. }
            | Self::Refused(source) => Some(source),
            Self::NoRoots { source } => source.as_ref().map(|error| error as _),
            Self::HalfWritten { .. }
            | Self::NoPem { .. }
            | Self::Lacks { .. }
            | Self::Encrypted { .. }
            | Self::OtherKey { .. } => None,
        }
    }
}
