"""Memory: for each key, and for each idle connection."""

import time

import report
from peers import Setup
from process import Failed

KEYS = 1_000_000
QUICK_KEYS = 100_000
# One key in so many is asked about again, to see whether it is still there.
SAMPLE = 997
CONNECTIONS = 5_000
QUICK_CONNECTIONS = 1_000


def keys(bench):
    """Resident memory for each of a million keys of 14 bytes, the key included."""
    count = QUICK_KEYS if bench.options.quick else KEYS
    rows = []
    for peer in bench.peers:
        try:
            rows.append([peer.name, *_keys(bench, peer, count)])
        except Failed as failed:
            bench.say(f"  {peer.name} is left out: {failed}")
            rows.append([peer.name, "", ""])
            bench.workspace.close_children()
        bench.say(f"  {' '.join(map(str, rows[-1]))}")
    held = f"of those asked about again, still there"
    return report.table(["peer", f"bytes for each of {count:,} keys", held], rows)


def _keys(bench, peer, count):
    # The proxies answer by themselves: this is about keys, and an upstream would take time.
    proxy = peer.start(bench.workspace, Setup(upstream=None, key="header", rate="closed"))
    # The same keys, so that only the first time is a new one: buffers are there afterwards.
    for _ in range(20):
        bench.load.keys(proxy.port, 1_000)
    before = proxy.memory()
    filled = bench.load.keys(proxy.port, count)
    time.sleep(0.5)
    grown = proxy.memory() - before
    again = bench.load.keys(proxy.port, count, SAMPLE)
    bench.workspace.stop(proxy)
    if filled["passed"] < (count - 1_000) * 0.99:
        raise Failed(f"it let only {filled['passed']} of {count} keys pass")
    held = again["refused"] / (again["refused"] + again["passed"])
    return f"{grown / (count - 1_000):.0f}", f"{held:.1%}"


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
