"""Memory: for each key, and for each idle connection."""

import time

import report
from peers import Setup
from process import Failed

KEYS = 1_000_000
QUICK_KEYS = 100_000
# One key in so many is asked about again, to see whether it is still there.
SAMPLE = 997
FIRST = 1_000
CONNECTIONS = 5_000
QUICK_CONNECTIONS = 1_000


def keys(bench):
    """Resident memory for each of many keys of 14 bytes, the key included."""
    count = QUICK_KEYS if bench.options.quick else KEYS
    rows = []
    for peer in bench.peers:
        try:
            rows.append([peer.name, *_keys(bench, peer, count)])
        except Failed as failed:
            bench.leave_out(peer.name, failed)
        else:
            bench.say(f"  {' '.join(rows[-1])}")
    header = ["peer", f"bytes for each of {count:,} keys", "of a sample, still there afterwards"]
    return report.table(header, rows)


def _keys(bench, peer, count):
    # The proxies answer by themselves: this is about keys, and an upstream would take time.
    proxy = peer.start(bench.workspace, Setup(upstream=None, key="header", rate="closed"))
    # Again and again the same keys: what a proxy needs for connections and requests is there
    # before it counts.
    for _ in range(20):
        bench.load.keys(proxy.port, FIRST)
    before = proxy.memory()
    filled = bench.load.keys(proxy.port, count)
    time.sleep(0.5)
    grown = proxy.memory() - before
    again = bench.load.keys(proxy.port, count, SAMPLE)
    bench.workspace.stop(proxy)
    if filled["passed"] != count - FIRST:
        raise Failed(f"it let {filled['passed']} of {count - FIRST} new keys pass")
    held = again["refused"] / (again["refused"] + again["passed"])
    return f"{grown / (count - FIRST):.0f}", f"{held:.1%}"


def idle(bench):
    """Resident memory for each client connection that is idle after its first request."""
    count = QUICK_CONNECTIONS if bench.options.quick else CONNECTIONS
    upstream = bench.upstream()
    rows = []
    for peer in bench.peers:
        proxy = peer.start(bench.workspace, Setup(upstream=upstream.port))
        # What is there once, whatever the number of connections.
        bench.workspace.stop(bench.load.idle(proxy.port, 20))
        time.sleep(0.5)
        before = proxy.memory()
        clients = bench.load.idle(proxy.port, count)
        time.sleep(1.5)
        grown = proxy.memory() - before
        bench.workspace.stop(clients, proxy)
        rows.append([peer.name, f"{grown / count / 1024:.1f}"])
        bench.say(f"  {' '.join(rows[-1])}")
    bench.workspace.stop(upstream)
    return report.table(["peer", f"KiB for each of {count:,} idle connections"], rows)
