"""The command line of the recipes, and the service that they use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

import backpass_client as bp
from examples.demo import running_service

__all__ = ["connected", "options", "progress"]


def options(description: str | None, **defaults: int | float) -> argparse.Namespace:
    """The command line of a recipe: --url, and one option for each of `defaults`, of the type of its default."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--url", help="address of a service; by default the recipe starts one of its own")
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help="default: %(default)s"
        )
    return parser.parse_args()


@contextmanager
def connected(url: str | None) -> Iterator[bp.Service]:
    """A connection to the service at `url`, or without one to a new service that runs until the end of the block."""
    if url is not None:
        with bp.Service(url) as service:
            yield service
    else:
        with running_service() as address, bp.Service(address) as service:
            yield service


def progress(each: Iterable[Any], name: str, unit: str = "step") -> tqdm:
    """`each` with a progress bar."""
    return tqdm(each, desc=name, unit=unit, file=sys.stdout, ascii=" .:#", ncols=100, mininterval=0.5)
