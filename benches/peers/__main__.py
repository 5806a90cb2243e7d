"""Compares tidegate with the proxies that people would pick instead. See docs/performance.md."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import install
import machine
from measure import Bench
from peers import MODULES, Peer
from process import Failed, Workspace
from scenarios import ALL


def main():
    options = arguments()
    target = Path(os.environ.get("CARGO_TARGET_DIR", install.ROOT / "target")).resolve() / "bench"
    target.mkdir(parents=True, exist_ok=True)
    install.tools()
    options.nginx = install.find("nginx")
    tidegate, load = install.build()
    peers = find_peers(options, target, options.tidegate or tidegate)
    workspace = Workspace(machine.cores())
    bench = Bench(workspace, peers, options, load)
    report = Report(options.output or target / "results.md", bench)
    failed = False
    for name in options.scenarios or ALL:
        failed |= not report.add(name, ALL[name])
    print(report.path.read_text())
    bench.say(f"written to {report.path}")
    return 1 if failed else 0


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures tidegate beside nginx, haproxy and Envoy, in turn, round by round. "
        "The release build is made first. That of scripts/dist is `tidegate dist`, if it is there.",
        epilog="How it measures, and how to read it: docs/performance.md.",
    )
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(ALL)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="of each measurement (default: 5)")
    parser.add_argument("--seconds", type=int, metavar="N", help="of one measurement (default: 2)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="2 rounds of 1 second, fewer keys: says what works, and its figures are worth nothing",
    )
    parser.add_argument("--peers", metavar="A,B", help="only these (default: all that are there)")
    parser.add_argument(
        "--tidegate", type=Path, metavar="PATH", help="a binary in place of both builds"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another binary of tidegate, as one more peer: to compare two builds",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="(default: target/bench/results.md)"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1 if options.quick else 2)
    for name in options.scenarios:
        if name not in ALL:
            parser.error(f"there is no scenario {name}: {', '.join(ALL)}")
    if any("=" not in other for other in options.also):
        parser.error("--also wants NAME=PATH")
    return options


def find_peers(options, target, tidegate):
    binaries = {"nginx": options.nginx, "haproxy": install.find("haproxy")}
    wanted = options.peers.split(",") if options.peers else list(MODULES)
    for name in wanted:
        if name not in MODULES:
            sys.exit(f"there is no peer {name}: {', '.join(MODULES)}")
    if "envoy" in wanted:
        binaries["envoy"] = install.envoy(target)
    binaries["tidegate"] = tidegate
    peers = [
        Peer(name, Path(binary).resolve(), MODULES[name])
        for name, binary in binaries.items()
        if name in wanted and binary
    ]
    dist = install.dist() if "tidegate" in wanted and not options.tidegate else None
    for other in [*([f"dist={dist}"] if dist else []), *options.also]:
        name, path = other.split("=", 1)
        peers.append(Peer(f"tidegate {name}", Path(path).resolve(), MODULES["tidegate"]))
    return peers


class Report:
    """The file of results, written anew after each scenario: what was measured stays."""

    def __init__(self, path, bench):
        self.path = path
        self.bench = bench
        self.started = machine.ticks()
        options = bench.options
        # The path says which build of tidegate it is.
        of_peer = [f"{peer.name}: {peer.version()} ({peer.binary})" for peer in bench.peers]
        self.parts = [
            f"# Measured {time.strftime('%Y-%m-%d %H:%M')}\n",
            f"{machine.describe()}. {', '.join(of_peer)}, commit {install.commit()}.",
            f"{options.rounds} rounds of {options.seconds} s, the peers in turn. A ratio is that of "
            "one round's figures, and stands as median (lowest to highest).\n",
        ]
        if options.quick:
            self.parts.append("A quick run says what works; its figures are worth nothing.\n")

    def add(self, name, scenario):
        """Whether it could be measured."""
        self.bench.say(f"{name}: {' '.join(scenario.__doc__.split())}")
        started = time.monotonic()
        self.bench.left_out.clear()
        try:
            text, went = scenario(self.bench), True
        except (Failed, OSError) as failed:
            text, went = f"Not measured: {failed}\n", False
            self.bench.say(f"  {text}")
        finally:
            self.bench.workspace.stop_all()
        self.bench.say(f"  took {time.monotonic() - started:.0f} s")
        self.parts += [f"## {name}\n", " ".join(scenario.__doc__.split()) + "\n", text]
        self.parts += [f"Without {who}: {why}\n" for who, why in self.bench.left_out.items()]
        stolen = machine.disturbance(self.started, machine.ticks())
        footer = f"Taken from this machine by others of its host meanwhile: {stolen:.1%}.\n"
        self.path.write_text("\n".join([*self.parts, footer]))
        return went


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Failed as failed:
        sys.exit(str(failed))
