//! Buckets that refill at a rate.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "token bucket: a burst, then a token each tenth of a second",
        &["rate = '10/s'\nburst = 3"],
        (3, Some(1)),
        "0s       take 1: go 2
         0s       take 1: go 1
         0s       take 1: go 0
         0s       take 1: no 100ms 0
         0s       take 3: no 300ms 0
         0s       take 4: never 0
         99999us  take 1: no 1us 0
         100ms    take 1: go 0
         150ms    take 1: no 50ms 0
         250ms    take 1: go 0
         250ms    take 1: no 50ms 0
         1250ms   take 2: go 1
         1h       take 3: go 0",
    ),
    // Three a second are one each 333,333 1/3 microseconds. What is gained beyond a full bucket is lost.
    row(
        "token bucket: thirds of microseconds",
        &["rate = '3/s'\nburst = 1"],
        (1, Some(1)),
        "0s        take 1: go 0
         0s        take 1: no 333334us 0
         333333us  take 1: no 1us 0
         333334us  take 1: go 0
         666667us  take 1: no 1us 0
         666668us  take 1: go 0",
    ),
    // The second is whole at 666,666 2/3, whatever was asked between.
    row(
        "token bucket: what is gained besides whole tokens is kept",
        &["rate = '3/s'\nburst = 2"],
        (2, Some(1)),
        "0s        take 2: go 0
         333334us  take 1: go 0
         333334us  take 1: no 333333us 0
         666667us  take 1: go 0
         1s        take 1: go 0
         1s        take 1: no 333334us 0",
    ),
    // 86,400 s / 7 = 12,342.857142857… s.
    row(
        "token bucket: a rate that does not divide its interval",
        &["rate = '7/d'\nburst = 1"],
        (1, Some(12_343)),
        "0s            take 1: go 0
         0s            take 1: no 12342857143us 0
         12342857142us take 1: no 1us 0
         12342857143us take 1: go 0",
    ),
    row(
        "token bucket: places are reserved",
        &["rate = '10/s'\nburst = 1\nwait = '250ms'"],
        (1, Some(1)),
        "0s    take 1: go 0
         0s    take 1: hold 100ms 0
         0s    take 1: hold 200ms 0
         0s    take 1: no 300ms 0
         0s    take 2: never 0
         50ms  take 1: hold 250ms 0
         50ms  take 1 now: no 350ms 0
         399ms take 1 now: no 1ms 0
         400ms take 1 now: go 0",
    ),
    // At 100/s with six missing, the key is written with the expiry of that rate. At 3/s it is full after two seconds.
    row(
        "token bucket: a refusal at a slower rate keeps the bucket until it is full at that rate",
        &["rate = '10/s'"],
        (10, Some(1)),
        "0s        take 4: go 6
         0s        rate 100/s
         0s        take 2: go 94
         0s        rate 3/s
         0s        take 1: no 1333334us 0
         1333333us take 1: no 1us 0
         1333334us take 1: go 0",
    ),
    // A token is six minutes. 25 are missing of ten: 16 must come before one is there.
    row(
        "token bucket: what was used more is owed",
        &["rate = '10/h'"],
        (10, Some(3_600)),
        "0s   take 4: go 6
         0s   used 3 less
         0s   take 9: go 0
         0s   used 15 more
         0s   take 1: no 96m 0
         96m  take 1: go 0
         97m  used 1 less
         97m  take 1: go 0",
    ),
    // No more than 2^40 - 1 can be owed. A thousand tokens come each microsecond.
    row(
        "token bucket: who is held cannot make it owe more than can be noted",
        &["rate = '1000000000/s'\nwait = '1h'"],
        (1_000_000_000, Some(1)),
        "0s take 1: go 999999999
         0s used 2000000000000 more
         0s take 1000: hold 1098511629us 0
         0s take 1000: hold 1098511629us 0",
    ),
    row(
        "token bucket: nothing comes while nothing passes",
        &["rate = '2/h'\nburst = 5"],
        (5, Some(9_000)),
        "0s take 3: go 2
         0s take 2: go 0
         0s take 1: no 30m 0
         0s take 5: no 150m 0
         0s take 6: never 0",
    ),
    row(
        "token bucket: what is given back can be taken again",
        &["rate = '1/h'\nburst = 2"],
        (2, Some(7_200)),
        "0s take 2: go 0
         0s take 1: no 1h 0
         0s used 2 less
         0s take 1: go 1
         0s used 1 less
         0s take 2: go 0",
    ),
    // Six of three are used: four must come before one is there.
    row(
        "token bucket: a burst that was lowered below what was used",
        &["rate = '10/s'"],
        (10, Some(1)),
        "0s        take 4: go 6
         0s        rate 100/s
         0s        take 2: go 94
         0s        rate 3/s
         1ms       take 1: no 1332334us 0
         1333334us take 1: go 0",
    ),
    row(
        "token bucket: a clock that is a little behind waits for what was taken",
        &["rate = '1/s'\nburst = 1"],
        (1, Some(1)),
        "10s take 1: go 0
         9s  take 1: no 2s 0
         11s take 1: go 0",
    ),
    row(
        "token bucket: a clock that stepped back takes the bucket with it",
        &["rate = '1/s'\nburst = 1"],
        (1, Some(1)),
        "1h take 1: go 0
         1s take 1: no 1s 0
         2s take 1: go 0",
    ),
    row(
        "leaky bucket: even spacing, two behind the one that goes",
        &["algorithm = 'leaky-bucket'\nrate = '10/s'\nqueue = 2"],
        (3, Some(1)),
        "0s       take 1: go 2
         0s       take 1: hold 100ms 1
         0s       take 1: hold 200ms 0
         0s       take 1: no 100ms 0
         50ms     take 1: no 50ms 0
         100ms    take 1: hold 200ms 0
         399999us take 1: hold 1us 1
         400ms    take 1: hold 100ms 1
         600ms    take 1: go 2",
    ),
    row(
        "leaky bucket: a request stands for its cost",
        &["algorithm = 'leaky-bucket'\nrate = '10/s'\nqueue = 2"],
        (3, Some(1)),
        "0s     take 2: go 1
         0s     take 1: hold 200ms 0
         0s     take 2: no 200ms 0
         0s     take 4: never 0
         300ms  take 3: go 0",
    ),
    row(
        "leaky bucket: where nobody may be held it only spaces",
        &["algorithm = 'leaky-bucket'\nrate = '1/h'\nqueue = 2"],
        (3, Some(10_800)),
        "0s take 1: go 2
         0s take 1 now: no 1h 2
         0s take 1: hold 1h 1
         0s take 1 now: no 2h 1",
    ),
];
