//! Fuzzing without libFuzzer: each target over its corpus, then over mutations of it. `scripts/fuzz` runs the
//! same targets for as long as one wants.

mod mutation;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use self::mutation::{Mutator, dictionary};
use self::targets::TARGETS;

/// The mutations are the same each time.
const SEED: u64 = 20_260_101;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The inputs of a target in the order of their names.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = fs::read_dir(corpus().join(target)).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Runs a target over its corpus and over so many mutations.
fn run(name: &str, mutations: u64) {
    let target = TARGETS.into_iter().find(|target| target.name == name).unwrap();
    let check = |what: &str, input: &[u8]| {
        let checked = catch_unwind(AssertUnwindSafe(|| (target.check)(input)));
        assert!(checked.is_ok(), "{name}: {what} fails: b\"{}\"", input.escape_ascii());
    };
    let inputs = inputs(name);
    assert!(inputs.len() > 20, "{name}: only {} inputs", inputs.len());
    for input in &inputs {
        check("an input of the corpus", input);
    }
    let words = dictionary(&fs::read_to_string(corpus().join(format!("{name}.dict"))).unwrap());
    let mut mutator = Mutator::new(SEED);
    for number in 0..mutations {
        let input = mutator.mutation(&inputs, &words);
        check(&format!("mutation {number} of seed {SEED}"), &input);
    }
}

macro_rules! fuzz_tests {
    ($($test:ident: $target:literal, $mutations:literal;)*) => {
        $(
            #[test]
            fn $test() {
                run($target, $mutations);
            }
        )*

        /// Of all targets, none is left out.
        #[test]
        fn each_target_is_run() {
            let run = [$($target),*];
            assert!(TARGETS.iter().all(|target| run.contains(&target.name)));
            assert_eq!(run.len(), TARGETS.len());
        }
    };
}

fuzz_tests! {
    a_path_has_one_normal_form_and_one_route: "path", 150_000;
    a_key_says_its_values_and_nothing_else: "keys", 300_000;
    strangers_do_not_choose_their_address: "forwarded", 300_000;
    each_problem_of_a_file_has_a_place_in_it: "settings", 12_000;
    a_cost_is_read_the_same_however_it_is_cut: "costs", 300_000;
    a_field_of_a_body_has_one_value: "bodies", 100_000;
    a_log_is_read_the_same_however_it_is_cut: "logs", 30_000;
    only_whole_requests_arrive_and_answers_are_framed: "connection", 9_000;
    streams_arrive_whole_and_end_as_they_should: "http2", 9_000;
}

/// `scripts/fuzz` did not build after a dependency or a feature of one was added, because the targets have a
/// lock file of their own.
#[test]
fn the_lock_file_of_the_targets_has_each_dependency() {
    /// Packages that have further dependencies where tests and benches are built.
    const OF_TESTS: [&str; 8] = [
        "aws-lc-rs",
        "clap_builder",
        "getrandom",
        "hyper-util",
        "serde",
        "tidegate",
        "tidegate-limit",
        "winnow",
    ];
    let packages = |file: &str| -> BTreeMap<String, BTreeSet<String>> {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        let lock: toml::Table = fs::read_to_string(file).unwrap().parse().unwrap();
        let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
        let needs = |package: &toml::Value| {
            let needs = package.get("dependencies").and_then(toml::Value::as_array);
            let name = |it: &toml::Value| text(it).split(' ').next().unwrap().to_owned();
            needs.into_iter().flatten().map(name).collect()
        };
        let packages = lock["package"].as_array().unwrap().iter();
        let title = |it: &toml::Value| format!("{} {}", text(&it["name"]), text(&it["version"]));
        packages.map(|package| (title(package), needs(package))).collect()
    };
    let (ours, targets) = (packages("Cargo.lock"), packages("fuzz/Cargo.lock"));
    for (package, needed) in &targets {
        let Some(known) = ours.get(package) else { continue };
        let is_of_tests = OF_TESTS.contains(&package.split(' ').next().unwrap());
        assert!(
            if is_of_tests { needed.is_subset(known) } else { needed == known },
            "{package}: cargo update --workspace --manifest-path fuzz/Cargo.toml"
        );
    }
    let listed: toml::Table = include_str!("../../../../Cargo.toml").parse().unwrap();
    let listed: BTreeSet<_> = listed["dependencies"].as_table().unwrap().keys().cloned().collect();
    let title = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    assert_eq!(targets[title], listed, "cargo update --workspace --manifest-path fuzz/Cargo.toml");
}
