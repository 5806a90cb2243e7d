"""nginx: as the peer that the others are compared with, and as the upstream of all."""

import os
import re
import subprocess
from pathlib import Path

from words import REJECTED, REJECTED_HEADERS, REJECTED_TYPE

RATES = {"open": ("1000000r/s", "burst=1000000 nodelay"), "closed": ("1r/m", "")}
KEYS = {"ip": "$binary_remote_addr", "header": "$http_x_api_key"}
# The same for limit.lua: tokens a second and the burst.
LUA_RATES = {"open": "1000000, 1000000", "closed": "1 / 3600, 1"}
LUA_KEYS = {"ip": "ngx.var.remote_addr", "header": "ngx.var.http_x_api_key"}


def version(binary):
    said = subprocess.run([binary, "-v"], capture_output=True, text=True).stderr
    return said.rsplit(": ", 1)[-1].strip()


def built_with(binary, module):
    """Whether a module that is there by default was left out."""
    said = subprocess.run([binary, "-V"], capture_output=True, text=True).stderr
    return not re.search(f"--without-{module}_module", said)


def prepare(binary, directory, setup, port):
    forward = setup.upstream is not None
    shared = setup.redis is not None
    zones, use, rejected = _with_lua(setup) if shared else _by_itself(setup)
    action = "proxy_pass http://upstream;" if forward else "empty_gif;"
    if setup.routes == 1:
        locations = f"location / {{ {use(0)} {action} }}"
    else:
        locations = "\n".join(
            f"location /r/{route}/ {{ {use(route % setup.limits)} {action} }}"
            for route in range(setup.routes)
        )
    headers = "\n".join(f"add_header {name} '{value}' always;" for name, value in rejected.items())
    upstream = f"""
    upstream upstream {{
        server 127.0.0.1:{setup.upstream};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 60s;
    }}
    """
    large = """
    client_max_body_size 0;
    proxy_request_buffering off;
    proxy_buffer_size 64k;
    proxy_buffers 16 64k;
    proxy_busy_buffers_size 256k;
    proxy_max_temp_file_size 0;
    """
    listen = "http2" if setup.protocol == "h2" else ""
    if setup.tls is not None:
        listen = "ssl http2"
    listen += " reuseport" if setup.workers > 1 else ""
    return _write(
        binary,
        directory,
        setup.workers,
        f"""
    {zones}
    {upstream if forward else ""}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $remote_addr;
    {large if setup.bodies == "large" else ""}
    server {{
        listen 127.0.0.1:{port} backlog=4096 {listen};
        {_tls(setup) if setup.tls is not None else ""}
        error_page 429 @rejected;
        location @rejected {{
            default_type {REJECTED_TYPE};
            {headers}
            return 429 '{REJECTED}';
        }}
        {locations}
    }}
    """,
        _modules(binary) if shared else "",
    )


def _by_itself(setup):
    """limit_req: the zones, how a location uses the limit of a number, a rejection's fields."""
    # A million keys take 130 MB of a zone.
    size = "256m" if setup.key == "header" and setup.limits == 1 else "1m"
    rate, burst = RATES[setup.rate]
    zones = [
        f"limit_req_zone {KEYS[setup.key]} zone=limit{limit}:{size} rate={rate};"
        for limit in range(setup.limits)
    ]
    said = "limit_req_status 429; limit_req_log_level info;"
    use = lambda limit: f"limit_req zone=limit{limit} {burst};"
    return "\n".join([*zones, said]), use, REJECTED_HEADERS


def _with_lua(setup):
    """The same with limit.lua, which knows one limit and says how long to wait."""
    path = f'lua_package_path "{Path(__file__).parent}/?.lua;;";'
    take = f"take({setup.redis}, {LUA_KEYS[setup.key]}, {LUA_RATES[setup.rate]})"
    use = lambda _: f'set $wait 0; access_by_lua_block {{ require("limit").{take} }}'
    waits = {"retry-after": "$wait", "ratelimit": '"per-client";r=0;t=$wait'}
    return path, use, REJECTED_HEADERS | waits


def _modules(binary):
    """Debian's, from where its nginx has them."""
    said = subprocess.run([binary, "-V"], capture_output=True, text=True).stderr
    found = re.search(r"--modules-path=(\S+)", said)
    place = found.group(1) if found else "modules"
    names = ("ndk_http_module", "ngx_http_lua_module")
    return "\n".join(f"load_module {place}/{name}.so;" for name in names)


def _tls(setup):
    # 1.22 has no TLS 1.3 unless it is named.
    return f"""
        ssl_certificate {setup.tls.cert};
        ssl_certificate_key {setup.tls.key};
        ssl_protocols TLSv1.2 TLSv1.3;
    """


def prepare_upstream(binary, directory, port, body):
    """The API behind the proxies: `body` for everything; /connection names the connection on
    which the request came."""
    return _write(
        binary,
        directory,
        1,
        f"""
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        default_type text/plain;
        location = /connection {{ return 200 $connection; }}
        location / {{ return 200 '{body}'; }}
    }}
    """,
    )


def _write(binary, directory, workers, http, modules=""):
    places = " ".join(
        f"{kind}_temp_path {directory}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        if built_with(binary, f"http_{kind}")
    )
    path = directory / "nginx.conf"
    path.write_text(f"""
{modules}
{"user root;" if os.geteuid() == 0 else ""}
daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {directory}/pid;
error_log {directory}/log error;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 75s;
    server_tokens off;
    {places}
    {http}
}}
""")
    return [binary, "-p", directory, "-e", directory / "log", "-c", path]


