"""Where the time of a call went, as it is answered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.schemas.programs import Strict

__all__ = ["Profile"]


class Bandwidth(Strict):
    """How fast arrays of a size are read and written."""

    up_to_bytes: int
    rate: int = Field(description="Bytes in a second.")


class Peak(Strict):
    """What the machine can do at most, as the worker measured it."""

    threads: int
    flops_per_s: dict[str, int] = Field(description="By dtype.")
    bytes_per_s: list[Bandwidth]


class ProfiledKernel(Strict):
    """One kernel: several ops fused as machine code, or one op that runs by itself."""

    kernel: str = Field(description="What it is, with its sizes.", examples=["product 32 x 64 x 10"])
    ops: list[str] = Field(description="Ops in it, as far as they are fused.")
    of: dict[str, Any] | None = Field(
        description="The op of the program that it comes from, the first of them: block, op, type, and whether it is "
        "of the backward pass. Null for the optimizer's."
    )
    compiled: bool = Field(description="Whether it is machine code.")
    calls: int
    ms: float
    flops: int = Field(description="In all calls; an elementary function counts as one.")
    bytes: int = Field(description="Read and written in all calls, each array once.")
    share_of_time: float
    share_of_peak: float | None = Field(
        description="The least time in which the machine could do it, by the time it took; null on a GPU."
    )


class Profile(Strict):
    """Where the time of the step went, the longest first. Of loops, what runs inside is told, with its calls."""

    ms: float = Field(description="The step, without reading the request and writing the answer.")
    outside_ms: float = Field(description="What no kernel took.")
    peak: Peak | None
    kernels: list[ProfiledKernel]
