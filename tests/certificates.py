"""Certificates that sign themselves, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["certificate", "needs_openssl"]

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


def certificate(folder: Path, name: str, days: int = 2) -> None:
    """A new certificate and key for localhost, in the files cert and key of `folder`, which is made.

    days: time until it ends; with -1 it has ended.
    """
    folder.mkdir(exist_ok=True)
    key, request, names = folder / "key", folder / "request", folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for command in (
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key],
        ["req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request],
        ["x509", "-req", "-in", request, "-signkey", key, "-days", days, "-extfile", names, "-out", folder / "cert"],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    key.chmod(0o600)
