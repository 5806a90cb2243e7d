//! PEM files (RFC 7468): certificates and private keys.

use std::path::Path;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::{Content, TlsError};
use crate::file::read_ordinary;

/// The content of a file.
///
/// # Errors
/// If the file cannot be read, is too large, or is not an ordinary file.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    read_ordinary(file).map_err(|source| TlsError::Unreadable { file: file.to_owned(), source })
}

/// The certificates of a file in their order, at least one. Keys in the same file are skipped: many tools
/// put certificates and keys into one file.
pub(super) fn certificates(
    file: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::Lacks {
            file: file.to_owned(),
            wanted: Content::Certificate,
            swapped: contains(bytes, b"PRIVATE KEY-----"),
        }),
        Ok(found) => Ok(found),
        Err(error) => Err(broken(file, &error)),
    }
}

/// The first private key of a file (PKCS #8, PKCS #1 or SEC 1).
pub(super) fn private_key(file: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    // PKCS #8 has a kind of section for encrypted keys. The older forms have a header line within the
    // section.
    let encrypted = || {
        contains(bytes, b"BEGIN ENCRYPTED PRIVATE KEY")
            || contains(bytes, b"Proc-Type: 4,ENCRYPTED")
    };
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        _ if encrypted() => TlsError::Encrypted { file: file.to_owned() },
        PemError::NoItemsFound => TlsError::Lacks {
            file: file.to_owned(),
            wanted: Content::PrivateKey,
            swapped: contains(bytes, b"BEGIN CERTIFICATE-----"),
        },
        error => broken(file, &error),
    })
}

/// The parser's message is left out, because some messages repeat the file's line.
fn broken(file: &Path, error: &PemError) -> TlsError {
    let file = file.to_owned();
    match error {
        PemError::MissingSectionEnd { .. } => TlsError::HalfWritten { file },
        _ => TlsError::NoPem { file },
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Authority;

    fn fault<T>(result: Result<T, TlsError>) -> String {
        let error = result.err().expect("an error");
        assert!(!error.advice().is_empty());
        error.to_string()
    }

    #[test]
    fn a_file_says_what_it_lacks() {
        let (file, pair) = (Path::new("a.pem"), Authority::new().issue(&["a.test"]));
        let (cert, key) = (pair.cert.as_bytes(), pair.key.as_bytes());
        assert_eq!(certificates(file, cert).unwrap().len(), 1);
        assert!(private_key(file, key).is_ok());
        let both = [key, cert, cert].concat();
        assert_eq!(certificates(file, &both).unwrap().len(), 2);
        assert!(private_key(file, &both).is_ok());

        assert_eq!(fault(certificates(file, key)), "a.pem has a private key and no certificate");
        assert_eq!(fault(private_key(file, cert)), "a.pem has a certificate and no private key");
        assert_eq!(fault(certificates(file, b"")), "a.pem has no certificate");
        assert_eq!(fault(private_key(file, b"\0\xff")), "a.pem has no private key");
    }

    #[test]
    fn a_file_that_is_being_written_is_no_file_of_fewer_certificates() {
        let (file, pair) = (Path::new("a.pem"), Authority::new().issue(&["a.test"]));
        let chain = format!("{0}{0}", pair.cert);
        let half = &chain.as_bytes()[..chain.len() - 40];
        assert_eq!(fault(certificates(file, half)), "a.pem ends in the middle of a PEM section");
        let half = &pair.key.as_bytes()[..60];
        assert_eq!(fault(private_key(file, half)), "a.pem ends in the middle of a PEM section");
    }

    #[test]
    fn what_is_no_base64_is_not_repeated() {
        let text = "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n";
        let said = fault(private_key(Path::new("a.pem"), text.as_bytes()));
        assert_eq!(said, "a.pem has a section that is no PEM");
    }

    #[test]
    fn a_password_is_told() {
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAAAA\n\
             -----END RSA PRIVATE KEY-----\n",
        ] {
            let said = fault(private_key(Path::new("a.pem"), text.as_bytes()));
            assert_eq!(said, "a.pem has a private key with a password");
        }
    }

    #[test]
    fn what_is_no_ordinary_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        for file in [folder.path().to_owned(), folder.path().join("none"), "/dev/zero".into()] {
            let said = fault(read(&file));
            assert!(said.contains("cannot be read: "), "{said}");
        }
    }
}
