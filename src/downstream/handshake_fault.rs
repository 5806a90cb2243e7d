//! Why a TLS handshake failed, in one of a fixed number of texts.
//!
//! The texts of rustls name times, extensions and bytes. The client chooses these. If they were the kinds of the
//! summary lines, a client could make a new line with each handshake.

use rustls::{
    AlertDescription as Alert, CertificateError as Certificate, Error, InvalidMessage,
    PeerIncompatible,
};

/// Why a handshake with a client failed. The text never contains anything that the client sent.
pub(super) fn reason(error: &Error) -> String {
    let fault = match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return "no TLS on a port for TLS: perhaps a plain HTTP request".to_owned();
        }
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord => "the client broke the rules of TLS",
        Error::DecryptError => "cannot decrypt a message of the client",
        Error::NoCertificatesPresented => "peer sent no certificates",
        Error::NoApplicationProtocol => "the client offers neither HTTP/1.1 nor HTTP/2",
        Error::PeerIncompatible(fault) => match fault {
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled => {
                "the client offers neither TLS 1.2 nor TLS 1.3"
            }
            PeerIncompatible::NoCipherSuitesInCommon => "no cipher suite in common",
            PeerIncompatible::NoKxGroupsInCommon => "no key exchange group in common",
            PeerIncompatible::NoSignatureSchemesInCommon => "no signature scheme in common",
            _ => "the client lacks what TLS needs here",
        },
        Error::AlertReceived(alert) => match alert {
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA => "the client does not accept the certificate of this server",
            _ => "the client ended it with an alert",
        },
        Error::InvalidCertificate(fault) => return certificate_fault(fault),
        _ => return FAILED.to_owned(),
    };
    format!("{FAILED}: {fault}")
}

const FAILED: &str = "TLS handshake failed";

fn certificate_fault(fault: &Certificate) -> String {
    let fault = match fault {
        Certificate::Expired | Certificate::ExpiredContext { .. } => "it has expired",
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => "it is not valid yet",
        // The signature is wrong if another authority with the same name has signed.
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            "no authority of client_ca signed it"
        }
        Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
            "it is not for clients"
        }
        Certificate::BadEncoding => "it cannot be read",
        Certificate::UnhandledCriticalExtension => "it has an unknown critical extension",
        Certificate::UnsupportedSignatureAlgorithmContext { .. }
        | Certificate::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its signature algorithm is unknown"
        }
        _ => return format!("{FAILED}: invalid peer certificate"),
    };
    format!("{FAILED}: invalid peer certificate: {fault}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rustls::pki_types::UnixTime;
    use rustls::{ContentType, HandshakeType};

    use super::*;

    #[test]
    fn nothing_that_a_client_chooses_is_in_the_reason() {
        let time = UnixTime::since_unix_epoch;
        let seconds = std::time::Duration::from_secs;
        let errors = |n: u16| {
            let bytes = n.to_be_bytes();
            let low = bytes[1];
            [
                Error::InvalidCertificate(Certificate::ExpiredContext {
                    time: time(seconds(1_000_000 + u64::from(n))),
                    not_after: time(seconds(n.into())),
                }),
                Error::InvalidCertificate(Certificate::NotValidYetContext {
                    time: time(seconds(n.into())),
                    not_before: time(seconds(1_000_000 + u64::from(n))),
                }),
                Error::InvalidCertificate(Certificate::UnsupportedSignatureAlgorithmContext {
                    signature_algorithm_id: bytes.to_vec(),
                    supported_algorithms: Vec::new(),
                }),
                Error::InvalidMessage(InvalidMessage::DuplicateExtension(n)),
                Error::InappropriateMessage {
                    expect_types: vec![ContentType::Handshake],
                    got_type: ContentType::from(low),
                },
                Error::InappropriateHandshakeMessage {
                    expect_types: vec![HandshakeType::ClientHello],
                    got_type: HandshakeType::from(low),
                },
                Error::AlertReceived(Alert::Unknown(200 | low)),
                Error::General(n.to_string()),
            ]
        };
        let reasons: HashSet<_> = (0..1_000).flat_map(errors).map(|it| reason(&it)).collect();
        let expected = [
            "TLS handshake failed: invalid peer certificate: it has expired",
            "TLS handshake failed: invalid peer certificate: it is not valid yet",
            "TLS handshake failed: invalid peer certificate: its signature algorithm is unknown",
            "TLS handshake failed: the client broke the rules of TLS",
            "TLS handshake failed: the client ended it with an alert",
            "TLS handshake failed",
        ];
        assert_eq!(reasons, HashSet::from(expected.map(str::to_owned)));
    }
}
