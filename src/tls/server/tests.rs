//! Handshakes, and files that change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustls::ClientConfig;

use super::*;
use crate::tls::client::{self, ClientTlsSpec};
use crate::tls::testing::{Authority, IssuedPair, shake};

/// A folder with an authority and a server's certificate `a.pem`.
struct Place {
    folder: tempfile::TempDir,
    authority: Authority,
    files: Files,
}

impl Place {
    fn new() -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.write(folder.path(), "ca.pem");
        let certificates = vec![authority.issue(&["a.test"]).write(folder.path(), "a")];
        Self { files: Files { certificates, client_ca: None }, folder, authority }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn certificates(&self) -> Certificates {
        Certificates::new(self.files.clone(), self.files.read().unwrap()).unwrap()
    }

    fn client(&self) -> Arc<ClientConfig> {
        self.client_as(None)
    }

    fn client_as(&self, pair: Option<&IssuedPair>) -> Arc<ClientConfig> {
        let spec = ClientTlsSpec {
            roots: authorities(&self.path().join("ca.pem")).unwrap().into(),
            server_name: None,
            identity: pair.map(|pair| TlsIdentity::read(&pair.write(self.path(), "me")).unwrap()),
        };
        client::config(&spec, &[H2, HTTP_1_1]).unwrap()
    }

    fn renew(&self) {
        self.authority.issue(&["a.test"]).write(self.path(), "a");
    }

    fn with_clients(mut self, auth: ClientAuth) -> Self {
        self.files.client_ca = Some((self.path().join("ca.pem"), auth));
        self
    }
}

/// The certificate that is shown for `a.test`.
fn shown(certificates: &Certificates, place: &Place) -> Vec<u8> {
    shake(&place.client(), &certificates.config(), "a.test").unwrap().shown()
}

/// The results of this number of looks, if there is anything new.
fn looks(certificates: &Certificates, count: usize) -> Vec<String> {
    let said = (0..count).filter_map(|_| certificates.look()).map(|said| match said {
        Ok(names) => format!("loaded {names}"),
        Err(error) => format!("rejected {error}"),
    });
    said.collect()
}

#[test]
fn of_two_kinds_of_keys_for_one_name_a_client_gets_the_one_it_can_verify() {
    let mut place = Place::new();
    let pair = place.authority.issue_by(&["a.test"], &rcgen::PKCS_ED25519);
    place.files.certificates.insert(0, pair.write(place.path(), "ed25519"));
    let config = place.certificates().config();
    let mut client = (*place.client()).clone();
    let verifier = no_ed25519(&place);
    client.dangerous().set_certificate_verifier(verifier);
    let ecdsa = shake(&Arc::new(client), &config, "a.test").unwrap().shown();
    let material = place.files.read().unwrap();
    assert_eq!(ecdsa, material.identities[1].chain[0].to_vec());
    let any = shake(&place.client(), &config, "a.test").unwrap().shown();
    assert_eq!(any, material.identities[0].chain[0].to_vec());
}

/// A client that verifies only ECDSA.
fn no_ed25519(place: &Place) -> Arc<dyn rustls::client::danger::ServerCertVerifier> {
    let mut roots = RootCertStore::empty();
    roots.add(authorities(&place.path().join("ca.pem")).unwrap().remove(0)).unwrap();
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let mapping = provider.signature_verification_algorithms.mapping;
    let ecdsa = |(scheme, _): &&(rustls::SignatureScheme, _)| {
        *scheme == rustls::SignatureScheme::ECDSA_NISTP256_SHA256
    };
    let kept: Vec<_> = mapping.iter().filter(ecdsa).copied().collect();
    provider.signature_verification_algorithms.mapping = kept.leak();
    rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.into())
        .build()
        .unwrap()
}

#[test]
fn a_renewed_certificate_is_in_force_after_two_looks() {
    let place = Place::new();
    let certificates = place.certificates();
    let before = shown(&certificates, &place);
    assert!(looks(&certificates, 25).is_empty());
    place.renew();
    assert!(looks(&certificates, 1).is_empty());
    assert_eq!(looks(&certificates, 25), ["loaded a.test"]);
    assert_ne!(shown(&certificates, &place), before);
}

#[test]
fn a_change_while_the_process_starts_is_seen() {
    let place = Place::new();
    let material = place.files.read().unwrap();
    place.renew();
    let certificates = Certificates::new(place.files.clone(), material).unwrap();
    assert_eq!(looks(&certificates, 3), ["loaded a.test"]);
}

#[test]
fn a_swapped_symlink_is_a_change() {
    // As Kubernetes mounts a secret: `a.pem -> ..data/a.pem`, `..data -> ..2026`.
    let mut place = Place::new();
    let version = |name: &str| {
        fs::create_dir(place.path().join(name)).unwrap();
        place.authority.issue(&["a.test"]).write(&place.path().join(name), "tls");
    };
    version("..1");
    version("..2");
    let data = place.path().join("..data");
    symlink("..1", &data).unwrap();
    let link = |name: &str| {
        let link = place.path().join(name);
        symlink(Path::new("..data").join(name), &link).unwrap();
        link
    };
    let files = IdentityFiles { cert: link("tls.pem"), key: link("tls.key") };
    place.files.certificates = vec![files];
    let certificates = place.certificates();
    let before = shown(&certificates, &place);
    assert!(looks(&certificates, 3).is_empty());
    symlink("..2", place.path().join("new")).unwrap();
    fs::rename(place.path().join("new"), &data).unwrap();
    assert_eq!(looks(&certificates, 3), ["loaded a.test"]);
    assert_ne!(shown(&certificates, &place), before);
}

#[test]
fn broken_files_are_kept_out_and_told_once() {
    let place = Place::new();
    let certificates = place.certificates();
    let before = shown(&certificates, &place);
    let files = place.files.certificates[0].clone();
    let old = fs::read(&files.cert).unwrap();

    let next = place.authority.issue(&["a.test"]);
    fs::write(&files.cert, &next.cert).unwrap();
    let said = looks(&certificates, 25);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("a.key is the private key of another"), "{said:?}");
    fs::remove_file(&files.cert).unwrap();
    let said = looks(&certificates, 25);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("a.pem cannot be read"), "{said:?}");
    assert_eq!(shown(&certificates, &place), before);

    // The file is valid again, with the old content. The end of the fault is reported.
    fs::write(&files.cert, old).unwrap();
    assert_eq!(looks(&certificates, 25), ["loaded a.test"]);
    assert_eq!(shown(&certificates, &place), before);
}

#[test]
fn a_pair_that_is_being_written_is_no_fault() {
    let place = Place::new();
    let certificates = place.certificates();
    assert!(looks(&certificates, 2).is_empty());
    let next = place.authority.issue(&["a.test"]);
    fs::write(&place.files.certificates[0].cert, &next.cert).unwrap();
    assert!(looks(&certificates, 1).is_empty());
    fs::write(&place.files.certificates[0].key, &next.key).unwrap();
    assert_eq!(looks(&certificates, 2), ["loaded a.test"]);
}

#[test]
fn a_reload_brings_other_files() {
    let mut place = Place::new();
    let certificates = place.certificates();
    place.files.certificates =
        vec![place.authority.issue(&["a.test", "b.test"]).write(place.path(), "b")];
    certificates.replace(place.files.clone(), place.files.read().unwrap()).unwrap();
    assert!(looks(&certificates, 25).is_empty());
    place.renew();
    assert!(looks(&certificates, 25).is_empty(), "the old file is not looked at");
    place.authority.issue(&["c.test"]).write(place.path(), "b");
    assert_eq!(looks(&certificates, 2), ["loaded c.test"]);
}

#[test]
fn clients_resume_over_a_renewal() {
    let place = Place::new();
    let certificates = place.certificates();
    for versions in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let client = resuming(&place, versions, None);
        assert!(!shake(&client, &certificates.config(), "a.test").unwrap().resumed());
        assert!(shake(&client, &certificates.config(), "a.test").unwrap().resumed());
        place.renew();
        assert_eq!(looks(&certificates, 3), ["loaded a.test"]);
        assert!(shake(&client, &certificates.config(), "a.test").unwrap().resumed());
    }
}

#[test]
fn a_session_of_a_client_that_is_not_trusted_any_more_is_not_resumed() {
    let place = Place::new().with_clients(ClientAuth::Require);
    let certificates = place.certificates();
    for versions in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let alice = place.authority.client("alice");
        let client = resuming(&place, versions, Some(&alice));
        assert!(!shake(&client, &certificates.config(), "a.test").unwrap().resumed());
        let again = shake(&client, &certificates.config(), "a.test").unwrap();
        assert!(again.resumed());
        assert!(again.server.peer_certificates().is_some(), "who it is outlives the handshake");
        // Another authority signs clients' certificates from now on.
        let mut files = place.files.clone();
        let ca = Authority::new().write(place.path(), "other.pem");
        files.client_ca = Some((ca, ClientAuth::Require));
        certificates.replace(files.clone(), files.read().unwrap()).unwrap();
        assert!(shake(&client, &certificates.config(), "a.test").is_err());
        certificates.replace(place.files.clone(), place.files.read().unwrap()).unwrap();
    }
}

/// A client of one version of TLS, which keeps sessions.
fn resuming(
    place: &Place,
    version: &'static rustls::SupportedProtocolVersion,
    pair: Option<&IssuedPair>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authorities(&place.path().join("ca.pem")).unwrap().remove(0)).unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let identity = pair.map(|pair| TlsIdentity::read(&pair.write(place.path(), "me")).unwrap());
    Arc::new(match identity {
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}
