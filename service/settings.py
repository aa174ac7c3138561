"""The settings of the service, read once at start from `BACKPASS_*` environment variables.

Sizes are in bytes and durations in seconds. `GET /v1` publishes the limits.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.machine import available_cores, available_memory

__all__ = ["LEAST_WORKER_MEMORY", "MIB", "OF_WORKER", "Settings", "TensorLimits", "available_cores", "service_memory"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
DAY = 86_400.0

SECRETS = Path("/run/secrets")
"""A file in it with the name of a variable, such as backpass_database_url, sets what the variable does not."""

LEAST_WORKER_MEMORY = 256 * MIB
"""Smallest limit of a worker: a fresh one takes about a quarter of it."""

HOST = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*\.?|\[?[0-9a-fA-F.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\]?")
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[a-z0-9._-]+(:\d+)?|[a-z][a-z0-9+.-]*://\[[0-9a-f:.]+\](:\d+)?")

OF_WORKER = (2, 3)
"""The part of a worker's share of the memory for the worker itself; its compiler process gets the rest."""

ROOMY_WORKER = GIB
"""Memory that each worker gets by default if that leaves at least two workers."""


def _default_workers() -> int:
    """Half the cores, so that each worker has two; at least two, so that one can take calls while one is replaced.

    On a machine with little memory fewer, so that each has a gigabyte; one, if two do not fit.
    """
    total = available_memory()
    left = total - service_memory(total)
    part, parts = OF_WORKER
    fit = left * part // parts // LEAST_WORKER_MEMORY
    return max(1, min(8, fit, max(2, min(available_cores() // 2, left // ROOMY_WORKER))))


def _each(listed: str, form: re.Pattern[str], expected: str) -> str:
    """The list, separated by commas, if each part has the form. Raises ValueError."""
    for part in listed.split(","):
        if part.strip() and form.fullmatch(part.strip()) is None:
            raise ValueError(f"must list {expected}")
    return listed


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

    model_config = SettingsConfigDict(
        env_prefix="BACKPASS_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        secrets_dir=SECRETS if os.access(SECRETS, os.R_OK | os.X_OK) else None,
    )

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
    database_url: str = Field(
        "",
        description="Database of stored data, such as postgresql+psycopg://user:password@host/name; by default SQLite "
        "in the data directory.",
    )
    objects_url: str = Field(
        "",
        description="Place of checkpoints and datasets: a directory, or a URL of fsspec such as s3://bucket/prefix; by "
        "default `objects` in the data directory.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of log lines to show."
    )
    access_log: Literal["all", "errors", "off"] = Field(
        "all", description="Requests that get a line in the log: all, those with a status of 400 and above, or none."
    )
    tracing: Literal["off", "otlp"] = Field(
        "off",
        description="Traces of requests by OpenTelemetry: off, or otlp, sent as the variables OTEL_* say; needs "
        "backpass[telemetry].",
    )
    graceful_shutdown: float = Field(
        30.0, gt=0, le=3600, description="Time from SIGTERM to the end of the process: calls end, sessions are saved."
    )
    drain_delay: float = Field(
        0.0,
        ge=0,
        le=1800,
        description="Part of that time for which new requests are still accepted while /healthz/ready already answers "
        "503, so that load balancers notice.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of its own for /metrics and health checks; 0: /metrics is on the port of the service.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address to listen on for metrics.")
    disk_floor: int = Field(
        64 * MIB,
        ge=0,
        description="Free space of the data directory, in bytes, below which the service is not ready for work.",
    )

    # Access
    require_keys: bool = Field(
        False, description="Refuse requests without an API key even if no key exists yet; otherwise the first key does."
    )
    api_keys_file: Path | None = Field(
        None, description="File with API keys in addition to those of the store, one on a line as tenant:scopes:key."
    )
    allow_anonymous: bool = Field(
        False,
        description="Listen on other addresses than loopback although no API key exists: anyone who reaches the port "
        "may do everything.",
    )
    tls_cert: Path | None = Field(None, description="File with the certificate chain for TLS, as PEM.")
    tls_key: Path | None = Field(None, description="File with the private key of the certificate, as PEM.")
    cors_origins: str = Field(
        "",
        description="Origins whose pages may call the service, separated by commas, such as https://app.example.org; "
        "`*` allows all.",
    )
    audit_days: float = Field(90.0, gt=0, description="Age in days at which entries of the audit log are deleted.")

    # Quotas of a tenant that has no own ones; 0 for no limit. More are `sessions`, `session_bytes` and `programs`
    tenant_tapes: int = Field(32, ge=0, description="Open tapes of a tenant.")
    tenant_checkpoint_bytes: int = Field(64 * GIB, ge=0, description="Size of all checkpoints of a tenant, in bytes.")
    tenant_program_bytes: int = Field(
        64 * GIB, ge=0, description="Size of the initial values of all programs of a tenant, in bytes."
    )
    tenant_dataset_bytes: int = Field(
        64 * GIB, ge=0, description="Size of all datasets and unfinished uploads of a tenant, in bytes."
    )
    tenant_jobs: int = Field(64, ge=0, description="Jobs of a tenant that wait or run.")
    tenant_compute_seconds: float = Field(
        0.0, ge=0, description="Time in which workers run calls of a tenant on one day (UTC)."
    )
    tenant_requests_per_second: float = Field(5_000.0, ge=0, description="Rate of requests with keys of a tenant.")
    tenant_burst: int = Field(10_000, ge=0, description="Requests of a tenant that may exceed the rate at once.")

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
        "auto",
        description="Compilation to machine code on CPU workers; auto: for sessions, long calls and "
        "those with the member `compile`; never: for no call.",
    )
    tf32: bool = Field(
        False,
        description="Whether products and convolutions of float32 numbers on a GPU may round their operands to 11 bits "
        "(TF32), which tensor cores multiply several times faster.",
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
    session_lease: float = Field(7 * DAY, gt=0, description="Default idle time after which a session is deleted.")
    max_session_lease: float = Field(90 * DAY, gt=0, description="Longest lease that a client may request.")
    tape_lease: float = Field(900.0, gt=0, description="Default idle time after which a tape is closed.")
    max_tape_lease: float = Field(DAY, gt=0, description="Longest lease of a tape that a client may request.")

    # Requests
    json_body_bytes: int = Field(8 * MIB, gt=0, description="Largest JSON body.")
    binary_body_bytes: int = Field(GIB, gt=0, description="Largest safetensors or ONNX body.")
    body_bytes_in_flight: int = Field(
        2 * GIB,
        gt=0,
        description="Limit of the sum of all bodies above 64 KiB that are received or used at a time. A tenant with "
        "a key that sends several leaves half of the room to others.",
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
    sessions: int = Field(100_000, gt=0, description="Largest number of open sessions of a tenant.")
    session_bytes: int = Field(
        64 * GIB, gt=0, description="Largest sum of the parameters and states of all sessions of a tenant, in bytes."
    )
    resident_sessions: int = Field(
        64, gt=0, description="Number of sessions in workers above which those that are idle longest are parked."
    )
    park_after: float = Field(
        300.0, gt=0, description="Idle time after which a session moves from its worker to the store."
    )
    journal_entries: int = Field(
        1000, gt=0, description="Calls after which the service saves a session and empties its journal."
    )
    journal_bytes: int = Field(64 * MIB, gt=0, description="Bytes of calls after which it does so.")
    journal_seconds: float = Field(5.0, gt=0, description="Compute time of calls after which it does so.")
    checkpoint_interval: float = Field(
        30.0, gt=0, description="Longest time between the checkpoints of a session in use that has no journal."
    )
    running_jobs: int = Field(
        default_factory=_default_workers,
        ge=1,
        le=1024,
        description="Largest number of jobs that run at a time; by default that of workers on this machine.",
    )
    streams: int = Field(32, gt=0, description="Largest number of open event streams of a tenant.")
    tapes: int = Field(128, gt=0, description="Largest number of open tapes of all tenants.")
    tape_bytes: int = Field(GIB, gt=0, description="Largest size of all values on a tape, in bytes.")
    session_pipeline: int = Field(8, gt=0, description="Limit of calls that wait for a session or tape.")
    operations: int = Field(
        64, gt=0, description="Largest number of running operations (calls with `Prefer: respond-async`) of a tenant."
    )
    import_deadline: float = Field(120.0, gt=0, description="Time that the conversion of an ONNX model gets.")
    programs: int = Field(1_000, gt=0, description="Largest number of registered programs.")

    # Datasets
    dataset_bytes: int = Field(4 * GIB, gt=0, description="Largest dataset and largest upload, in bytes.")
    dataset_deadline: float = Field(600.0, gt=0, description="Time that the conversion of an uploaded file gets.")
    datasets: int = Field(1_000, gt=0, description="Largest number of datasets of a tenant.")
    uploads: int = Field(100, gt=0, description="Largest number of unfinished uploads of a tenant.")
    upload_lease: float = Field(86_400.0, gt=0, description="Time without new bytes after which an upload is deleted.")

    @field_validator("data_dir", "cache_dir", "api_keys_file", "tls_cert", "tls_key")
    @classmethod
    def _in_home(cls, value: Path | None) -> Path | None:
        """Shells leave the tilde of `--data-dir=~/data` and of files of variables as it is."""
        return value and Path(os.path.expanduser(value))

    @field_validator("objects_url")
    @classmethod
    def _url_in_home(cls, value: str) -> str:
        return os.path.expanduser(value)

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        return _each(value, HOST, "names without scheme and port, such as api.example.org, *.example.org or *")

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        return _each(value, ORIGIN, "origins in lower case without a path, such as https://app.example.org, or *")

    @model_validator(mode="after")
    def _defaults_are_allowed(self) -> Self:
        for name in ("step_deadline", "session_lease", "tape_lease"):
            default, most = getattr(self, name), getattr(self, f"max_{name}")
            if default > most:
                variables = (
                    f"BACKPASS_{name.upper()}: {default:.15g}",
                    f"BACKPASS_MAX_{name.upper()}, which is {most:.15g}",
                )
                raise ValueError(f"{variables[0]} is above {variables[1]}")
        return self

    @cached_property
    def tensor_limits(self) -> TensorLimits:
        return TensorLimits(rank=self.tensor_rank, elements=self.tensor_elements, bytes=self.tensor_bytes)

    @property
    def objects(self) -> str:
        """The URL of the store of checkpoints and datasets."""
        return self.objects_url or str((self.data_dir / "objects").absolute())

    @property
    def codec_processes(self) -> int:
        return self.codecs or max(1, available_cores() // 4)

    def threads_per_worker(self, workers: int) -> int:
        """Threads of each of `workers` processes, also for their linear algebra libraries."""
        return self.threads or max(1, available_cores() // workers)
