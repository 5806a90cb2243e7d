//! Keys of several parts.

use super::{Step, check};

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
