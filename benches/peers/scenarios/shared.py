"""Limits shared through Redis, beside nginx with lua: neither haproxy nor Envoy keeps one there by
itself."""

from dataclasses import replace

import check
import report
from load import Saturate, keys_script
from peers import Setup
from process import Failed
from redis_server import RedisCluster, RedisServer

from .saturated import KEYS, busy, verify
from .steady import at_fixed_rate


def together(sample):
    """Microseconds of the CPU of proxy and Redis for each request."""
    return sample.cpu + sample.gained[0]


COLUMNS = [
    ("CPU of proxy and Redis for each request", together, "{:.1f} µs"),
    ("the proxy's", lambda sample: sample.cpu, "{:.1f} µs"),
    ("Redis's", lambda sample: sample.gained[0], "{:.1f} µs"),
    ("requests/s", lambda sample: sample.rate, "{:.0f}"),
    ("p50 under this load", lambda sample: sample.p50, "{:.0f} µs"),
    ("script calls for each request", lambda sample: sample.gained[1], "{:.4f}"),
]


def plain(bench):
    """As `forward`, with the limit shared through Redis, beside nginx with lua; then the latency at
    5,000 requests a second."""
    upstream = bench.upstream()
    proxies = _start(bench, Setup(upstream=upstream.port))
    verify(bench, proxies, check.forwards, check.keeps_upstream, _asks)
    table = _measure(bench, proxies, Saturate(bench.seconds))
    return "\n".join([table, at_fixed_rate(bench, upstream, proxies)])


def header(bench):
    """As `header`, with the limit shared through Redis, beside nginx with lua."""
    return _many_keys(bench, cluster=False)


def cluster(bench):
    """As `shared-header`, but tidegate's buckets lie in a cluster of three masters. nginx with lua
    has one Redis, as there."""
    return _many_keys(bench, cluster=True)


def _many_keys(bench, cluster):
    upstream = bench.upstream()
    proxies = _start(bench, Setup(upstream=upstream.port, key="header", cluster=cluster))
    verify(bench, proxies, check.forwards, check.keeps_upstream)
    for proxy in proxies.values():
        bench.load.keys(proxy.port, KEYS)
    verify(bench, proxies, _asks)
    return _measure(bench, proxies, Saturate(bench.seconds, script=keys_script(KEYS)))


def reject(bench):
    """As `reject`, which is a flood of one key, with the limit shared through Redis, beside nginx
    with lua."""
    upstream = bench.upstream()
    proxies = _start(bench, Setup(upstream=upstream.port, rate="closed"))
    verify(bench, proxies, check.rejects, _asks)
    return _measure(bench, proxies, Saturate(bench.seconds, expect="429"))


def _start(bench, setup):
    """The peers that can do it, each with a Redis of its own."""
    proxies = {}
    for peer in bench.peers:
        if peer.name == "nginx":
            peer = replace(peer, name="nginx with lua")
        elif not peer.name.startswith("tidegate"):
            continue
        is_cluster = setup.cluster and peer.name.startswith("tidegate")
        server = RedisCluster(bench) if is_cluster else RedisServer(bench)
        started = bench.start(replace(setup, redis=server.port), peers=[peer])
        for proxy in started.values():
            proxy.redis = server
        proxies |= started
    return proxies


def _asks(proxy):
    """It asks Redis, and does not merely let requests pass."""
    if proxy.redis.calls() == 0:
        raise Failed(f"{proxy.name} does not ask Redis")


def _measure(bench, proxies, load):
    gauge = lambda redis: lambda: (redis.cpu(), redis.calls())
    samples = bench.in_turn(
        proxies,
        lambda proxy: load.run(bench, proxy, gauge(proxy.redis)),
        lambda sample: f"{together(sample):.1f} µs",
    )
    return "\n".join([
        report.compare(samples, COLUMNS),
        busy(samples),
        report.rounds(samples, together, COLUMNS[0][0]),
    ])
