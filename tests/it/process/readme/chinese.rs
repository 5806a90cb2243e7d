//! README.zh-CN.md beside README.md: the same commands and examples, byte for byte.

use std::fs;

use super::path;

const CHINESE: &str = "README.zh-CN.md";

/// A document's code blocks with their languages, in its order.
fn fenced(name: &str) -> Vec<String> {
    let text = fs::read_to_string(path(name)).unwrap();
    let mut parts = text.split("\n```").skip(1);
    let mut blocks = Vec::new();
    while let Some(block) = parts.next() {
        blocks.push(block.to_owned());
        parts.next().unwrap_or_else(|| panic!("{name}: a code block does not end"));
    }
    blocks
}

#[test]
fn the_chinese_readme_has_the_code_of_readme_and_of_the_recipes() {
    let (readme, recipes) = (fenced("README.md"), fenced("docs/recipes.md"));
    let (of_readme, others): (Vec<_>, Vec<_>) =
        fenced(CHINESE).into_iter().partition(|block| readme.contains(block));
    assert_eq!(of_readme, readme, "README.md's code blocks in {CHINESE}");
    assert!(others.len() >= 3, "{CHINESE} has only {} recipes", others.len());
    for block in others {
        assert!(recipes.contains(&block), "in {CHINESE} and not in docs/recipes.md:{block}");
    }
    for limit in ["per-customer", "spring", "sentinel-qps"] {
        let text = fs::read_to_string(path(CHINESE)).unwrap();
        assert!(text.contains(&format!("[limits.{limit}]")), "{CHINESE} has no {limit}");
    }
}

/// What stands between backticks and is typed or written into a file. Words that explain are translated.
#[test]
fn the_chinese_readme_has_the_commands_of_readme() {
    let codes = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(path(name)).unwrap();
        let prose = text.split("\n```").step_by(2);
        prose.flat_map(|it| it.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    };
    let chinese = codes(CHINESE);
    for code in codes("README.md") {
        assert!(chinese.contains(&code), "README.md has `{code}`, and {CHINESE} does not");
    }
}

#[test]
fn each_readme_links_to_the_other_one() {
    let links = |name: &str, to: &str| {
        fs::read_to_string(path(name)).unwrap().contains(&format!("]({to})"))
    };
    assert!(links("README.md", CHINESE));
    assert!(links(CHINESE, "README.md"));
    // And to the same documents.
    let readme = fs::read_to_string(path("README.md")).unwrap();
    for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(link == CHINESE || links(CHINESE, link), "{CHINESE} does not link to {link}");
    }
}
