//! An authority, and certificates that it has signed, in a folder of their own.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, date_time_ymd,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tempfile::TempDir;
use tidegate::tls::server::{Certificates, ClientAuth, Files};
use tidegate::tls::{IdentityFiles, TlsIdentity, authorities, client};

use super::PATIENCE;

/// A client's end of a TLS connection.
pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Connects to a server of this name. A server may refuse a client after what is a whole handshake to
/// that (RFC 8446, 4.4.2.4): an error comes with the first read then.
pub(crate) fn shake_hands(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &str,
) -> io::Result<Stream> {
    shake_hands_on(TcpStream::connect(address)?, config, name)
}

/// The same on a connection that is there already.
pub(crate) fn shake_hands_on(
    socket: TcpStream,
    config: &Arc<ClientConfig>,
    name: &str,
) -> io::Result<Stream> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// A folder with `ca.pem`, whose authority signs what a test asks for.
pub(crate) struct Folder {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().unwrap();
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The authority's own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    /// Writes `NAME.pem` and the key beside it, a server's certificate for these host names and
    /// addresses; a second time it is renewed. The key of `cert.pem` is `key.pem`.
    pub(crate) fn write_server(&self, name: &str, hosts: &[&str]) -> IdentityFiles {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.sign(name, CertificateParams::new(hosts).unwrap())
    }

    /// The same, ended on the first of January of 2020.
    pub(crate) fn write_ended_server(&self, name: &str, host: &str) -> IdentityFiles {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(name, params)
    }

    /// The same, which ends in so many days and an hour.
    #[allow(clippy::disallowed_methods, reason = "a certificate's end is a time of day")]
    pub(crate) fn write_server_for(&self, name: &str, host: &str, days: u64) -> IdentityFiles {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let left = Duration::from_secs(days * 86_400 + 3_600);
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + left;
        params.not_after = date_time_ymd(1970, 1, 1) + end;
        self.sign(name, params)
    }

    /// The same for a client; its subject is `CN=COMMON_NAME`.
    pub(crate) fn write_client(&self, name: &str, common_name: &str) -> IdentityFiles {
        self.sign(name, client_params(common_name))
    }

    /// The same, valid from `years.0` to `years.1` (the first of January of each).
    pub(crate) fn write_client_of(
        &self,
        name: &str,
        common_name: &str,
        years: (i32, i32),
    ) -> IdentityFiles {
        let mut params = client_params(common_name);
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> IdentityFiles {
        let key = KeyPair::generate().unwrap();
        let key_name = match name {
            "cert" => "key.pem".to_owned(),
            name => format!("{name}.key"),
        };
        let files = IdentityFiles {
            cert: self.path().join(format!("{name}.pem")),
            key: self.path().join(key_name),
        };
        fs::write(&files.cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A client that trusts the authority, offers these protocols by ALPN, and shows this certificate.
    pub(crate) fn client(
        &self,
        alpn: &[&[u8]],
        shown: Option<&IdentityFiles>,
    ) -> Arc<ClientConfig> {
        let spec = client::ClientTlsSpec {
            roots: authorities(&self.ca()).unwrap().into(),
            server_name: None,
            identity: shown.map(|files| TlsIdentity::read(files).unwrap()),
        };
        client::config(&spec, alpn).unwrap()
    }

    /// The same, of TLS 1.2 alone.
    pub(crate) fn old_client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(authorities(&self.ca()).unwrap().remove(0)).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let builder = ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// A server that shows this certificate, chooses of these protocols, the preferred one first, and
    /// demands a certificate of the authority's.
    pub(crate) fn server(
        &self,
        files: &IdentityFiles,
        alpn: &[&[u8]],
        clients: Option<ClientAuth>,
    ) -> Arc<ServerConfig> {
        let files = Files {
            certificates: vec![files.clone()],
            client_ca: clients.map(|auth| (self.ca(), auth)),
        };
        let material = files.read().unwrap();
        let config = Certificates::new(files, material).unwrap().config();
        let mut config = Arc::unwrap_or_clone(config);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

fn client_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    params
}
