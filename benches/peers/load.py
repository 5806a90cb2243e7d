"""What is sent to a proxy: wrk for as much as goes, `load.rs` for everything else."""

import json
import re
import subprocess
from dataclasses import dataclass

from process import Failed


@dataclass(frozen=True)
class Sample:
    """One measurement of one peer in one round."""

    # Microseconds of the proxy's CPU for each request.
    cpu: float
    # Requests answered in a second.
    rate: float
    # How much of one core the proxy used; below 1 the load was the bottleneck.
    busy: float
    # What `gauge` gained for each request.
    gained: tuple = ()


@dataclass(frozen=True)
class Saturate:
    """As many requests as go over 64 connections, each sent when the one before is answered."""

    seconds: int
    # "200": every request passes. "429": every one but each key's first is rejected.
    expect: str = "200"
    script: str | None = None
    connections: int = 64
    core: str = "load"

    def run(self, bench, proxy, gauge=lambda: ()):
        """One measurement. `gauge` reads other counters, before and after."""
        before, others = proxy.cpu(), gauge()
        requests, seconds = self._wrk(bench, proxy)
        cpu, after = proxy.cpu() - before, gauge()
        gained = tuple((now - then) / requests for now, then in zip(after, others))
        return Sample(cpu / requests, requests / seconds, cpu / seconds / 1e6, gained)

    def _wrk(self, bench, proxy):
        command = ["wrk", "-t1", f"-c{self.connections}", f"-d{self.seconds}s"]
        if self.script is not None:
            path = bench.workspace.path / "requests.lua"
            path.write_text(self.script)
            command += ["-s", str(path)]
        command.append(f"http://127.0.0.1:{proxy.port}/")
        said = bench.run(command, self.core, self.seconds + 30)
        found = re.search(r"(\d+) requests in ([\d.]+)(ms|s)", said)
        if found is None or int(found.group(1)) == 0:
            raise Failed(f"wrk got no answers from {proxy.name}: {said}")
        requests = int(found.group(1))
        errors = re.search(r"Socket errors: .*", said)
        other = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
        other = int(other.group(1)) if other else 0
        rejected = other >= requests - 2 if self.expect == "429" else other == 0
        if errors or not rejected:
            raise Failed(f"{proxy.name} was to answer {self.expect}: {said}")
        return requests, float(found.group(2)) * (0.001 if found.group(3) == "ms" else 1)


@dataclass(frozen=True)
class Multiplex:
    """The same over HTTP/2: 8 connections with 16 requests under way on each."""

    seconds: int

    def run(self, bench, proxy):
        before = proxy.cpu()
        said = self.ask(bench, proxy, "-c8", "-m16", "--duration", self.seconds)
        cpu = proxy.cpu() - before
        requests = _number(r"(\d+) 2xx", said)
        return Sample(cpu / requests, requests / self.seconds, cpu / self.seconds / 1e6)

    def speaks(self, bench, proxy):
        """Whether it answers at all."""
        self.ask(bench, proxy, "-c1", "-m2", "-n10")

    def ask(self, bench, proxy, *arguments):
        command = ["h2load", "-t1", *arguments, f"http://127.0.0.1:{proxy.port}/"]
        said = bench.run(command, "load", self.seconds + 30)
        done = _number(r"(\d+) 2xx", said)
        other = _number(r"(\d+) failed", said) + _number(r"(\d+) 4xx", said)
        if done == 0 or other > 0:
            raise Failed(f"{proxy.name} answers {done} requests over HTTP/2 and fails {other}")
        return said


def _number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def keys_script(keys):
    """wrk's requests, each with another of so many keys, in an order that caches do not foresee."""
    return f"""
local requests, place = {{}}, 0
function init(args)
  for key = 0, {keys} - 1 do
    requests[key] = wrk.format(nil, "/", {{["x-api-key"] = string.format("client-%07d", key)}})
  end
end
function request()
  place = (place + 7919) % {keys}
  return requests[place]
end
"""


def routes_script(routes):
    """wrk's requests, each for another of so many routes."""
    return f"""
local requests, place = {{}}, 0
function init(args)
  for route = 0, {routes} - 1 do
    requests[route] = wrk.format(nil, "/r/" .. route .. "/thing")
  end
end
function request()
  place = (place + 7919) % {routes}
  return requests[place]
end
"""


class Load:
    """The commands of `load.rs`."""

    def __init__(self, bench, binary):
        self.bench = bench
        self.binary = binary

    def rate(self, port, rate, connections, seconds):
        return self._ask(port, "rate", rate, connections, seconds)

    def keys(self, port, count, step=1):
        return self._ask(port, "keys", count, step)

    def get(self, port, size):
        return self._ask(port, "get", size)

    def post(self, port, size):
        return self._ask(port, "post", size)

    def idle(self, port, connections):
        """Connections that stay until the child is stopped."""
        workspace = self.bench.workspace
        directory = workspace.directory("idle")
        child = workspace.start(
            "idle connections",
            [self.binary, "idle", f"127.0.0.1:{port}", connections],
            directory,
            "load",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if not child.process.stdout.readline():
            raise Failed(f"idle connections: {child.last_words()}")
        return child

    def serve(self, port):
        workspace = self.bench.workspace
        command = [self.binary, "serve", f"127.0.0.1:{port}"]
        return workspace.start("serve", command, workspace.directory("serve"), "load", port)

    def _ask(self, port, command, *arguments):
        words = [self.binary, command, f"127.0.0.1:{port}", *arguments]
        return json.loads(self.bench.run(words, "load", 120))
