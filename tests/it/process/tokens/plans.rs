//! Plans that tokens say.

use std::fs;

use serde_json::json;

use super::{ask, with_file};
use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::tls::Folder;
use crate::support::tokens::Signer;

/// A token of any table said the plan: a partner's issuer made its users customers of the dearest plan.
#[test]
fn only_one_table_says_plans() {
    let (folder, users, partners) = (Folder::new(), Signer::new("users"), Signer::new("partners"));
    let tables = with_file(&folder, "users", &[&users], "issuer = \"users\"\n")
        + &with_file(&folder, "partners", &[&partners], "issuer = \"partners\"\n");
    let token = |signer: &Signer, iss: &str| {
        signer.token(&json!({ "iss": iss, "sub": "a", "plan": "pro" }))
    };
    let (user, partner) = (token(&users, "users"), token(&partners, "partners"));
    for (rule, of_user, of_partner) in [
        ("by = \"jwt:plan\"", "9", "2"),
        ("by = \"jwt:plan\"\njwt = \"users\"", "9", "2"),
        ("by = \"jwt:plan\"\njwt = \"partners\"", "2", "9"),
        ("by = \"jwt:plan | header:x-plan\"", "9", "7"),
    ] {
        let proxy = Proxy::answering()
            .section(&tables)
            .section(&format!("[plans]\n{rule}"))
            .limit(
                "one",
                "key = [\"jwt:sub\"]\nrate = \"2/h\"\nplans = { pro = \"9/h\", own = \"7/h\" }",
            )
            .start();
        for (token, burst) in [(&user, of_user), (&partner, of_partner)] {
            let bearer = format!("Bearer {token}");
            let fields = [("authorization", &*bearer), ("x-plan", "own")];
            let reply = get(proxy.address, "/", &fields);
            let policy = reply.header("ratelimit-policy").unwrap();
            assert_eq!(policy, format!("\"one\";q={burst};w=3600"), "{rule}");
        }
    }
}

/// The file of plans has values and no table.
#[test]
fn a_line_of_the_file_is_for_users_of_the_table_that_says_plans() {
    let (folder, users, partners) = (Folder::new(), Signer::new("users"), Signer::new("partners"));
    let tables = with_file(&folder, "users", &[&users], "issuer = \"users\"\n")
        + &with_file(&folder, "partners", &[&partners], "issuer = \"partners\"\n");
    let file = folder.path().join("plans.txt");
    fs::write(&file, "a pro\n").unwrap();
    let rule =
        format!("[plans]\nby = \"jwt:sub\"\njwt = \"partners\"\nfile = \"{}\"", file.display());
    let proxy = Proxy::answering()
        .section(&tables)
        .section(&rule)
        .limit("one", "key = [\"jwt:sub\"]\nrate = \"2/h\"\nplans = { pro = \"9/h\" }")
        .start();
    for (signer, iss, burst) in [(&users, "users", "2"), (&partners, "partners", "9")] {
        let token = signer.token(&json!({ "iss": iss, "sub": "a" }));
        let policy = ask(proxy.address, &token).header("ratelimit-policy").unwrap();
        assert_eq!(policy, format!("\"one\";q={burst};w=3600"), "{iss}");
    }
}
