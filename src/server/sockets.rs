//! The listening sockets of the process, by its settings.

use std::io;
use std::net::SocketAddr;

use super::ListenerCertificates;
use super::inherited::{InheritedSockets, Predecessor};
use super::listen::{self, ADMIN, DECIDE, ListeningSocket, SERVER, SocketFile, TLS};
use crate::downstream::{Listener, Port};
use crate::settings::{ListenAddress, Settings};

/// Sockets that were opened, and not handed to a worker yet.
pub(super) struct OpenedSockets {
    /// The sockets of each worker.
    pub(super) of_workers: Vec<Vec<(Listener, Port)>>,
    /// Where the workers listen, with the setting that says so.
    pub(super) addresses: Vec<(ListenAddress, &'static str)>,
    /// The sockets of the admin endpoint, and where they listen.
    pub(super) admin: Option<(ListenAddress, Vec<Listener>)>,
    pub(super) kept: KeptSockets,
    pub(super) predecessor: Option<Predecessor>,
}

/// What the process keeps of its sockets until its end.
#[derive(Debug, Default)]
pub(super) struct KeptSockets {
    /// Copies of the sockets, for a successor.
    sockets: Vec<ListeningSocket>,
    /// The files of the Unix sockets, except those of a service manager.
    files: Vec<SocketFile>,
}

impl KeptSockets {
    pub(super) fn sockets(&self) -> &[ListeningSocket] {
        &self.sockets
    }

    /// Removes the files of Unix sockets, and closes the sockets. The sockets of the workers stay open.
    pub(super) fn remove(&mut self) {
        // The files go first: only while a socket is open does its file surely belong to it.
        self.files.drain(..).for_each(|file| file.remove());
        self.sockets.clear();
    }

    /// Leaves the files to a successor, and closes the sockets.
    pub(super) fn leave(&mut self) {
        self.files.clear();
        self.sockets.clear();
    }
}

/// An address of the settings.
struct PlannedAddress {
    address: ListenAddress,
    setting: &'static str,
    /// What clients send first. `None` for the admin endpoint, which the workers do not serve.
    port: Option<Port>,
}

/// The addresses of settings. With certificates there are TLS listeners.
fn planned(settings: &Settings, [server, decide]: &ListenerCertificates) -> Vec<PlannedAddress> {
    let plain = settings.server.listen.iter().cloned();
    let plain = plain.map(|address| (address, SERVER, Some(Port::Plain)));
    let tls = settings.server.tls.iter().flat_map(|tls| &tls.listen).zip(server.iter().cycle());
    let tls = tls.map(|(address, certificates)| {
        let port = Port::Tls(certificates.clone());
        (ListenAddress::Tcp(*address), TLS, Some(port))
    });
    let asked = settings.decide.listen.iter().cloned();
    let asked = asked.map(|address| (address, DECIDE, Some(Port::Decide(decide.clone()))));
    let admin = settings.admin.listen.map(ListenAddress::Tcp);
    let admin = admin.map(|address| (address, ADMIN, None));
    let all = plain.chain(tls).chain(asked).chain(admin);
    all.map(|(address, setting, port)| PlannedAddress { address, setting, port }).collect()
}

/// Opens the sockets of settings for this number of workers, or takes the sockets that were handed over.
///
/// # Errors
/// If one of the addresses cannot be listened on, or a socket was handed over that the settings do not name.
pub(super) fn open(
    settings: &Settings,
    certificates: &ListenerCertificates,
    workers: usize,
    mut inherited: InheritedSockets,
) -> Result<OpenedSockets, String> {
    let planned = planned(settings, certificates);
    let inherited_of = |it: &PlannedAddress| inherited.take(&it.address, it.setting);
    let taken: Vec<_> = planned.iter().map(inherited_of).collect();
    let mut opened = OpenedSockets {
        of_workers: (0..workers).map(|_| Vec::new()).collect(),
        addresses: Vec::new(),
        admin: None,
        kept: KeptSockets::default(),
        // This comes before any other socket is opened: a left inherited socket may be the reason why an address is in
        // use.
        predecessor: inherited.finish()?,
    };
    let list: Vec<_> = planned.iter().filter_map(|it| it.address.tcp().copied()).collect();
    for (listen, taken) in planned.iter().zip(taken) {
        let workers = if listen.port.is_some() { workers } else { 1 };
        let (address, shares) = open_one(listen, &list, taken, workers, &mut opened.kept)
            .map_err(|error| not_listening(listen, &error))?;
        let Some(port) = &listen.port else {
            opened.admin = Some((address, shares.into_iter().flatten().collect()));
            continue;
        };
        opened.addresses.push((address, listen.setting));
        for (worker, share) in opened.of_workers.iter_mut().zip(shares) {
            worker.extend(share.into_iter().map(|socket| (socket, port.clone())));
        }
    }
    Ok(opened)
}

/// The sockets for one address, a list for each worker, and the address that they got. `list` has all addresses of the
/// plan on the network.
fn open_one(
    listen: &PlannedAddress,
    list: &[SocketAddr],
    taken: Option<Vec<ListeningSocket>>,
    workers: usize,
    kept: &mut KeptSockets,
) -> io::Result<(ListenAddress, Vec<Vec<Listener>>)> {
    let sockets = match taken {
        // A service manager hands over one socket, which all workers share. More sockets of the same
        // address would need its rights: a port below 1024 is for root, and SO_REUSEPORT is for one user.
        // A predecessor hands over the sockets of all its workers.
        Some(taken) => taken,
        None => listen::open(&listen.address, list, listen.setting, workers)?,
    };
    let mut address = listen.address.clone();
    if let Some(first) = sockets.first() {
        address = first.address.clone();
        kept.files.extend(SocketFile::of(&address)?.filter(|_| first.is_own));
    }
    let shares = listen::share(&sockets, workers)?;
    kept.sockets.extend(sockets);
    Ok((address, shares))
}

fn not_listening(listen: &PlannedAddress, error: &io::Error) -> String {
    let address = &listen.address;
    let setting = match listen.setting {
        SERVER => "server.listen or --listen",
        setting => setting,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: another process listens there; stop it, or set another \
             address with {setting}"
        ),
        _ => format!("cannot listen on {address} (set with {setting}): {error}"),
    }
}
