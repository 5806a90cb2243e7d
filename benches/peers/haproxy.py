"""haproxy: a sliding window over a stick table."""

import subprocess

from words import OWN_ANSWER, REJECTED, REJECTED_HEADERS, REJECTED_TYPE

KEYS = {
    "ip": ("ip", "src"),
    "header": ("string len 32", "req.hdr(x-api-key)"),
}


def version(binary):
    said = subprocess.run([binary, "-v"], capture_output=True, text=True).stdout
    return " ".join(said.split()[:3])


def prepare(binary, directory, setup, port):
    kind, fetch = KEYS[setup.key]
    limit, period = {"open": (1_000_000, "1s"), "closed": (1, "1h")}[setup.rate]
    protocol = "proto h2" if setup.protocol == "h2" else ""
    if setup.tls is not None:
        protocol = f"ssl crt {setup.tls.both} alpn h2,http/1.1"
    forward = setup.upstream is not None
    size = "1100k" if setup.key == "header" else "10k"
    headers = " ".join(f"hdr {name} {_quoted(value)}" for name, value in REJECTED_HEADERS.items())
    reject = (
        f"http-request return status 429 content-type {REJECTED_TYPE} {headers} "
        f"string {_quoted(REJECTED)} if {{ sc_http_req_rate(0) gt {limit} }}"
    )
    answer = f'http-request return status 200 content-type text/plain string "{OWN_ANSWER}"'
    path = directory / "haproxy.cfg"
    path.write_text(f"""
global
    nbthread {setup.workers}
    maxconn {1000 if setup.bodies == "large" else 8000}
    {"tune.bufsize 65536" if setup.bodies == "large" else ""}
defaults
    mode http
    timeout client 75s
    timeout server 60s
    timeout connect 2s
    timeout http-request 10s
    timeout http-keep-alive 75s
    {"option splice-auto" if setup.bodies == "large" else ""}
frontend clients
    bind 127.0.0.1:{port} backlog 4096 {protocol}
    stick-table type {kind} size {size} expire {period} store http_req_rate({period})
    http-request track-sc0 {fetch}
    {reject}
    {"option forwardfor" if forward else answer}
    {"default_backend api" if forward else ""}
{_backend(setup) if forward else ""}
""")
    return [binary, "-db", "-f", path]


def _backend(setup):
    return f"""
backend api
    http-reuse always
    server one 127.0.0.1:{setup.upstream} pool-max-conn -1
"""


def _quoted(text):
    return "'" + text + "'"
