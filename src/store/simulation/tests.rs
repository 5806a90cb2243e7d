//! A small sweep for each test run, and the large one, which is run by hand.

use std::time::Duration;
use std::{fs, path};

use super::report::{Rows, plot, table};
use super::world::play;
use super::{Scenario, Strategy};

const MODES: [Strategy; 3] = [Strategy::Exact, Strategy::Known, Strategy::Prefetch];

/// Long enough that nodes fetch tokens, and many failures.
const SMALL: Scenario = Scenario {
    nodes: 3,
    mode: Strategy::Prefetch,
    load: 4_000,
    rate: "300/s",
    burst: 2_000,
    keys: 1_000,
    length: Duration::from_secs(22),
    warm_up: Duration::from_secs(15),
    lifetime: Duration::from_secs(20),
    outage: Duration::from_secs(4),
    loss: 0.01,
    seed: 23,
};

/// The traffic of `docs/simulation.md`.
const LARGE: Scenario = Scenario {
    load: 20_000,
    rate: "100/s",
    burst: 1_000,
    keys: 100_000,
    length: Duration::from_secs(60),
    lifetime: Duration::from_secs(300),
    loss: 0.001,
    ..SMALL
};

/// Each surge ends before the bucket is empty. Many nodes then still hold tokens, and the bucket fills again. The
/// next surge spends the tokens of the nodes and those of the bucket.
#[test]
fn no_key_is_ever_over_its_limit() {
    let surges = Scenario { load: 10_000, rate: "1500/s", burst: 640, nodes: 8, ..SMALL };
    for setting in [surges, Scenario { nodes: 1, ..SMALL }, SMALL] {
        let figures = play(&setting);
        assert_eq!(figures.excess, 0, "{setting:?} {figures:?}");
        assert!(figures.spent > 0, "{figures:?}");
    }
}

#[test]
fn a_known_refusal_is_what_the_server_would_have_said() {
    let figures = play(&Scenario { mode: Strategy::Known, rate: "50/s", burst: 100, ..SMALL });
    assert!(figures.known_refusals > 1_000, "{figures:?}");
    assert_eq!((figures.wrong_refusals, figures.late_refusals, figures.excess), (0, 0, 0));
    // The time that the question took to the server.
    assert!(figures.earliest < 100_000, "{figures:?}");
}

/// No node tells the others that tokens go back. At such a slow rate a refusal is known for two seconds.
#[test]
fn a_batch_that_goes_back_ends_no_refusal_that_another_node_knows() {
    let slow = Scenario { rate: "1/m", nodes: 2, load: 2_000, seed: 2, ..SMALL };
    let figures = play(&slow);
    assert!((1..=figures.returned).contains(&figures.wrong_refusals), "{figures:?}");
    assert_eq!((figures.late_refusals, figures.excess), (0, 0), "{figures:?}");
}

#[test]
fn tokens_in_advance_save_calls() {
    let calm = Scenario { lifetime: Duration::from_secs(1_000), ..SMALL };
    let [exact, _, prefetch] = MODES.map(|mode| play(&Scenario { mode, ..calm }));
    assert_eq!(exact.requests, prefetch.requests, "the same arrivals");
    assert_eq!(exact.calls, exact.requests);
    assert!(10 * prefetch.calls < 9 * exact.calls, "{exact:?} {prefetch:?}");
}

#[test]
fn a_seed_gives_the_same_figures_each_time() {
    let short = Scenario { length: Duration::from_secs(16), ..SMALL };
    let figures = play(&short);
    assert_eq!(figures, play(&short));
    assert_ne!(figures, play(&Scenario { seed: 24, ..short }));
}

fn sweep(setting: Scenario) -> Rows {
    let of = |nodes| MODES.map(|mode| play(&Scenario { nodes, mode, ..setting }));
    [1, 3, 10, 30, 100, 300].map(|nodes| (nodes, of(nodes))).into()
}

/// `cargo test --release --lib simulation -- --ignored --nocapture` prints the tables of `docs/simulation.md`
/// and draws its plot.
#[test]
#[ignore = "a sweep of minutes, to be run by hand"]
fn the_large_sweep() {
    let groups = [
        ("2,000/s, limit 100/s", Scenario { load: 2_000, ..LARGE }),
        ("20,000/s, limit 100/s", LARGE),
        ("100,000/s, limit 100/s", Scenario { load: 100_000, ..LARGE }),
        (
            "100,000/s, limit 1,000/s",
            Scenario { load: 100_000, rate: "1000/s", burst: 20_000, ..LARGE },
        ),
    ];
    let groups = groups.map(|(title, setting)| {
        let rows = sweep(setting);
        println!("\n{title}, burst {}\n\n{}", setting.burst, table(&rows));
        assert!(rows.iter().flat_map(|(_, modes)| modes).all(|it| it.excess == 0));
        (title, rows)
    });
    let [_, usual, _, large] = groups;
    let file = path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulation.svg");
    fs::write(file, plot(&[usual, large])).unwrap();
}
