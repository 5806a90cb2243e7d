"""The measurement of scripts/hostile: see there."""

import argparse
import collections
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "benches", "peers"))

SECONDS, RATE, CONNECTIONS = 3, 500, 8
SETTLING = 2
# The most microseconds that others may wait beside a crowd, as a median.
MOST = 20_000
HEAD = b"GET /limited HTTP/1.1\r\nhost: a\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
# The address that the crowds have. The client that is measured has another.
THEIRS = "127.0.0.2"
# Of Linux (ip(7)): a port is chosen by `connect`, which may take one that `bind` by itself may not.
IP_BIND_ADDRESS_NO_PORT = 24
# GET / of the host `a` (RFC 7541, appendix A), as one HEADERS frame with END_STREAM and END_HEADERS.
ASKING = b"\x82\x86\x84\x41\x01a"


def h2_resets(first, count):
    """Requests that are reset at once, each a stream of its own."""
    pair = lambda n: (
        len(ASKING).to_bytes(3, "big") + b"\1\5" + n.to_bytes(4, "big") + ASKING
        + b"\0\0\4\3\0" + n.to_bytes(4, "big") + b"\0\0\0\x08"
    )
    return b"".join(pair(first + 2 * n) for n in range(count))


def frame(kind, flags=0, payload=b"", stream=0):
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def h2_downloads(window, count):
    """Large downloads, each with a window of so many bytes. The preface asks for the windows."""
    large = b"\x82\x86\x04\x08/8000000\x41\x01a"
    preface = PREFACE[:24] + frame(4, 0, b"\0\4" + window.to_bytes(4, "big"))
    return preface + b"".join(frame(1, 5, large, 1 + 2 * n) for n in range(count))


# The head of an upload in chunks.
CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
# The head of a request that offers to speak by WebSocket (RFC 6455, 4.1).
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGlkZWdhdGUgdGlkZWdhdA==\r\n\r\n"
)
GET = b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n"
NTLM = b"GET /1000 HTTP/1.1\r\nhost: a\r\nauthorization: NTLM x\r\n\r\n"
# 20,000 bytes more of an HTTP/2 connection's first stream.
MORE = frame(8, 0, b"\0\0\x4e\x20") + frame(8, 0, b"\0\0\x4e\x20", 1)
UPLOAD = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"
KEYED = b"GET %b/1000 HTTP/1.1\r\nhost: a\r\nx-api-key: KEY\r\n\r\n"
FIELDS = b"".join(b"x-%d: y\r\n" % n for n in range(90))

# What a crowd does: how many connections, what each sends first, what it sends again (a piece each second, or
# as fast as it is taken), and whether it reads. Who is half-closed sends no more after the first, and says so by FIN.
# With a number in place of when it sends again, so many connections come each second, and each leaves after so many
# seconds. `KEY` is another key each time.
CROWDS = {
    "slow heads": (1000, HEAD + b"x-slow: ", b"x", "each second", True),
    "slow bodies": (500, UPLOAD % b"/", b"x", "each second", True),
    "slow readers": (200, GET % b"/2000000", b"", "never", False),
    "idle connections": (3000, HEAD + b"\r\n", b"", "never", True),
    "silent WebSockets": (500, UPGRADE, b"", "never", True),
    "half-closed connections": (20, HEAD + b"\r\n", b"", "half-closed", True),
    "pipelined floods": (20, b"", (HEAD + b"\r\n") * 200, "always", True),
    "pipelined floods, unread": (20, b"", (HEAD + b"\r\n") * 200, "always", False),
    "HTTP/2 resets": (20, PREFACE + h2_resets(1, 20000), b"", "reopen", True),
    "huge heads": (20, b"", HEAD + b"x: " + b"y" * 30000 + b"\r\n\r\n", "always", True),
    "many fields": (20, b"", HEAD + FIELDS + b"\r\n", "always", True),
    "chunk extensions": (20, CHUNKED + b"5;", b"x" * 60000, "always", True),
    "spaces behind a chunk's size": (20, CHUNKED + b"5", b" " * 60000, "always", True),
    "zeros before a chunk's size": (20, CHUNKED, b"0" * 60000, "always", True),
    "chunks of one byte": (20, CHUNKED, b"1\r\nx\r\n" * 10000, "always", True),
    "HTTP/2 PING": (20, PREFACE, frame(6, 0, b"pingpong") * 2000, "always", True),
    "HTTP/2 PRIORITY": (20, PREFACE, frame(2, 0, b"\0\0\0\0\1", 3) * 2000, "always", True),
    "HTTP/2 WINDOW_UPDATE": (20, PREFACE, frame(8, 0, b"\0\0\0\1") * 2000, "always", True),
    "HTTP/2 unknown frames": (20, PREFACE, frame(66) * 2000, "always", True),
    # By h2load: 100 requests at once on each connection, perhaps with a body.
    "HTTP/2 requests": (20, None, None, "by h2load", True),
    "HTTP/2 uploads, rejected": (20, None, b"0" * 60000, "by h2load", True),
    "HTTP/2 streams, unread": (4, h2_downloads(0, 9), b"", "never", True),
    "HTTP/2 streams, slowly read": (40, h2_downloads(20000, 1), MORE, "each second", True),
    "hang-ups a second": (300, GET % b"/2000000", b"", 0, False),
    "HTTP/2 hang-ups a second": (20, h2_downloads(65535, 9), b"", 0, False),
    "half uploads a second": (300, UPLOAD % b"/" + b"x" * 5000, b"", 0, False),
    "slow uploads a second, left by the API": (20, UPLOAD % b"/hasty" + b"x" * 8, b"", 2, False),
    "unread downloads a second, left by the API": (20, GET % b"/hasty/8000000", b"", 2, False),
    "calls a second without an answer": (20, GET % b"/never", b"", 2, False),
    "tunnels a second whose client has gone": (20, UPGRADE, b"", 0.1, False),
    "requests a second that speak of NTLM": (300, NTLM, b"", 0.1, False),
    "slow uploads in all places": (40, UPLOAD % b"/places", b"x", "each second", True),
    "invented keys": (20, KEYED % b"/invented", KEYED % b"/invented", "answered", True),
    "held requests": (40, KEYED % b"/held", KEYED % b"/held", "answered", True),
    "one request after another (not hostile)": (20, HEAD + b"\r\n", HEAD + b"\r\n", "answered", True),
}
# What the measured client asks for beside some crowds, which try to take it. The number is the answer's length.
ASKED = {
    "tunnels a second whose client has gone": "/socket/1000",
    "invented keys": "/own/1000",
    "held requests": "/held/1000",
    "slow uploads in all places": "/places/1000",
}


def fresh(piece):
    """A piece with a key that was never there."""
    return piece.replace(b"KEY", b"%d" % time.time_ns())


class Member:
    """One connection of a crowd."""

    def __init__(self, address, first, reads):
        self.socket = socket.socket()
        self.socket.settimeout(10)
        if not reads:
            # Otherwise the kernel takes a whole answer, and the reader is not slow but greedy.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        self.socket.bind((THEIRS, 0))
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.unsent = fresh(first)

    def send(self, then_closes):
        try:
            sent = self.socket.send(self.unsent)
            self.unsent = self.unsent[sent:]
            if then_closes and not self.unsent:
                self.socket.shutdown(socket.SHUT_WR)
            return sent
        except BlockingIOError:
            return 0

    def receive(self):
        """How many bytes came; None at the end of the connection."""
        try:
            return len(self.socket.recv(1 << 18)) or None
        except BlockingIOError:
            return 0


def passers_by(many, first, stay, port, counts):
    """Many new connections each second, each of which is left after a while, whatever came by then."""
    members, due = collections.deque(), time.monotonic()
    while True:
        while members and members[0][0] <= time.monotonic():
            members.popleft()[1].socket.close()
        try:
            member = Member(("127.0.0.1", port), first, False)
            counts["opened"] += 1
            counts["bytes sent"] += member.send(False)
            members.append((time.monotonic() + stay, member))
        except OSError:
            counts["closed by tidegate"] += 1
        due = max(due + 1 / many, time.monotonic() - 1)
        time.sleep(max(0, due - time.monotonic()))


def crowd(name, port):
    """Plays a crowd until the process is ended. Says what became of it."""
    many, first, again, when, reads = CROWDS[name]
    counts = {"opened": 0, "closed by tidegate": 0, "bytes sent": 0, "bytes received": 0}
    signal.signal(signal.SIGTERM, lambda *_: (print(json.dumps(counts), flush=True), os._exit(0)))
    if not isinstance(when, str):
        print("ready", flush=True)
        passers_by(many, first, when, port, counts)
    ready, members = selectors.DefaultSelector(), set()

    def watch(member):
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if member.unsent else 0)
        key = ready.get_map().get(member.socket)
        if key is not None and key.events != events:
            ready.unregister(member.socket)
        if events and (key is None or key.events != events):
            ready.register(member.socket, events, member)

    def close(member):
        if member.socket in ready.get_map():
            ready.unregister(member.socket)
        members.discard(member)
        member.socket.close()
        counts["closed by tidegate"] += 1

    told, last = False, time.monotonic()
    while True:
        while len(members) < many:
            member = Member(("127.0.0.1", port), first, reads)
            members.add(member)
            counts["opened"] += 1
            if when == "always":
                member.unsent += again
            watch(member)
        if not told:
            print("ready", flush=True)
            told = True
        if when == "each second" and time.monotonic() - last >= 1:
            last = time.monotonic()
            for member in members:
                member.unsent += again
                watch(member)
        for key, events in ready.select(0.2) or [(None, 0)]:
            if key is None:
                continue
            member = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    counts["bytes sent"] += member.send(when == "half-closed")
                    if when == "always" and len(member.unsent) < len(again):
                        member.unsent += again
                if events & selectors.EVENT_READ:
                    came = member.receive()
                    if came is None:
                        close(member)
                        continue
                    counts["bytes received"] += came
                    if when == "answered" and came:
                        member.unsent += fresh(again)
                watch(member)
            except OSError:
                close(member)


CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
workers = 1
[store]
max_keys = 2000
[upstreams.api]
servers = ["{api}"]
response_timeout = "1s"
[upstreams.sockets]
servers = ["{api}"]
max_requests = 20
[upstreams.places]
servers = ["{api}"]
max_requests = 20
[limits.few]
rate = "1/h"
key = ["ip"]
[limits.invented]
rate = "1/d"
key = ["header:x-api-key"]
cost = {{ response_bytes = true, estimate = 1 }}
[limits.own]
rate = "10/s"
key = ["header:x-api-key"]
[limits.held]
rate = "600/s"
burst = 1
key = ["ip"]
wait = "1s"
max_waiting = 20
[[routes]]
path = "/limited"
upstream = "api"
limits = ["few"]
[[routes]]
path = "/invented/{{*rest}}"
upstream = "api"
limits = ["invented"]
[[routes]]
path = "/own/{{*rest}}"
upstream = "api"
limits = ["own"]
[[routes]]
path = "/held/{{*rest}}"
upstream = "api"
limits = ["held"]
[[routes]]
path = "/places"
upstream = "places"
[[routes]]
path = "/places/{{*rest}}"
upstream = "places"
rewrite = "/{{*rest}}"
[[routes]]
path = "/socket"
upstream = "sockets"
[[routes]]
path = "/socket/{{*rest}}"
upstream = "sockets"
[[routes]]
path = "/{{*rest}}"
upstream = "api"
"""
# An API that speaks HTTP/2: another tidegate before the API that speaks HTTP/1.1.
GATEWAY = """
[server]
listen = "127.0.0.1:{port}"
[upstreams.api]
servers = ["http://127.0.0.1:{api}"]
[[routes]]
path = "/{{*rest}}"
upstream = "api"
"""


def playing(name, port):
    """Starts a crowd. Its own work must not keep the client waiting."""
    many, _, body, when, _ = CROWDS[name]
    if when == "by h2load":
        stay = str(SETTLING + SECONDS + 1)
        command = ["h2load", "-c", str(many), "-m", "100", "-D", stay, f"http://127.0.0.1:{port}/limited"]
        if body:
            with tempfile.NamedTemporaryFile(delete=False) as file:
                file.write(body)
            command += ["-d", file.name]
    else:
        command = [sys.executable, __file__, "--crowd", name, str(port)]
    started = subprocess.Popen(["nice", "-n", "19", *command], stdout=subprocess.PIPE, text=True)
    if when != "by h2load":
        started.stdout.readline()
    return started


def became(name, started):
    """What became of a crowd, which is ended if it does not end by itself."""
    if CROWDS[name][3] == "by h2load":
        lines = started.communicate()[0].splitlines()
        return next((line for line in lines if line.startswith("finished")), "h2load failed")
    started.terminate()
    counts = json.loads(started.communicate()[0])
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def beside(name, port, rounds, client):
    """The latencies alone and beside a crowd, the answers that were wrong, and what became of the crowd."""
    found, wrong, said = [], [], ""
    for _ in range(rounds):
        before = client()
        crowd_process = playing(name, port)
        # What is measured is the crowd's stay, and not its arrival.
        time.sleep(SETTLING)
        during = client()
        said = became(name, crowd_process)
        time.sleep(0.5)
        after = client()
        found.append((before, during, after))
        wrong += [one for one in found[-1] if one["wrong"]]
    return found, wrong, said


def measured(api, names, rounds, program, load):
    """Prints a table. Returns what went wrong."""
    # The proxy has a core for itself. What is measured is its work, and not that of the crowds' own process.
    cores = sorted(os.sched_getaffinity(0))
    own = {cores[0]}
    port, gateway, server = free_port(), free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="hostile-")
    log = open(os.path.join(folder, "log"), "wb")

    def tidegate(name, text, cores):
        file = os.path.join(folder, name)
        with open(file, "w", encoding="utf-8") as to:
            to.write(text)
        pin = lambda: os.sched_setaffinity(0, cores)
        return subprocess.Popen([program, "run", "--config", file], stdout=log, stderr=log, preexec_fn=pin)

    rest = set(cores) - own or own
    upstream = subprocess.Popen([load, "serve", f"127.0.0.1:{server}"], stdout=subprocess.DEVNULL)
    os.sched_setaffinity(upstream.pid, rest)
    processes = [upstream]
    if api == "h2c":
        processes.append(tidegate("gateway.toml", GATEWAY.format(port=gateway, api=server), rest))
    url = f"h2c://127.0.0.1:{gateway}" if api == "h2c" else f"http://127.0.0.1:{server}"
    proxy = tidegate("proxy.toml", CONFIGURATION.format(port=port, api=url), own)
    processes.append(proxy)
    time.sleep(1)

    def client(path):
        command = [load, "rate", f"127.0.0.1:{port}", str(RATE), str(CONNECTIONS), str(SECONDS), path]
        pin = lambda: os.sched_setaffinity(0, rest)
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=pin).stdout)

    print(f"\nThe API speaks {'HTTP/2' if api == 'h2c' else 'HTTP/1.1'}. The log: {folder}/log\n")
    print(f"| beside | p50 alone | beside | ratio | p99 alone | beside | ratio | wrong | the crowd, in {SECONDS} s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    faults = []
    try:
        for name in names:
            found, wrong, said = beside(name, port, rounds, lambda: client(ASKED.get(name, "/1000")))
            figures = []
            for quantile in ("p50", "p99"):
                alone = [(before[quantile] + after[quantile]) / 2 for before, _, after in found]
                hurt = [during[quantile] for _, during, _ in found]
                ratio = statistics.median(with_it / without for with_it, without in zip(hurt, alone))
                if quantile == "p50" and statistics.median(hurt) > MOST:
                    faults.append(f"{api}: the p50 was more than {MOST} µs beside: {name}")
                figures += [f"{statistics.median(alone):.0f} µs", f"{statistics.median(hurt):.0f} µs", f"{ratio:.1f}"]
            if wrong:
                faults.append(f"{api}: answers that were not the API's beside: {name}: {wrong[0]['first_wrong']}")
            figures.append(str(sum(one["wrong"] for one in wrong)))
            print(f"| {CROWDS[name][0]} × {name} | {' | '.join(figures)} | {said} |", flush=True)
            if proxy.poll() is not None:
                return [*faults, f"tidegate has ended beside: {name}: see {folder}/log"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return faults


def main():
    import install

    asked = argparse.ArgumentParser(prog="scripts/hostile")
    asked.add_argument("crowds", nargs="*", metavar="CROWD", help=f"all without; there are: {', '.join(CROWDS)}")
    asked.add_argument("--api", choices=("http", "h2c"), action="append", help="what the API speaks; both without")
    asked.add_argument("--rounds", type=int, default=5)
    asked = asked.parse_args()
    for name in asked.crowds:
        if name not in CROWDS:
            sys.exit(f"there is no crowd {name}: {', '.join(CROWDS)}")
    program, load = map(str, install.build())
    faults = []
    for api in asked.api or ("http", "h2c"):
        faults += measured(api, asked.crowds or list(CROWDS), asked.rounds, program, load)
    if faults:
        sys.exit("\n".join(faults))


if sys.argv[1:2] == ["--crowd"]:
    crowd(sys.argv[2], int(sys.argv[3]))
else:
    main()
