//! `[admin]`.

use super::listen::{TakenAddress, refuse_taken};
use super::values::address;
use crate::config::reader::{
    Item, Kind, Mask, Section, Settings, Shape, Words, Wrong, at, fields, read, setting,
};
use crate::plan::AdminSpec;

type Spec = AdminSpec;

pub(crate) static ADMIN: Shape = Shape::new("[admin]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: Settings<Spec> = &[
    setting(at!(listen, address), Kind::ADDRESS, Words("none"),
        "an address for `/healthz`, `/readyz`, `/metrics` and the JSON interface below `/api/`").restart(),
    setting(at!(token, token), Kind::Text, Words("none"),
        "a bearer token for everything but the two health checks; required where the address is not loopback").masked(Mask::Secret),
];

/// `taken` are the addresses of `[server]`.
pub(crate) fn build(section: Section<'_>, taken: &[TakenAddress]) -> AdminSpec {
    let (listen, token) = (section.item("listen"), section.item("token"));
    let wants_token = token.is_some();
    let cx = section.cx;
    let (spec, is_right) = cx.watched(|| read(SETTINGS, section, AdminSpec::default()));
    if let (None, Some(item)) = (&listen, token)
        && is_right
    {
        item.secret().doubt(
            "the `token` of [admin] guards nothing: there is no `listen`",
            "expected `listen = \"127.0.0.1:9090\"` beside it",
        );
    }
    let listen = listen.zip(spec.listen);
    if let Some((item, address)) = &listen {
        refuse_taken(item, *address, &item.span, taken);
    }
    if let Some((item, address)) = listen
        && !address.ip().to_canonical().is_loopback()
        && !wants_token
    {
        item.fault(
            format!("`[admin]` listens on {address} without a `token`"),
            "expected a token where the address is not loopback",
        )
        .help("add `token = \"${ADMIN_TOKEN}\"` below, or listen on \"127.0.0.1:9090\"");
    }
    spec
}

fn token(item: &Item<'_>) -> Option<String> {
    item.clone().secret().parse("expected a text of visible ASCII without spaces", |text| {
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| text.to_owned()).ok_or(Wrong::Expected)
    })
}
