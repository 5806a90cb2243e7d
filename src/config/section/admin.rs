//! `[admin]`.

use super::listen::{TakenAddress, check_token};
use super::values::{address, token};
use crate::config::reader::{
    Item, Kind, Mask, Section, SettingList, Shape, Words, at, fields, read, setting,
};
use crate::settings::{AdminSpec, ListenAddress};

type Spec = AdminSpec;

pub(crate) static ADMIN: Shape = Shape::new("[admin]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    setting(at!(listen, address), Kind::ADDRESS, Words("none"),
        "an address for `/healthz`, `/readyz`, `/metrics` and the JSON interface below `/api/`").restart(),
    setting(at!(token, token), Kind::Text, Words("none"),
        "a bearer token for everything but the two health checks; required where the address is not loopback").masked(Mask::Secret),
];

/// The settings. Adds the address to `taken`.
pub(crate) fn build(section: Section<'_>, taken: &mut Vec<TakenAddress>) -> AdminSpec {
    let (listen, token) = (section.item("listen"), section.item("token"));
    let cx = section.cx;
    let (spec, is_right) = cx.watched(|| read(SETTINGS, section, AdminSpec::default()));
    let address = spec.listen.map(ListenAddress::Tcp);
    if is_right || listen.is_some() {
        let reached = address.as_ref().filter(|address| address.is_reached());
        check_token("[admin]", listen.as_ref(), reached, token);
    }
    let taken_here = |(item, address): (Item<'_>, _)| TakenAddress {
        address,
        span: item.span,
        setting: "`admin.listen`",
    };
    taken.extend(listen.zip(address).map(taken_here));
    spec
}
