//! The files and folders of a folder do not import each other in a circle. A file and its own folder may: a
//! `mod.rs` joins the files beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

type Module = Vec<String>;

/// An import, as a file of the first and one of the second stand in the same folder.
type Arrow = (String, String);

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
    let is_one =
        |name: &String| name.ends_with("tests") || name == "testing" || name == "simulation";
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

/// Each import: the module that has it, its path, and the module that defines what the path names.
fn imports(house: &BTreeMap<Module, String>) -> Vec<(&Module, Module, Module)> {
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
    let defined = |(from, path)| {
        let to = definer(&path, house, &exports, 8);
        (from, path, to)
    };
    named.into_iter().map(defined).collect()
}

/// The arrows that are part of a circle, for each folder that has one.
fn circles(house: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Arrow>> {
    let mut arrows = BTreeMap::<Module, BTreeSet<Arrow>>::new();
    for (from, _, to) in imports(house) {
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
    let mut files = BTreeMap::new();
    house(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &Vec::new(), &mut files);
    assert!(files.len() > 200, "the sources are not where this test looks");
    let circles = circles(&files);
    assert!(circles.is_empty(), "{circles:#?}");
}

/// `store/mod.rs` only joins what stands beside it. Otherwise its files would import each other by way of it.
#[test]
fn nothing_in_the_store_imports_what_its_front_defines() {
    let mut files = BTreeMap::new();
    house(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &Vec::new(), &mut files);
    let store = vec!["store".to_owned()];
    let is_inside = |from: &Module| from.starts_with(&store) && *from != store;
    // A path that is the folder itself says who may see something.
    let is_up = |(from, path, to): &(&Module, Module, Module)| {
        is_inside(from) && *to == store && *path != store
    };
    let up: Vec<_> = imports(&files).into_iter().filter(is_up).collect();
    assert!(up.is_empty(), "{up:?}");
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
