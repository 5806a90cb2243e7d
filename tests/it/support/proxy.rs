//! A proxy of a test's own, in few words.

use std::net::SocketAddr;

use super::limits::names;
use super::port::Port;
use super::tidegate::Tidegate;

/// What stands in a `proxy.toml`. Lines of a section are written as in the file.
#[derive(Clone, Default)]
pub(crate) struct Proxy {
    server: String,
    sections: String,
    store: String,
    limits: String,
    servers: Vec<String>,
    upstream: String,
    target: &'static str,
    routes: String,
}

impl Proxy {
    /// One that sends everything to an upstream `api` with this server: one of a test's own, or a URL.
    pub(crate) fn to(server: impl Into<String>) -> Self {
        Self { target: "upstream = \"api\"\n", ..Self::default() }.and(server)
    }

    pub(crate) fn of_one_worker(server: impl Into<String>) -> Self {
        Self::to(server).server("workers = 1")
    }

    /// One that answers everything with 200.
    pub(crate) fn answering() -> Self {
        Self { target: "respond = { status = 200 }\n", ..Self::default() }
    }

    /// With one more server.
    pub(crate) fn and(mut self, server: impl Into<String>) -> Self {
        self.servers.push(server.into());
        self
    }

    /// Lines of `[server]`, which listens on an address of its own unless they say where.
    pub(crate) fn server(mut self, lines: &str) -> Self {
        add(&mut self.server, lines);
        self
    }

    /// Listens on a held port: nobody else listens there afterwards.
    pub(crate) fn on(self, port: &Port) -> Self {
        self.server(&format!("listen = \"{}\"", port.address))
    }

    /// Lines of `[upstreams.api]`.
    pub(crate) fn upstream(mut self, lines: &str) -> Self {
        add(&mut self.upstream, lines);
        self
    }

    /// Lines of `[store]`.
    pub(crate) fn store(mut self, lines: &str) -> Self {
        add(&mut self.store, lines);
        self
    }

    /// A limit for everything.
    pub(crate) fn limit(self, name: &str, lines: &str) -> Self {
        self.limits(&format!("[limits.{name}]\n{lines}"))
    }

    /// Limits for everything, as sections.
    pub(crate) fn limits(mut self, sections: &str) -> Self {
        add(&mut self.limits, sections);
        self
    }

    /// A route of the test's own: they take the place of the one for everything, and have what limits they
    /// say. It goes where that one would, unless it says otherwise.
    pub(crate) fn route(mut self, lines: &str) -> Self {
        let own = ["upstream =", "respond ="].iter().any(|own| lines.contains(own));
        let target = if own { "" } else { self.target };
        add(&mut self.routes, &format!("[[routes]]\n{target}{lines}"));
        self
    }

    pub(crate) fn admin(self) -> Self {
        self.section("[admin]\nlisten = \"LISTEN\"")
    }

    /// Whatever else stands in the file.
    pub(crate) fn section(mut self, text: &str) -> Self {
        add(&mut self.sections, text);
        self
    }

    /// The file, for [`Tidegate::reload`] and the like.
    pub(crate) fn text(&self) -> String {
        let Self { server, sections, store, limits, servers, upstream, target, routes } = self;
        let listen = if server.contains("listen =") { "" } else { "listen = \"LISTEN\"\n" };
        let mut text = format!("[server]\n{listen}{server}{sections}");
        if !store.is_empty() {
            text += &format!("[store]\n{store}");
        }
        text += limits;
        if !servers.is_empty() {
            text += &format!("[upstreams.api]\nservers = {servers:?}\n{upstream}");
        }
        if routes.is_empty() {
            let names = names(limits);
            text += &format!("[[routes]]\npath = \"/{{*rest}}\"\n{target}limits = {names:?}\n");
        }
        text += routes;
        text
    }

    /// The same, for a command that looks for a running admin endpoint in the file.
    pub(crate) fn text_with_admin(&self, admin: SocketAddr) -> String {
        let text = self.text().replacen("LISTEN", "127.0.0.1:0", 1);
        text.replace("LISTEN", &admin.to_string())
    }

    pub(crate) fn start(&self) -> Tidegate {
        Tidegate::start(&self.text())
    }
}

/// Adds lines, each with its end.
fn add(text: &mut String, lines: &str) {
    if !lines.is_empty() {
        text.push_str(lines.trim_end());
        text.push('\n');
    }
}
