"""What is sent to a proxy: wrk for as much as goes, `load.rs` for everything else."""

import json
import math
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from process import Failed

# What TLS clients ask for, so that all peers do the same sums.
CIPHER = "TLS_AES_128_GCM_SHA256"
GROUP = "X25519"
# Enough for all of h2load's connections and their handshakes.
WARM_UP = "500ms"
# How many of `openssl s_time` run at once.
S_TIMES = 4


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
    # The median latency in microseconds under all this load; wrk says it.
    p50: float = math.nan


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
        requests, seconds, p50 = self._wrk(bench, proxy)
        cpu, after = proxy.cpu() - before, gauge()
        gained = tuple((now - then) / requests for now, then in zip(after, others))
        return Sample(cpu / requests, requests / seconds, cpu / seconds / 1e6, gained, p50)

    def _wrk(self, bench, proxy):
        command = ["wrk", "-t1", f"-c{self.connections}", f"-d{self.seconds}s", "--latency"]
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
        p50 = re.search(r"50% +([\d.]+)(us|ms|s)", said)
        return requests, _seconds(*found.groups()[1:]), _seconds(*p50.groups()) * 1e6


@dataclass(frozen=True)
class Multiplex:
    """The same by h2load. Over HTTP/2: 8 connections with 16 requests under way on each. Over
    HTTP/1.1: 64 connections, as wrk has."""

    seconds: int
    # "h1" or "h2".
    protocol: str = "h2"
    # Over TLS 1.3; HTTP/2 is then chosen by ALPN, and with prior knowledge otherwise.
    tls: bool = False

    def run(self, bench, proxy):
        cpu, said = self._h2load(bench, proxy)
        done = _number(r"(\d+) 2xx", said)
        others = ("failed", "errored", "timeout", "3xx", "4xx", "5xx")
        other = sum(_number(rf"(\d+) {word}", said) for word in others)
        if done == 0 or other > 0:
            raise Failed(f"{proxy.name} was to answer 200: {said[-1000:]}")
        for line in self._agreed():
            if line not in said:
                raise Failed(f"{proxy.name} agreed on something else than `{line}`: {said[-2000:]}")
        return Sample(cpu / done, done / self.seconds, cpu / self.seconds / 1e6)

    def _h2load(self, bench, proxy):
        clients = ["-c8", "-m16", "--npn-list=h2"] if self.protocol == "h2" else ["--h1", "-c64"]
        scheme = "https" if self.tls else "http"
        command = [
            "h2load", "-t1", *clients, "--duration", self.seconds, "--warm-up-time", WARM_UP,
            f"--tls13-ciphers={CIPHER}", f"--groups={GROUP}", f"{scheme}://127.0.0.1:{proxy.port}/",
        ]
        at = {}

        def look(line):
            # What comes before, with connections and handshakes, is not counted by h2load either.
            for moment in ("started", "over"):
                if line.startswith(f"Main benchmark duration is {moment}"):
                    at[moment] = proxy.cpu()

        said = bench.follow(command, "load", self.seconds + 30, look)
        if len(at) != 2:
            raise Failed(f"h2load does not say when it began and ended: {said[-500:]}")
        return at["over"] - at["started"], said

    def _agreed(self):
        """What h2load says of the connection."""
        if not self.tls:
            return ["Application protocol: " + {"h1": "http/1.1", "h2": "h2c"}[self.protocol]]
        return [
            "TLS Protocol: TLSv1.3",
            f"Cipher: {CIPHER}",
            f"Server Temp Key: {GROUP}",
            "Application protocol: " + {"h1": "http/1.1", "h2": "h2"}[self.protocol],
        ]


@dataclass(frozen=True)
class Handshakes:
    """As many connections over TLS 1.3 as go, each for one request, by `openssl s_time`.

    Several of it, since each makes one connection after the other. It sends a request of HTTP/1.0
    and reads up to the end of the connection. Without a request it would not read the tickets, and
    then it cannot resume under TLS 1.3: so the request is in both figures.
    """

    seconds: int
    resumed: bool

    def run(self, bench, proxy):
        conf = _openssl_conf(bench)
        before, start = proxy.cpu(), time.monotonic()
        with ThreadPoolExecutor(S_TIMES) as several:
            runs = [several.submit(self._s_time, bench, proxy, conf) for _ in range(S_TIMES)]
            said = [run.result() for run in runs]
        cpu, seconds = proxy.cpu() - before, time.monotonic() - start
        done = sum(self._count(proxy, words) for words in said)
        return Sample(cpu / done, done / seconds, cpu / seconds / 1e6)

    def _s_time(self, bench, proxy, conf):
        # `-time 2` ends when the third second of the clock begins.
        command = [
            "openssl", "s_time", "-reuse" if self.resumed else "-new", "-tls1_3",
            "-ciphersuites", CIPHER, "-connect", f"127.0.0.1:{proxy.port}", "-www", "/",
            "-time", self.seconds,
        ]
        return bench.run(command, "load", self.seconds + 30, {"OPENSSL_CONF": str(conf)})

    def _count(self, proxy, said):
        """It writes a letter for each connection: r for a resumed session, * for a new one."""
        lines = [line for line in said.splitlines() if re.fullmatch(r"[*r]+", line)]
        letters = "".join(lines)
        unwanted = letters.count("*" if self.resumed else "r")
        if not letters or unwanted:
            kind = "resumed" if self.resumed else "new"
            raise Failed(f"{proxy.name}: {unwanted} of {len(letters)} sessions were not {kind}")
        return len(letters)


def _openssl_conf(bench):
    """s_time has no option for the key exchange: newer ones would ask for another than h2load."""
    path = bench.workspace.path / "openssl.cnf"
    path.write_text(f"""
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = default
[default]
Groups = {GROUP}
""")
    return path


def _seconds(number, unit):
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


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


def tokens_script(path):
    """wrk's requests, each with the next token of this file and with the same user's API key."""
    return f"""
local requests, place = {{}}, 0
function init(args)
  for token in io.lines("{path}") do
    local key = string.format("client-%07d", #requests)
    local headers = {{["authorization"] = "Bearer " .. token, ["x-api-key"] = key}}
    requests[#requests + 1] = wrk.format(nil, "/", headers)
  end
end
function request()
  place = place % #requests + 1
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
        told = self._ask(port, "rate", rate, connections, seconds)
        if told["wrong"]:
            raise Failed(f"{told['wrong']} answers were not the upstream's: {told['first_wrong']}")
        return told

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
