//! What a TLS listener needs: its certificates, chosen by the name that the client asks for, and whether
//! clients show one of their own.

mod names;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::pki_types::CertificateDer;
use rustls::server::{
    ProducesTickets, ServerSessionMemoryCache, StoresServerSessions, WebPkiClientVerifier,
};
use rustls::{RootCertStore, ServerConfig};

use self::names::ByName;
use super::error::TlsError;
use super::identity::{IdentityFiles, TlsIdentity, authorities};
use super::{H2, HTTP_1_1, provider};
use crate::file_stamp::FileStamp;

/// Sessions of TLS 1.2 clients that know no tickets. Each is a few hundred bytes.
const SESSIONS: usize = 10_000;

/// One look of so many reads the files whatever the file system says of them.
const LOOKS_TO_READ: u32 = 10;

/// The most names that a line of the log has.
const NAMES_TOLD: usize = 20;

/// The files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Its certificates, at least one; the first is for clients that ask for another name, or none.
    pub certificates: Vec<IdentityFiles>,
    /// Who signs clients' certificates; `None` where clients are not asked for one.
    pub client_ca: Option<(PathBuf, ClientAuth)>,
}

/// Whether a client must show a certificate. One that shows a wrong one is refused either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// It may.
    Request,
    /// It must.
    Require,
}

/// What the files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// In the order of [`Files::certificates`]; at least one.
    pub identities: Vec<Arc<TlsIdentity>>,
    /// Who signs clients' certificates, and whether clients must show one.
    pub clients: Option<(Vec<CertificateDer<'static>>, ClientAuth)>,
}

impl Files {
    /// What they hold now.
    ///
    /// # Errors
    /// What is wrong with the first file that cannot be used.
    pub fn read(&self) -> Result<Material, TlsError> {
        let identity = |files| TlsIdentity::read(files).map(Arc::new);
        Ok(Material {
            identities: self.certificates.iter().map(identity).collect::<Result<_, _>>()?,
            clients: match &self.client_ca {
                Some((file, auth)) => Some((authorities(file)?, *auth)),
                None => None,
            },
        })
    }

    fn stamps(&self) -> Vec<Option<FileStamp>> {
        let pairs = self.certificates.iter().flat_map(|files| [&files.cert, &files.key]);
        let all = pairs.chain(self.client_ca.iter().map(|(file, _)| file));
        all.map(|file| FileStamp::of(file)).collect()
    }
}

/// The certificates in force. All workers share one: each connection asks it for the configuration of
/// that moment, and one task looks now and then whether the files have changed.
#[derive(Debug)]
pub struct Certificates {
    config: RwLock<Arc<ServerConfig>>,
    watch: Mutex<FileWatch>,
}

/// What a look found.
#[derive(Debug)]
pub enum Look {
    /// Nothing new.
    Unchanged,
    /// New certificates, which are in force now; the names that they are for.
    Loaded(String),
    /// Something that cannot be used; what was in force stays so. Said once for each new reason.
    Rejected(TlsError),
}

#[derive(Debug)]
struct FileWatch {
    files: Files,
    material: Material,
    resumption: Resumption,
    stamps: Vec<Option<FileStamp>>,
    /// Looks since the files were last read.
    unread: u32,
    /// What the last look read, where that was something new.
    news: Option<LoadedMaterial>,
    /// Why what the files hold is not in force.
    rejected: Option<String>,
}

/// What the files hold, or why that cannot be used.
type LoadedMaterial = Result<Material, String>;

/// What lets a client come back without a whole handshake. It outlives the certificates, or each renewal
/// would have all clients shake hands anew.
#[derive(Clone, Debug)]
struct Resumption {
    tickets: Arc<dyn ProducesTickets>,
    sessions: Arc<dyn StoresServerSessions>,
}

impl Resumption {
    fn new() -> Result<Self, TlsError> {
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(TlsError::Refused)?;
        Ok(Self { tickets, sessions: ServerSessionMemoryCache::new(SESSIONS) })
    }
}

impl Certificates {
    /// With what the files were found to hold.
    ///
    /// # Errors
    /// Where the TLS library refuses that, or has no randomness.
    pub fn new(files: Files, material: Material) -> Result<Self, TlsError> {
        let resumption = Resumption::new()?;
        let config = configuration(&material, &resumption)?;
        let watch = FileWatch {
            files,
            material,
            resumption,
            // The first look reads: the files may have changed since `material` was read.
            stamps: Vec::new(),
            unread: 0,
            news: None,
            rejected: None,
        };
        Ok(Self { config: RwLock::new(config), watch: Mutex::new(watch) })
    }

    /// For a connection that comes now: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().clone()
    }

    /// Looks whether the files have changed, and takes over what they hold once two looks in a row found
    /// the same: a certificate is written before its key, or the other way round. Meant to be called
    /// about once a second; blocks for as long as a few small files take to be read.
    pub fn look(&self) -> Look {
        let mut watch = self.watch.lock();
        if !watch.is_to_be_read() {
            return Look::Unchanged;
        }
        let read = watch.files.read();
        let seen = read.as_ref().map(Material::clone).map_err(TlsError::to_string);
        if watch.is_known(&seen) {
            watch.news = None;
            return Look::Unchanged;
        }
        if watch.news.as_ref() != Some(&seen) {
            watch.news = Some(seen);
            return Look::Unchanged;
        }
        watch.news = None;
        match read.and_then(|material| self.take_over(&mut watch, material)) {
            Ok(names) => Look::Loaded(names),
            Err(error) => {
                watch.rejected = Some(error.to_string());
                Look::Rejected(error)
            }
        }
    }

    /// Takes over what a reload has read, and watches these files from now on.
    ///
    /// # Errors
    /// Where the TLS library refuses it: nothing has changed then.
    pub fn replace(&self, files: Files, material: Material) -> Result<(), TlsError> {
        let mut watch = self.watch.lock();
        if watch.material != material {
            self.take_over(&mut watch, material)?;
        }
        watch.files = files;
        watch.stamps.clear();
        (watch.news, watch.rejected) = (None, None);
        Ok(())
    }

    /// Puts `material` in force; the names that it is for.
    fn take_over(&self, watch: &mut FileWatch, material: Material) -> Result<String, TlsError> {
        // A session remembers the client's certificate and is not verified again. Where others sign
        // clients' certificates now, or clients must show one, it has to be.
        let resumption = match watch.material.clients == material.clients {
            true => watch.resumption.clone(),
            false => Resumption::new()?,
        };
        let config = configuration(&material, &resumption)?;
        *self.config.write() = config;
        let names = names::told(&material.identities, NAMES_TOLD);
        (watch.material, watch.resumption, watch.rejected) = (material, resumption, None);
        Ok(names)
    }
}

impl FileWatch {
    fn is_to_be_read(&mut self) -> bool {
        let stamps = self.files.stamps();
        let same = stamps == self.stamps && self.news.is_none();
        self.stamps = stamps;
        self.unread += 1;
        // There are file systems that do not say, and two changes within one tick of their clock.
        let read = !same || self.unread >= LOOKS_TO_READ;
        if read {
            self.unread = 0;
        }
        read
    }

    /// Whether that is in force, or was rejected already.
    fn is_known(&self, seen: &LoadedMaterial) -> bool {
        match (seen, &self.rejected) {
            (Ok(material), None) => *material == self.material,
            (Err(error), Some(rejected)) => error == rejected,
            // Good again after a fault is news, also where it is what was in force all along.
            (Ok(_), Some(_)) | (Err(_), None) => false,
        }
    }
}

fn configuration(
    material: &Material,
    resumption: &Resumption,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Refused)?;
    let builder = match &material.clients {
        None => builder.with_no_client_auth(),
        Some((authorities, auth)) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority.clone()).map_err(TlsError::Refused)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match auth {
                ClientAuth::Require => verifier,
                ClientAuth::Request => verifier.allow_unauthenticated(),
            };
            let verifier = verifier
                .build()
                .map_err(|error| TlsError::Refused(rustls::Error::General(error.to_string())))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let by_name = ByName::new(&material.identities).map_err(TlsError::Refused)?;
    let mut config = builder.with_cert_resolver(Arc::new(by_name));
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    config.ticketer = resumption.tickets.clone();
    config.session_storage = resumption.sessions.clone();
    Ok(Arc::new(config))
}
