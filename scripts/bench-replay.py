"""Times `tidegate replay`, `grep -c` and GoAccess on one log. Called by scripts/bench-replay."""

import datetime
import gzip
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

LINES, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
CORE = min(os.sched_getaffinity(0))
TIME = re.compile(rb"\[(\d+)/(\w+)/(\d+)(:[^\]]+)\]")
DAYS = 4

PLAN = """[upstreams.api]
servers = ["http://127.0.0.1:3000"]
[limits.per-client]
key = ["ip"]
rate = "30/h"
[limits.per-path]
key = ["ip", "path"]
rate = "10/m"
[[routes]]
path = "/{*rest}"
upstream = "api"
limits = [LIMITS]
"""


def write_log(path):
    """The real log, again and again, each time four days later."""
    with gzip.open("tests/data/apache-access.log.gz") as file:
        original = file.read().splitlines()
    written, lap = 0, 0
    with open(path, "wb") as log:
        while written < LINES:
            def later(match):
                day, month, year, rest = (part.decode() for part in match.groups())
                date = datetime.datetime.strptime(f"{day}/{month}/{year}", "%d/%b/%Y")
                date += datetime.timedelta(days=DAYS * lap)
                return f"[{date:%d/%b/%Y}{rest}]".encode()
            dates = {}
            for line in original[: LINES - written]:
                found = TIME.search(line)
                key = found.group(0)[:13]
                if key not in dates:
                    dates[key] = later(found)[:13]
                log.write(line.replace(key, dates[key], 1) + b"\n")
                written += 1
            lap += 1


def run(command):
    """Seconds of wall time, seconds of CPU and the most memory in MiB of a command on one core."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    timed = ["/usr/bin/env", "taskset", "-c", str(CORE), *command]
    began = datetime.datetime.now()
    # Not /dev/null: there grep ends at the first line that it finds.
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(timed, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
    wall = (datetime.datetime.now() - began).total_seconds()
    if status != 0:
        sys.exit(f"{command[0]} failed")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/access.log"
        write_log(log)
        for name, limits in (("one", '"per-client"'), ("two", '"per-client", "per-path"')):
            with open(f"{folder}/{name}.toml", "w") as file:
                file.write(PLAN.replace("LIMITS", limits))
        tidegate = "target/release/tidegate"
        commands = {
            "`grep -c GET`": ["grep", "-c", "GET", log],
            "GoAccess": ["goaccess", log, "--log-format=COMBINED", "--no-progress", "-o", f"{folder}/out.json"],
            "`tidegate replay`, one limit": [tidegate, "replay", log, "--config", f"{folder}/one.toml"],
            "`tidegate replay`, two limits": [tidegate, "replay", log, "--config", f"{folder}/two.toml"],
            "`tidegate suggest`": [tidegate, "suggest", log],
        }
        results = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                results[name].append(run(command))
        size = os.path.getsize(log) / 1e6
        print(f"{LINES:,} lines, {size:.0f} MB, {ROUNDS} rounds, medians, one core.\n")
        print("| command | seconds | lines a second | memory |\n| --- | ---: | ---: | ---: |")
        for name, rounds in results.items():
            wall = statistics.median(wall for wall, _, _ in rounds)
            memory = max(memory for *_, memory in rounds)
            print(f"| {name} | {wall:.2f} | {LINES / wall:,.0f} | {memory:.0f} MiB |")


main()
