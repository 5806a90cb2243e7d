"""The soak of scripts/soak: see there."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM, MINUTES = os.path.abspath(sys.argv[1]), float(sys.argv[2])
WARM_UP = 0.25  # The share of the time in which memory may still grow.
GROWTH = 1.25  # What memory may grow to after that.
EXPECTED = (101, 200, 401, 429, 500, 502, 503, 504)
PORTS = 1000  # The most ports that connections to the servers may have left in TIME_WAIT.
STRANGE = 0.0001  # The most answers that may be none of these, as a share of all.
seen = {}
stop = threading.Event()


def note(what):
    seen[what] = seen.get(what, 0) + 1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


API = """
import http.server, random, sys, time
class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        if self.headers.get("upgrade"):
            self.send_response(101)
            self.send_header("connection", "upgrade"); self.send_header("upgrade", "echo")
            self.end_headers()
            self.close_connection = True
            while piece := self.connection.recv(1000): self.connection.sendall(piece)
            return
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/slow": time.sleep(1)
        if self.path == "/healthz": body = b"ok"
        elif random.random() < 0.002: self.connection.close(); return
        else: body = b'{"usage": {"total_tokens": %d}}' % random.randint(1, 50) + b"x" * random.choice([0, 100, 50000])
        self.send_response(random.choices([200, 401, 500], [97, 2, 1])[0])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
"""


def configuration(listen, tls, admin, folder, redis, apis, rate):
    return f"""
[server]
listen = ["127.0.0.1:{listen}", "unix:{folder}/socket"]
tls = {{ listen = "127.0.0.1:{tls}", certificates = [{{ cert = "cert.pem", key = "key.pem" }}] }}
trusted_proxies = ["127.0.0.2"]
proxy_protocol = true
tunnel_timeout = "5s"
drain_timeout = "10s"
header_timeout = "2s"
body_timeout = "3s"
idle_timeout = "5s"
max_connections_per_client = 500
request_id = "x-request-id"
[admin]
listen = "127.0.0.1:{admin}"
[store]
url = "redis://127.0.0.1:{redis}"
[upstreams.api]
servers = {json.dumps([f"http://127.0.0.1:{api}" for api in apis])}
health = {{ path = "/healthz", interval = "500ms" }}
max_requests = 200
response_timeout = "2s"
respect_retry_after = true
[upstreams.finishing]
servers = {json.dumps([f"http://127.0.0.1:{api}" for api in apis])}
on_abort = "finish"
[limits.key]
key = ["header:x-key"]
rate = "{rate}/s"
[limits.held]
key = ["header:x-key"]
rate = "50/s"
wait = "1s"
[limits.window]
key = ["ip", "path"]
algorithm = "sliding-window"
rate = "100000/m"
[limits.tokens]
key = ["header:x-key"]
rate = "100000/m"
cost = {{ response_json = "usage.total_tokens", estimate = 10 }}
[limits.slots]
key = ["header:x-key"]
algorithm = "concurrency"
limit = 20
[limits.log]
key = ["header:x-key"]
algorithm = "sliding-log"
rate = "50/s"
mode = "shadow"
candidate = {{ rate = "20/s" }}
[limits.failed]
key = ["ip"]
rate = "100000/m"
count_when = {{ status = ["401"] }}
[limits.java]
key = ["header:x-key"]
algorithm = "redisson"
name = "soak"
rate = "100000/m"
[[routes]]
path = "/tunnel"
upstream = "api"
[[routes]]
path = "/slow"
upstream = "finishing"
limits = ["slots"]
[[routes]]
path = "/held"
upstream = "api"
limits = ["held"]
[[routes]]
path = "/{{*rest}}"
upstream = "api"
limits = ["key", "window", "tokens", "slots", "log", "failed", "java"]
[trace]
otlp = "http://127.0.0.1:9"
sample = 0.1
[log]
throttle = "summary"
"""


class Proxy:
    def __init__(self, folder, redis, apis):
        self.folder, self.redis, self.apis = folder, redis, apis
        self.port, self.tls, self.admin = free_port(), free_port(), free_port()
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=localhost"]
        files = ["-keyout", os.path.join(folder, "key.pem"), "-out", os.path.join(folder, "cert.pem")]
        subprocess.run(make + files, check=True, stderr=subprocess.DEVNULL)
        self.configure(200)
        self.log = open(os.path.join(folder, "log"), "ab")
        command = [PROGRAM, "run", "--config", os.path.join(folder, "proxy.toml")]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def pids(self):
        """The processes that serve this proxy's file. After a handover there may be two for a while."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as told:
                    if os.path.join(self.folder, "proxy.toml").encode() in told.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def signal(self, number):
        for pid in self.pids():
            os.kill(pid, number)

    def ends(self):
        """Ends it. Returns whether all of its processes have ended in time."""
        self.signal(signal.SIGTERM)
        for _ in range(600):
            self.process.poll()
            if not self.pids():
                return True
            time.sleep(0.1)
        return False

    def override(self):
        """Gives a key other figures for a minute."""
        command = [PROGRAM, "limits", "set", "key", "key-1", "--rate", "7/s", "--for", "1m", "--reason", "soak"]
        where = ["--config", os.path.join(self.folder, "proxy.toml")]
        done = subprocess.run(command + where, capture_output=True, text=True)
        if done.returncode != 0:
            note(f"override: {done.stderr.strip()}")

    def configure(self, rate):
        text = configuration(self.port, self.tls, self.admin, self.folder, self.redis, self.apis, rate)
        path = os.path.join(self.folder, "proxy.toml")
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)

    def ask(self, path):
        client = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            client.request("GET", path)
            return client.getresponse().read()
        finally:
            client.close()

    def figures(self):
        """Memory in MiB, open files, and the process, which a handover changes."""
        figures = {}
        for line in self.ask("/metrics").decode().splitlines():
            name, _, value = line.partition(" ")
            figures[name] = value
        memory = float(figures["process_resident_memory_bytes"]) / 2**20
        return memory, float(figures["process_open_fds"]), float(figures["process_start_time_seconds"])


def visitor(proxies):
    keys = [f"key-{n}" for n in range(2000)]
    client, port = None, None
    while not stop.is_set():
        try:
            proxy = random.choice(proxies)
            if client is None or port != proxy.port or random.random() < 0.02:
                client, port = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10), proxy.port
            path = random.choice(["/a", "/b/%d" % random.randrange(50), "/held"])
            key = keys[min(int(random.expovariate(0.01)), 1999)]
            body = b"x" * random.choice([0, 10, 20000]) if random.random() < 0.2 else None
            client.request("POST" if body else "GET", path, body, {"x-key": key})
            answer = client.getresponse()
            answer.read()
            note(answer.status)
        except (OSError, http.client.HTTPException) as error:
            note(type(error).__name__)
            client = None
        time.sleep(random.random() * 0.02)


def browser(proxies):
    """HTTP/2 over TLS: requests that share a connection."""
    while not stop.is_set():
        proxy = random.choice(proxies)
        urls = [f"https://127.0.0.1:{proxy.tls}/h2/{n}" for n in range(20)]
        said = "%{http_version} %{http_code}\n"
        outputs = [part for _ in urls for part in ("-o", os.devnull)]
        command = ["curl", "-sk", "--http2", "-Z", "-m", "10", "-H", f"x-key: h2-{random.randrange(50)}", "-w", said]
        told = subprocess.run(command + outputs + urls, capture_output=True, text=True)
        answers = told.stdout.splitlines()
        for answer in answers:
            version, status = answer.split()
            note(int(status) if version == "2" and status != "000" else f"HTTP/2: {answer}")
        time.sleep(random.random())


def neighbour(proxies):
    """A front server that sends a PROXY header, by the Unix socket or by TCP."""
    while not stop.is_set():
        proxy = random.choice(proxies)
        try:
            if random.random() < 0.5:
                one = socket.socket(socket.AF_UNIX)
                one.settimeout(10)
                one.connect(os.path.join(proxy.folder, "socket"))
            else:
                one = socket.create_connection(("127.0.0.1", proxy.port), 10, ("127.0.0.2", 0))
            # A Unix socket's peer is trusted as well, and has to send the header.
            head = b"PROXY TCP4 203.0.113.%d 127.0.0.1 1 2\r\n" % random.randrange(256)
            with one:
                one.sendall(head + b"GET /near HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                note(int(one.makefile("rb").readline().split()[1]))
        except (OSError, IndexError) as error:
            note(f"neighbour: {type(error).__name__}")
        time.sleep(random.random() * 0.2)


def talker(proxies):
    """A tunnel in which little is said, and which is left after a while, or stays silent."""
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", random.choice(proxies).port), 10) as one:
                one.sendall(b"GET /tunnel HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
                lines = one.makefile("rb")
                note(int(lines.readline().split()[1]))
                while lines.readline() not in (b"\r\n", b""):
                    pass
                for _ in range(random.randrange(10)):
                    one.sendall(b"hello\n")
                    lines.readline()
                    time.sleep(random.random())
                time.sleep(random.choice([0, 0, 6]))
        except (OSError, IndexError) as error:
            note(f"tunnel: {type(error).__name__}")


def watcher(proxies):
    """Somebody who has the page open."""
    while not stop.is_set():
        client = http.client.HTTPConnection("127.0.0.1", random.choice(proxies).admin, timeout=5)
        try:
            client.request("GET", "/api/stream")
            answer, until = client.getresponse(), time.monotonic() + random.random() * 60
            while time.monotonic() < until and answer.readline():
                pass
        except (OSError, http.client.HTTPException) as error:
            note(f"watcher: {type(error).__name__}")
        finally:
            client.close()
        time.sleep(0.2)


def nuisance(proxies):
    """A client that sends half of something and stays."""
    halves = [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx", b"\x16\x03\x01", b"nonsense\r\n\r\n",
              b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"]
    held = []
    while not stop.is_set():
        try:
            one = socket.create_connection(("127.0.0.1", random.choice(proxies).port), timeout=5)
            one.sendall(random.choice(halves))
            held.append(one)
        except OSError:
            note("nuisance refused")
        if len(held) > 60:
            held.pop(random.randrange(len(held))).close()
        time.sleep(0.05)


# Nine requests over HTTP/2 (RFC 9113; GET / of the host `a` by RFC 7541, appendix A).
H2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"".join(
    b"\0\0\6\1\5" + stream.to_bytes(4, "big") + b"\x82\x86\x84\x41\x01a" for stream in range(1, 19, 2)
)


def leaver(proxies):
    """A client that hangs up at once: before the answer, in the middle of it or of its upload, and over HTTP/2."""
    asked = [b"GET /slow HTTP/1.1\r\nhost: a\r\nx-key: left\r\n\r\n", b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n",
             b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 50000\r\n\r\n" + b"x" * 500, H2]
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", random.choice(proxies).port), 5) as one:
                one.sendall(random.choice(asked))
                time.sleep(random.choice([0, 0.01]))
        except OSError:
            note("leaver refused")
        time.sleep(0.01)


def unusable_ports(servers):
    """How many of this machine's ports cannot be used for these servers: connections to them in TIME_WAIT."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[3] == "06" and int(row[2].split(":")[1], 16) in servers for row in rows)


def main():
    folder = tempfile.mkdtemp(prefix="soak-")
    redis_port = free_port()
    redis = ["redis-server", "--port", str(redis_port), "--save", "", "--appendonly", "no"]
    start_redis = lambda: subprocess.Popen(redis, stdout=subprocess.DEVNULL)
    api_ports = [free_port() for _ in range(3)]
    start_api = lambda port: subprocess.Popen(
        [sys.executable, "-c", API, str(port)], stderr=subprocess.DEVNULL
    )
    store, apis = start_redis(), [start_api(port) for port in api_ports]
    proxies = []
    for name in ("one", "other"):
        os.mkdir(os.path.join(folder, name))
        proxies.append(Proxy(os.path.join(folder, name), redis_port, api_ports))
    time.sleep(2)
    for _ in range(24):
        threading.Thread(target=visitor, args=(proxies,), daemon=True).start()
    for role in (nuisance, leaver, browser, neighbour, talker, talker, watcher):
        threading.Thread(target=role, args=(proxies,), daemon=True).start()
    began, turn, points, most_ports = time.monotonic(), 0, [[], []], 0
    while time.monotonic() - began < MINUTES * 60:
        time.sleep(10)
        turn += 1
        fault = ["redis dies", "server dies", "server pauses", "reload", "redis pauses", "handover", "override"][turn % 7]
        if fault == "redis dies":
            store.kill(); store.wait(); time.sleep(3); store = start_redis()
        elif fault == "server dies":
            place = turn % 3
            apis[place].kill(); apis[place].wait(); time.sleep(3); apis[place] = start_api(api_ports[place])
        elif fault == "server pauses":
            apis[turn % 3].send_signal(signal.SIGSTOP); time.sleep(4); apis[turn % 3].send_signal(signal.SIGCONT)
        elif fault == "reload":
            proxies[turn % 2].configure(random.choice([100, 200, 300]))
        elif fault == "redis pauses":
            store.send_signal(signal.SIGSTOP); time.sleep(3); store.send_signal(signal.SIGCONT)
        elif fault == "handover":
            proxies[turn % 2].signal(signal.SIGUSR2)
        elif fault == "override":
            proxies[turn % 2].override()
        for place, proxy in enumerate(proxies):
            memory, files, _ = proxy.figures()
            points[place].append((memory, files))
        told = ", ".join(f"{m:.0f} MiB {f:.0f} files" for m, f in (series[-1] for series in points))
        most_ports = max(most_ports, unusable := unusable_ports(api_ports))
        told += f", {unusable} ports in TIME_WAIT"
        print(f"{time.monotonic() - began:6.0f} s  {fault:14} {told}  {dict(sorted(seen.items(), key=str))}", flush=True)
    stop.set()
    print(f"ports in TIME_WAIT: at most {most_ports}")
    failed = most_ports > PORTS
    for series in points:
        after = series[int(len(series) * WARM_UP):]
        first, last = after[: len(after) // 3], after[-len(after) // 3:]
        for place, what in enumerate(("memory", "open files")):
            before, now = max(point[place] for point in first), max(point[place] for point in last)
            print(f"{what}: at most {before:.0f} in the first third after the warm-up, {now:.0f} in the last")
            failed |= now > before * GROWTH
    for proxy in proxies:
        failed |= not proxy.ends()
    for process in [store, *apis]:
        process.kill()
    strange = {what: count for what, count in seen.items() if what not in EXPECTED}
    # A server that dies in the middle of an answer breaks it off. Beside that nothing strange may happen.
    often = sum(strange.values()) > sum(seen.values()) * STRANGE
    failed |= often or any(isinstance(what, int) for what in strange)
    print("answers:", seen, "strange:", strange, "logs:", folder)
    sys.exit(1 if failed else 0)


main()
