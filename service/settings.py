"""The settings of the service, read once at start from `BACKPASS_*` environment variables.

Sizes are in bytes and durations in seconds. `GET /v1` publishes the limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.machine import available_cores, available_memory

__all__ = ["LEAST_WORKER_MEMORY", "MIB", "Settings", "TensorLimits", "available_cores", "service_memory"]

KIB, MIB, GIB = 2**10, 2**20, 2**30

LEAST_WORKER_MEMORY = 256 * MIB
"""Smallest limit of a worker: a fresh one takes about a quarter of it."""

ROOMY_WORKER = GIB
"""Memory that each worker gets by default if that leaves at least two workers."""


def _default_workers() -> int:
    """Half the cores, so that each worker has two; at least two, so that one can take calls while one is replaced.

    On a machine with little memory fewer, so that each has a gigabyte.
    """
    total = available_memory()
    return min(8, max(2, min(available_cores() // 2, (total - service_memory(total)) // ROOMY_WORKER)))


def service_memory(total: int) -> int:
    """The part of `total` bytes of memory that is left for the service process and the system."""
    return min(total // 4, max(512 * MIB, total // 8))


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """Limits of one tensor: rank, elements, bytes."""

    rank: int = 8
    elements: int = 2**31 - 1
    bytes: int = 4 * GIB


class Settings(BaseSettings):
    """The settings of one service process; immutable."""

    model_config = SettingsConfigDict(env_prefix="BACKPASS_", frozen=True, extra="ignore")

    # Where and how it listens
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    allowed_hosts: str = Field(
        "",
        description="Names that a Host header may have, separated by commas, in addition to loopback names and the "
        "address to listen on. `*.example.org` allows all names below example.org, `*` allows all names.",
    )
    data_dir: Path = Field(
        Path("data"), description="Directory of stored data, of this service alone; created at start."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of log lines to show."
    )
    graceful_shutdown: float = Field(
        30.0, gt=0, le=3600, description="Time that running requests get to end after SIGTERM."
    )

    # Workers
    device: Literal["cpu", "cuda", "auto"] = Field(
        "auto", description="Device that runs programs; auto uses CUDA if available."
    )
    workers: int = Field(
        default_factory=_default_workers,
        ge=1,
        le=256,
        description="Number of CPU worker processes (CUDA: one per GPU).",
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Threads of each worker for computing and compiling; by default its share of the cores.",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto", description="Compilation to machine code on CPU workers; auto: for sessions and for long calls."
    )
    codecs: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Processes that read large bodies and write large answers; by default one for four cores. They "
        "start when first needed.",
    )
    cache_dir: Path | None = Field(
        None, description="Directory of compiled machine code; by default `code` in the data directory."
    )
    cache_bytes: int = Field(
        256 * MIB, ge=0, description="Limit of machine code stored for the next start, in bytes; 0 stores none."
    )
    worker_memory: int | None = Field(
        None,
        ge=LEAST_WORKER_MEMORY,
        description="Limit of the private memory of a CPU worker, in bytes; by default its share of the memory of the "
        "machine or container.",
    )
    device_memory: int | None = Field(
        None,
        ge=LEAST_WORKER_MEMORY,
        description="Limit of the device memory of a CUDA worker, in bytes; by default all memory that is free at its "
        "start.",
    )
    queue_per_worker: int = Field(64, ge=0, le=10_000, description="Limit of calls that wait for each worker.")
    start_timeout: float = Field(120.0, gt=0, description="Time that a worker gets to become ready.")
    heartbeat_timeout: float = Field(
        15.0, gt=0.2, description="Time without a heartbeat after which a worker is replaced."
    )
    cancel_grace: float = Field(
        2.0,
        ge=0,
        description="Time that a worker gets to end a canceled call before it is replaced; a worker with sessions or "
        "tapes gets ten times as much.",
    )

    # Time
    step_deadline: float = Field(60.0, gt=0, description="Default deadline of a call.")
    max_step_deadline: float = Field(3600.0, gt=0, description="Longest deadline that a client may request.")
    session_lease: float = Field(900.0, gt=0, description="Default idle time after which a session or tape is closed.")
    max_session_lease: float = Field(86_400.0, gt=0, description="Longest lease that a client may request.")

    # Requests
    json_body_bytes: int = Field(8 * MIB, gt=0, description="Largest JSON body.")
    binary_body_bytes: int = Field(GIB, gt=0, description="Largest safetensors body.")
    body_bytes_in_flight: int = Field(
        2 * GIB, gt=0, description="Limit of the sum of all bodies above 64 KiB that are received or used at a time."
    )
    answer_bytes_in_flight: int = Field(
        2 * GIB, gt=0, description="Limit of the sum of all answers above 1 MiB that are being sent at a time."
    )
    json_answer_bytes: int = Field(
        64 * MIB, gt=0, description="Largest sum of the tensors of a JSON answer, as binary numbers."
    )
    binary_answer_bytes: int = Field(GIB, gt=0, description="Largest sum of the tensors of a safetensors answer.")
    json_depth: int = Field(64, ge=4, le=500, description="Deepest nesting of arrays and objects in JSON.")
    header_bytes: int = Field(32 * KIB, ge=1024, description="Largest request header block, request line included.")
    header_fields: int = Field(100, ge=8, description="Largest number of header fields in a request.")
    header_deadline: float = Field(10.0, gt=0, description="Time that a client gets to send a request header.")
    body_deadline: float = Field(
        30.0, gt=0, description="Time that a client gets to send a body, plus the extension below."
    )
    body_bytes_per_second: int = Field(
        4 * MIB, gt=0, description="Bytes of the body that extend its deadline by one second."
    )
    write_deadline: float = Field(
        60.0, gt=0, description="Time after which a connection with an unread answer is closed."
    )

    # Programs
    blocks: int = Field(256, gt=0, description="Largest number of blocks in a program.")
    block_nesting: int = Field(200, gt=0, description="Deepest nesting of blocks in a program.")
    ops: int = Field(20_000, gt=0, description="Largest number of ops in a program.")
    variables: int = Field(50_000, gt=0, description="Largest number of variables in a program.")
    name_length: int = Field(128, gt=0, description="Longest name of a variable, in characters.")
    loop_trips: int = Field(10_000, gt=0, description="Largest number of trips of a loop.")
    op_executions: int = Field(1_000_000, gt=0, description="Largest number of ops executed in one step.")

    # Tensors
    tensor_rank: int = Field(8, ge=1, le=32, description="Largest rank of a tensor.")
    tensor_elements: int = Field(2**31 - 1, gt=0, description="Largest number of elements of a tensor.")
    tensor_bytes: int = Field(4 * GIB, gt=0, description="Largest size of a tensor, in bytes.")

    # Sessions, tapes and registered programs
    sessions: int = Field(32, gt=0, description="Largest number of open sessions.")
    tapes: int = Field(32, gt=0, description="Largest number of open tapes.")
    tape_bytes: int = Field(GIB, gt=0, description="Largest size of all values on a tape, in bytes.")
    session_pipeline: int = Field(8, gt=0, description="Limit of calls that wait for a session or tape.")
    programs: int = Field(1_000, gt=0, description="Largest number of registered programs.")

    @cached_property
    def tensor_limits(self) -> TensorLimits:
        return TensorLimits(rank=self.tensor_rank, elements=self.tensor_elements, bytes=self.tensor_bytes)

    @property
    def codec_processes(self) -> int:
        return self.codecs or max(1, available_cores() // 4)

    def threads_per_worker(self, workers: int) -> int:
        """Threads of each of `workers` processes, also for their linear algebra libraries."""
        return self.threads or max(1, available_cores() // workers)
