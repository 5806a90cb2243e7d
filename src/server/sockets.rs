//! The listening sockets of the process, by its plan.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::inherited::{InheritedSockets, Predecessor, TakenSockets};
use super::listen::{self, ListenSetting, SocketFile};
use crate::downstream::{Listener, Port};
use crate::plan::{ListenAddress, Plan};
use crate::tls::server::Certificates;

/// Sockets that were opened, and not handed to a worker yet.
pub(super) struct OpenedSockets {
    /// The sockets of each worker.
    pub(super) of_workers: Vec<Vec<(Listener, Port)>>,
    /// Where the workers listen.
    pub(super) addresses: Vec<ListenAddress>,
    /// The sockets of the admin endpoint, and where they listen.
    pub(super) admin: Option<(ListenAddress, Vec<Listener>)>,
    pub(super) kept: KeptSockets,
    pub(super) predecessor: Option<Predecessor>,
}

/// What the process keeps of its sockets until its end.
#[derive(Debug, Default)]
pub(super) struct KeptSockets {
    /// The sockets once more, each with its name, for a successor.
    sockets: Vec<(String, Listener)>,
    /// The files of the Unix sockets, except those of a service manager.
    files: Vec<SocketFile>,
}

impl KeptSockets {
    pub(super) fn sockets(&self) -> &[(String, Listener)] {
        &self.sockets
    }

    /// Removes the files of Unix sockets, and closes the sockets. The workers' own ones stay open.
    pub(super) fn remove(&mut self) {
        // In this order: while a socket is open, its file can be told from another process's.
        self.files.drain(..).for_each(|file| file.remove());
        self.sockets.clear();
    }

    /// Leaves the files to a successor, and closes the sockets.
    pub(super) fn leave(&mut self) {
        self.files.clear();
        self.sockets.clear();
    }
}

/// Opens the sockets of a plan for this number of workers, or takes those that were handed over. With
/// `certificates` there are TLS listeners.
///
/// # Errors
/// If one of the addresses cannot be listened on, or a socket was handed over that the plan does not name.
pub(super) fn open(
    plan: &Plan,
    certificates: Option<&Arc<Certificates>>,
    workers: usize,
    mut inherited: InheritedSockets,
) -> Result<OpenedSockets, String> {
    let mut opened = OpenedSockets {
        of_workers: (0..workers).map(|_| Vec::new()).collect(),
        addresses: Vec::new(),
        admin: None,
        kept: KeptSockets::default(),
        predecessor: None,
    };
    let kept = &mut opened.kept;
    let clear: Vec<_> = plan.server.listen.iter().filter_map(|it| it.tcp().copied()).collect();
    let secure = plan.server.tls.as_ref().map_or(&[][..], |tls| &tls.listen);
    let plain = plan.server.listen.iter().cloned();
    let plain = plain.map(|address| (address, Port::Plain, ListenSetting::Server));
    let tls = secure.iter().zip(certificates.into_iter().cycle());
    let tls = tls.map(|(address, certificates)| {
        (ListenAddress::Tcp(*address), Port::Tls(certificates.clone()), ListenSetting::Tls)
    });
    for (address, port, setting) in plain.chain(tls) {
        let list = if setting == ListenSetting::Tls { secure } else { &clear };
        let place = ListenPlace { address: &address, setting, list };
        let (bound, shares) = open_one(&place, workers, &mut inherited, kept)
            .map_err(|error| not_listening(&address, setting, &error, &inherited))?;
        opened.addresses.push(bound);
        for (worker, share) in opened.of_workers.iter_mut().zip(shares) {
            worker.extend(share.into_iter().map(|socket| (socket, port.clone())));
        }
    }
    if let Some(address) = plan.admin.listen.map(ListenAddress::Tcp) {
        let place = ListenPlace { address: &address, setting: ListenSetting::Admin, list: &[] };
        let (bound, shares) = open_one(&place, 1, &mut inherited, kept)
            .map_err(|error| not_listening(&address, ListenSetting::Admin, &error, &inherited))?;
        opened.admin = Some((bound, shares.into_iter().flatten().collect()));
    }
    opened.predecessor = inherited.finish()?;
    Ok(opened)
}

/// An address to listen on.
struct ListenPlace<'p> {
    address: &'p ListenAddress,
    setting: ListenSetting,
    /// The addresses of the setting.
    list: &'p [SocketAddr],
}

/// The sockets for one address, those of each worker apart, and the address they got.
fn open_one(
    &ListenPlace { address, setting, list }: &ListenPlace<'_>,
    workers: usize,
    inherited: &mut InheritedSockets,
    kept: &mut KeptSockets,
) -> io::Result<(ListenAddress, Vec<Vec<Listener>>)> {
    let TakenSockets { bound, sockets, is_own } = match inherited.take(address, setting) {
        // A service manager hands over one socket, which all workers share. More sockets of the same
        // address would need its rights: a port below 1024 is for root, and SO_REUSEPORT is for one user.
        // A predecessor hands over the sockets of all its workers.
        Some(taken) => taken,
        None => {
            let (bound, sockets) = listen::open(address, list, workers)?;
            let named = sockets.into_iter().map(|socket| (setting.name().to_owned(), socket));
            TakenSockets { bound, sockets: named.collect(), is_own: true }
        }
    };
    if is_own {
        kept.files.extend(SocketFile::of(&bound)?);
    }
    for (name, socket) in &sockets {
        kept.sockets.push((name.clone(), socket.try_clone()?));
    }
    let sockets = sockets.into_iter().map(|(_, socket)| socket).collect();
    Ok((bound, listen::share(sockets, workers)?))
}

fn not_listening(
    address: &ListenAddress,
    setting: ListenSetting,
    error: &io::Error,
    inherited: &InheritedSockets,
) -> String {
    if error.kind() == io::ErrorKind::AddrInUse
        && let Some(holder) = inherited.holder(address)
    {
        return holder;
    }
    let setting = match setting {
        ListenSetting::Server => "server.listen or --listen",
        ListenSetting::Tls | ListenSetting::Admin => setting.name(),
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: another process listens there; stop it, or set another \
             address with {setting}"
        ),
        _ => format!("cannot listen on {address} (set with {setting}): {error}"),
    }
}
