//! `[decide]`.

use super::listen::{LISTEN_ADDRESS, TakenAddress, check_token, listen_address};
use super::tls::{DECIDE_TLS, listener};
use super::values::token;
use crate::config::reader::{
    Item, Kind, Mask, Section, SettingList, Shape, Span, Words, at, field, fields, read, setting,
};
use crate::settings::{DecideSpec, ListenAddress, ServerSpec};

type Spec = DecideSpec;

pub(crate) static DECIDE: Shape = Shape::new("[decide]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    setting(at!(listen, listen), Kind::ADDRESS, Words("none"),
        "an address, also `\"unix:/PATH\"`, where other proxies ask whether a request may go: `/auth-request`, `/forward-auth`, `/check` with `/settle`, and Envoy by gRPC").restart(),
    setting(at!(token, token), Kind::Text, Words("none"),
        "the token that they must send in `x-tidegate-token`, in `authorization: Bearer` (gRPC, `/check`, `/settle`), or as `?token=` of the path; required where the address is neither loopback nor a Unix socket").masked(Mask::Secret),
    field("tls", Kind::Table(&DECIDE_TLS), Words("none"),
        "the certificates with which `listen` speaks TLS (HTTP/1.1 and HTTP/2). Only a restart turns TLS on or off"),
];

const LISTEN: &str = "expected `listen = \"127.0.0.1:9091\"` in [decide]";
const TLS: &str = "add `tls = { certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }] }`, or listen on loopback or a Unix socket";

/// The settings, with the position of `listen`. Adds the address to `taken`.
pub(crate) fn build(
    mut section: Section<'_>,
    server: &ServerSpec,
    taken: &mut Vec<TakenAddress>,
) -> (DecideSpec, Span) {
    let [listen, token, tls] = ["listen", "token", "tls"].map(|name| section.item(name));
    let (cx, is_there) = (section.cx, section.has(|_| true));
    let section_span = section.span.clone();
    let (spec, is_right) = cx.watched(|| {
        let tls = section.take("tls").and_then(|it| listener(it.section(&DECIDE_TLS, "`tls`")?));
        read(SETTINGS, section, DecideSpec { tls, ..DecideSpec::default() })
    });
    if is_right || listen.is_some() {
        let reached = spec.listen.as_ref().filter(|address| address.is_reached());
        check_token("[decide]", listen.as_ref(), reached, token);
        match (&listen, &tls) {
            (None, Some(tls)) => {
                tls.doubt("the `tls` of [decide] changes nothing: there is no `listen`", LISTEN);
            }
            (Some(listen), None) if reached.is_some() && spec.token.is_some() => {
                let expected = "whoever reads the token there can ask in the name of every client: expected `tls`";
                listen
                    .doubt("the token of [decide] crosses the network in clear text", expected)
                    .help(TLS);
            }
            _ => {}
        }
    }
    let span = listen.map_or(0..0, |item| item.span);
    match spec.listen.clone() {
        Some(address) => {
            taken.push(TakenAddress { address, span: span.clone(), setting: "`decide.listen`" });
        }
        None if is_right && is_there && server.listen.is_empty() && server.tls.is_none() => {
            let title = "nothing listens: neither [server] nor [decide] has an address";
            cx.error(&section_span, title, LISTEN);
        }
        None => {}
    }
    (spec, span)
}

fn listen(item: &Item<'_>) -> Option<ListenAddress> {
    item.parse(LISTEN_ADDRESS, listen_address)
}
