//! Chooses the certificate for a client.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::identity::TlsIdentity;

/// Certificates by the names in them (subject alternative names; a common name is no name of a server,
/// RFC 9525).
#[derive(Debug)]
pub(super) struct ByName {
    /// For clients that ask for another name, or for no name.
    first: Arc<CertifiedKey>,
    /// Whole names in lower case. Several certificates may be for one name, with keys of different kinds.
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// The parts of names behind `*.`. The star stands for exactly one label (RFC 9525, 6.3).
    wildcards: HashMap<String, Vec<Arc<CertifiedKey>>>,
}

impl ByName {
    pub(super) fn new(identities: &[Arc<TlsIdentity>]) -> Result<Self, rustls::Error> {
        let (mut exact, mut wildcards) = (HashMap::new(), HashMap::new());
        let mut first = None;
        for identity in identities {
            let certified = Arc::new(identity.certified()?);
            for name in names(identity) {
                let (names, name): (&mut HashMap<_, Vec<_>>, _) = match name.strip_prefix("*.") {
                    Some(rest) => (&mut wildcards, rest.to_owned()),
                    None => (&mut exact, name),
                };
                names.entry(name).or_default().push(certified.clone());
            }
            first.get_or_insert(certified);
        }
        let first = first.ok_or(rustls::Error::NoCertificatesPresented)?;
        Ok(Self { first, exact, wildcards })
    }

    /// The certificate for a client that asks for `name`. `fits` says whether the client can verify a
    /// certificate.
    fn choose(
        &self,
        name: Option<&str>,
        fits: impl Fn(&CertifiedKey) -> bool,
    ) -> Arc<CertifiedKey> {
        // A name may be written as absolute, with a dot at its end. No name in a certificate has that dot.
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let name = name.map(str::to_ascii_lowercase).unwrap_or_default();
        let behind = name.split_once('.').map(|(_, rest)| rest);
        let exact = self.exact.get(&name);
        let wildcard = || self.wildcards.get(behind?);
        let candidates = || exact.into_iter().chain(wildcard()).flatten();
        // If no certificate fits, the handshake fails, and the TLS alert tells the client why.
        let chosen = candidates().find(|key| fits(key)).or_else(|| candidates().next());
        chosen.unwrap_or(&self.first).clone()
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let fits = |certified: &CertifiedKey| certified.key.choose_scheme(schemes).is_some();
        Some(self.choose(hello.server_name(), fits))
    }
}

/// The names of all certificates as one text. Names beyond `most` are only counted.
pub(super) fn listed<'i>(identities: impl Iterator<Item = &'i TlsIdentity>, most: usize) -> String {
    let mut all: Vec<String> = identities.flat_map(names).collect();
    let more = all.len().saturating_sub(most);
    all.truncate(most);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

/// The names that a certificate is for, in lower case.
fn names(identity: &TlsIdentity) -> Vec<String> {
    let certificate = identity.chain.first().map(webpki::EndEntityCert::try_from);
    // The same parser has read the certificate before: this does not fail.
    let Some(Ok(certificate)) = certificate else { return Vec::new() };
    certificate.valid_dns_names().map(str::to_ascii_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Authority;

    fn identity(names: &[&str]) -> Arc<TlsIdentity> {
        let folder = tempfile::tempdir().unwrap();
        let files = Authority::new().issue(names).write(folder.path(), "a");
        Arc::new(TlsIdentity::read(&files).unwrap())
    }

    #[test]
    fn the_name_decides_and_else_the_first() {
        let identities = [
            identity(&["first.test"]),
            identity(&["*.a.test", "a.test"]),
            identity(&["www.a.test", "UPPER.test"]),
            identity(&["*.c.test"]),
        ];
        let by_name = ByName::new(&identities).unwrap();
        for (name, expected) in [
            (None, 0),
            (Some("first.test"), 0),
            (Some("other.example"), 0),
            (Some("a.test"), 1),
            (Some("x.a.test"), 1),
            (Some("X.A.Test"), 1),
            (Some("www.a.test"), 2),
            (Some("upper.test"), 2),
            (Some("b.c.test"), 3),
            // An absolute name is the same name.
            (Some("a.test."), 1),
            (Some("X.a.Test."), 1),
            (Some("WWW.a.test."), 2),
            (Some("x.y.a.test."), 0),
            (Some("test."), 0),
            (Some("."), 0),
            // A star stands for one label.
            (Some("x.y.a.test"), 0),
            (Some("test"), 0),
            (Some(".test"), 0),
            (Some(""), 0),
        ] {
            let chosen = by_name.choose(name, |_| true);
            assert_eq!(chosen.cert, identities[expected].chain, "{name:?}");
        }
    }

    #[test]
    fn of_two_certificates_for_one_name_the_client_gets_the_one_it_can_verify() {
        let identities = [identity(&["a.test"]), identity(&["a.test"])];
        let by_name = ByName::new(&identities).unwrap();
        let second = &identities[1].chain;
        assert_eq!(by_name.choose(Some("a.test"), |key| key.cert == *second).cert, *second);
        assert_eq!(by_name.choose(Some("a.test"), |_| false).cert, identities[0].chain);
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let identities = [identity(&["a.test", "*.b.test"]), identity(&["c.test"])];
        assert_eq!(listed(identities.iter().map(|it| &**it), 3), "a.test, *.b.test, c.test");
        assert_eq!(listed(identities.iter().map(|it| &**it), 1), "a.test, and 2 more");
    }
}
