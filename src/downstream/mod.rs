//! A client's connection from accept to close.
//!
//! `accept` takes connections from a listener. `proxy_header` reads a load balancer's header. `tls` makes the
//! handshake. `http1` and `http2` speak with the client and hand each request to the [`Service`] of its port. `watch`
//! applies the time-outs and ends connections in a drain. `tunnel` serves connections that have changed to
//! another protocol.

pub(crate) mod accept;
mod handshake_fault;
mod http1;
mod http2;
mod listener;
pub(crate) mod places;
mod proxy_header;
mod request_line;
pub(crate) mod service;
mod stream;
mod tls;
mod tunnel;
mod watch;
mod write_batch;

use std::error::Error as _;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::either::Either::{Left, Right};

pub(crate) use self::listener::AsyncListener;
pub(crate) use self::listener::Listener;
use self::places::ConnectionPlace;
use self::proxy_header::Opening;
use self::service::Service;
use self::stream::{ClientStream, LONGEST_LINGER};
use self::tls::ClientTransport;
use self::watch::{LINGER, in_time};
use crate::exchange::WorkerContext;
use crate::exchange::client::{AcceptedStream, ClientConnection, Idleness, Phase, Socket};
use crate::exchange::peer::Peer;
use crate::request::client::PeerAddress;
use crate::request::network::client_network;
use crate::settings::ServerSpec;
use crate::tls::server::Certificates;
use crate::upstream::trailers::TOO_LONG;
use crate::wire::overhead::Overhead;

/// How long a connection that is closing may take to tell its client, by HTTP/2 or TLS.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a listener's clients send first.
#[derive(Clone)]
pub enum Port {
    /// HTTP.
    Plain,
    /// A TLS handshake, with these certificates.
    Tls(Arc<Certificates>),
    /// HTTP, by proxies that ask for decisions; after a TLS handshake if there are certificates.
    Decide(Option<Arc<Certificates>>),
}

/// Serves a connection to its end. The connection holds its place until then.
async fn serve(
    stream: AcceptedStream,
    peer: PeerAddress,
    port: Port,
    service: Service,
    mut place: ConnectionPlace,
    news: Receiver<bool>,
) {
    // Without this option small answers wait for the client's acknowledgement. If the option cannot be set,
    // the client has gone.
    if let Left(tcp) = &stream
        && tcp.set_nodelay(true).is_err()
    {
        return;
    }
    let context = service.context();
    let idleness = place.idleness.clone();
    poll_fn(|cx| {
        idleness.wake(cx);
        Poll::Ready(())
    })
    .await;
    let phase = Phase::new(context.times().clone(), idleness.clone());
    let socket = Socket::new(stream);
    let opened = open(&socket, peer, &port, context, &mut place, &news).await;
    let Some((transport, peer)) = opened else { return };
    let secure = matches!(port, Port::Tls(_));
    let subject = tls::client_subject(&transport);
    let max_header_size = context.max_header_size();
    let overhead = Overhead::new(max_header_size);
    let (client, tasks) = (Peer::new(peer, secure), context.tasks.clone());
    let client = Rc::new(ClientConnection::new(client, phase, overhead, socket, subject, tasks));
    let speaks_http2 = tls::is_http2(&transport);
    let metrics = context.metrics();
    let stream = ClientStream::new(client.clone(), transport, metrics, max_header_size);
    let served = match speaks_http2 {
        // What few connections need is boxed: an idle connection holds the memory of this whole function.
        true => Box::pin(http2::serve(stream, client.clone(), service.clone(), news)).await,
        false => http1::serve(stream, client.clone(), service.clone(), news).await,
    };
    if let Err(error) = served {
        if let Some(reason) = malformed(&error, &client) {
            refuse(context, reason, peer);
        }
        if error.is_parse() {
            service.malformed(&client, status(&error));
        }
    }
    // Over HTTP/1.1 the request under way was counted as malformed already.
    let phase = &client.phase;
    if phase.is_multiplexed() && client.overhead.is_used_up() {
        refuse(context, stream::TOO_MUCH_OVERHEAD.to_owned(), peer);
    }
    // Over HTTP/2, one slow request says nothing about the other requests of the connection.
    if phase.overdue.get() && !phase.is_multiplexed() {
        return;
    }
    if phase.must_linger() || phase.is_in_head() {
        let is_long = phase.is_multiplexed() && !phase.ending.get();
        let longest = if is_long { LONGEST_LINGER } else { LINGER };
        Box::pin(linger(client.socket.clone(), longest, &idleness)).await;
    }
}

/// What comes before HTTP: a load balancer's header, and the TLS handshake. Returns the stream below HTTP, and the client.
/// `None` if the connection is over.
async fn open(
    socket: &Socket,
    mut peer: PeerAddress,
    port: &Port,
    context: &WorkerContext,
    place: &mut ConnectionPlace,
    news: &Receiver<bool>,
) -> Option<(ClientTransport, PeerAddress)> {
    let accepted = Instant::now();
    let idleness = place.idleness.clone();
    let due = || match idleness.is_given_up() {
        true => Some(accepted),
        false => accepted.checked_add(context.times().get().header),
    };
    // Who asks for decisions is a trusted proxy, and speaks for itself.
    let asks = matches!(port, Port::Decide(_));
    if !asks && is_introduced(peer, &context.active().settings.server) {
        let reading = proxy_header::read(socket.clone());
        match Box::pin(in_time(due, news.clone(), reading)).await {
            Some(Opening::Client(client)) => peer = PeerAddress::Network(client),
            Some(Opening::NoClient) => {}
            Some(Opening::Refused(reason)) => {
                refuse(context, reason.to_owned(), peer);
                return None;
            }
            Some(Opening::Left) | None => return None,
        }
    }
    if !asks && !is_welcome(peer, place, &context.active().settings.server) {
        place.refused().count((), peer.as_client(), Instant::now());
        return None;
    }
    let (Port::Tls(certificates) | Port::Decide(Some(certificates))) = port else {
        return Some((Left(socket.clone()), peer));
    };
    let shaking = tls::shake_hands(socket.clone(), certificates, due, news.clone());
    match Box::pin(shaking).await {
        Ok(stream) => return Some((Right(stream), peer)),
        Err(Some(reason)) => {
            refuse(context, reason, peer);
            // The client may have sent more already. To close now could destroy the TLS alert.
            Box::pin(linger(socket.clone(), LINGER, &idleness)).await;
        }
        Err(None) => {}
    }
    None
}

/// Lets the client read the last bytes, unless another connection needs the place.
async fn linger(socket: Socket, longest: Duration, idleness: &Idleness) {
    let is_given_up = poll_fn(|_| match idleness.is_given_up() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    tokio::select! {
        () = is_given_up => {}
        () = stream::linger(socket, longest) => {}
    }
}

/// Counts and logs a peer that has sent something else than a request.
fn refuse(context: &WorkerContext, reason: String, peer: PeerAddress) {
    context.active().error_log.malformed.count(reason, peer.as_client(), Instant::now());
}

/// Whether this peer is a load balancer whose connections must begin with a PROXY header.
fn is_introduced(peer: PeerAddress, server: &ServerSpec) -> bool {
    server.proxy_protocol && server.trust.trusts_peer(peer)
}

/// Whether this client may have one more connection. A trusted proxy is not counted: its connections are
/// those of many clients.
fn is_welcome(peer: PeerAddress, place: &mut ConnectionPlace, server: &ServerSpec) -> bool {
    let Some(most) = server.max_connections_per_client else { return true };
    server.trust.trusts_peer(peer)
        || place.count_for(client_network(peer.as_client(), server.prefixes), most)
}

/// The status that hyper answers a malformed head with.
fn status(error: &hyper::Error) -> StatusCode {
    match error.is_parse_too_large() {
        // hyper's error has no method for this case.
        true if error.to_string() == "URI too long" => StatusCode::URI_TOO_LONG,
        true => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        false => StatusCode::BAD_REQUEST,
    }
}

/// Why a connection was ended because of what its client sent; `None` if it ended for another reason.
fn malformed(error: &hyper::Error, client: &ClientConnection) -> Option<String> {
    if error.is_parse() {
        return Some(client.head_fault.get().map_or_else(|| error.to_string(), str::to_owned));
    }
    let source = error.source()?;
    if source.to_string() == TOO_LONG {
        return Some(TOO_LONG.to_owned());
    }
    let protocol = source.downcast_ref::<h2::Error>()?;
    // A connection that the client closed, or that was lost, is not malformed.
    let ours = protocol.is_library() || (protocol.is_go_away() && !protocol.is_remote());
    (ours && protocol.reason() != Some(h2::Reason::NO_ERROR)).then(|| protocol.to_string())
}
