"""Everything that can be set from outside, read once at start from `BACKPASS_*` environment variables.

Sizes are bytes and durations are seconds everywhere. The limits are published in `GET /v1`, so a client can read
what it will be held to instead of finding out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings", "TensorLimits", "available_cores"]

KIB, MIB, GIB = 2**10, 2**20, 2**30


def _default_workers() -> int:
    """Half the cores: each worker then has two to compute with; two at least, so that one may be replaced."""
    return min(8, max(2, available_cores() // 2))


def available_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """How large one tensor may be: dimensions, elements, bytes."""

    rank: int = 8
    elements: int = 2**31 - 1
    bytes: int = 4 * GIB


class Settings(BaseSettings):
    """The configuration of one service process; immutable once read."""

    model_config = SettingsConfigDict(env_prefix="BACKPASS_", frozen=True, extra="ignore")

    # Where and how it listens
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    data_dir: Path = Field(Path("data"), description="Directory for durable state; made when first needed.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe log line shown.")
    graceful_shutdown: float = Field(30.0, gt=0, le=3600, description="Time for running requests to end on SIGTERM.")

    # Workers
    device: Literal["cpu", "cuda", "auto"] = Field("auto", description="Where programs run; auto takes CUDA if found.")
    workers: int = Field(
        default_factory=_default_workers, ge=1, le=256, description="CPU worker processes (CUDA: one per GPU)."
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Threads that each worker computes and compiles with; by default its share of the cores.",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto", description="Machine code on CPU workers; auto: for sessions, and for calls with much to compute."
    )
    cache_dir: Path | None = Field(
        None, description="Directory for machine code; by default `code` in the data directory."
    )
    cache_bytes: int = Field(
        256 * MIB, ge=0, description="Most bytes of machine code kept there, so that a restart is warm; 0 keeps none."
    )
    worker_memory: int | None = Field(
        None, ge=256 * MIB, description="Address space limit of a CPU worker in bytes (RLIMIT_AS); none by default."
    )
    queue_per_worker: int = Field(64, ge=0, le=10_000, description="Calls that may wait for each worker.")
    start_timeout: float = Field(120.0, gt=0, description="Time a worker has to become ready.")
    heartbeat_timeout: float = Field(15.0, gt=0.2, description="Silence after which a worker counts as hung.")
    cancel_grace: float = Field(2.0, ge=0, description="Time a worker has to obey a cancel before it is replaced.")

    # Time
    step_deadline: float = Field(60.0, gt=0, description="Deadline of one call when the client names none.")
    max_step_deadline: float = Field(3600.0, gt=0, description="Longest deadline a client may ask for.")
    session_lease: float = Field(900.0, gt=0, description="Idle time after which a session or tape may be closed.")
    max_session_lease: float = Field(86_400.0, gt=0, description="Longest lease a client may ask for.")

    # Requests
    json_body_bytes: int = Field(8 * MIB, gt=0, description="Largest JSON body.")
    binary_body_bytes: int = Field(GIB, gt=0, description="Largest safetensors body.")
    json_depth: int = Field(64, ge=4, le=500, description="Deepest nesting of arrays and objects in JSON.")
    header_bytes: int = Field(32 * KIB, ge=1024, description="Largest request header block, request line included.")
    header_fields: int = Field(100, ge=8, description="Most header fields in a request.")
    header_deadline: float = Field(10.0, gt=0, description="Time to send a whole request header.")
    body_deadline: float = Field(30.0, gt=0, description="Time to send a body; grows with the size read so far.")
    body_bytes_per_second: int = Field(4 * MIB, gt=0, description="Each that many bytes read extend it by a second.")
    write_deadline: float = Field(60.0, gt=0, description="Time a client may leave an answer unread.")

    # Programs
    blocks: int = Field(256, gt=0, description="Most blocks in a program.")
    block_nesting: int = Field(200, gt=0, description="Deepest nesting of blocks.")
    ops: int = Field(20_000, gt=0, description="Most ops in a program.")
    variables: int = Field(50_000, gt=0, description="Most variables in a program.")
    name_length: int = Field(128, gt=0, description="Longest name, in characters.")
    loop_trips: int = Field(10_000, gt=0, description="Most trips of one loop.")
    op_executions: int = Field(1_000_000, gt=0, description="Most ops executed in one step.")

    # Tensors
    tensor_rank: int = Field(8, ge=1, le=32, description="Most dimensions of a tensor.")
    tensor_elements: int = Field(2**31 - 1, gt=0, description="Most elements of a tensor.")
    tensor_bytes: int = Field(4 * GIB, gt=0, description="Largest tensor.")

    # Sessions and programs kept
    sessions: int = Field(32, gt=0, description="Most sessions open at once.")
    tapes: int = Field(32, gt=0, description="Most tapes open at once.")
    tape_bytes: int = Field(GIB, gt=0, description="Most bytes of values on one tape.")
    session_pipeline: int = Field(8, gt=0, description="Calls that may wait in one session or tape.")
    programs: int = Field(1_000, gt=0, description="Most programs kept.")

    @cached_property
    def tensor_limits(self) -> TensorLimits:
        return TensorLimits(rank=self.tensor_rank, elements=self.tensor_elements, bytes=self.tensor_bytes)

    def threads_per_worker(self, workers: int) -> int:
        """Threads for each of `workers` processes, their libraries for linear algebra included."""
        return self.threads or max(1, available_cores() // workers)
