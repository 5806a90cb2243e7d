//! PEM files (RFC 7468): certificates and private keys.

use std::path::Path;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;
use crate::file::read_ordinary;

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    read_ordinary(file).map_err(|error| TlsError::unreadable(file, &error))
}

/// The certificates of a file in their order, at least one. Keys in the same file are skipped: many tools
/// put certificates and keys into one file.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| broken(file, &error))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let (fault, advice) = match contains(&bytes, b"PRIVATE KEY-----") {
        true => (
            "has a private key and no certificate",
            "expected the certificate's file: this is a key's",
        ),
        false => ("has no certificate", "expected PEM with \"-----BEGIN CERTIFICATE-----\""),
    };
    Err(TlsError::of(file, fault, advice))
}

/// The first private key of a file (PKCS #8, PKCS #1 or SEC 1).
pub(super) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    // PKCS #8 has a kind of section for encrypted keys. The older forms have a header line within the
    // section.
    const ENCRYPTED: [&[u8]; 2] = [b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED"];
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let (fault, advice) = match error {
            _ if ENCRYPTED.iter().any(|mark| contains(&bytes, mark)) => (
                "has a private key with a password",
                "expected one without: `openssl pkey -in KEY -out NEW` takes it away",
            ),
            PemError::NoItemsFound if contains(&bytes, b"BEGIN CERTIFICATE-----") => (
                "has a certificate and no private key",
                "expected the key's file: this is a certificate's",
            ),
            PemError::NoItemsFound => {
                ("has no private key", "expected PEM with \"-----BEGIN PRIVATE KEY-----\"")
            }
            error => return broken(file, &error),
        };
        TlsError::of(file, fault, advice)
    })
}

/// The parser's message is left out, because some messages repeat the file's line.
fn broken(file: &Path, error: &PemError) -> TlsError {
    let fault = match error {
        // The file may still be written at this moment.
        PemError::MissingSectionEnd { .. } => "ends in the middle of a PEM section",
        _ => "has a section that is no PEM",
    };
    let advice = "expected whole sections, \"-----BEGIN …-----\" to \"-----END …-----\"";
    TlsError::of(file, fault, advice)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Authority;

    fn written<T>(content: &[u8], read: fn(&Path) -> Result<T, TlsError>) -> Result<T, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        std::fs::write(&file, content).unwrap();
        read(&file).map_err(|error| {
            assert!(error.file.as_ref() == Some(&file) && !error.advice.is_empty());
            error.fault
        })
    }

    fn fault<T>(content: &[u8], read: fn(&Path) -> Result<T, TlsError>) -> String {
        written(content, read).err().expect("an error")
    }

    #[test]
    fn a_file_says_what_it_lacks() {
        let pair = Authority::new().issue(&["a.test"]);
        let (cert, key) = (pair.cert.as_bytes(), pair.key.as_bytes());
        assert_eq!(written(cert, certificates).unwrap().len(), 1);
        assert!(written(key, private_key).is_ok());
        let both = [key, cert, cert].concat();
        assert_eq!(written(&both, certificates).unwrap().len(), 2);
        assert!(written(&both, private_key).is_ok());

        assert_eq!(fault(key, certificates), "has a private key and no certificate");
        assert_eq!(fault(cert, private_key), "has a certificate and no private key");
        assert_eq!(fault(b"", certificates), "has no certificate");
        assert_eq!(fault(b"\0\xff", private_key), "has no private key");
    }

    #[test]
    fn a_file_that_is_being_written_is_no_file_of_fewer_certificates() {
        let pair = Authority::new().issue(&["a.test"]);
        let chain = format!("{0}{0}", pair.cert);
        let half = &chain.as_bytes()[..chain.len() - 40];
        assert_eq!(fault(half, certificates), "ends in the middle of a PEM section");
        let half = &pair.key.as_bytes()[..60];
        assert_eq!(fault(half, private_key), "ends in the middle of a PEM section");
    }

    #[test]
    fn an_error_does_not_repeat_invalid_base64() {
        let text = b"-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n";
        assert_eq!(fault(text, private_key), "has a section that is no PEM");
    }

    #[test]
    fn a_key_with_a_password_is_an_error() {
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAAAA\n\
             -----END RSA PRIVATE KEY-----\n",
        ] {
            assert_eq!(fault(text.as_bytes(), private_key), "has a private key with a password");
        }
    }

    #[test]
    fn a_file_that_is_not_ordinary_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for file in [folder.path().to_owned(), folder.path().join("none"), "/dev/zero".into()] {
            let error = certificates(&file).unwrap_err().to_string();
            assert!(error.contains("cannot be read: "), "{error}");
        }
    }
}
