//! The `[[tests]]` of a file.

use super::*;

#[test]
fn check_tries_the_tests_of_a_file() {
    let passing = "[[tests]]\nname = \"five pass\"\nsend = \"GET /a\"\ntimes = 7\n\
                   expect = { allowed = 5, rejected = 2, limit = \"client\", retry_after = \"20s\" }\n";
    let failing = "[[tests]]\nsend = \"GET /b\"\nexpect = { allowed = 1 }\n";
    let file = limited("rate = \"3/m\"\nburst = 5");
    let folder = LogFolder::of(&format!("{file}{passing}"), "");
    let (code, said, errors) = folder.told(&["check"]);
    assert_eq!((code, said.as_str(), errors.as_str()), (0, "test five pass ... ok\nok\n", ""));
    folder.write("proxy.toml", &format!("{file}{passing}{failing}"));
    let (code, said, errors) = folder.told(&["check"]);
    assert_eq!((code, errors.as_str()), (2, "error: 1 of 2 tests failed\n"));
    let line = format!("{file}{passing}").lines().count() + 1;
    for part in [
        format!("test GET /b ... FAILED (proxy.toml:{line})"),
        "allowed: expected 1, came 0".to_owned(),
        "what came: allowed = 0, rejected = 1, delayed = 0, limit = \"client\"".to_owned(),
    ] {
        assert!(said.contains(&part), "{part} in {said}");
    }
    let (code, said, _) = folder.told(&["check", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["ok"]), (2, &false.into()));
    assert_eq!(said["tests"][1]["differences"][0]["came"], "0");
    let file = "[[routes]]\npath = \"/a\"\nmethods = [\"GET\"]\nrespond = { status = 200 }\n";
    for (send, said) in [
        ("GET /a", None),
        ("POST /a", Some("no route takes its method: the answer is 405")),
        ("GET /b", Some("no route takes its requests: the answer is 404")),
    ] {
        let test = format!("[[tests]]\nsend = \"{send}\"\nexpect = {{ allowed = 1 }}\n");
        folder.write("proxy.toml", &format!("{file}{test}"));
        let expected = said.map_or(String::new(), |said| format!("    {said}\n"));
        let expected = format!("test {send} ... ok\n{expected}ok\n");
        assert_eq!(folder.told(&["check"]).1, expected);
    }
    let cut = "[[tests]]\nsend = \"GET /a#b\"\nexpect = { allowed = 1 }\n";
    folder.write("proxy.toml", &format!("{file}{cut}"));
    let (code, said, _) = folder.told(&["check"]);
    assert!(code == 2 && said.contains("came 1 with a wrong path"), "{said}");
}
