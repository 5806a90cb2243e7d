//! Why a TLS handshake failed, in words of a closed set.
//!
//! The texts of rustls name times, extensions and bytes. The client chooses these. If they were the kinds of the
//! summary lines, a client could make a new line with each handshake.

use rustls::{
    AlertDescription, CertificateError as Certificate, Error, InvalidMessage, PeerIncompatible,
};

/// Why a client could not shake hands. What the client sent never changes the words themselves.
#[allow(clippy::match_same_arms, reason = "the last arm of each match is for the unknown")]
pub(super) fn reason(error: &Error) -> &'static str {
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "no TLS on a port for TLS: perhaps a plain HTTP request"
        }
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord => {
            "TLS handshake failed: the client broke the rules of TLS"
        }
        Error::DecryptError => "TLS handshake failed: cannot decrypt a message of the client",
        Error::NoCertificatesPresented => "TLS handshake failed: peer sent no certificates",
        Error::NoApplicationProtocol => {
            "TLS handshake failed: the client offers neither HTTP/1.1 nor HTTP/2"
        }
        Error::PeerIncompatible(fault) => incompatibility(fault),
        Error::AlertReceived(alert) => alerted(*alert),
        Error::InvalidCertificate(fault) => certificate_fault(fault),
        _ => "TLS handshake failed",
    }
}

fn incompatibility(fault: &PeerIncompatible) -> &'static str {
    match fault {
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled => {
            "TLS handshake failed: the client offers neither TLS 1.2 nor TLS 1.3"
        }
        PeerIncompatible::NoCipherSuitesInCommon => {
            "TLS handshake failed: no cipher suite in common"
        }
        PeerIncompatible::NoKxGroupsInCommon => {
            "TLS handshake failed: no key exchange group in common"
        }
        PeerIncompatible::NoSignatureSchemesInCommon => {
            "TLS handshake failed: no signature scheme in common"
        }
        _ => "TLS handshake failed: the client lacks what TLS needs here",
    }
}

fn alerted(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA => {
            "TLS handshake failed: the client does not accept the certificate of this server"
        }
        _ => "TLS handshake failed: the client ended it with an alert",
    }
}

fn certificate_fault(fault: &Certificate) -> &'static str {
    match fault {
        Certificate::Expired | Certificate::ExpiredContext { .. } => {
            "TLS handshake failed: invalid peer certificate: it has expired"
        }
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "TLS handshake failed: invalid peer certificate: it is not valid yet"
        }
        // The signature is wrong where another authority has the same name.
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            "TLS handshake failed: invalid peer certificate: no authority of client_ca signed it"
        }
        Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
            "TLS handshake failed: invalid peer certificate: it is not for clients"
        }
        Certificate::BadEncoding => {
            "TLS handshake failed: invalid peer certificate: it cannot be read"
        }
        Certificate::UnhandledCriticalExtension => {
            "TLS handshake failed: invalid peer certificate: it has an unknown critical extension"
        }
        Certificate::UnsupportedSignatureAlgorithmContext { .. }
        | Certificate::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "TLS handshake failed: invalid peer certificate: its signature algorithm is unknown"
        }
        _ => "TLS handshake failed: invalid peer certificate",
    }
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
                Error::AlertReceived(AlertDescription::Unknown(200 | low)),
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
        assert_eq!(reasons, HashSet::from(expected));
    }
}
