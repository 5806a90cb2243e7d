"""nginx: as the peer that the others are compared with, and as the upstream of all."""

import os
import re
import subprocess

from words import REJECTED, REJECTED_HEADERS, REJECTED_TYPE

RATES = {"open": ("1000000r/s", "burst=1000000 nodelay"), "closed": ("1r/m", "")}
KEYS = {"ip": "$binary_remote_addr", "header": "$http_x_api_key"}


def version(binary):
    said = subprocess.run([binary, "-v"], capture_output=True, text=True).stderr
    return said.rsplit(": ", 1)[-1].strip()


def built_with(binary, module):
    """Whether a module that is there by default was left out."""
    said = subprocess.run([binary, "-V"], capture_output=True, text=True).stderr
    return not re.search(f"--without-{module}_module", said)


def prepare(binary, directory, setup, port):
    forward = setup.upstream is not None
    # A million keys take 130 MB of a zone.
    size = "256m" if setup.key == "header" and setup.limits == 1 else "1m"
    rate, burst = RATES[setup.rate]
    zones = "\n".join(
        f"limit_req_zone {KEYS[setup.key]} zone=limit{limit}:{size} rate={rate};"
        for limit in range(setup.limits)
    )
    action = "proxy_pass http://upstream;" if forward else "empty_gif;"
    use = lambda limit: f"limit_req zone=limit{limit} {burst};"
    if setup.routes == 1:
        locations = f"location / {{ {use(0)} {action} }}"
    else:
        locations = "\n".join(
            f"location /r/{route}/ {{ {use(route % setup.limits)} {action} }}"
            for route in range(setup.routes)
        )
    headers = "\n".join(
        f"add_header {name} '{value}' always;" for name, value in REJECTED_HEADERS.items()
    )
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
    limit_req_status 429;
    limit_req_log_level info;
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
    )


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


def _write(binary, directory, workers, http):
    places = " ".join(
        f"{kind}_temp_path {directory}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        if built_with(binary, f"http_{kind}")
    )
    path = directory / "nginx.conf"
    path.write_text(f"""
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


