"""Clients that come over TLS 1.3: requests over kept connections, and handshakes."""

from statistics import median

import certificate
import check
import report
from load import Handshakes, Multiplex
from peers import Setup

from .saturated import COLUMNS, busy, cpu, verify

HANDSHAKE_COLUMNS = [
    ("CPU for each handshake", lambda sample: sample.cpu, "{:.0f} µs"),
    ("handshakes/s", lambda sample: sample.rate, "{:.0f}"),
]


def tls(bench):
    """TLS 1.3 with a P-256 certificate. As `forward`, over kept connections, with HTTP/1.1 and
    with HTTP/2; then a connection for each request, not resumed and resumed, where the proxy
    answers itself."""
    pair = certificate.make(bench)
    parts = [*_requests(bench, pair), *_handshakes(bench, pair)]
    return "\n".join(parts)


def _requests(bench, pair):
    upstream = bench.upstream()
    proxies = bench.start(Setup(upstream=upstream.port, tls=pair))
    http2 = check.Http2(bench, upstream, "https")
    verify(
        bench,
        proxies,
        lambda proxy: check.forwards(proxy, certificate=pair),
        lambda proxy: check.keeps_upstream(proxy, pair),
        http2.forwards,
        http2.keeps_upstream,
    )
    for title, protocol in (("HTTP/1.1", "h1"), ("HTTP/2", "h2")):
        load = Multiplex(bench.seconds, protocol, tls=True)
        title = f"Kept connections, {title}"
        yield _measure(bench, proxies, load, title, COLUMNS)[0]
    bench.workspace.stop(upstream, *proxies.values())


def _handshakes(bench, pair):
    proxies = bench.start(Setup(upstream=None, tls=pair))
    verify(bench, proxies, lambda proxy: check.answers_once(proxy, pair))
    for title, resumed in (("not resumed", False), ("resumed", True)):
        load = Handshakes(bench.seconds, resumed)
        title = f"Handshakes, {title}"
        text, samples = _measure(bench, proxies, load, title, HANDSHAKE_COLUMNS)
        yield text
        yield _could(samples)
    bench.workspace.stop(*proxies.values())


def _measure(bench, proxies, load, title, columns):
    bench.say(f"  {title}")
    samples = bench.in_turn(proxies, lambda proxy: load.run(bench, proxy), cpu)
    text = "\n".join([
        f"{title}:\n",
        report.compare(samples, columns),
        busy(samples),
        report.rounds(samples, lambda sample: sample.cpu, columns[0][0]),
    ])
    return text, samples


def _could(samples):
    """The load costs more than the proxy, so what was reached is not what a proxy can do."""
    could = {name: 1e6 / median(sample.cpu for sample in got) for name, got in samples.items()}
    listed = ", ".join(f"{name} {rate:.0f}" for name, rate in could.items())
    return f"Handshakes that a core of each could do in a second: {listed}.\n"
