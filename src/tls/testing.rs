//! Certificates for tests, and handshakes without a network.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SignatureAlgorithm,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::IdentityFiles;

/// An authority that signs what a test needs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, in PEM.
pub(crate) struct IssuedPair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A server's certificate for these names.
    pub(crate) fn issue(&self, names: &[&str]) -> IssuedPair {
        self.issue_by(names, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// The same with a key of another kind.
    pub(crate) fn issue_by(&self, names: &[&str], kind: &'static SignatureAlgorithm) -> IssuedPair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign(CertificateParams::new(names).unwrap(), &KeyPair::generate_for(kind).unwrap())
    }

    /// A client's certificate with this common name.
    pub(crate) fn client(&self, name: &str) -> IssuedPair {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        self.sign(params, &KeyPair::generate().unwrap())
    }

    fn sign(&self, params: CertificateParams, key: &KeyPair) -> IssuedPair {
        let cert = params.signed_by(key, &self.issuer).unwrap().pem();
        IssuedPair { cert, key: key.serialize_pem() }
    }

    pub(crate) fn write(&self, folder: &Path, name: &str) -> std::path::PathBuf {
        let file = folder.join(name);
        fs::write(&file, &self.pem).unwrap();
        file
    }
}

impl IssuedPair {
    /// Writes `NAME.pem` and `NAME.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> IdentityFiles {
        let files = IdentityFiles {
            cert: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
        };
        fs::write(&files.cert, &self.cert).unwrap();
        fs::write(&files.key, &self.key).unwrap();
        files
    }
}

/// What the two sides of a handshake agreed on.
pub(crate) struct TestHandshake {
    pub(crate) client: ClientConnection,
    pub(crate) server: ServerConnection,
}

impl TestHandshake {
    /// Whether the client took up an earlier session again.
    pub(crate) fn resumed(&self) -> bool {
        self.client.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// The certificate that the server showed.
    pub(crate) fn shown(&self) -> Vec<u8> {
        self.client.peer_certificates().unwrap().first().unwrap().to_vec()
    }
}

/// Makes a handshake, with the session tickets that follow the handshake.
pub(crate) fn shake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<TestHandshake, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = Connection::from(ClientConnection::new(client.clone(), name)?);
    let mut server = Connection::from(ServerConnection::new(server.clone())?);
    loop {
        let moved = carry(&mut client, &mut server)? + carry(&mut server, &mut client)?;
        if moved == 0 {
            break;
        }
    }
    match (client, server) {
        (Connection::Client(client), Connection::Server(server)) => {
            assert!(!client.is_handshaking() && !server.is_handshaking());
            Ok(TestHandshake { client, server })
        }
        _ => unreachable!("a client and a server were made"),
    }
}

fn carry(from: &mut Connection, to: &mut Connection) -> Result<usize, rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).unwrap();
        to.process_new_packets()?;
    }
    Ok(bytes.len())
}
