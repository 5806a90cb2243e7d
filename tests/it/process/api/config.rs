//! `/api/config`: what is in force, without secrets.

use serde_json::json;

use super::json as read;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;

fn file() -> Proxy {
    Proxy::to("http://${API_HOST}:3000")
        .limit("a", "rate = \"9/s\"\nkey = [\"ip\"]\nexempt = { header = { x-in = \"hunter1\" } }")
        .section("[admin]\nlisten = \"LISTEN\"")
}

#[test]
fn what_is_in_force_is_shown_without_secrets() {
    let proxy = Tidegate::start_with(&file().text(), |command| {
        command.env("API_HOST", "hunter2.example").args(["--listen", "127.0.0.1:0"]);
    });
    let admin = proxy.admin();
    let config = read(admin, "/api/config");
    let settings = &config["settings"];
    assert_eq!(settings["server"]["listen"], json!(["127.0.0.1:0"]), "by the command line");
    assert_eq!(settings["server"]["header_timeout"], "10s", "by default");
    assert_eq!(settings["limits"]["a"]["rate"], "9/s");
    assert_eq!(settings["limits"]["a"]["exempt"]["header"]["x-in"], "********");
    assert_eq!(settings["upstreams"]["api"]["servers"], json!(["********"]));
    assert!(!config.to_string().contains("hunter"), "{config}");

    let workers = file().server("workers = 7").text().replace("9/s", "8/s");
    proxy.reload(&workers);
    let config = read(admin, "/api/config");
    assert_eq!(config["restart_needed"], json!(["server.workers"]));
    assert_eq!(config["settings"]["limits"]["a"]["rate"], "8/s");
    assert_eq!(config["settings"]["server"]["workers"], json!(null), "needs a restart");
}

#[test]
fn the_token_and_the_stores_password_are_secrets() {
    let proxy = Proxy::answering()
        .store("url = \"redis://user:hunter3@127.0.0.1:1\"")
        .section("[admin]\nlisten = \"LISTEN\"\ntoken = \"hunter4\"")
        .start();
    let headers = [("host", "localhost"), ("authorization", "Bearer hunter4")];
    for path in ["/api/config", "/api/status"] {
        let reply = crate::support::client::get(proxy.admin(), path, &headers);
        assert_eq!(reply.status, 200);
        assert!(!reply.text().contains("hunter"), "{}", reply.text());
    }
    let config = crate::support::client::get(proxy.admin(), "/api/config", &headers).json();
    assert_eq!(config["settings"]["store"]["url"], "redis://********@127.0.0.1:1");
    assert_eq!(config["settings"]["admin"]["token"], "********");
}
