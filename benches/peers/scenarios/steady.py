"""The time that a proxy adds when it is not in a hurry."""

from statistics import median

import check
import report
from peers import Setup
from redis_server import RedisServer

from .saturated import verify

RATE = 5_000
CONNECTIONS = 50


class Direct:
    """No proxy at all."""

    name = "direct"

    def __init__(self, port):
        self.port = port


def latency(bench):
    """Latency at 5,000 requests a second, corrected for coordinated omission."""
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port))
    server = RedisServer(bench)
    own = [peer for peer in bench.peers if peer.name == "tidegate"]
    setup = Setup(upstream=upstream.port, redis=server.port)
    if own:
        shared = bench.start(setup, peers=own)
        proxies |= {"tidegate with Redis": proxy for proxy in shared.values()}
    verify(bench, proxies, check.forwards)
    proxies = {"direct": Direct(upstream.port), **proxies}
    samples = bench.in_turn(
        proxies, lambda proxy: bench.load.rate(proxy.port, RATE, CONNECTIONS, bench.seconds)
    )
    bench.workspace.stop(upstream, server.child, *list(proxies.values())[1:])
    direct = {field: [sample[field] for sample in samples["direct"]] for field in ("p50", "p99", "p999")}
    rows = []
    for name, got in samples.items():
        row = [name]
        for field, there in direct.items():
            values = [sample[field] for sample in got]
            row.append(report.spread(values, "{:.0f}"))
            added = [value - other for value, other in zip(values, there)]
            row.append(f"{median(added):.0f}" if name != "direct" else "")
        rows.append(row)
    header = ["peer", "p50, µs", "added", "p99, µs", "added", "p99.9, µs", "added"]
    return "\n".join([
        report.table(header, rows),
        report.rounds(
            {name: got for name, got in samples.items() if name != "direct"},
            lambda sample: sample["p50"],
            "p50",
        ),
    ])
