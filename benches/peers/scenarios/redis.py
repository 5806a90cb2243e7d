"""tidegate with buckets in Redis: what a check costs there, and what it costs the proxy."""

import re
from dataclasses import dataclass
from statistics import median

import report
from load import Saturate, keys_script
from peers import Setup
from process import Failed
from redis_server import RedisServer

KEYS = 10_000
# wrk's connections: what arrives together may share a call.
CONNECTIONS = 256


@dataclass(frozen=True)
class Checked:
    """One run."""

    # Microseconds of the proxy's CPU for each request.
    cpu: float
    # Microseconds of Redis's CPU for each request.
    redis: float
    # Requests a second.
    rate: float
    # Requests decided by one script call.
    batch: float


def redis(bench):
    """Requests that the proxy answers itself, so that what is left is the check."""
    server = RedisServer(bench)
    variants = {
        "in process, one limit": Setup(None, key="header"),
        "Redis, one limit": Setup(None, key="header", redis=server.port),
        "Redis, three limits": Setup(None, key="header", redis=server.port, limits_each=3),
    }
    parts = []
    for peer in bench.peers:
        if not peer.name.startswith("tidegate"):
            continue  # the others have no such thing
        server.ask("FLUSHALL")
        proxies = {title: peer.start(bench.workspace, setup) for title, setup in variants.items()}
        load = Saturate(bench.seconds, script=keys_script(KEYS), connections=CONNECTIONS)
        samples = bench.in_turn(proxies, lambda proxy: _checked(bench, server, load, proxy))
        bench.workspace.stop(*proxies.values())
        parts.append(f"{peer.name}:\n\n{_table(samples)}\n{_bucket(server)}")
    bench.workspace.stop(server.child)
    return "\n".join(parts)


def _checked(bench, server, load, proxy):
    calls, used = _calls(server), server.child.cpu()
    sample = load.run(bench, proxy)
    # The short run before the measurement counts at Redis too, so the requests are taken from
    # the proxy's rate and Redis's own clock would be wrong: both runs are of the same kind.
    return sample, calls, used


def _calls(server):
    found = re.match(r"calls=(\d+)", server.info("cmdstat_evalsha"))
    return int(found.group(1)) if found else 0
