"""tidegate with buckets in Redis: what a check costs there, and what it costs the proxy."""

from statistics import median

import report
from load import Saturate, keys_script
from peers import Setup
from redis_server import RedisServer

from .saturated import cpu

KEYS = 10_000
# wrk's connections: what arrives together may share a call.
CONNECTIONS = 256


def redis(bench):
    """Requests that the proxy answers itself, so that what is left is the check: buckets in the
    process, in Redis, three of them in Redis."""
    server = RedisServer(bench)
    variants = {
        "in process, one limit": Setup(None, key="header"),
        "Redis, one limit": Setup(None, key="header", redis=server.port),
        "Redis, three limits": Setup(None, key="header", redis=server.port, limits_each=3),
    }
    load = Saturate(bench.seconds, script=keys_script(KEYS), connections=CONNECTIONS)
    parts = []
    for peer in bench.peers:
        if not peer.name.startswith("tidegate"):
            continue  # the others have no such thing
        server.ask("FLUSHALL")
        proxies = {title: peer.start(bench.workspace, setup) for title, setup in variants.items()}
        gauge = lambda: (server.cpu(), server.calls())
        samples = bench.in_turn(proxies, lambda proxy: load.run(bench, proxy, gauge), cpu)
        bench.workspace.stop(*proxies.values())
        buckets = _buckets(bench, server, peer)
        parts.append(f"{peer.name}:\n\n{_table(samples)}\n{buckets}")
    bench.workspace.stop(server.child)
    return "\n".join(parts)


def _table(samples):
    base = [sample.cpu for sample in next(iter(samples.values()))]
    rows = []
    for title, got in samples.items():
        redis, calls = ([sample.gained[place] for sample in got] for place in (0, 1))
        row = [
            title,
            f"{median(sample.rate for sample in got):.0f}",
            report.spread([sample.cpu for sample in got], "{:.1f}"),
            report.spread([sample.cpu - other for sample, other in zip(got, base)], "{:.1f}"),
        ]
        if median(calls) > 0.01:
            row += [
                report.spread(redis, "{:.1f}"),
                f"{1e6 / median(redis):.0f}",
                f"{1 / median(calls):.1f}",
            ]
        else:
            row[3:] = [""] * 4
        rows.append(row)
    header = [
        "buckets", "requests/s", "proxy, µs of CPU for each request", "more than in process, µs",
        "Redis, µs of CPU for each request", "requests/s that Redis's core could decide",
        "requests in a call",
    ]
    return report.table(header, rows)


def _buckets(bench, server, peer):
    """What one bucket takes in Redis, for a key by address and one by header."""
    rows = []
    for kind in ("ip", "header"):
        server.ask("FLUSHALL")
        # Buckets that are not full again before they are looked at.
        proxy = peer.start(bench.workspace, Setup(None, key=kind, redis=server.port, rate="closed"))
        bench.load.keys(proxy.port, 1)
        for key in server.ask("KEYS", "*{*"):
            used = server.ask("MEMORY", "USAGE", key)
            rows.append([f"`{key.decode(errors='replace')}`", len(key), used])
        bench.workspace.stop(proxy)
    return report.table(["one bucket's key", "its length", "MEMORY USAGE, bytes"], rows)
