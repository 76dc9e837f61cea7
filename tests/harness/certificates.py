"""Certificates of a private certificate authority for one test."""

from __future__ import annotations

from pathlib import Path

from harness.programs import run


def certify(directory: Path, name: str) -> Path:
    """Writes ``NAME.pem`` and ``NAME.key`` for localhost. Returns the path of the authority's certificate."""
    ca, ca_key = directory / f"{name}-ca.pem", directory / f"{name}-ca.key"
    key, certificate, request = (directory / f"{name}.{suffix}" for suffix in ("key", "pem", "csr"))
    extensions = directory / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:false\n")
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-batch")
    authority = ("-addext", "basicConstraints=critical,CA:true", "-subj", f"/CN={name} of tests")
    run(*new, "-x509", "-days", "2", *authority, "-keyout", ca_key, "-out", ca)
    run(*new, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    signed = ("-days", "2", "-extfile", extensions, "-out", certificate)
    run("openssl", "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", *signed)
    return ca
