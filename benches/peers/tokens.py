"""Signed tokens of many users, and the key that verifies them."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils


@dataclass(frozen=True)
class Tokens:
    """Files."""

    # The public key in PEM.
    key: Path
    # A token in each line.
    lines: Path


def make(bench, algorithm, count):
    """New ones, in the bench's folder, which is gone at the end. As those of a login server they say
    who issued them, for whom, when, and for how long. They hold until the year 2100."""
    directory = bench.workspace.directory(f"tokens-{algorithm}-{count}")
    private, sign = {"ES256": _ecdsa, "RS256": _rsa}[algorithm]()
    header = _part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    lines = []
    for user in range(count):
        claims = {
            "iss": "https://login.example.com/", "sub": f"client-{user:07}", "aud": "api",
            "iat": 1700000000, "exp": 4102444800, "org": f"org-{user % 100}", "scope": "read write",
        }
        message = f"{header}.{_part(json.dumps(claims).encode())}"
        lines.append(f"{message}.{_part(sign(message.encode()))}\n")
    made = Tokens(directory / "key.pem", directory / "tokens")
    made.key.write_bytes(private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ))
    made.lines.write_text("".join(lines))
    return made


def _ecdsa():
    key = ec.generate_private_key(ec.SECP256R1())

    def sign(message):
        # A token has the two numbers themselves (RFC 7518, 3.4).
        numbers = utils.decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(32, "big") for number in numbers)

    return key, sign


def _rsa():
    key = rsa.generate_private_key(65537, 2048)
    return key, lambda message: key.sign(message, padding.PKCS1v15(), hashes.SHA256())


def _part(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
