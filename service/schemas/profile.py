"""The profile of a call: time per kernel."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.schemas.programs import Strict

__all__ = ["Profile"]


class Bandwidth(Strict):
    """Memory bandwidth for arrays up to a size."""

    up_to_bytes: int = Field(description="Largest array in bytes that this rate holds for.")
    rate: int = Field(description="Bytes per second, reads and writes together.")


class Peak(Strict):
    """Peak rates of the machine, measured by the worker."""

    threads: int = Field(description="Number of threads that a step of the worker uses.")
    flops_per_s: dict[str, int] = Field(description="Floating-point operations per second, by dtype.")
    bytes_per_s: list[Bandwidth] = Field(description="Memory bandwidths, by the size of the arrays.")


class ProfiledKernel(Strict):
    """One kernel: several ops fused into machine code, or one op that runs alone."""

    kernel: str = Field(description="Kind of kernel and its sizes.", examples=["product 32 x 64 x 10"])
    ops: list[str] = Field(description="Types of the ops fused into it.")
    of: dict[str, Any] | None = Field(
        description="The first op of the program in it: block, op, type, and whether it belongs to the backward pass. "
        "Null for kernels of the optimizer."
    )
    compiled: bool = Field(description="Whether it runs as machine code.")
    calls: int = Field(description="How often it ran in the step.")
    ms: float = Field(description="Milliseconds of all calls together.")
    flops: int = Field(description="Floating-point operations in all calls; an elementary function counts as one.")
    bytes: int = Field(description="Bytes read and written in all calls, each array once per call; views move none.")
    share_of_time: float = Field(description="Its part of the time of the step, from 0 to 1.")
    share_of_peak: float | None = Field(
        description="Shortest possible time on this machine divided by the time it took, at most 1; null on a GPU."
    )


class Profile(Strict):
    """Kernels of the step, the longest first. Kernels inside loops are listed with their number of calls."""

    ms: float = Field(description="Milliseconds of the step, without reading the request and writing the answer.")
    outside_ms: float = Field(description="Milliseconds of the step spent outside of kernels.")
    peak_bytes: int = Field(
        description="Predicted peak bytes of the step, not counting its inputs. It starts only if as many are free."
    )
    peak: Peak | None = Field(description="Peak rates of the machine; null on a GPU.")
    kernels: list[ProfiledKernel] = Field(description="The kernels, the longest first.")
