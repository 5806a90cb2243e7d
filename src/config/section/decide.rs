//! `[decide]`.

use super::listen::{LISTEN_ADDRESS, TakenAddress, check_token, listen_address, refuse_taken};
use super::values::token;
use crate::config::reader::{
    Item, Kind, Mask, Section, Settings, Shape, Span, Words, at, fields, read, setting,
};
use crate::plan::{DecideSpec, ListenAddress, ServerSpec};

type Spec = DecideSpec;

pub(crate) static DECIDE: Shape = Shape::new("[decide]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: Settings<Spec> = &[
    setting(at!(listen, listen), Kind::ADDRESS, Words("none"),
        "an address, also `\"unix:/PATH\"`, where others ask whether a request may go: `/auth-request`, `/forward-auth`, `/check` with `/settle`, and Envoy by gRPC").restart(),
    setting(at!(token, token), Kind::Text, Words("none"),
        "what they show in `x-tidegate-token`, in `authorization: Bearer` (gRPC, `/check`, `/settle`), or as `?token=` of the path; required where the address is neither loopback nor a Unix socket").masked(Mask::Secret),
];

/// The settings, with the position of `listen`. `server` and `taken` have the other addresses. Adds the address to
/// `taken`.
pub(crate) fn build(
    section: Section<'_>,
    server: &ServerSpec,
    taken: &mut Vec<TakenAddress>,
) -> (DecideSpec, Span) {
    let (listen, token) = (section.item("listen"), section.item("token"));
    let (cx, is_there) = (section.cx, section.has(|_| true));
    let section_span = section.span.clone();
    let (spec, is_right) = cx.watched(|| read(SETTINGS, section, DecideSpec::default()));
    if is_right || listen.is_some() {
        let reached = spec.listen.as_ref().filter(|address| address.is_reached());
        check_token("[decide]", listen.as_ref(), reached, token);
    }
    let Some((item, address)) = listen.zip(spec.listen.as_ref()) else {
        if is_right && is_there && server.listen.is_empty() && server.tls.is_none() {
            let title = "nothing listens: neither [server] nor [decide] has an address";
            cx.error(&section_span, title, "expected `listen = \"127.0.0.1:9091\"` in [decide]");
        }
        return (spec, 0..0);
    };
    let span = item.span.clone();
    match address {
        ListenAddress::Tcp(tcp) => {
            refuse_taken(&item, *tcp, &span, taken);
        }
        ListenAddress::Unix(_) if server.listen.contains(address) => {
            item.fault(
                format!("{address} is listened on by `server.listen` already"),
                "expected another path",
            );
        }
        ListenAddress::Unix(_) => {}
    }
    taken.extend(TakenAddress::all(&[(address.clone(), span.clone())], "`decide.listen`"));
    (spec, span)
}

fn listen(item: &Item<'_>) -> Option<ListenAddress> {
    item.parse(LISTEN_ADDRESS, listen_address)
}
