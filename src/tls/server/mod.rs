//! TLS towards clients: the certificates of the listeners, and whether clients show a certificate. `names`
//! chooses the certificate by the name that the client asks for.
//!
//! A session outlives the certificate: the ticketer and the cache of sessions belong to the listener, so that a renewal
//! does not cost all clients a full handshake. They are made anew if `client_ca` or `client_auth` change, because a
//! resumed session's client certificate is not verified again. A ticket lives for at most twelve hours. A certificate
//! and its key are two files, so files are taken over when two looks have found the same.
//!
//! `downstream` asks for the configuration of each connection. `server` calls [`Certificates::look`] and
//! [`Certificates::replace`].

mod names;
#[cfg(test)]
mod tests;

use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
use crate::file::{FileWatch, LARGEST, LastRead};

/// How many sessions of TLS 1.2 clients without tickets are kept. A session has a few hundred bytes.
const SESSIONS: usize = 10_000;

/// After this number of looks the files are read even if their stamps are unchanged.
const LOOKS_TO_READ: u32 = 10;

/// The most names in a line of the log.
const NAMES_LOGGED: usize = 20;

/// The files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificates, at least one. The first is for clients that ask for another name, or for no name.
    pub certificates: Vec<IdentityFiles>,
    /// The authorities that sign clients' certificates. `None` if clients are not asked for a
    /// certificate.
    pub client_ca: Option<(PathBuf, ClientAuth)>,
}

/// Whether a client must show a certificate. A client with a wrong certificate is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client may show a certificate.
    Request,
    /// A client must show a certificate.
    Require,
}

#[derive(Clone, Debug, PartialEq, Eq)]
/// The content of [`Files`].
pub struct Material {
    /// The certificates with their keys, in the order of [`Files::certificates`]. At least one.
    pub(crate) identities: Vec<Arc<TlsIdentity>>,
    /// The authorities that sign clients' certificates, and whether clients must show a certificate.
    pub(crate) clients: Option<(Vec<CertificateDer<'static>>, ClientAuth)>,
}

impl Material {
    /// A sentence for each certificate that has expired, with the time of its end. `now` is the time since
    /// 1970.
    pub(crate) fn expired(&self, now: Duration) -> Vec<String> {
        let each = self.identities.iter().filter_map(|identity| {
            let end = identity.end()?;
            let ago = match CertificateEnd::of(identity)?.days(now) {
                0.. => return None,
                -1 => "less than a day ago".to_owned(),
                days => format!("less than {} days ago", days.unsigned_abs()),
            };
            let names = names::listed(iter::once(&**identity), NAMES_LOGGED);
            let names = if names.is_empty() { "an address" } else { &names };
            Some(format!("the certificate for {names} ended at {end}, {ago}: clients refuse it"))
        });
        each.collect()
    }
}

/// When a certificate ends.
#[derive(Debug)]
pub(crate) struct CertificateEnd {
    pub(crate) file: PathBuf,
    /// The names in the certificate. Empty if it has none.
    pub(crate) names: String,
    /// The time since 1970.
    pub(crate) end: Duration,
}

impl CertificateEnd {
    /// An operator is told from this many days before the end.
    pub(crate) const NEAR: i64 = 14;

    /// `None` if the date cannot be read.
    pub(crate) fn of(identity: &TlsIdentity) -> Option<Self> {
        let names = names::listed(iter::once(identity), NAMES_LOGGED);
        Some(Self { file: identity.file.clone(), names, end: identity.end()?.unix_duration() })
    }

    /// The whole days that are left. Below 0 once it has ended. `now` is the time since 1970.
    pub(crate) fn days(&self, now: Duration) -> i64 {
        let left = self.end.as_secs().cast_signed() - now.as_secs().cast_signed();
        left.div_euclid(86_400)
    }
}

impl Files {
    /// Reads the files.
    ///
    /// # Errors
    /// The error of the first file that cannot be used.
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

    /// Watches the files. Content that is not in `material` is new: `material` was read from the files before.
    fn watch(&self, material: &Material) -> FileWatch {
        let pairs = self.certificates.iter().flat_map(|files| [&files.cert, &files.key]);
        let all = pairs.chain(self.client_ca.iter().map(|(file, _)| file));
        let mut watch = FileWatch::new(all.cloned().collect(), LARGEST, LOOKS_TO_READ);
        watch.catch_up();
        if !self.read().is_ok_and(|read| read == *material) {
            watch.forget();
        }
        watch
    }
}

/// The certificates in force, shared by all workers. Each connection asks for the configuration of its
/// moment. One task looks repeatedly whether the files have changed.
#[derive(Debug)]
pub struct Certificates {
    config: RwLock<Arc<ServerConfig>>,
    watched: Mutex<WatchedFiles>,
    pub(crate) last_read: LastRead,
}

#[derive(Debug)]
struct WatchedFiles {
    files: Files,
    /// The content of the files that was read last and is in force.
    material: Material,
    resumption: Resumption,
    watch: FileWatch,
}

/// The state with which a client resumes a session, without a full handshake. A renewal of the certificates
/// keeps this state. Otherwise all clients would need a full handshake after each renewal.
#[derive(Clone, Debug)]
struct Resumption {
    tickets: Arc<dyn ProducesTickets>,
    sessions: Arc<dyn StoresServerSessions>,
}

impl Resumption {
    fn new() -> Result<Self, TlsError> {
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        Ok(Self { tickets, sessions: ServerSessionMemoryCache::new(SESSIONS) })
    }
}

impl Certificates {
    /// Starts with `material`, which was read from `files`.
    ///
    /// # Errors
    /// If the TLS library refuses `material`, or has no randomness.
    pub fn new(files: Files, material: Material) -> Result<Self, TlsError> {
        let resumption = Resumption::new()?;
        let config = configuration(&material, &resumption)?;
        let watched = WatchedFiles { watch: files.watch(&material), files, material, resumption };
        let (config, watched) = (RwLock::new(config), Mutex::new(watched));
        Ok(Self { config, watched, last_read: LastRead::default() })
    }

    /// The configuration for a new connection: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().clone()
    }

    /// [`Material::expired`] of the certificates in force.
    pub(crate) fn expired(&self, now: Duration) -> Vec<String> {
        self.watched.lock().material.expired(now)
    }

    /// When the certificates in force end.
    pub(crate) fn ends(&self) -> Vec<CertificateEnd> {
        let watched = self.watched.lock();
        let identities = watched.material.identities.iter();
        identities.filter_map(|identity| CertificateEnd::of(identity)).collect()
    }

    /// Looks whether the files have changed. Returns the names of new certificates, which are in force now, or why the
    /// new files cannot be used. To be called about once a second. Blocks while a few small files are read.
    pub(crate) fn look(&self) -> Option<Result<String, TlsError>> {
        let mut watched = self.watched.lock();
        let WatchedFiles { files, watch, .. } = &mut *watched;
        let read = watch.read(|| files.read(), TlsError::is_passing)?;
        let names = read.and_then(|material| self.take_over(&mut watched, material));
        self.last_read.note(names.as_ref().err().map(|it| format!("{it}; {}", it.advice)));
        Some(names)
    }

    /// Puts `material`, which a reload has read, in force. Watches `files` from now on.
    ///
    /// # Errors
    /// If the TLS library refuses `material`. Then nothing has changed.
    pub(crate) fn replace(&self, files: Files, material: Material) -> Result<(), TlsError> {
        let mut watched = self.watched.lock();
        if watched.material != material {
            self.take_over(&mut watched, material)?;
        }
        (watched.watch, watched.files) = (files.watch(&watched.material), files);
        self.last_read.note(None);
        Ok(())
    }

    /// Puts `material` in force. Returns the names of its certificates.
    fn take_over(
        &self,
        watched: &mut WatchedFiles,
        material: Material,
    ) -> Result<String, TlsError> {
        // A resumed session keeps the client's certificate, and does not verify it again. If the
        // authorities or the `ClientAuth` have changed, old sessions are forgotten: clients must be
        // verified again.
        let resumption = match watched.material.clients == material.clients {
            true => watched.resumption.clone(),
            false => Resumption::new()?,
        };
        let config = configuration(&material, &resumption)?;
        *self.config.write() = config;
        let names = names::listed(material.identities.iter().map(|it| &**it), NAMES_LOGGED);
        (watched.material, watched.resumption) = (material, resumption);
        Ok(names)
    }
}

fn configuration(
    material: &Material,
    resumption: &Resumption,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let builder = match &material.clients {
        None => builder.with_no_client_auth(),
        Some((authorities, auth)) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority.clone())?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match auth {
                ClientAuth::Require => verifier,
                ClientAuth::Request => verifier.allow_unauthenticated(),
            };
            let verifier =
                verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let by_name = ByName::new(&material.identities)?;
    let mut config = builder.with_cert_resolver(Arc::new(by_name));
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    config.ticketer = resumption.tickets.clone();
    config.session_storage = resumption.sessions.clone();
    Ok(Arc::new(config))
}
