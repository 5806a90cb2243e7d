"""tidegate, with what it has switched on by default: throttle lines, metrics, the fields that tell
a client what is left."""

import subprocess

from process import free_port
from words import OWN_ANSWER

KEYS = {"ip": '["ip"]', "header": '["header:x-api-key"]', "claim": '["jwt:sub"]'}


def version(binary):
    return subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()


def prepare(binary, directory, setup, port):
    rate = {"open": "1000000/s", "closed": "1/h"}[setup.rate]
    names = ["per-client"] if setup.limits == 1 else [f"limit{n}" for n in range(setup.limits)]
    names += [f"more{n}" for n in range(1, setup.limits_each)]
    figures = f'key = {KEYS[setup.key]}\nrate = "{rate}"\n'
    limits = "".join(f"[limits.{name}]\n{figures}" for name in names)
    action = f'respond = {{ status = 200, body = "{OWN_ANSWER}" }}'
    if setup.upstream is not None:
        action = 'upstream = "api"'
        limits += f'[upstreams.api]\nservers = ["http://127.0.0.1:{setup.upstream}"]\n'
    more = names[setup.limits:]
    routes = []
    for route in range(setup.routes):
        prefix = "" if setup.routes == 1 else f"/r/{route}"
        used = ", ".join(f'"{name}"' for name in [names[route % setup.limits], *more])
        routes.append(f'[[routes]]\npath = "{prefix}/{{*rest}}"\n{action}\nlimits = [{used}]\n')
    scheme = "redis-cluster" if setup.cluster else "redis"
    redis = "" if setup.redis is None else f'url = "{scheme}://127.0.0.1:{setup.redis}"\n'
    listen = f'listen = "127.0.0.1:{port}"'
    if setup.tls is not None:
        pair = f'{{ cert = "{setup.tls.cert}", key = "{setup.tls.key}" }}'
        tls = f'{{ listen = "127.0.0.1:{port}", certificates = [{pair}] }}'
        listen = f'listen = "127.0.0.1:{free_port()}"\ntls = {tls}'
    tokens = "" if setup.jwt is None else f'[jwt.clients]\nkeys = "{setup.jwt}"\n'
    path = directory / "proxy.toml"
    path.write_text(f"""
[server]
{listen}
workers = {setup.workers}

[store]
max_keys = 1100000
{redis}
[admin]
listen = "127.0.0.1:{free_port()}"

{tokens}
{limits}
{"".join(routes)}
""")
    return [binary, "run", "--config", path]
