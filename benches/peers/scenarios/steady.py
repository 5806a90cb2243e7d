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
    own = [peer for peer in bench.peers if peer.name.startswith("tidegate")]
    setup = Setup(upstream=upstream.port, redis=server.port)
    if own:
        shared = bench.start(setup, peers=own)
        proxies |= {f"{name} with Redis": proxy for name, proxy in shared.items()}
    verify(bench, proxies, check.forwards)
    text = at_fixed_rate(bench, upstream, proxies)
    bench.workspace.stop(upstream, server.child, *proxies.values())
    return text


def at_fixed_rate(bench, upstream, proxies):
    """Measures these and the upstream without a proxy."""
    proxies = {"direct": Direct(upstream.port), **proxies}
    samples = bench.in_turn(
        proxies,
        lambda proxy: bench.load.rate(proxy.port, RATE, CONNECTIONS, bench.seconds),
        lambda sample: f"{sample['p50']:.0f} µs",
    )
    direct = median(sample["p50"] for sample in samples["direct"])
    rows = []
    for name, got in samples.items():
        of = {field: [sample[field] for sample in got] for field in ("p50", "p99", "p999")}
        added = f"{median(of['p50']) - direct:.0f}" if name != "direct" else ""
        rows.append([name, added, *(report.spread(values, "{:.0f}") for values in of.values())])
    header = ["peer", "added to p50, µs", "p50, µs", "p99, µs", "p99.9, µs"]
    return "\n".join([
        report.table(header, rows),
        report.rounds(
            {name: got for name, got in samples.items() if name != "direct"},
            lambda sample: sample["p50"],
            "p50",
        ),
    ])
