//! The files and folders of a folder do not import each other in a circle. A file and its own folder may: a
//! `mod.rs` joins the files beside it. In some rooms no file imports what a `mod.rs` above it defines.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

type Module = Vec<String>;

/// An import, as a file of the first and one of the second stand in the same folder.
type Arrow = (String, String);

/// The rooms that read straight down: a `mod.rs` there only joins what stands beside it. Otherwise its files would
/// import each other by way of it.
const STRAIGHT: [&str; 2] = ["redis", "store"];

/// What a module imports: the module that defines it, and its name unless it is that module itself.
struct Import<'h> {
    from: &'h Module,
    to: Module,
    name: Option<String>,
}

/// The code of each module, tests left out.
fn house(folder: &Path, module: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let inner = [module.as_slice(), std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            house(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&inner) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
            let is_folder = matches!(name.as_str(), "mod" | "lib");
            found.insert(if is_folder { module.clone() } else { inner }, code);
        }
    }
}

fn is_test(module: &[String]) -> bool {
    let is_one = |name: &String| name.ends_with("tests") || name == "testing";
    module.iter().any(is_one)
}

/// The paths of a `use` tree.
fn expand(tree: &str, before: &[String], found: &mut Vec<Module>) {
    let tree = tree.trim();
    let Some((begin, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let path = path.split("::").map(|name| name.trim().to_owned());
        // `{self}` names what stands in front of the braces.
        let path = path.filter(|name| before.is_empty() || name != "self");
        return found.push(before.iter().cloned().chain(path).collect());
    };
    let begin = begin.split("::").map(|name| name.trim().to_owned());
    let before: Module =
        before.iter().cloned().chain(begin.filter(|name| !name.is_empty())).collect();
    let (mut depth, mut start) = (0, 0);
    let inner = &inner[..inner.rfind('}').unwrap_or(inner.len())];
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&inner[start..at], &before, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// All paths that a file's code names.
fn paths(code: &str) -> Vec<Module> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for statement in code.split(';') {
        let begins = statement.rfind("use ").filter(|at| {
            let before = statement[..*at].trim_end();
            before.is_empty() || before.ends_with([')', '{', '}', ']']) || before.ends_with("pub")
        });
        if let Some(at) = begins {
            expand(&statement[at + "use ".len()..], &[], &mut found);
        }
        for start in ["crate::", "super::", "self::"] {
            let inline = statement.match_indices(start).filter(|(at, _)| {
                !statement[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c))
            });
            found.extend(inline.map(|(at, _)| {
                let is_path = |c: &char| c.is_alphanumeric() || "_:".contains(*c);
                let path: String = statement[at..].chars().take_while(is_path).collect();
                path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }));
        }
    }
    found
}

/// A path from the root, where it leads into this house.
fn absolute(module: &Module, path: &Module, house: &BTreeMap<Module, String>) -> Option<Module> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module.as_slice(), &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
        _ => {
            let child = [module.as_slice(), &path[..1]].concat();
            house.contains_key(&child).then(|| [module.as_slice(), path].concat())
        }
    }
}

/// The module that defines what a path names: re-exports are followed.
fn definer(
    path: &Module,
    house: &BTreeMap<Module, String>,
    exports: &HashMap<(Module, String), Module>,
    max_wait: u8,
) -> Module {
    let end = (0..=path.len()).rev().find(|end| house.contains_key(&path[..*end])).unwrap_or(0);
    let (module, rest) = path.split_at(end);
    let exported = rest.first().and_then(|name| exports.get(&(module.to_vec(), name.clone())));
    match exported {
        Some(other) if max_wait > 0 && other != path => {
            let path = [other.as_slice(), &rest[1..]].concat();
            definer(&path, house, exports, max_wait - 1)
        }
        _ => module.to_vec(),
    }
}

fn imports(house: &BTreeMap<Module, String>) -> Vec<Import<'_>> {
    let mut named = Vec::new();
    let mut exports = HashMap::new();
    for (module, code) in house {
        for path in paths(code).iter().filter_map(|path| absolute(module, path, house)) {
            if let Some(last) = path.last() {
                exports.entry((module.clone(), last.clone())).or_insert_with(|| path.clone());
            }
            named.push((module, path));
        }
    }
    let import = |(from, path): (_, Module)| {
        let to = definer(&path, house, &exports, 8);
        let name = path.last().filter(|_| path != to).cloned();
        Import { from, to, name }
    };
    named.into_iter().map(import).collect()
}

/// The imports from above in the rooms that read straight down.
fn upwards(house: &BTreeMap<Module, String>) -> BTreeSet<String> {
    let is_upward = |it: &Import<'_>| {
        let is_straight = it.from.first().is_some_and(|room| STRAIGHT.contains(&room.as_str()));
        let is_above = !it.to.is_empty() && it.to.len() < it.from.len();
        is_straight && is_above && it.from.starts_with(&it.to)
    };
    let upward = imports(house).into_iter().filter(is_upward);
    let named = upward.filter_map(|it| Some((it.from.join("::"), it.to.join("::"), it.name?)));
    named.map(|(from, to, name)| format!("{from} imports {name} of {to}")).collect()
}

/// The arrows that are part of a circle, for each folder that has one.
fn circles(house: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Arrow>> {
    let mut arrows = BTreeMap::<Module, BTreeSet<Arrow>>::new();
    for Import { from, to, .. } in imports(house) {
        let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
            let folder = arrows.entry(from[..shared].to_vec()).or_default();
            folder.insert((one.clone(), other.clone()));
        }
    }
    for arrows in arrows.values_mut() {
        loop {
            let before = arrows.len();
            let goes_on = arrows.clone();
            arrows.retain(|(from, to)| {
                goes_on.iter().any(|(other, _)| other == to)
                    && goes_on.iter().any(|(_, other)| other == from)
            });
            if arrows.len() == before {
                break;
            }
        }
    }
    arrows.retain(|_, arrows| !arrows.is_empty());
    arrows
}

#[test]
fn files_of_a_folder_make_no_circle() {
    for (sources, least) in [("src", 200), ("crates/limit/src", 30)] {
        let mut files = BTreeMap::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
        house(&folder, &Vec::new(), &mut files);
        assert!(files.len() > least, "the sources are not where this test looks");
        let circles = circles(&files);
        assert!(circles.is_empty(), "{circles:#?}");
        let upwards = upwards(&files);
        assert!(upwards.is_empty(), "{upwards:#?}");
    }
}

#[test]
fn an_import_from_above_is_seen() {
    for (inner, is_upward) in [
        ("use super::A;", true),
        ("use crate::store::A;", true),
        ("use super::b::B;", false),
        // `B` of the folder is that of `b`.
        ("use super::B;", false),
        ("pub(in crate::store) struct C;", false),
    ] {
        let files = [
            ("store", "mod b;\nmod c;\nuse self::b::B;\nstruct A;"),
            ("store::b", "struct B;"),
            ("store::c", inner),
        ];
        let files = files
            .map(|(path, code)| (path.split("::").map(str::to_owned).collect(), code.to_owned()));
        assert_eq!(!upwards(&files.into()).is_empty(), is_upward, "{inner}");
    }
}

#[test]
fn a_circle_is_seen() {
    for (other, is_circle) in [
        ("use super::b::B;", true),
        ("use super::{a, b::B};", true),
        ("pub(crate) use crate::room::{b::{self}};", true),
        ("fn f() -> super::b::B {}", true),
        // `B` of the folder is that of `b`.
        ("use super::B;", true),
        ("use super::C;", false),
        ("// as in super::b", false),
        ("use std::b::B;", false),
    ] {
        let files = [
            ("", "mod room;"),
            ("room", "mod a;\nmod b;\npub use self::b::B;\nstruct C;"),
            ("room::a", other),
            ("room::b", "use super::a::A;\nstruct B;"),
        ];
        let files = files.map(|(path, code)| {
            let module = path.split("::").filter(|it| !it.is_empty()).map(str::to_owned);
            (module.collect(), code.to_owned())
        });
        assert_eq!(!circles(&files.into()).is_empty(), is_circle, "{other}");
    }
}
