//! Several limits in one request.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    // A token each half an hour.
    row(
        "tokens, a daily quota and slots: from all three or from none",
        &[
            "rate = '2/h'",
            "algorithm = 'fixed-window'\nrate = '3/d'\nalign = 'clock'",
            "algorithm = 'concurrency'\nlimit = 2\nlease = '2d'",
        ],
        (2, Some(3_600)),
        "0s  take 1: go 1, go 2, go 1
         0s  take 1: go 0, go 1, go 0
         0s  take 1: no 30m 0, go 1, no 1s 0
         0s  end 1
         0s  take 1: no 30m 0, go 1, go 1
         30m take 1: go 0, go 0, go 0
         30m take 1: no 30m 0, no 23h30m 0, no 1s 0
         30m end 2
         30m end 5
         1h  take 1: go 1, no 23h 0, go 2
         24h take 1: go 1, go 2, go 1",
    ),
    row(
        "several that hold: each counts the request at its own moment",
        &[
            "rate = '10/s'\nburst = 1\nwait = '1s'",
            "algorithm = 'leaky-bucket'\nrate = '5/s'\nqueue = 1",
            "algorithm = 'sliding-log'\nrate = '1/s'\nwait = '2s'",
        ],
        (1, Some(1)),
        "0s    take 1: go 0, go 1, go 0
         0s    take 1: hold 100ms 0, hold 200ms 0, hold 1s 0
         0s    take 1: hold 200ms 0, no 200ms 0, hold 2s 0
         200ms take 1: go 0, hold 200ms 0, hold 1800ms 0",
    ),
    row(
        "shadow: takes where all pass, and stops nobody",
        &["rate = '1/h'\nmode = 'shadow'", "rate = '3/h'"],
        (1, Some(3_600)),
        "0s take 1: go 0, go 2
         0s take 1: no 1h 0, go 1
         0s take 1: no 1h 0, go 0
         0s take 1: no 1h 0, no 20m 0",
    ),
    row(
        "candidate: takes wherever it allows",
        &["rate = '1/h'\ncandidate = { rate = '3/h' }", "rate = '2/h'"],
        (1, Some(3_600)),
        "0s take 1: go 0, go 2, go 1
         0s take 1: no 1h 0, go 1, go 1
         0s take 2: never 0, no 20m 1, no 30m 1
         0s take 1: no 1h 0, go 0, go 1
         0s take 1: no 1h 0, no 20m 0, go 1
         40m take 1: no 20m 0, go 1, go 2",
    ),
    row(
        "redisson: with others, from all or from none",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '3/h'", "rate = '2/h'"],
        (3, Some(3_600)),
        "0s take 1: go 2, go 1
         0s take 1: go 1, go 0
         0s take 1: go 1, no 30m 0",
    ),
    row(
        "redisson: places with others, from all or from none",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '1/h'\nwait = '3h'", "rate = '2/h'"],
        (1, Some(3_600)),
        "0s take 1: go 0, go 1
         0s take 1: hold 1h 0, go 0
         0s take 1: hold 2h 0, no 30m 0",
    ),
    row(
        "shadow: takes nothing where another refuses",
        &["rate = '5/h'\nmode = 'shadow'", "rate = '1/h'"],
        (5, Some(3_600)),
        "0s take 1: go 4, go 0
         0s take 1: go 4, no 1h 0
         0s take 1: go 4, no 1h 0",
    ),
    row(
        "a sliding log with tokens: from both or from none",
        &["algorithm = 'sliding-log'\nrate = '3/h'", "rate = '2/h'"],
        (3, Some(3_600)),
        "0s take 1: go 2, go 1
         0s take 1: go 1, go 0
         0s take 1: go 1, no 30m 0
         0s take 1: go 1, no 30m 0",
    ),
    row(
        "candidate of a sliding log",
        &["algorithm = 'sliding-log'\nrate = '1/h'\ncandidate = { rate = '3/h' }"],
        (1, Some(3_600)),
        "0s take 1: go 0, go 2
         0s take 1: no 1h 0, go 1
         0s take 1: no 1h 0, go 0
         0s take 1: no 1h 0, no 1h 0",
    ),
    row(
        "candidate of a sliding log: takes also where another refuses too",
        &["algorithm = 'sliding-log'\nrate = '1/h'\ncandidate = { rate = '3/h' }", "rate = '1/h'"],
        (1, Some(3_600)),
        "0s take 1: go 0, go 2, go 0
         0s take 1: no 1h 0, go 1, no 1h 0
         0s take 1: no 1h 0, go 0, no 1h 0
         0s take 1: no 1h 0, no 1h 0, no 1h 0",
    ),
];
