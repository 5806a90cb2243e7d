//! Lists of permits and of slots.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "sliding log: a permit is there again when it has left",
        &["algorithm = 'sliding-log'\nrate = '2/s'"],
        (2, Some(1)),
        "0s        take 1: go 1
         400ms     take 1: go 0
         400001us  take 1: no 599999us 0
         999999us  take 1: no 1us 0
         1s        take 1: go 0
         1399999us take 1: no 1us 0
         1400ms    take 1: go 0",
    ),
    row(
        "sliding log: costs above one",
        &["algorithm = 'sliding-log'\nrate = '5/10s'"],
        (5, Some(10)),
        "0s  take 2: go 3
         1s  take 1: go 2
         2s  take 3: no 8s 2
         2s  take 5: no 9s 2
         2s  take 6: never 2
         10s take 4: go 0
         11s take 2: no 9s 1",
    ),
    row(
        "sliding log: many in one moment",
        &["algorithm = 'sliding-log'\nrate = '5/h'"],
        (5, Some(3_600)),
        "0s take 1: go 4
         0s take 1: go 3
         0s take 3: go 0
         0s take 1: no 1h 0
         0s take 6: never 0",
    ),
    // The two of 10 s leave at 20 s, and the two of 20 s at 30 s.
    row(
        "sliding log: places in the order of arrival",
        &["algorithm = 'sliding-log'\nrate = '2/10s'\nwait = '1m'"],
        (2, Some(10)),
        "0s  take 1: go 1
         1s  take 2: hold 9s 0
         2s  take 1: hold 18s 0
         2s  take 1: hold 18s 0
         2s  take 1 now: no 28s 0
         30s take 1: go 1",
    ),
    // At 4 s one each of 0 s and of 1 s are left. The one of 3 s cannot come sooner than the place at 11 s.
    row(
        "sliding log: the newest go back, and places stay",
        &["algorithm = 'sliding-log'\nrate = '4/10s'\nwait = '1m'"],
        (4, Some(10)),
        "0s  take 1: go 3
         1s  take 2: go 1
         2s  take 1: go 0
         3s  used 2 back
         4s  take 2: go 0
         5s  take 2: hold 6s 0
         6s  used 9 back
         6s  take 1 now: no 5s 0
         11s take 2: go 0",
    ),
    // Two of 0 s, one of 1 s, four of 2 s: one fits when the one of 1 s has left.
    row(
        "sliding log: what was used more or less",
        &["algorithm = 'sliding-log'\nrate = '5/10s'"],
        (5, Some(10)),
        "0s  take 3: go 2
         1s  used 1 less
         1s  take 1: go 2
         2s  used 4 more
         2s  take 1: no 9s 0
         12s take 5: go 0",
    ),
    row(
        "sliding log: places, at one moment",
        &["algorithm = 'sliding-log'\nrate = '1/10m'\nwait = '25m'"],
        (1, Some(600)),
        "0s take 1: go 0
         0s take 1: hold 10m 0
         0s take 1: hold 20m 0
         0s take 1: no 30m 0
         0s used 1 less
         0s take 1 now: no 20m 0",
    ),
    // Of five an hour there are 1, 3, 4, 3, 5, 4, 5 and 9 when the lines have happened.
    row(
        "sliding log: what was used more or less, at one moment",
        &["algorithm = 'sliding-log'\nrate = '5/h'"],
        (5, Some(3_600)),
        "0s take 1: go 4
         0s used 2 more
         0s take 1: go 1
         0s used 1 less
         0s take 2: go 0
         0s used 1 less
         0s take 1: go 0
         0s used 4 more
         0s take 1: no 1h 0",
    ),
    // Six seconds after the newest, whatever the clock says.
    row(
        "sliding log: a clock that steps back",
        &["algorithm = 'sliding-log'\nrate = '2/10s'"],
        (2, Some(10)),
        "1h         take 1: go 1
         3604s      take 1: go 0
         60s        take 1: no 6s 0
         65999999us take 1: no 1us 0
         66s        take 1: go 0",
    ),
    row(
        "sliding log: a count that is lowered and raised",
        &["algorithm = 'sliding-log'\nrate = '5/m'"],
        (5, Some(60)),
        "0s take 4: go 1
         1s rate 2/m
         1s take 1: no 59s 0
         1s rate 6/m
         1s take 2: go 0
         1s take 1: no 59s 0",
    ),
    row(
        "concurrency: slots, free when a response ends",
        &["algorithm = 'concurrency'\nlimit = 2"],
        (2, None),
        "0s take 1: go 1
         0s take 1: go 0
         0s take 1: no 1s 0
         0s end 1
         0s take 1: go 0
         0s take 1: no 1s 0
         0s end 2
         0s end 4
         0s take 1: go 1",
    ),
    row(
        "concurrency: time alone frees no slot",
        &["algorithm = 'concurrency'\nlimit = 1\nlease = '2h'"],
        (1, None),
        "0s  take 1: go 0
         1h  take 1: no 1s 0
         90m end 1
         90m take 1: go 0",
    ),
    // Entries are of whole milliseconds: one that was made at 1.5 ms leaves 10 s after 1 ms.
    row(
        "redisson: a permit is there again when its interval is over",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '3/10s'"],
        (3, Some(10)),
        "1500us   take 1: go 2
         4s       take 2: go 0
         5s       take 1: no 5001ms 0
         5000500us take 1: no 5000500us 0
         10s      take 1: no 1ms 0
         10001ms  take 1: go 0
         10001ms  take 2: no 3999ms 0
         10001ms  take 3: no 10s 0
         10001ms  take 4: never 0
         14s      take 2: go 0
         20001ms  take 2: no 3999ms 1",
    ),
    // As of a sliding log.
    row(
        "redisson: places in the order of arrival",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '2/10s'\nwait = '1m'"],
        (2, Some(10)),
        "0s  take 1: go 1
         1s  take 2: hold 9s 0
         2s  take 1: hold 18s 0
         2s  take 1: hold 18s 0
         2s  take 1 now: no 28s 0
         30s take 1: go 1",
    ),
    row(
        "redisson: places, at one moment",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '1/10m'\nwait = '25m'"],
        (1, Some(600)),
        "0s take 1: go 0
         0s take 1: hold 10m 0
         0s take 1: hold 20m 0
         0s take 1: no 30m 0
         0s take 1 now: no 30m 0",
    ),
    row(
        "redisson: at one moment",
        &["algorithm = 'redisson'\nname = 'orders'\nrate = '3/h'"],
        (3, Some(3_600)),
        "0s take 1: go 2
         0s take 3: no 1h 2
         0s take 2: go 0
         0s take 1: no 1h 0
         0s take 4: never 0",
    ),
];
