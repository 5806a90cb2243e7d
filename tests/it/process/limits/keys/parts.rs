//! Keys of several parts.

use super::{Step, check, check_headers};

#[test]
fn two_keys_never_meet() {
    check_headers(
        "",
        "key = [\"header:x-a\", \"header:x-b\"]",
        &[
            (&[("x-a", "1|2"), ("x-b", "3")], 200),
            (&[("x-a", "1"), ("x-b", "2|3")], 200),
            (&[("x-a", "1%7C2"), ("x-b", "3")], 200),
            (&[("x-a", "1")], 200),
            (&[("x-a", "1"), ("x-b", "")], 200),
            (&[("x-a", "1"), ("x-b", "%-")], 200),
            (&[("x-b", "1")], 200),
            (&[("x-a", ""), ("x-b", "1")], 200),
            (&[("x-a", "%-"), ("x-b", "1")], 200),
            // And the same one is the same.
            (&[("x-b", "3"), ("x-a", "1|2")], 429),
            (&[("x-a", "1")], 429),
        ],
    );
}

#[test]
fn each_part_counts() {
    let steps: &[Step<'_>] = &[
        ("GET", "/t/a?q=1", &[("x-k", "1"), ("cookie", "c=1")], 200),
        ("GET", "/t/a?q=1", &[("x-k", "1"), ("cookie", "c=1")], 429),
        ("PUT", "/t/a?q=1", &[("x-k", "1"), ("cookie", "c=1")], 200),
        ("GET", "/t/b?q=1", &[("x-k", "1"), ("cookie", "c=1")], 200),
        ("GET", "/t/a?q=2", &[("x-k", "1"), ("cookie", "c=1")], 200),
        ("GET", "/t/a?q=1", &[("x-k", "2"), ("cookie", "c=1")], 200),
        ("GET", "/t/a?q=1", &[("x-k", "1"), ("cookie", "c=2")], 200),
        ("GET", "/t/a?q=1", &[("x-k", "1"), ("cookie", "c=1"), ("host", "b.test")], 200),
        ("GET", "/t/a?q=1&more", &[("x-k", "1"), ("cookie", "c=1"), ("x-more", "1")], 429),
    ];
    let key = "key = [\"ip\", \"path\", \"method\", \"host\", \"route\", \"header:x-k\", \
               \"cookie:c\", \"query:q\", \"param:id\"]";
    check("", key, "/t/{id}", steps);
}
