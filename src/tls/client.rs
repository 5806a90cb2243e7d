//! TLS towards upstreams: which servers are trusted, and which certificate they get.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::error::TlsError;
use super::identity::TlsIdentity;
use super::provider;

/// How the servers of an upstream are verified, and which certificate they get. Equal values lead to configurations
/// that behave the same.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientTlsSpec {
    /// The authorities that sign the servers' certificates.
    pub roots: Arc<[CertificateDer<'static>]>,
    /// The name in the servers' certificates, if it differs from the host in the URL.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate for servers that ask for a certificate.
    pub identity: Option<TlsIdentity>,
}

impl ClientTlsSpec {
    /// The value of `server_name`, if the file has it and it is a name. An address is no host name.
    pub(crate) fn host_name(&self) -> Option<&str> {
        match &self.server_name {
            Some(ServerName::DnsName(name)) => Some(name.as_ref()),
            _ => None,
        }
    }

    /// The name that the certificate of the server at `host` must have. `None` if no certificate can be
    /// for `host`.
    pub(crate) fn name_of(&self, host: &str) -> Option<ServerName<'static>> {
        self.server_name.clone().or_else(|| ServerName::try_from(host.to_owned()).ok())
    }
}

/// The configuration for TLS 1.2 and 1.3. `alpn` has the protocols, the preferred one first. The
/// configuration keeps sessions for later connections: it should be made once and shared.
///
/// # Errors
/// If the TLS library refuses the configuration.
pub fn config(spec: &ClientTlsSpec, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are skipped: the machine's bundle may have very old ones. An
    // authority that the operator named was checked when it was read.
    roots.add_parsable_certificates(spec.roots.iter().cloned());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(roots);
    let mut config = match &spec.identity {
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

/// The error of a handshake. It says so if the server perhaps speaks in clear text.
pub(crate) fn handshake_error(error: io::Error) -> io::Error {
    let why = match (error.get_ref().and_then(|it| it.downcast_ref()), error.kind()) {
        (Some(rustls::Error::InvalidMessage(_)), _) => "it answered in clear text, and not by TLS",
        (None, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            "it closed the connection in the TLS handshake: perhaps it speaks in clear text"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error} ({why}: see the scheme of its URL)"))
}

/// The authorities that this machine trusts: its bundle, or the files of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`.
///
/// # Errors
/// If there are no authorities.
pub(crate) fn system_roots() -> Result<Arc<[CertificateDer<'static>]>, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let cause = found.errors.first().map_or(String::new(), |error| format!(": {error}"));
        return Err(TlsError::without_file(
            format!("this machine has no root certificates{cause}"),
            "install them (Debian: ca-certificates), or name the authority: `ca = \"ca.pem\"`",
        ));
    }
    Ok(found.certs.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::authorities;
    use crate::tls::testing::Authority;

    fn spec(authority: &Authority) -> ClientTlsSpec {
        let folder = tempfile::tempdir().unwrap();
        let roots = authorities(&authority.write(folder.path(), "ca.pem")).unwrap().into();
        ClientTlsSpec { roots, server_name: None, identity: None }
    }

    #[test]
    fn a_name_of_its_own_wins_over_the_host() {
        let mut spec = spec(&Authority::new());
        let name = |text: &str| ServerName::try_from(text.to_owned()).ok();
        assert_eq!(spec.name_of("10.0.0.2"), name("10.0.0.2"));
        assert_eq!(spec.name_of("::1"), name("::1"));
        assert_eq!(spec.name_of("my_service"), name("my_service"));
        assert_eq!(spec.name_of("-a"), None);
        spec.server_name = name("api.internal");
        assert_eq!(spec.name_of("-a"), name("api.internal"));
    }
}
