"""As many requests as go: forwarded, rejected, limited by one of many keys."""

import check
import report
from load import Multiplex, Saturate, keys_script
from peers import Setup
from process import Failed

KEYS = 100_000

COLUMNS = [
    ("CPU for each request", lambda sample: sample.cpu, "{:.1f} µs"),
    ("requests/s", lambda sample: sample.rate, "{:.0f}"),
]


def forward(bench):
    """1 KiB answers, a limit by address under which everything passes."""
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port))
    verify(bench, proxies, check.forwards, check.keeps_upstream)
    return _measure(bench, proxies, Saturate(bench.seconds), upstream)


def reject(bench):
    """Everything is rejected: 429, its fields, its body."""
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port, rate="closed"))
    verify(bench, proxies, check.rejects)
    return _measure(bench, proxies, Saturate(bench.seconds, expect="429"), upstream)


def header(bench):
    """1 KiB answers, a limit by header with 100,000 keys."""
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port, key="header"))
    verify(bench, proxies, check.forwards, check.keeps_upstream)
    for proxy in proxies.values():
        bench.load.keys(proxy.port, KEYS)
    return _measure(bench, proxies, Saturate(bench.seconds, script=keys_script(KEYS)), upstream)


def http2(bench):
    """As `forward`, with clients that speak HTTP/2 with prior knowledge; HTTP/1.1 upstream."""
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port, protocol="h2"))
    http2 = check.Http2(bench, upstream)
    verify(bench, proxies, http2.forwards, http2.keeps_upstream)
    return _measure(bench, proxies, Multiplex(bench.seconds), upstream)


def verify(bench, proxies, *checks):
    """Takes out the peers that do not do what is measured."""
    for name, proxy in list(proxies.items()):
        try:
            for holds in checks:
                holds(proxy)
        except (Failed, OSError) as failed:
            bench.leave_out(name, failed)
            bench.workspace.stop(proxies.pop(name))
    if not proxies:
        raise Failed("no peer is left")


def _measure(bench, proxies, load, upstream):
    samples = bench.in_turn(proxies, lambda proxy: load.run(bench, proxy), cpu)
    bench.workspace.stop(upstream, *proxies.values())
    return "\n".join([
        report.compare(samples, COLUMNS),
        busy(samples),
        report.rounds(samples, lambda sample: sample.cpu, "CPU for each request"),
    ])


def cpu(sample):
    return f"{sample.cpu:.1f} µs"


def busy(samples):
    """Says where the proxy was not the bottleneck."""
    shares = {name: min(sample.busy for sample in got) for name, got in samples.items()}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return f"Of its core each used at least: {listed}.\n"
