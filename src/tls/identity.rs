//! A certificate with its private key, and authorities.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::{DateTime, Decode as _};

use super::error::TlsError;
use super::{pem, provider};

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// PEM: the certificate first, then the certificates that lead to its authority.
    pub cert: PathBuf,
    /// PEM: the certificate's private key.
    pub key: PathBuf,
}

/// A certificate, the certificates that lead to its authority, and its private key. The key is checked to
/// belong to the certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The file of the certificate.
    pub(super) file: PathBuf,
    /// The certificate, then the certificates that lead to its authority.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl TlsIdentity {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read or used, or if the key belongs to another certificate.
    pub fn read(files: &IdentityFiles) -> Result<Self, TlsError> {
        let chain = pem::certificates(&files.cert)?;
        each(&files.cert, &chain, |it| rustls::server::ParsedCertificate::try_from(it).map(drop))?;
        let key = pem::private_key(&files.key)?;
        let identity = Self { file: files.cert.clone(), chain, key };
        let Err(error) = identity.certified() else { return Ok(identity) };
        let (fault, advice) = match error {
            rustls::Error::InconsistentKeys(_) => (
                "is the private key of another certificate".to_owned(),
                "expected the key that was made for the first certificate in `cert`",
            ),
            error => (
                format!("has a key that cannot be used: {error}"),
                "expected an RSA key of 2048 to 8192 bits, ECDSA or Ed25519",
            ),
        };
        Err(TlsError::of(&files.key, fault, advice))
    }

    /// When the certificate expires. `None` if the date cannot be read.
    pub(super) fn end(&self) -> Option<DateTime> {
        let certificate = Certificate::from_der(self.chain.first()?).ok()?;
        Some(certificate.tbs_certificate.validity.not_after.to_date_time())
    }

    /// The certificates and the key in the form of the TLS library.
    pub(super) fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &provider())
    }
}

/// The authorities in a PEM file, at least one.
///
/// # Errors
/// If the file cannot be read, or one of its certificates cannot be used. If a bad certificate were
/// skipped, its absence would be noticed only much later.
pub fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = pem::certificates(file)?;
    each(file, &found, |certificate| RootCertStore::empty().add(certificate.clone()))?;
    Ok(found)
}

/// Checks each certificate of a file.
fn each(
    file: &Path,
    certificates: &[CertificateDer<'static>],
    check: impl Fn(&CertificateDer<'static>) -> Result<(), rustls::Error>,
) -> Result<(), TlsError> {
    for (certificate, number) in certificates.iter().zip(1..) {
        check(certificate).map_err(|error| {
            let fault = format!("cannot be used: {error} (certificate {number} of the file)");
            TlsError::of(file, fault, "expected X.509 certificates of version 3")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Authority;

    #[test]
    fn a_pair_is_read_and_compared() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let pair = authority.issue(&["a.test"]);
        let files = pair.write(folder.path(), "a");
        let identity = TlsIdentity::read(&files).unwrap();
        assert_eq!(identity, TlsIdentity::read(&pair.write(folder.path(), "a")).unwrap());
        let renewed = authority.issue(&["a.test"]).write(folder.path(), "a");
        assert_ne!(identity, TlsIdentity::read(&renewed).unwrap());
        let shown = format!("{identity:?}");
        assert!(shown.contains("secret key elided"), "{shown}");
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let mut files = authority.issue(&["a.test"]).write(folder.path(), "a");
        files.key = authority.issue(&["a.test"]).write(folder.path(), "b").key;
        let error = TlsIdentity::read(&files).unwrap_err();
        assert_eq!(error.file.as_deref(), Some(&*files.key));
        assert!(error.to_string().contains("b.key is the private key of another"), "{error}");
    }

    #[test]
    fn a_certificate_that_cannot_be_understood_is_named_by_its_number() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let pair = authority.issue(&["a.test"]);
        let files = pair.write(folder.path(), "a");
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&files.cert, format!("{}{junk}", pair.cert)).unwrap();
        for error in [TlsIdentity::read(&files).err(), authorities(&files.cert).err()] {
            let said = error.unwrap().to_string();
            assert!(
                said.contains("a.pem cannot be used: ") && said.contains("certificate 2"),
                "{said}"
            );
        }
        std::fs::write(&files.cert, &pair.cert).unwrap();
        let junk = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        std::fs::write(&files.key, junk).unwrap();
        let said = TlsIdentity::read(&files).unwrap_err().to_string();
        assert!(said.contains("a.key has a key that cannot be used"), "{said}");
    }
}
