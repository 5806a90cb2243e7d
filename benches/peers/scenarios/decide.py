"""Decisions for other proxies."""

from statistics import median

import calls
import report
from redis_server import RedisServer

# Where the buckets are, and how many limits decide on a call.
VARIANTS = {
    "in the process, one limit": (False, 1),
    "in Redis, one limit": (True, 1),
    "in Redis, three limits": (True, 3),
}


def decide(bench):
    """Calls of Envoy's rate-limit service with one descriptor, over one connection with 100 streams,
    beside Limitador where it is installed. Each service has one core, and all share one Redis."""
    server = RedisServer(bench)
    services = {}
    for title, (is_shared, limits) in VARIANTS.items():
        redis = server if is_shared else None
        for peer in bench.peers:
            if peer.name.startswith("tidegate"):
                services[peer.name, title] = calls.tidegate(bench, peer, redis, limits)
        if (service := calls.limitador(bench, redis, limits)) is not None:
            services["limitador", title] = service
    for service in services.values():
        calls.verify(bench, service)
    gauge = lambda: (server.cpu(), server.calls())
    samples = bench.in_turn(
        services,
        lambda service: calls.saturate(bench, service, gauge),
        lambda sample: f"{sample.rate:.0f}",
    )
    slow = bench.in_turn(
        services,
        lambda service: calls.at_fixed_rate(bench, service),
        lambda sample: f"{sample['p99']} µs",
    )
    bench.workspace.stop(server.child, *services.values())
    rows = []
    for (name, title), got in samples.items():
        latency = slow[name, title]
        rows.append([
            f"{name}: {title}",
            report.spread([sample.rate for sample in got], "{:.0f}"),
            f"{median(sample.busy for sample in got):.2f}",
            report.spread([sample.cpu for sample in got], "{:.1f}"),
            f"{1e6 / median(sample.cpu for sample in got):.0f}",
            f"{median(sample.gained[0] for sample in got):.1f}",
            f"{median(sample.gained[1] for sample in got):.3f}",
            report.spread([sample["p50"] for sample in latency], "{:.0f}"),
            report.spread([sample["p99"] for sample in latency], "{:.0f}"),
        ])
    header = [
        "service and buckets", "calls/s", "of a core", "its CPU for each call, µs", "calls/s of a whole core",
        "Redis's CPU for each call, µs", "script calls of Redis for each call",
        f"p50 at {calls.RATE}/s, µs", f"p99 at {calls.RATE}/s, µs",
    ]
    return report.table(header, rows)
