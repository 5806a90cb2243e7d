"""What more costs: routes, limits, workers."""

from statistics import median

import check
import report
from load import Saturate, routes_script
from peers import Setup

from .saturated import verify

FEW, MANY = 10, 10_000
MANY_LIMITS = 1_000


def routes(bench):
    """CPU for each request with 10,000 routes, and with 1,000 limits, against 10 and one."""
    upstream = bench.upstream()
    variants = {
        f"{FEW} routes, 1 limit": Setup(upstream.port, routes=FEW),
        f"{MANY:,} routes, 1 limit": Setup(upstream.port, routes=MANY),
        f"{MANY:,} routes, {MANY_LIMITS:,} limits": Setup(
            upstream.port, routes=MANY, limits=MANY_LIMITS
        ),
    }
    parts = []
    for peer in bench.peers:
        if peer.name in ("haproxy", "envoy"):
            continue  # they find a route by walking through a list: nobody would give them 10,000
        bench.say(f"  {peer.name}")
        proxies, loads = {}, {}
        for title, setup in variants.items():
            proxies[title] = peer.start(bench.workspace, setup)
            loads[proxies[title].port] = Saturate(bench.seconds, script=routes_script(setup.routes))
        verify(bench, proxies, lambda proxy: check.forwards(proxy, "/r/7/thing"))
        samples = bench.in_turn(proxies, lambda proxy: loads[proxy.port].run(bench, proxy))
        bench.workspace.stop(*proxies.values())
        base = next(iter(variants))
        columns = [("CPU for each request", lambda sample: sample.cpu, "{:.1f} µs")]
        parts.append(f"{peer.name}:\n\n{report.compare(samples, columns, base)}")
    bench.workspace.stop(upstream)
    return "\n".join(parts)


def workers(bench):
    """Requests a second with two workers against one, on two cores with load and upstream."""
    upstream = bench.upstream("all")
    singles = bench.start(Setup(upstream.port), "all")
    doubles = bench.start(Setup(upstream.port, workers=2), "all")
    proxies = {}
    for name in singles.keys() & doubles.keys():
        proxies[name, 1], proxies[name, 2] = singles[name], doubles[name]
    proxies = {key: proxies[key] for key in sorted(proxies, key=lambda key: _place(bench, key))}
    verify(bench, proxies, check.forwards)
    load = Saturate(bench.seconds, connections=128, core="all")
    samples = bench.in_turn(proxies, lambda proxy: load.run(bench, proxy))
    bench.workspace.stop(upstream, *proxies.values())
    rows = []
    for name in dict.fromkeys(name for name, _ in samples):
        one, two = ([sample.rate for sample in samples[name, count]] for count in (1, 2))
        rows.append([name, report.spread(report.ratios(two, one)), f"{median(one):.0f}", f"{median(two):.0f}"])
    header = ["peer", "requests/s, two workers to one", "with one", "with two"]
    return report.table(header, rows)


def _place(bench, key):
    name, count = key
    return [peer.name for peer in bench.peers].index(name), count
