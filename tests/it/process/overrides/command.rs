//! `tidegate limits`.

use super::{HASH, by_user, passes};
use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::redis::in_both_stores;
use crate::support::tidegate::{Tidegate, program};

/// Exit code, standard output, standard error.
pub(super) fn told(proxy: &Tidegate, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("http://{}", proxy.admin());
    let mut command = program();
    command.arg("limits").args(arguments).args(["--admin", &admin]).current_dir("/");
    let told = command.env_remove("TIDEGATE_ADMIN_TOKEN").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (told.status.code().unwrap(), text(told.stdout), text(told.stderr))
}

pub(super) fn done(proxy: &Tidegate, arguments: &[&str]) -> String {
    let (code, out, errors) = told(proxy, arguments);
    assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
    out
}

fn limited() -> Proxy {
    let limits = "[limits.all]\nkey = []\nrate = \"1000/h\"\n\
                  [limits.must]\nkey = [\"cookie:user\"]\nrate = \"9/h\"\nmissing = \"reject\"\n\
                  mode = \"shadow\"\n\
                  [limits.twice]\nkey = [\"ip\", \"path\"]\nrate = \"900/h\"";
    by_user("rate = \"1/h\"", "").limits(limits)
}

#[test]
fn the_command_sets_shows_and_resets() {
    let proxy = limited().start();
    assert!(passes(&proxy, "secret-a") && !passes(&proxy, "secret-a"));
    let list = done(&proxy, &["list"]);
    assert!(list.starts_with("limit  key            algorithm"), "{list}");
    assert!(list.contains("user   header:x-user  token-bucket  1/h"), "{list}");
    let said = done(
        &proxy,
        &["set", "user", "secret-a", "--rate", "50/h", "--for", "2h", "--reason", "a test"],
    );
    assert!(said.starts_with(&format!("50/h, burst 50, for {HASH} until 20")), "{said}");
    let list = done(&proxy, &["list"]);
    assert!(list.contains(&format!("user         {HASH}  50/h  50     ")), "{list}");
    assert!(passes(&proxy, "secret-a"));
    let bucket = done(&proxy, &["get", "user", "secret-a"]);
    for line in ["remaining  48", "rate       50/h", "override   50/h", "reason     a test"] {
        assert!(bucket.contains(line), "{line} in {bucket}");
    }
    let limit = done(&proxy, &["get", "user"]);
    assert!(limit.contains("override of") && !limit.contains("twice"), "{limit}");
    let json = done(&proxy, &["get", "user", "secret-a", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["override"]["reason"], "a test");
    done(&proxy, &["reset", "user", "secret-a"]);
    assert!(done(&proxy, &["get", "user", "secret-a"]).contains("remaining  50"));
    // A regression: a hash from the log was hashed again, and nobody was told that nothing had been reset.
    let copied = done(&proxy, &["reset", "user", HASH]);
    let note =
        format!("the bucket is new\nnote: `{HASH}` was taken as a plain value of `header:x-user`");
    assert!(copied.starts_with(&note), "{copied}");
    assert_eq!(done(&proxy, &["reset", "twice", "127.0.0.1", "/"]), "the bucket is new\n");
    done(&proxy, &["reset", "user", "secret-a", "--override"]);
    assert!(passes(&proxy, "secret-a") && !passes(&proxy, "secret-a"), "a new bucket of one");
    assert!(!done(&proxy, &["list"]).contains("override of"));
}

#[test]
fn a_key_is_its_values_in_order() {
    let proxy = limited().start();
    assert!(done(&proxy, &["get", "all"]).contains("burst      1000"));
    let said = done(&proxy, &["set", "all", "--rate", "7/h", "--burst", "9"]);
    assert_eq!(said, "7/h, burst 9, until it is reset\n");
    assert!(done(&proxy, &["get", "all"]).contains("remaining  9"));
    let said = done(&proxy, &["set", "twice", "127.0.0.1", "/a|b", "--rate", "unlimited"]);
    assert_eq!(said, "unlimited for 127.0.0.1|/a%257Cb until it is reset\n");
    assert!(done(&proxy, &["set", "user", "-", "--rate", "3/h"]).contains("3/h, burst 3, for %-"));
    let absent = crate::support::client::statuses(proxy.address, &[&[][..]; 4]);
    assert_eq!(absent, [200, 200, 200, 429], "requests without the header");
}

/// A regression: `remaining  5` stood beside `passes in  59m`.
#[test]
fn of_a_limit_that_holds_requests_the_wait_is_shown() {
    let limits = "[limits.even]\nkey = []\nalgorithm = \"leaky-bucket\"\nrate = \"1/h\"\nqueue = 5\n\
                  [limits.soon]\nkey = []\nrate = \"1/h\"\nwait = \"1s\"\n";
    in_both_stores(|store| {
        let proxy = Proxy::answering().admin().limits(limits).store(store).start();
        assert!(done(&proxy, &["get", "even"]).contains("held for   0ms"));
        assert!(passes(&proxy, "a"));
        let even = done(&proxy, &["get", "even"]);
        assert!(even.contains("remaining  5") && !even.contains("passes in"), "{even}");
        assert!(even.contains("held for   59m") || even.contains("held for   1h"), "{even}");
        let soon = done(&proxy, &["get", "soon"]);
        assert!(soon.contains("remaining  0") && !soon.contains("held for"), "{soon}");
        assert!(soon.contains("passes in  59m") || soon.contains("passes in  1h"), "{soon}");
    });
}

#[test]
fn what_is_wrong_is_said_with_the_exit_code() {
    let mut proxy = limited().start();
    for (arguments, code, words) in [
        (
            &["get", "none"][..],
            2,
            "no limit `none` in the proxy: it has `user`, `all`, `must` and `twice`",
        ),
        (
            &["set", "use", "a", "--rate", "1/s"],
            2,
            "no limit `use` in the proxy: it has `user`, `all`",
        ),
        (&["reset", "user"], 2, "counts by `header:x-user`"),
        (&["get", "all", "x"], 2, "no key"),
        (&["set", "twice", "127.0.0.1", "--rate", "1/s"], 2, "`ip`, `path`"),
        (&["set", "twice", "nowhere", "/", "--rate", "1/s"], 2, "no address"),
        (&["set", "user", "b", "--rate", "fast"], 2, "`fast` is no rate"),
        (&["set", "user", "b", "--rate", "1/s", "--for", "soon"], 2, "`soon` is no time"),
        (&["set", "user", "b"], 2, "--rate"),
        (&["set", "user", "b", "--rate", "-1/s"], 2, "`-1/s` is no rate"),
        (&["set", "user", "b", "--rate", "1/s", "--for", "-1h"], 2, "`-1h` is no time"),
        (&["set", "must", "-", "--rate", "1/s"], 2, "the limit counts no request without"),
        (&["reset", "user", "b", "--override"], 1, "no override was set"),
    ] {
        let (found, out, errors) = told(&proxy, arguments);
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{words} in {errors}");
    }
    proxy.admin();
    assert!(proxy.stop().success());
    assert_eq!(told(&proxy, &["list"]).0, 1, "nobody answers");
}

#[test]
fn the_token_comes_from_the_file_or_the_environment() {
    let guarded = limited().section("token = \"s3cret\"");
    let proxy = guarded.start();
    let (code, _, errors) = told(&proxy, &["list"]);
    assert_eq!((code, errors.contains("set TIDEGATE_ADMIN_TOKEN")), (2, true), "{errors}");
    let file = proxy.folder().join("written.toml");
    let text = guarded.text_with_admin(proxy.admin());
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(told(&proxy, &["list", "--config", file]).0, 0);
    let of_file = program().args(["limits", "list", "--config", file]).output().unwrap();
    assert_eq!(of_file.status.code(), Some(0), "where the file says");
    let admin = proxy.admin().to_string();
    let mut by_environment = program();
    by_environment.args(["limits", "list", "--admin", &admin]);
    let told = by_environment.env("TIDEGATE_ADMIN_TOKEN", "s3cret").output().unwrap();
    assert_eq!(told.status.code(), Some(0));
    let told = by_environment.env("TIDEGATE_ADMIN_TOKEN", "other").output().unwrap();
    let errors = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(2));
    assert!(errors.contains("does not accept the token"), "{errors}");
}

#[test]
fn a_value_is_one_of_the_first_alternative_unless_a_number_names_another() {
    let limit = "key = [\"header:x-user | ip\"]\nrate = \"1/h\"";
    let proxy = Proxy::answering().admin().limit("either", limit).start();
    let by_address = || get(proxy.address, "/", &[]).status == 200;
    assert!(passes(&proxy, "secret-a") && !passes(&proxy, "secret-a"));
    assert!(by_address() && !by_address());
    let set = |value| done(&proxy, &["set", "either", value, "--rate", "50/h"]);
    let said = format!("50/h, burst 50, for {HASH} until it is reset\n");
    assert_eq!([set("secret-a"), set("1=secret-a")], [said.clone(), said]);
    assert!(passes(&proxy, "secret-a"));
    let note = "note: `127.0.0.1` was taken as a value of `header:x-user`; \
                to give an address, write `2=127.0.0.1`";
    assert!(set("127.0.0.1").contains(note) && !by_address());
    set("2=127.0.0.1");
    assert!(by_address());
    let (code, _, error) = told(&proxy, &["get", "either", "192.0.2.0/24"]);
    assert!(code == 2 && error.contains("write \"2=192.0.2.0/24\""), "{error}");
}

#[test]
fn an_override_is_ended_by_the_key_that_the_list_shows() {
    let proxy = limited().start();
    done(&proxy, &["set", "user", "secret-a", "--rate", "50/h"]);
    assert!(done(&proxy, &["list"]).contains(HASH));
    done(&proxy, &["reset", "user", HASH, "--override"]);
    assert!(!done(&proxy, &["list"]).contains("override of"));
}
