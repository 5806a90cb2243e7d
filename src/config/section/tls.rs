//! Certificates and keys: `tls` of `[server]` and of an upstream. The files are read here, to report a
//! broken file before anything depends on the file.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};

use super::listen::{LISTEN, TakenAddress, addresses};
use super::values::{address, all, file_fault, named_file};
use crate::config::reader::{
    Item, Kind, Required, Section, SettingList, Shape, Span, Value, Words, field, fields,
    spellings, words,
};
use crate::settings::{Endpoint, ListenAddress, ListenerTls, ServerTls};
use crate::tls::server::{ClientAuth, Files, Material};
use crate::tls::{IdentityFiles, TlsError, TlsIdentity, authorities, client};

/// `tls` of `[server]`.
pub(crate) static SERVER_TLS: Shape =
    Shape::new("server.tls", || [fields(OF_SERVER), fields(OF_LISTENER)].concat());

/// `tls` of `[decide]`.
pub(crate) static DECIDE_TLS: Shape = Shape::new("decide.tls", || fields(OF_LISTENER));

static OF_SERVER: SettingList<()> =
    &[field("listen", LISTEN, Required, "an address or a list of them").restart()];

#[rustfmt::skip]
static OF_LISTENER: SettingList<()> = &[
    field("certificates", Kind::List(1, &Kind::Table(&CERTIFICATE)), Required,
        "a client gets the certificate with the name that it asks for, or else the first one. Read again when the files change"),
    field("client_ca", Kind::Text, Words("none"),
        "PEM: the authorities that sign clients' certificates; without it clients are not asked for a certificate"),
    field("client_auth", Kind::Word(spellings::<ClientAuth>), Value("\"require\""),
        "whether a client must show a certificate that `client_ca` has signed, or may show one"),
];

words!(ClientAuth { "require" => Require, "request" => Request });

/// One of `certificates`.
pub(crate) static CERTIFICATE: Shape = Shape::new("a certificate", || fields(OF_CERTIFICATE));

#[rustfmt::skip]
static OF_CERTIFICATE: SettingList<()> = &[
    field("cert", Kind::Text, Required, "PEM: the certificate, then the certificates that lead to its authority"),
    field("key", Kind::Text, Required, "PEM: its private key, without a password"),
];

/// `tls` of `[upstreams.NAME]` and of `[store]`.
pub(crate) static UPSTREAM_TLS: Shape = Shape::new("tls of an upstream", || fields(OF_UPSTREAM));

#[rustfmt::skip]
static OF_UPSTREAM: SettingList<()> = &[
    field("ca", Kind::Text, Words("the machine's authorities"),
        "PEM: the authorities of the servers' certificates; no others are trusted"),
    field("server_name", Kind::Text, Words("the URL's host"), "the name in the servers' certificates"),
    field("cert", Kind::Text, Words("none"), "PEM: a certificate for servers that ask for one"),
    field("key", Kind::Text, Words("none"), "PEM: its private key, without a password"),
];

/// `tls` of `[server]`. Adds its addresses to `taken`.
pub(super) fn server(
    section: &mut Section<'_>,
    taken: &mut Vec<TakenAddress>,
) -> Option<ServerTls> {
    let mut inner = section.take("tls")?.section(&SERVER_TLS, "`tls`")?;
    let read = |item: &Item<'_>| address(item).map(ListenAddress::Tcp);
    let item = inner.require("listen", "\"0.0.0.0:8443\"");
    let own = item.map(|item| addresses(&item, read, "`server.tls.listen`")).unwrap_or_default();
    let listen = own.iter().filter_map(|it| it.address.tcp().copied()).collect();
    taken.extend(own);
    Some(ServerTls { listen, shown: listener(inner)? })
}

/// The certificates of a listener, and what it asks of clients: all of its `tls` but `listen`.
pub(super) fn listener(mut inner: Section<'_>) -> Option<ListenerTls> {
    let certificates = certificates(&mut inner);
    let ca = inner.take("client_ca");
    if ca.is_none() {
        inner.refuse_field(
            "client_auth",
            "`client_auth` has no effect without `client_ca`",
            "add `client_ca = \"ca.pem\"`, or remove it",
        );
    }
    let auth = inner.plain::<ClientAuth>("client_auth");
    inner.finish();
    let clients = ca.and_then(|item| {
        let file = file(&item)?;
        let found = reported(authorities(&file), &[(&item, &file)])?;
        Some(((file, auth?), (found, auth?)))
    });
    let (client_ca, clients) = clients.unzip();
    let (files, identities) = certificates?.into_iter().unzip();
    let files = Files { certificates: files, client_ca };
    Some(ListenerTls { files, material: Arc::new(Material { identities, clients }) })
}

/// `certificates`. `None` if one of the certificates is wrong.
fn certificates(section: &mut Section<'_>) -> Option<Vec<(IdentityFiles, Arc<TlsIdentity>)>> {
    const EXAMPLE: &str = "[{ cert = \"cert.pem\", key = \"key.pem\" }]";
    let item = section.require("certificates", EXAMPLE)?;
    let items = item.list()?;
    if items.is_empty() {
        item.reject(format!("expected at least one certificate: `{EXAMPLE}`"));
    }
    let each = items.iter().map(|item| {
        let mut section = item.section(&CERTIFICATE, "a certificate")?;
        let cert = section.require("cert", "\"cert.pem\"");
        let key = section.require("key", "\"key.pem\"");
        section.finish();
        let (files, identity) = identity(&cert?, &key?)?;
        Some((files, Arc::new(identity)))
    });
    all(each)
}

/// The machine's authorities. They are read once for all upstreams, and only if an upstream needs them.
pub(super) type SystemRoots = OnceCell<Option<Arc<[CertificateDer<'static>]>>>;

/// Reads `tls` towards servers. `secure` are the servers that are reached by TLS, each with its position in the
/// file. If there are none, a warning says that `tls` changes nothing, and `unused` says why. Returns `None`
/// if `tls` is wrong or not needed.
pub(super) fn towards(
    section: &mut Section<'_>,
    secure: &[(&Endpoint, &Span)],
    unused: Option<&str>,
    system: &SystemRoots,
) -> Option<Arc<client::ClientTlsSpec>> {
    let item = section.take("tls");
    if let (Some(item), Some(unused), true) = (&item, unused, secure.is_empty()) {
        let title = format!("the `tls` of {} changes nothing", section.title);
        item.doubt(title, unused);
    }
    let mut inner = match item {
        Some(item) => item.section(&UPSTREAM_TLS, "`tls`")?,
        None => Section::empty(section.cx, &UPSTREAM_TLS),
    };
    let ca = inner.take("ca").map(|item| {
        let file = file(&item)?;
        reported(authorities(&file), &[(&item, &file)])
    });
    let server_name = inner.take("server_name").map(|item| name(&item));
    let identity = match (inner.take("cert"), inner.take("key")) {
        (Some(cert), Some(key)) => identity(&cert, &key).map(|(_, identity)| Some(identity)),
        (None, None) => Some(None),
        (Some(item), None) | (None, Some(item)) => {
            let missing = if item.field == "cert" { "key" } else { "cert" };
            let expected = format!("expected `{missing} = \"{missing}.pem\"` beside it");
            item.fault(format!("`{}` without `{missing}`", item.field), expected);
            None
        }
    };
    inner.finish();
    let (_, first) = secure.first()?;
    let roots = match ca {
        Some(ca) => ca?.into(),
        None => system.get_or_init(|| machine(section, first)).clone()?,
    };
    let server_name = server_name.map_or(Some(None), |name| name.map(Some))?;
    let spec = client::ClientTlsSpec { roots, server_name, identity: identity? };
    all(secure.iter().map(|(server, span)| nameable(section, &spec, server, span)))?;
    Some(Arc::new(spec))
}

/// Checks that a certificate can name this server.
fn nameable(
    section: &Section<'_>,
    spec: &client::ClientTlsSpec,
    server: &Endpoint,
    span: &Span,
) -> Option<()> {
    let Endpoint::Tcp { host, .. } = server else { return Some(()) };
    if spec.name_of(host).is_none() {
        section.cx.error(
            span,
            format!("no certificate can be for \"{host}\""),
            "expected another host, or `tls = { server_name = \"…\" }` with the name in it",
        );
        return None;
    }
    Some(())
}

fn name(item: &Item<'_>) -> Option<ServerName<'static>> {
    item.form("expected a host's name or an address, as in \"api.internal\"", |text| {
        ServerName::try_from(text.to_owned()).ok()
    })
}

fn machine(section: &Section<'_>, span: &Span) -> Option<Arc<[CertificateDer<'static>]>> {
    let refuse = |error: TlsError| {
        let title = format!("the certificate of this server cannot be verified: {error}");
        section.cx.error(span, title, error.advice)
    };
    client::system_roots().map_err(refuse).ok()
}

/// A file that a field names.
fn file(item: &Item<'_>) -> Option<PathBuf> {
    named_file(item, "expected the name of a PEM file")
}

fn identity(cert: &Item<'_>, key: &Item<'_>) -> Option<(IdentityFiles, TlsIdentity)> {
    let (cert_file, key_file) = (file(cert), file(key));
    let files = IdentityFiles { cert: cert_file?, key: key_file? };
    let named = [(key, &files.key), (cert, &files.cert)];
    let identity = reported(TlsIdentity::read(&files), &named)?;
    Some((files, identity))
}

/// The value that was read. An error is noted at the file of `files` that caused it.
fn reported<T>(read: Result<T, TlsError>, files: &[(&Item<'_>, &PathBuf)]) -> Option<T> {
    let refuse = |error: TlsError| {
        let at_fault = files.iter().find(|(_, path)| error.file.as_ref() == Some(*path));
        let (item, path) = at_fault.or(files.first())?;
        file_fault(item, path, &format!(" {}", error.fault), error.advice);
        Some(())
    };
    read.map_err(refuse).ok()
}
