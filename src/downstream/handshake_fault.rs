//! Why a TLS handshake failed, in one of a fixed number of texts.
//!
//! The texts of rustls name times, extensions and bytes. The client chooses these. If they were the kinds of the
//! summary lines, a client could make a new line with each handshake.

use rustls::{CertificateError as Certificate, Error, InvalidMessage};

/// Why a handshake with a client failed. The text never contains anything that the client sent.
pub(super) fn reason(error: &Error) -> String {
    let fault = match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return "no TLS on a port for TLS: perhaps a plain HTTP request".to_owned();
        }
        Error::NoCertificatesPresented => "peer sent no certificates",
        Error::NoApplicationProtocol => "the client offers neither HTTP/1.1 nor HTTP/2",
        Error::PeerIncompatible(_) => "the client lacks what TLS needs here",
        Error::AlertReceived(_) => "the client ended it with an alert",
        Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            "invalid peer certificate: it has expired"
        }
        // The signature is wrong if another authority with the same name has signed.
        Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            "invalid peer certificate: no authority of client_ca signed it"
        }
        Error::InvalidCertificate(_) => "invalid peer certificate",
        _ => "the client broke the rules of TLS",
    };
    format!("TLS handshake failed: {fault}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rustls::pki_types::UnixTime;
    use rustls::{AlertDescription as Alert, ContentType, HandshakeType};

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
            "TLS handshake failed: invalid peer certificate",
            "TLS handshake failed: the client broke the rules of TLS",
            "TLS handshake failed: the client ended it with an alert",
        ];
        assert_eq!(reasons, HashSet::from(expected.map(str::to_owned)));
    }
}
