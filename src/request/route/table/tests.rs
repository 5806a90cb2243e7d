//! Which of several routes a request takes.

use std::str::FromStr;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::request::route::PathParams;

/// Reads a route from `METHOD,METHOD host path header=value`, with `-` for any value.
fn route(text: &str) -> (Pattern, Conditions) {
    let words: Vec<_> = text.split(' ').collect();
    let given = |index: usize| words.get(index).copied().filter(|word| *word != "-");
    let methods = given(0).into_iter().flat_map(|methods| methods.split(','));
    let headers = given(3).into_iter().flat_map(|headers| headers.split(','));
    let header = |text: &str| {
        let (name, value) = text.split_once('=').expect("a header");
        (HeaderName::from_str(name).expect(name), HeaderValue::from_str(value).expect(value))
    };
    let conditions = Conditions {
        methods: methods.map(|method| method.parse().expect(method)).collect(),
        host: given(1).map(|host| host.parse().expect(host)),
        headers: headers.map(header).collect(),
    };
    (words[2].parse().expect(text), conditions)
}

fn table(routes: &[&str]) -> RouteTable {
    RouteTable::new(routes.iter().map(|text| route(text)).collect())
}

/// The route, or the error, for a request in the same notation.
fn find(table: &RouteTable, request: &str) -> Result<usize, NoRoute> {
    let words: Vec<_> = request.split(' ').collect();
    let path = NormalPath::parse(words[2], true).expect(request);
    let mut headers = HeaderMap::new();
    for header in words.get(3).iter().flat_map(|headers| headers.split(',')) {
        let (name, value) = header.split_once('=').expect(header);
        headers.append(HeaderName::from_str(name).expect(name), value.parse().expect(value));
    }
    table.find(&path, &words[0].parse().expect(request), words[1], &headers)
}

#[test]
fn the_most_specific_path_wins_whatever_the_order() {
    let routes = [
        "- - /{*rest}",
        "- - /users/{id}",
        "- - /users/me",
        "- - /users/{id}/posts",
        "- - /users/{*rest}",
        "- - /users/",
        "- - /{a}/{b}/posts",
        "- - /",
    ];
    let table = table(&routes);
    for (path, winner) in [
        ("/", 7),
        ("/x", 0),
        ("/x/", 0),
        ("/users", 0),
        ("/users/", 5),
        ("/users/me", 2),
        ("/users/%6De;x", 2),
        ("/users/42", 1),
        ("/users/42/", 4),
        ("/users/42/posts", 3),
        ("/users/me/posts", 3),
        ("/users/me/x", 4),
        ("/x/y/posts", 6),
        ("/x/y/z", 0),
    ] {
        assert_eq!(find(&table, &format!("GET h {path}")), Ok(winner), "{path}");
    }
}

#[test]
fn among_routes_of_one_path_the_conditions_decide() {
    for (name, routes, request, winner) in [
        ("more conditions", &["GET - /a", "GET h /a", "- - /a"][..], "GET h /a", 1),
        ("fewer where others fail", &["GET h /a", "- - /a"], "PUT h /a", 1),
        ("headers count each", &["GET h /a", "- h /a x=1,y=2"], "GET h /a x=1,y=2", 1),
        ("a header fails", &["GET h /a", "- h /a x=1,y=2"], "GET h /a x=1", 0),
        ("one of two lines", &["- - /a", "- - /a x=1"], "GET h /a x=2,x=1", 1),
        ("exact host", &["- *.b /a", "- c.b /a"], "GET c.b /a", 1),
        ("longest wildcard", &["- *.b /a", "- *.c.b /a", "- - /a"], "GET d.c.b /a", 1),
        ("shorter wildcard", &["- *.b /a", "- *.c.b /a", "- - /a"], "GET c.b /a", 0),
        ("no host", &["- *.b /a", "- *.c.b /a", "- - /a"], "GET b /a", 2),
        ("host before header", &["- - /a x=1", "- h /a"], "GET h /a x=1", 1),
        ("header before method", &["GET - /a", "- - /a x=1"], "GET h /a x=1", 1),
        ("fewer methods", &["GET,PUT - /a", "GET - /a"], "GET h /a", 1),
        ("two conditions over an exact host", &["- h.b /a", "GET *.b /a"], "GET h.b /a", 1),
        ("the file's order", &["- - /a x=1", "- - /a y=1"], "GET h /a x=1,y=1", 0),
        ("the next path", &["GET - /a/b", "- - /a/{x}", "- - /{*r}"], "PUT h /a/b", 1),
        ("the next path but one", &["GET - /a/b", "PUT - /a/{x}", "- - /{*r}"], "DELETE h /a/b", 2),
    ] {
        assert_eq!(find(&table(routes), request), Ok(winner), "{name}");
    }
}

#[test]
fn if_only_the_method_is_wrong_the_right_methods_are_named() {
    let allow = |methods: &[&str]| {
        NoRoute::MethodNotAllowed(methods.iter().map(|m| m.parse().expect("a method")).collect())
    };
    for (name, routes, request, error) in [
        ("no routes", &[][..], "GET h /a", NoRoute::NotFound),
        ("another path", &["GET - /a"], "GET h /b", NoRoute::NotFound),
        ("another host", &["GET k /a"], "PUT h /a", NoRoute::NotFound),
        ("another header", &["GET - /a x=1"], "PUT h /a x=2", NoRoute::NotFound),
        ("any method, another header", &["- - /a x=1"], "PUT h /a", NoRoute::NotFound),
        ("one", &["GET - /a"], "PUT h /a", allow(&["GET"])),
        ("no GET for HEAD", &["GET - /a"], "HEAD h /a", allow(&["GET"])),
        (
            "sorted, once each, of every path",
            &["PUT,GET - /a/b", "DELETE,GET - /{*rest}", "PATCH - /a/c"],
            "POST h /a/b",
            allow(&["DELETE", "GET", "PUT"]),
        ),
    ] {
        assert_eq!(find(&table(routes), request), Err(error), "{name}");
    }
    assert_eq!(find(&RouteTable::default(), "GET h /"), Err(NoRoute::NotFound));
}

#[test]
fn parameters_are_found_by_name() {
    let table = table(&["- - /{a}/x/{b}", "- - /{a}/{*rest}", "- - /s/{id}/{*rest}"]);
    for (path, expected) in [
        ("/1;v/x/a%3ab", &[("a", Some("1")), ("b", Some("a:b")), ("rest", None)][..]),
        ("/1/y//z/", &[("a", Some("1")), ("rest", Some("y/z/"))]),
        ("/1/", &[("a", Some("1")), ("rest", Some(""))]),
        ("/s/é/z", &[("id", Some("%C3%A9")), ("rest", Some("z"))]),
    ] {
        let path = NormalPath::parse(path, true).expect(path);
        let found = table.find(&path, &Method::GET, "h", &HeaderMap::new()).expect("a route");
        let params = PathParams::of(table.pattern(found), &path);
        for (name, value) in expected {
            assert_eq!(params.value(name), *value, "{path:?} {name}");
        }
    }
    assert_eq!(PathParams::none().value("a"), None);
}

#[test]
fn a_route_that_can_never_match_is_told() {
    for (name, routes, expected) in [
        ("duplicates", &["- - /a", "- - /a", "- - /a"][..], &[(1, 0), (2, 0)][..]),
        ("names do not count", &["- - /{a}", "- - /{b}"], &[(1, 0)]),
        ("spelling does not count", &["- - /%61", "- - /a"], &[(1, 0)]),
        ("a wider path is tried later", &["- - /{*rest}", "- - /{a}", "- - /a"], &[]),
        ("same conditions", &["GET h /a x=1", "GET h /a x=1"], &[(1, 0)]),
        ("fewer conditions are tried later", &["- - /a", "GET - /a"], &[]),
        ("more methods are tried later", &["GET,PUT - /a", "GET - /a"], &[]),
        ("methods in another order", &["GET,PUT - /a", "PUT,GET - /a"], &[(1, 0)]),
        ("a wildcard is tried later", &["- *.b /a", "- c.b /a"], &[]),
        ("same wildcard", &["- *.b /a", "- *.B /a"], &[(1, 0)]),
        ("other hosts", &["- a /a", "- b /a"], &[]),
    ] {
        let found: Vec<_> = table(routes).shadowed().iter().map(|s| (s.route, s.by)).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn turning_back_visits_each_node_once_at_most() {
    // All patterns with a literal or a parameter at each of twelve levels.
    let names: Vec<_> = (0..1 << 12)
        .map(|bits| {
            let level =
                |at| if bits >> at & 1 == 0 { "/a".to_owned() } else { format!("/{{p{at}}}") };
            format!("PUT - {}", (0..12).map(level).collect::<String>())
        })
        .collect();
    let table = table(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut visited = 0;
    let target = PathTarget { path: &"/a".repeat(12), host: "h", headers: None };
    let _: ControlFlow<()> = table.walk(target, &mut |_, _| {
        visited += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(visited, names.len());
}

#[test]
fn a_thousand_routes_of_one_path_are_not_tried_one_by_one() {
    let by_host: fn(usize) -> String = |n| format!("- h{n}.example /a");
    let by_header: fn(usize) -> String = |n| format!("- - /a x=1,y={n}");
    let by_both: fn(usize) -> String = |n| format!("- h77.example /a x=1,y={n}");
    let headers = HeaderMap::from_iter(
        ["x", "y"]
            .map(HeaderName::from_static)
            .into_iter()
            .zip(["1", "77"].map(HeaderValue::from_static)),
    );
    for name in [by_host, by_header, by_both] {
        let names: Vec<_> = (0..1000).map(name).collect();
        let table = table(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut visited = Vec::new();
        let target = PathTarget { path: "/a", host: "h77.example", headers: Some(&headers) };
        let _: ControlFlow<()> = table.walk(target, &mut |route, _| {
            visited.push(route);
            ControlFlow::Continue(())
        });
        // The first routes were indexed by what they have in common.
        assert!(visited.contains(&77) && visited.len() < 4, "{visited:?}");
    }
}

/// A request reads one node for each segment and one route. Each must fit into one cache line.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_node_and_a_route_are_one_line_each() {
    assert_eq!(size_of::<Node>(), 64);
    assert_eq!(size_of::<crate::settings::RouteSpec>(), 64);
}

#[test]
fn of_two_routes_that_are_alike_the_first_is_found_and_the_other_is_dead() {
    let table = table(&["GET - /a", "- - /a", "- - /a", "- h /a"]);
    assert_eq!(find(&table, "PUT x /a"), Ok(1));
    assert_eq!(find(&table, "PUT h /a"), Ok(3));
    assert_eq!(table.shadowed(), [Shadowed { route: 2, by: 1 }]);
}

fn any_route() -> impl Strategy<Value = String> {
    let methods = prop::sample::select(vec!["-", "GET", "GET,PUT"]);
    let host = prop::sample::select(vec!["-", "h.b", "*.b", "*.h.b"]);
    let segments = prop::collection::vec(prop::sample::select(vec!["a", "b", "{p}"]), 1..3);
    let end = prop::sample::select(vec!["", "/", "/{*r}"]);
    let header = prop::sample::select(vec!["-", "x=1", "x=2", "x=1,y=1", "y=1"]);
    (methods, host, segments, end, header).prop_filter_map("names", |(m, h, s, e, x)| {
        let text = format!("{m} {h} /{}{e} {x}", s.join("/"));
        (text.matches("{p}").count() < 2).then_some(text)
    })
}

proptest! {
    #[test]
    fn the_tree_finds_what_a_list_finds(
        routes in prop::collection::vec(any_route(), 0..8),
        method in prop::sample::select(vec!["GET", "PUT", "POST"]),
        host in prop::sample::select(vec!["b", "h.b", "c.h.b", "x"]),
        path in prop::sample::select(vec!["/", "/a", "/a/", "/a/b", "/a/b/", "/c/a/b", "/c"]),
        header in prop::sample::select(vec!["x=1", "x=2", "x=2,y=1,x=1", "z=1"]),
    ) {
        let parsed: Vec<_> = routes.iter().map(|text| route(text)).collect();
        let normal = NormalPath::parse(path, true).expect("a path");
        let meets = |(pattern, conditions): &(Pattern, Conditions)| {
            pattern.matches(&normal)
                && conditions.host.as_ref().is_none_or(|pattern| pattern.matches(host))
                && conditions.headers.iter().all(|(name, value)| {
                    header.split(',').any(|it| it == format!("{name}={}", value.to_str().unwrap()))
                })
                && (conditions.methods.is_empty() || conditions.methods.iter().any(|m| m == method))
        };
        let kinds = |pattern: &Pattern| -> Vec<u8> {
            let kind = |segment: &Segment| match segment {
                Segment::Literal(_) => 0,
                Segment::Param(_) => 1,
                Segment::Rest(_) => 2,
            };
            pattern.segments().iter().map(kind).collect()
        };
        let best = (0..parsed.len())
            .filter(|index| meets(&parsed[*index]))
            .min_by_key(|index| (kinds(&parsed[*index].0), parsed[*index].1.rank(*index)));
        let table = RouteTable::new(parsed.clone());
        let found = find(&table, &format!("{method} {host} {path} {header}"));
        prop_assert_eq!(found.clone().ok(), best);
        if let Ok(route) = found {
            prop_assert!(table.shadowed().iter().all(|dead| dead.route != route));
        }
    }
}
