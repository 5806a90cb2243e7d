//! Files in which one line is tried.

use super::super::reader::Shape;
use crate::tls::testing::Authority;

thread_local! {
    /// A folder with `ca.pem`, `api.pem`, `api.key` and `plans.txt`. `api.key` is the key of `api.pem`.
    static PEM: tempfile::TempDir = {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.write(folder.path(), "ca.pem");
        authority.issue(&["api.test"]).write(folder.path(), "api");
        std::fs::write(folder.path().join("plans.txt"), "10.0.0.0/8 pro\n").unwrap();
        folder
    };
}

/// A line with the absolute path of a file in the folder of [`PEM`].
pub(super) fn pem(field: &str, name: &str) -> String {
    PEM.with(|folder| format!("{field} = \"{}\"", folder.path().join(name).display()))
}

pub(super) fn certificates() -> String {
    format!("certificates = [{{ {}, {} }}]", pem("cert", "api.pem"), pem("key", "api.key"))
}

/// A `[plans]`.
const PLANS: &str = "[plans]\nby = \"ip\"";

/// A configuration in which `line` is added to a section. The section's own line for the same field is left
/// out.
pub(super) fn with(shape: &Shape, line: &str) -> String {
    let name = line.split(['=', ' ']).next().unwrap();
    let inline = |text: &str| text.to_owned();
    let mut fields = match shape.title {
        "[upstreams.NAME]" => vec![inline("servers = [\"http://127.0.0.1:3000\"]")],
        "[limits.NAME]" => vec![inline("key = [\"ip\"]"), inline("rate = \"100/s\"")],
        "[[routes]]" => vec![
            inline("path = \"/{*rest}\""),
            inline("upstream = \"api\""),
            inline("limits = [\"per-client\"]"),
        ],
        "cost" if matches!(name, "estimate" | "unknown") || name.starts_with("response") => {
            vec![inline("response_header = \"x-used\""), inline("estimate = 1")]
        }
        "cost" => vec![inline("header = \"x-cost\"")],
        "estimate" => vec![inline("content_length = \"0.3\""), inline("at_least = 2")],
        "count_when" => vec![inline("status = [\"401\"]")],
        "a server" => vec![inline("url = \"http://127.0.0.1:3000\"")],
        "health" => vec![inline("path = \"/a\"")],
        "max_requests" => vec![inline("slower_than = \"1s\"")],
        "expect" => vec![inline("allowed = 1")],
        "[jwt.NAME]" => vec![inline("keys = \"http://127.0.0.1:1/keys\"")],
        "keys" => vec![inline("secret = \"a secret of thirty-two bytes ....\"")],
        "[[tests]]" => vec![inline("send = \"GET /a\""), inline("expect = { allowed = 1 }")],
        "ban" => {
            vec![inline("after = 1"), inline("within = \"1s\""), inline("for = \"1s\"")]
        }
        "one of `limits`" => vec![inline("name = \"per-client\"")],
        "candidate" | "a plan" => vec![inline("rate = \"100/s\"")],
        "[plans]" => vec![inline("by = \"ip\"")],
        "[cors]" => vec![inline("origins = [\"https://a.test\"]")],
        "overrides" => vec![inline("key = [\"*\"]"), inline("rate = \"100/s\"")],
        "server.tls" => {
            vec![inline("listen = \"127.0.0.1:2\""), certificates(), pem("client_ca", "ca.pem")]
        }
        "decide.tls" => vec![certificates(), pem("client_ca", "ca.pem")],
        "a certificate" => vec![pem("cert", "api.pem"), pem("key", "api.key")],
        "tls of an upstream" => {
            vec![pem("ca", "ca.pem"), pem("cert", "api.pem"), pem("key", "api.key")]
        }
        _ => Vec::new(),
    };
    fields.retain(|field| line.is_empty() || !field.starts_with(name));
    let limiter = shape.title == "[limits.NAME]" && matches!(name, "name" | "type" | "keep_alive");
    if limiter {
        fields.push("algorithm = \"redisson\"".to_owned());
        fields.extend((name != "name").then(|| "name = \"orders\"".to_owned()));
    }
    if matches!(name, "limit" | "lease") {
        // `limit` and `lease` belong to the algorithm `concurrency`, which has no rate.
        fields.retain(|field| !field.starts_with("rate"));
    }
    if (shape.title, name) == ("[limits.NAME]", "lease") {
        fields.push("limit = 1".to_owned());
    }
    if matches!(name, "response_json" | "response_bytes") {
        fields.retain(|field| !field.starts_with("response_header"));
    }
    if name == "respond" {
        fields.retain(|field| !field.starts_with("upstream"));
    }
    if !line.is_empty() {
        fields.push(line.to_owned());
    }
    let lines = fields.join("\n");
    let table = format!("{{ {} }}", fields.join(", "));
    let figures = match name {
        "limit" => "\nalgorithm = \"concurrency\"\nlimit = 9",
        _ => "\nrate = \"100/s\"",
    };
    let lines = match (shape.title, name) {
        ("[limits.NAME]", "limit" | "lease") => format!("{lines}\nalgorithm = \"concurrency\""),
        _ => lines,
    };
    let (mut upstream, mut limit, mut route, mut rest) = (
        "servers = [\"http://127.0.0.1:3000\"]".to_owned(),
        format!("key = [\"ip\"]{figures}"),
        "path = \"/{*rest}\"\nupstream = \"api\"\nlimits = [\"per-client\"]".to_owned(),
        String::new(),
    );
    match shape.title {
        "[upstreams.NAME]" => {
            upstream = lines;
            if name == "share_by" {
                upstream.push_str("\nmax_requests = 5");
            }
        }
        "[limits.NAME]" => {
            limit = lines;
            if limiter {
                rest = "[store]\nurl = \"redis://localhost\"".to_owned();
            }
            if name == "plans" {
                rest = PLANS.to_owned();
            }
        }
        "[[routes]]" => {
            route = lines;
            if name == "slower_than" || name == "priority" && !line.contains("normal") {
                upstream.push_str("\nmax_requests = { slower_than = \"1s\" }");
            }
        }
        "max_requests" => upstream.push_str(&format!("\nmax_requests = {table}")),
        "count_when" => limit.push_str(&format!("\ncount_when = {table}")),
        "cost" => limit.push_str(&format!("\ncost = {table}")),
        "estimate" => {
            let cost = format!("{{ response_bytes = true, estimate = {table} }}");
            limit.push_str(&format!("\ncost = {cost}"));
        }
        "exempt" => limit.push_str(&format!("\nexempt = {table}")),
        "ban" => limit.push_str(&format!("\nban = {table}")),
        "candidate" => limit.push_str(&format!("\ncandidate = {table}")),
        "overrides" => limit.push_str(&format!("\noverrides = [{table}]")),
        "a plan" => {
            limit.push_str(&format!("\nplans = {{ pro = {table} }}"));
            rest = PLANS.to_owned();
        }
        "[plans]" => {
            limit.push_str("\nplans = { pro = \"1/s\" }");
            rest = format!("[plans]\n{lines}");
            if name == "jwt" {
                rest.push_str(
                    "\n[jwt.main]\nkeys = { secret = \"0123456789abcdef0123456789abcdef\" }",
                );
            }
        }
        "a server" => upstream = format!("servers = [{table}]"),
        "health" => upstream.push_str(&format!("\nhealth = {table}")),
        "respond" => {
            route = format!("path = \"/{{*rest}}\"\nlimits = [\"per-client\"]\nrespond = {table}");
        }
        "one of `limits`" => {
            route = format!("path = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [{table}]");
        }
        "header changes" => route.push_str(&format!("\nrequest_headers = {table}")),
        "server.tls" => rest = format!("[server]\ntls = {table}"),
        "decide.tls" => rest = format!("[decide]\ntls = {table}"),
        "a certificate" => {
            let listen = "listen = \"127.0.0.1:2\"";
            rest = format!("[server]\ntls = {{ {listen}, certificates = [{table}] }}");
        }
        "tls of an upstream" => upstream = format!("servers = [\"https://a\"]\ntls = {table}"),
        "keys" => rest = format!("[jwt.main]\nkeys = {table}"),
        "expect" => rest = format!("[[tests]]\nsend = \"GET /a\"\nexpect = {table}"),
        title => rest = format!("{title}\n{lines}"),
    }
    if matches!((shape.title, name), ("[limits.NAME]", "align" | "timezone")) {
        limit.push_str("\nalgorithm = \"fixed-window\"");
    }
    if name == "max_waiting" {
        limit.push_str("\nwait = \"0s\"");
    }
    if name == "queue" {
        limit.push_str("\nalgorithm = \"leaky-bucket\"");
    }
    if name == "timezone" {
        limit = limit.replace("100/s", "100/d") + "\nalign = \"clock\"";
    }
    format!(
        "[upstreams.api]\n{upstream}\n[limits.per-client]\n{limit}\n[[routes]]\n{route}\n{rest}\n"
    )
}
