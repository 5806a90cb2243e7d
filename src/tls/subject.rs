//! The subject of a client's certificate.

use std::fmt::Write as _;

use rustls::pki_types::CertificateDer;
use x509_cert::der::Tag;
use x509_cert::der::asn1::AnyRef;
use x509_cert::name::Name;

/// The subject of a certificate as text (RFC 4514): `CN=alice,O=Example`, the most specific part first.
/// `None` if the certificate has no subject: newer certificates may have only alternative names.
///
/// To be called for the first certificate of a client's chain, after the handshake has verified the chain.
/// Before, the subject may be forged.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let name = AnyRef::new(Tag::Sequence, certificate.subject()).ok()?;
    let name: Name = name.decode_as().ok()?;
    let mut text = String::new();
    // `to_string` would panic if a part cannot be written.
    write!(text, "{name}").ok()?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn of(parts: &[(DnType, &str)]) -> Option<String> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        subject(certificate.der())
    }

    #[test]
    fn the_most_specific_part_comes_first() {
        let parts = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Example, Inc."),
            (DnType::CommonName, "alice"),
        ];
        assert_eq!(of(&parts).as_deref(), Some("CN=alice,O=Example\\, Inc.,C=DE"));
    }

    #[test]
    fn no_two_subjects_are_the_same_text() {
        // A client that can choose its common name must not be able to add another organisation to the
        // text.
        let forged = of(&[(DnType::CommonName, "alice,O=Other")]);
        assert_eq!(forged.as_deref(), Some("CN=alice\\,O=Other"));
        let honest = of(&[(DnType::OrganizationName, "Other"), (DnType::CommonName, "alice")]);
        assert_ne!(forged, honest);
        assert_ne!(of(&[(DnType::CommonName, "a+b")]), of(&[(DnType::CommonName, "a\\+b")]));
    }

    #[test]
    fn a_certificate_may_have_no_subject() {
        assert_eq!(of(&[]), None);
        assert_eq!(subject(&CertificateDer::from(vec![0x30, 0x00])), None);
    }
}
