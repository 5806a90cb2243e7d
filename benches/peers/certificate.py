"""The certificate that all peers show: P-256, signed by itself, for 127.0.0.1."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    cert: Path
    key: Path
    # The two in one file, as haproxy wants them.
    both: Path


def make(bench):
    """A new one, in the bench's folder, which is gone at the end."""
    directory = bench.workspace.directory("certificate")
    cert, key, both = (directory / f"{name}.pem" for name in ("cert", "key", "both"))
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", 7, "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1",
        "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
        "-out", cert, "-keyout", key,
    ]
    bench.run(command, "load", 30)
    both.touch(0o600)
    both.write_text(cert.read_text() + key.read_text())
    return Certificate(cert, key, both)
