"""What more costs: routes, limits, workers."""

from itertools import pairwise
from statistics import median

import check
import report
from load import Saturate, routes_script
from peers import Setup

from .saturated import cpu, verify

FEW, MANY = 10, 10_000
MANY_LIMITS = 1_000

COLUMNS = [("CPU for each request", lambda sample: sample.cpu, "{:.1f} µs")]


def routes(bench):
    """CPU for each request with 10,000 routes against 10, and with 1,000 limits on these 10,000
    routes against one limit."""
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
        samples = bench.in_turn(proxies, lambda proxy: loads[proxy.port].run(bench, proxy), cpu)
        bench.workspace.stop(*proxies.values())
        parts.append(f"{peer.name}:\n")
        for base, more in pairwise(samples):
            pair = {base: samples[base], more: samples[more]}
            parts.append(report.compare(pair, COLUMNS, base, "configuration"))
    bench.workspace.stop(upstream)
    return "\n".join(parts)


def workers(bench):
    """Requests a second with two workers against one, on two cores with load and upstream."""
    upstream = bench.upstream("all")
    singles = bench.start(Setup(upstream.port), "all")
    doubles = bench.start(Setup(upstream.port, workers=2), "all")
    verify(bench, singles, check.forwards)
    verify(bench, doubles, check.forwards)
    singles = {name: proxy for name, proxy in singles.items() if name in doubles}
    proxies = {}
    for name in singles:
        proxies[f"{name}, one"], proxies[f"{name}, two"] = singles[name], doubles[name]
    load = Saturate(bench.seconds, connections=128, core="all")
    samples = bench.in_turn(
        proxies, lambda proxy: load.run(bench, proxy), lambda sample: f"{sample.rate:.0f}/s"
    )
    bench.workspace.stop(upstream, *proxies.values())
    rows = []
    rates = [[sample.rate for sample in got] for got in samples.values()]
    for name, one, two in zip(singles, rates[::2], rates[1::2]):
        to = report.spread(report.ratios(two, one))
        rows.append([name, to, f"{median(one):.0f}", f"{median(two):.0f}"])
    header = ["peer", "requests/s, two workers to one", "with one", "with two"]
    return report.table(header, rows)

