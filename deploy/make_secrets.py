"""Write the secrets of docker-compose.yml: `python deploy/make_secrets.py FOLDER`. Existing files stay as they are.

A container reads them as another user than yours, so that the files have to be readable by all; the folder is yours
alone, which keeps others on this machine out. The file api_keys gets one key with all scopes; the key is printed once.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

__all__ = ["write"]


def write(folder: Path) -> dict[str, str]:
    """The secrets that were new, by the name of their file."""
    folder.mkdir(mode=0o700, exist_ok=True)
    password = folder / "postgres_password"
    new: dict[str, str] = {}
    _put(password, secrets.token_hex(24), new)
    url = f"postgresql+psycopg://backpass:{password.read_text()}@postgres:5432/backpass"
    _put(folder / "backpass_database_url", url, new)
    _put(folder / "grafana_password", secrets.token_hex(12), new)
    _put(folder / "api_keys", f"local:read,write,admin:bp_{secrets.token_urlsafe(32)}\n", new)
    return new


def _put(path: Path, text: str, new: dict[str, str]) -> None:
    if not path.exists():
        path.touch(0o644)
        path.write_text(text)
        path.chmod(0o644)
        new[path.name] = text


if __name__ == "__main__":
    written = write(Path(sys.argv[1]))
    for name in written:
        print(f"{Path(sys.argv[1]) / name}")
    if "api_keys" in written:
        print(f"API key: {written['api_keys'].strip().rpartition(':')[2]}")
