//! A small sweep for each test run, and the large one, which is run by hand.

use std::time::Duration;
use std::{fs, path};

use super::report::{Rows, plot, table};
use super::world::play;
use super::{Scenario, Strategy};

const MODES: [Strategy; 2] = [Strategy::Exact, Strategy::Known];

/// With many failures.
const SMALL: Scenario = Scenario {
    nodes: 3,
    mode: Strategy::Known,
    load: 4_000,
    rate: "50/s",
    burst: 100,
    keys: 1_000,
    length: Duration::from_secs(12),
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

#[test]
fn no_key_is_ever_over_its_limit() {
    let surges = Scenario { load: 10_000, rate: "1500/s", burst: 640, nodes: 8, ..SMALL };
    for setting in [surges, Scenario { nodes: 1, ..SMALL }, SMALL] {
        let figures = play(&setting);
        assert_eq!(figures.excess, 0, "{setting:?} {figures:?}");
        assert!(figures.known_refusals > 0, "{figures:?}");
    }
}

#[test]
fn a_known_refusal_is_what_the_server_would_have_said() {
    let figures = play(&SMALL);
    assert!(figures.known_refusals > 1_000, "{figures:?}");
    assert_eq!((figures.wrong_refusals, figures.late_refusals, figures.excess), (0, 0, 0));
    // The time that the question took to the server.
    assert!(figures.earliest < 100_000, "{figures:?}");
}

#[test]
fn known_refusals_save_calls_and_refuse_no_more() {
    let calm = Scenario { loss: 0.0, lifetime: Duration::from_secs(1_000), ..SMALL };
    let [exact, known] = MODES.map(|mode| play(&Scenario { mode, ..calm }));
    assert_eq!(exact.requests, known.requests, "the same arrivals");
    assert_eq!(exact.calls, exact.requests);
    assert_eq!(known.calls + known.known_refusals, known.requests);
    assert!(10 * known.calls < 9 * exact.calls, "{exact:?} {known:?}");
    assert!(1_000 * exact.admitted.abs_diff(known.admitted) < exact.admitted);
}

#[test]
fn a_seed_gives_the_same_figures_each_time() {
    let short = Scenario { length: Duration::from_secs(3), ..SMALL };
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
    ];
    let groups = groups.map(|(title, setting)| {
        let rows = sweep(setting);
        println!("\n{title}, burst {}\n\n{}", setting.burst, table(&rows));
        assert!(rows.iter().flat_map(|(_, modes)| modes).all(|it| it.excess == 0));
        (title, rows)
    });
    let file = path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulation.svg");
    fs::write(file, plot(&groups)).unwrap();
}
