"""The counts of scripts/instructions: see there."""

import argparse
import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches" / "peers"))

import machine
import report
import tidegate
from peers import Setup
from process import Failed, Workspace, free_port
from redis_server import RedisServer

# The difference of two runs has neither the start nor the end of the process.
FEW, MANY = 2_000, 6_000
# Over these connections. A call to Redis has the requests that are there at the time: with more of them their number
# varies less from run to run.
CONNECTIONS = {"forward": 8, "reject": 8, "shared": 64}
# A process in valgrind may take so many seconds until it has ended.
PATIENCE = 60
# In the order of the report: what a binary of [profile.release] and one of ./scripts/dist may cost.
AIMS = {"forward": ("35,000", "24,500"), "reject": ("15,500", "11,500"), "shared": ("", "")}
ANSWER = (
    b"HTTP/1.1 200 OK\r\nserver: api\r\ndate: Thu, 26 Nov 2026 12:00:00 GMT\r\n"
    b"content-type: text/plain\r\ncontent-length: 1024\r\n\r\n" + b"x" * 1024
)


def main():
    options = arguments()
    workspace = Workspace({"all": machine.cores()["all"]})
    upstream = start_upstream()
    counts = {
        name: {scenario: count(workspace, upstream, name, binary, scenario, options.keep) for scenario in AIMS}
        for name, binary in options.binaries.items()
    }
    rows = [
        [scenario, *(f"{counts[name][scenario]:,}" for name in counts), *AIMS[scenario]] for scenario in AIMS
    ]
    header = ["instructions for a request", *counts, "aim of a release build", "aim of a dist build"]
    print(report.table(header, rows))


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/instructions", description="Counts the user instructions that a request costs."
    )
    parser.add_argument("binaries", nargs="*", metavar="[NAME=]BINARY", default=["target/release/tidegate"])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for valgrind's files of the longer runs")
    options = parser.parse_args()
    named = [words.split("=", 1) if "=" in words else [words, words] for words in options.binaries]
    options.binaries = {name: Path(path).resolve() for name, path in named}
    for path in options.binaries.values():
        if not path.is_file():
            parser.error(f"there is no {path}: build it first, with `cargo build --release --locked`")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    return options


def start_upstream():
    """The port of an API in this process, which answers everything with 1 KiB, in one write."""

    async def answer(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return server.sockets[0].getsockname()[1]


def count(workspace, upstream, name, binary, scenario, keep):
    """The instructions of one request more."""
    few, many = (run(workspace, upstream, binary, scenario, requests) for requests in (FEW, MANY))
    if keep:
        (keep / f"{scenario}.{Path(name).name}").write_bytes(many.read_bytes())
    counted = (total(many) - total(few)) // (MANY - FEW)
    print(f"{name}: {scenario}: {counted:,}", file=sys.stderr)
    return counted


def run(workspace, upstream, binary, scenario, requests):
    """What valgrind has written of a proxy that had so many requests."""
    redis = RedisServer(SimpleNamespace(workspace=workspace), core="all") if scenario == "shared" else None
    rate = "closed" if scenario == "reject" else "open"
    setup = Setup(upstream=upstream, rate=rate, redis=redis and redis.port)
    directory, port = workspace.directory(scenario), free_port()
    counted = directory / "callgrind.out"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counted}"]
    command = [*valgrind, *tidegate.prepare(binary, directory, setup, port)]
    proxy = workspace.start("tidegate in valgrind", command, directory, "all", port)
    ask(port, requests, CONNECTIONS[scenario], rejected=rate == "closed")
    proxy.stop(PATIENCE)
    if not counted.exists() or "\ntotals: " not in counted.read_text():
        raise Failed(f"valgrind has counted nothing: {proxy.last_words()}")
    workspace.stop_all()
    return counted


def ask(port, requests, connections, rejected):
    """Sends the requests. With `rejected` every one but the first is answered with 429."""
    command = ["ab", "-q", "-l", "-k", "-n", requests, "-c", connections, f"http://127.0.0.1:{port}/"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    number = lambda words: int((re.search(rf"{words}: +(\d+)", done.stdout) or ["", "0"])[1])
    others = requests - 1 if rejected else 0
    answered = (number("Complete requests"), number("Failed requests"), number("Non-2xx responses"))
    if answered != (requests, 0, others):
        raise Failed(f"{requests} requests, of which {others} were to be rejected: {done.stdout}{done.stderr}")


def total(counted):
    """All instructions of a file of valgrind."""
    return int(re.search(r"^totals: (\d+)", counted.read_text(), re.MULTILINE)[1])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failed, subprocess.TimeoutExpired) as failed:
        sys.exit(str(failed))
