"""Calls of Envoy's rate-limit service, and the services that answer them."""

import re
import shutil

from load import Sample
from process import Failed, free_port

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
# The field of an answer with the decision, when it is OK (rls.proto: overall_code).
ALLOWED = b"\x08\x01"
# Calls a second where the latency is measured.
RATE = 5_000
DOMAIN = "bench"
KEY = "x-api-key"
# One client, under a limit that lets everything pass.
FIGURES = {"tidegate": "1000000000/s", "limitador": 1_000_000_000}


def one_call(bench):
    """What h2load and nghttp send: a RateLimitRequest with one descriptor, behind the prefix that gRPC puts before a
    message."""
    entry = _field(1, KEY.encode()) + _field(2, b"client-1")
    request = _field(1, DOMAIN.encode()) + _field(2, _field(1, entry))
    body = bench.workspace.path / "call"
    body.write_bytes(b"\0" + len(request).to_bytes(4, "big") + request)
    return ["-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers"]


def _field(number, content):
    """A field of protobuf that has a length, which is below 128 here."""
    return bytes([number << 3 | 2, len(content)]) + content


def saturate(bench, service, gauge):
    """As many calls as go, 100 under way on one connection. `gauge` reads other counters."""
    before, others = service.cpu(), gauge()
    done = _h2load(bench, service, ["-c1", "-m100", "--duration", bench.seconds])
    cpu, after = service.cpu() - before, gauge()
    gained = tuple((now - then) / done for now, then in zip(after, others))
    return Sample(cpu / done, done / bench.seconds, cpu / bench.seconds / 1e6, gained)


def at_fixed_rate(bench, service):
    """Microseconds of the median call and of the slowest of a hundred, at 5,000 calls a second. Each of 50 connections
    has a call every 10 ms. They begin five in a millisecond, so at most these five are sent together."""
    log = bench.workspace.path / "calls.log"
    log.unlink(missing_ok=True)
    due = RATE * bench.seconds
    pace = ["-c50", "--rate=5", "--rate-period=1ms", f"--rps={RATE // 50}"]
    done = _h2load(bench, service, [f"-n{due}", *pace, f"--log-file={log}"])
    if done < due:
        raise Failed(f"{service.name} answered {done} calls where {due} were due")
    took = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}


def _h2load(bench, service, options):
    """How many calls were answered."""
    url = f"http://127.0.0.1:{service.port}{METHOD}"
    command = ["h2load", "-t1", *options, *one_call(bench), url]
    said = bench.run(command, "load", bench.seconds + 30)
    done = int((re.search(r"(\d+) 2xx", said) or [0, 0])[1])
    if done == 0 or " 0 errored" not in said:
        raise Failed(f"{service.name} was to answer calls: {said[-1000:]}")
    return done


def verify(bench, service):
    """It decides, and allows."""
    url = f"http://127.0.0.1:{service.port}{METHOD}"
    said = bench.run(["nghttp", "-v", "--timeout", 10, *one_call(bench), url], "load", 30)
    if "grpc-status: 0" not in said or ALLOWED.decode() not in said:
        raise Failed(f"{service.name} allows nothing: {said[-1000:]}")


def tidegate(bench, peer, redis, limits=1):
    """One worker that decides for others and has no clients of its own."""
    directory, port = bench.workspace.directory(peer.name.replace(" ", "-")), free_port()
    names = [f"limit{number}" for number in range(limits)]
    listed = ", ".join(f'"{name}"' for name in names)
    tables = "".join(
        f'[limits.{name}]\nkey = ["header:{KEY}"]\nrate = "{FIGURES["tidegate"]}"\n' for name in names
    )
    url = "" if redis is None else f'[store]\nurl = "redis://127.0.0.1:{redis.port}"\n'
    path = directory / "proxy.toml"
    path.write_text(f"""
[server]
listen = []
workers = 1
[decide]
listen = "127.0.0.1:{port}"
[admin]
listen = "127.0.0.1:{free_port()}"
{url}{tables}
[[routes]]
path = "/{{*rest}}"
limits = [{listed}]
""")
    return _start(bench, peer.name, [peer.binary, "run", "--config", path], directory, port)


def limitador(bench, redis, limits=1):
    """Limitador, where it is installed."""
    binary = shutil.which("limitador-server")
    if binary is None:
        return None
    directory, port = bench.workspace.directory("limitador"), free_port()
    path = directory / "limits.yaml"
    path.write_text("".join(
        f"- namespace: {DOMAIN}\n  name: limit{number}\n  max_value: {FIGURES['limitador'] + number}\n"
        f"  seconds: {number + 1}\n  conditions: []\n  variables: [\"descriptors[0]['{KEY}']\"]\n"
        for number in range(limits)
    ))
    store = ["memory"] if redis is None else ["redis", f"redis://127.0.0.1:{redis.port}"]
    command = [
        binary, "--rls-ip", "127.0.0.1", "--rls-port", port, "--http-ip", "127.0.0.1",
        "--http-port", free_port(), path, *store,
    ]
    return _start(bench, "limitador", command, directory, port)


def _start(bench, name, command, directory, port):
    child = bench.workspace.start(name, command, directory, "proxy", port)
    child.port = port
    return child
