//! Counters of windows.

use super::{Row, from, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "fixed window: opens at the first request",
        &["algorithm = 'fixed-window'\nrate = '3/10s'"],
        (3, Some(10)),
        "7s         take 1: go 2
         12s        take 2: go 0
         16s        take 1: no 1s 0
         16999999us take 1: no 1us 0
         17s        take 1: go 2
         17s        take 4: never 2
         30s        take 3: go 0
         39s        take 1: no 1s 0
         40s        take 1: go 2",
    ),
    // Who is held is counted in the first window into which the request fits whole: [10, 20), [20, 30).
    row(
        "fixed window: places in the windows that follow",
        &["algorithm = 'fixed-window'\nrate = '2/10s'\nwait = '15s'"],
        (2, Some(10)),
        "0s   take 2: go 0
         1s   take 1: hold 9s 0
         1s   take 2: no 19s 0
         1s   take 1: hold 9s 0
         1s   take 1: no 19s 0
         6s   take 1: hold 14s 0
         20s  take 1: go 0
         20s  take 1: hold 10s 0",
    ),
    row(
        "fixed window: at one moment",
        &["algorithm = 'fixed-window'\nrate = '3/h'"],
        (3, Some(3_600)),
        "0s take 1: go 2
         0s take 3: no 1h 2
         0s take 2: go 0
         0s take 1: no 1h 0
         0s take 4: never 0",
    ),
    row(
        "fixed window: on the clock it ends with it",
        &["algorithm = 'fixed-window'\nrate = '2/10s'\nalign = 'clock'"],
        (2, Some(10)),
        "7s         take 2: go 0
         9s         take 1: no 1s 0
         9999999us  take 1: no 1us 0
         10s        take 1: go 1
         19s        take 1: go 0
         20s        take 2: go 0
         20s        take 1: no 10s 0",
    ),
    // It has used more than the new count only because the count was higher. That ends with the window.
    row(
        "fixed window: a lowered count forgets with the window what was used in it",
        &["algorithm = 'fixed-window'\nrate = '100/4s'"],
        (100, Some(4)),
        "0s take 60: go 40
         0s rate 1/4s
         1s take 1: no 3s 0
         2s rate 100/4s
         2s take 1: go 39
         2s rate 1/4s
         2s take 1: no 2s 0
         4s take 1: go 0
         4s take 1: no 4s 0
         9s take 1: go 0",
    ),
    row(
        "fixed window: a lowered count on the clock",
        &["algorithm = 'fixed-window'\nrate = '100/4s'\nalign = 'clock'"],
        (100, Some(4)),
        "1s take 60: go 40
         1s rate 1/4s
         1s take 1: no 3s 0
         4s take 1: go 0
         4s take 1: no 4s 0
         9s take 1: go 0",
    ),
    from(
        "2024-01-30T00:00:00Z",
        row(
            "calendar: a lowered count",
            &["algorithm = 'fixed-window'\nrate = '50000/month'\nalign = 'clock'"],
            (50_000, Some(31 * 86_400)),
            "0s take 50000: go 0
             0s rate 1000/month
             0s take 1: no 2d 0
             2d take 1000: go 0
             2d take 1: no 29d 0",
        ),
    ),
    // Places in [10, 20) and [20, 30) stay there: 4 and 3 of four become 2 and 2 of two.
    row(
        "fixed window: places keep their windows where the count is lowered",
        &["algorithm = 'fixed-window'\nrate = '4/10s'\nwait = '25s'"],
        (4, Some(10)),
        "0s  take 4: go 0
         0s  take 4: hold 10s 0
         0s  take 3: hold 20s 0
         0s  rate 2/10s
         0s  take 1: no 30s 0
         10s take 1: hold 20s 0
         30s take 1: go 0
         30s rate 4/10s
         30s take 1: go 1",
    ),
    // 26 of ten are used: 10, 10 and 6. Of five these are 5, 5 and 5. Of a hundred they are in the first window.
    row(
        "fixed window: a debt by a lowered count",
        &["algorithm = 'fixed-window'\nrate = '10/10s'"],
        (10, Some(10)),
        "0s  take 1: go 9
         1s  used 25 more
         1s  take 1: no 19s 0
         1s  rate 5/10s
         1s  take 1: no 29s 0
         20s take 1: no 10s 0
         30s take 1: go 4",
    ),
    row(
        "fixed window: what was used more and less",
        &["algorithm = 'fixed-window'\nrate = '10/h'"],
        (10, Some(3_600)),
        "0s take 1: go 9
         1s used 25 more
         1s take 1: no 7199s 0
         1s used 20 less
         1s take 1: go 3
         1h take 1: go 9",
    ),
    row(
        "fixed window: a debt by a raised count",
        &["algorithm = 'fixed-window'\nrate = '10/10s'"],
        (10, Some(10)),
        "0s  take 1: go 9
         1s  used 25 more
         1s  rate 100/10s
         1s  take 1: go 73
         10s take 100: go 0",
    ),
    // 31 March begins at 23:00 UTC and is 23 hours long; the day after it begins at 22:00 UTC.
    from(
        "2024-03-30T22:59:59Z",
        row(
            "calendar: the day on which clocks go forward",
            &["algorithm = 'fixed-window'\nrate = '2/d'\nalign = 'clock'\n\
               timezone = 'Europe/Berlin'"],
            (2, Some(86_400)),
            "0s    take 2: go 0
             0s    take 1: no 1s 0
             1s    take 1: go 1
             1s    take 2: no 23h 1
             22h1s take 1: go 0
             22h1s take 1: no 1h 0
             23h1s take 2: go 0
             23h1s take 1: no 24h 0",
        ),
    ),
    // 27 October, from 22:00 UTC on, is 25 hours long.
    from(
        "2024-10-26T22:00:00Z",
        row(
            "calendar: the day on which clocks go back",
            &["algorithm = 'fixed-window'\nrate = '2/d'\nalign = 'clock'\n\
               timezone = 'Europe/Berlin'"],
            (2, Some(90_000)),
            "0s  take 2: go 0
             0s  take 1: no 25h 0
             24h take 1: no 1h 0
             25h take 1: go 1",
        ),
    ),
    // In Cairo clocks went from 0:00 to 1:00 on 26 April 2024, at 22:00 UTC the evening before.
    from(
        "2024-04-25T21:59:59Z",
        row(
            "calendar: a day without a midnight",
            &["algorithm = 'fixed-window'\nrate = '1/d'\nalign = 'clock'\n\
               timezone = 'Africa/Cairo'"],
            (1, Some(86_400)),
            "0s take 1: go 0
             0s take 1: no 1s 0
             1s take 1: go 0
             1s take 1: no 23h 0",
        ),
    ),
    // Places in the windows that follow, of which one is 23 hours long.
    from(
        "2024-03-30T22:59:59Z",
        row(
            "calendar: who waits goes at midnight",
            &["algorithm = 'fixed-window'\nrate = '1/d'\nalign = 'clock'\n\
               timezone = 'Europe/Berlin'\nwait = '2d'"],
            (1, Some(86_400)),
            "0s take 1: go 0
             0s take 1: hold 1s 0
             0s take 1: hold 23h1s 0
             0s take 1: hold 47h1s 0
             0s take 1: no 71h1s 0",
        ),
    ),
    from(
        "2024-01-31T23:59:59Z",
        row(
            "calendar: months of 31, 29 and 31 days",
            &["algorithm = 'fixed-window'\nrate = '1/month'\nalign = 'clock'"],
            (1, Some(31 * 86_400)),
            "0s    take 1: go 0
             0s    take 1: no 1s 0
             1s    take 1: go 0
             1s    take 1: no 29d 0
             29d   take 1: no 1s 0
             29d1s take 1: go 0
             29d1s take 1: no 31d 0",
        ),
    ),
    // In Auckland, 13 hours ahead, February begins on 31 January at 11:00 UTC.
    from(
        "2025-01-31T10:59:59Z",
        row(
            "calendar: the month of a time zone",
            &["algorithm = 'fixed-window'\nrate = '1/month'\nalign = 'clock'\n\
               timezone = 'Pacific/Auckland'"],
            (1, Some(31 * 86_400)),
            "0s take 1: go 0
             1s take 1: go 0
             1s take 1: no 28d 0",
        ),
    ),
    from(
        "2023-12-31T23:59:59Z",
        row(
            "calendar: a week begins on Monday",
            &["algorithm = 'fixed-window'\nrate = '5/w'\nalign = 'clock'"],
            (5, Some(7 * 86_400)),
            "0s take 5: go 0
             0s take 1: no 1s 0
             1s take 5: go 0
             1s take 1: no 7d 0",
        ),
    ),
    // The clock steps back over the begin of a window, and returns. What counts there counts on.
    from(
        "2024-01-31T23:59:00Z",
        row(
            "calendar: a clock that steps back over midnight",
            &["algorithm = 'fixed-window'\nrate = '3/d'\nalign = 'clock'"],
            (3, Some(86_400)),
            "0s     take 3: go 0
             60s    take 2: go 1
             30s    take 2: no 24h30s 1
             30s    take 1: go 0
             50s    take 1: no 24h10s 0
             90s    take 1: no 23h59m30s 0
             24h60s take 3: go 0",
        ),
    ),
    from(
        "2024-01-31T23:59:00Z",
        row(
            "calendar: a clock that steps back over the end of a month",
            &["algorithm = 'fixed-window'\nrate = '3/month'\nalign = 'clock'"],
            (3, Some(31 * 86_400)),
            "60s take 3: go 0
             0s  take 1: no 29d60s 0
             2d  take 1: no 27d60s 0",
        ),
    ),
    row(
        "fixed window: a clock that steps back over the begin of an hour",
        &["algorithm = 'fixed-window'\nrate = '3/h'\nalign = 'clock'"],
        (3, Some(3_600)),
        "70m take 3: go 0
         50m take 1: no 70m 0
         1h  take 1: no 1h 0
         2h  take 1: go 2",
    ),
    row(
        "fixed window: a clock that steps back behind the first request",
        &["algorithm = 'fixed-window'\nrate = '3/h'"],
        (3, Some(3_600)),
        "70m  take 3: go 0
         11m  take 1: no 119m 0
         72m  take 1: no 58m 0
         130m take 1: go 2",
    ),
    // The bucket would be closed until the clock has caught up.
    row(
        "fixed window: a clock that steps back by more than a window",
        &["algorithm = 'fixed-window'\nrate = '3/10s'\nalign = 'clock'"],
        (3, Some(10)),
        "45s take 3: go 0
         12s take 1: no 8s 0
         20s take 3: go 0",
    ),
    // At 12 s the six of the window before count as five, and four as four.
    row(
        "sliding window: what goes back goes from this window, then from the one before",
        &["algorithm = 'sliding-window'\nrate = '10/10s'"],
        (10, Some(10)),
        "0s  take 6: go 4
         12s take 3: go 2
         12s used 5 back
         12s take 1: go 5
         12s used 9 back
         12s take 1: go 9",
    ),
    row(
        "sliding window: a clock that steps back into the window before",
        &["algorithm = 'sliding-window'\nrate = '10/10s'"],
        (10, Some(10)),
        "25s take 10: go 0
         15s take 1: no 16s 0
         25s take 1: no 6s 0
         31s take 1: go 0",
    ),
    // Of the window before as many count as the part of it that is inside, rounded up:
    // at 10 s 10 of 10, at 11 s 9, at 15 s 5; at 20 s 5 of 5, at 24 s 3, at 26 s 2.
    row(
        "sliding window: two counters, weighted",
        &["algorithm = 'sliding-window'\nrate = '10/10s'"],
        (10, Some(10)),
        "0s  take 10: go 0
         5s  take 1: no 6s 0
         10s take 1: no 1s 0
         11s take 1: go 0
         15s take 4: go 0
         15s take 1: no 1s 0
         20s take 1: go 4
         24s take 7: no 2s 6
         24s take 6: go 0
         24s take 11: never 0",
    ),
    // The one of the window before counts until it has wholly left: every second window passes.
    row(
        "sliding window: a count of one",
        &["algorithm = 'sliding-window'\nrate = '1/10s'"],
        (1, Some(10)),
        "0s         take 1: go 0
         10s        take 1: no 10s 0
         19999999us take 1: no 1us 0
         20s        take 1: go 0",
    ),
    // At 15 s one of two is inside. There is no counter for the window after the next. At 20 s the one of
    // the window before is inside until 30 s.
    row(
        "sliding window: places in the next window",
        &["algorithm = 'sliding-window'\nrate = '2/10s'\nwait = '20s'"],
        (2, Some(10)),
        "0s  take 2: go 0
         0s  take 1: hold 15s 0
         0s  take 1: no 20s 0
         15s take 1: hold 5s 0
         20s take 1 now: no 10s 0",
    ),
    // Of the window at 60 s a hundred are used, of the next one 25 and then 50. There is no counter for the one behind it.
    row(
        "sliding window: who is held counts in the window of its moment",
        &["algorithm = 'sliding-window'\nrate = '100/m'\nwait = '10m'"],
        (100, Some(60)),
        "60s take 100: go 0
         60s take 25 now: no 75s 0
         60s take 25: hold 75s 0
         60s take 25: hold 90s 0
         60s take 25 now: no 105s 0
         60s take 75: no 150s 0
         60s take 100: no 3m 0
         60s take 101: never 0
         195s take 1: go 61",
    ),
];
