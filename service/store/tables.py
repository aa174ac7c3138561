"""The tables of the store. The migrations in `migrations/` create them; a test compares both.

Times are seconds since 1970. Every row that a client can name carries its tenant, and every query names the tenant.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

__all__ = [
    "answers",
    "audit",
    "checkpoints",
    "datasets",
    "facts",
    "idempotency",
    "instances",
    "job_events",
    "job_metrics",
    "jobs",
    "journal",
    "keys",
    "metadata",
    "operations",
    "program_values",
    "programs",
    "sessions",
    "tenants",
    "uploads",
    "usage",
]

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)

Number = BigInteger().with_variant(Integer, "sqlite")


def _id(name: str = "id") -> Column[str]:
    return Column(name, String(40), primary_key=True)


def _tenant(primary_key: bool = False) -> Column[str]:
    return Column("tenant", String(64), primary_key=primary_key, nullable=False)


def _time(name: str, nullable: bool = False) -> Column[float]:
    return Column(name, Double, nullable=nullable)


facts = Table(  # of the whole database
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(200), nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("limits", Text, nullable=False),  # JSON: quota -> number, those that differ from the settings
    Column("changes", Integer, nullable=False, default=0),  # goes up with each change, so that services notice it
    _time("created"),
    Column("state", String(16)),  # suspended, deleting, deleted; NULL for a tenant whose keys work
    Column("reason", String(256)),  # of that state, for people
    _time("since", nullable=True),  # when it began
    _time("busy", nullable=True),  # when a process last ran something of it, while it is being deleted
)

keys = Table(
    "keys",
    metadata,
    _id(),
    _tenant(),
    Column("name", String(128), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the key, in hexadecimal
    Column("prefix", String(16), nullable=False),  # the beginning of the key, to recognise it
    Column("scopes", Text, nullable=False),  # JSON list
    Column("changes", Integer, nullable=False, default=0),  # goes up with each change but of last_used
    _time("created"),
    _time("expires", nullable=True),
    _time("revoked", nullable=True),
    _time("last_used", nullable=True),
)

audit = Table(
    "audit",
    metadata,
    Column("n", Number, primary_key=True, autoincrement=True),
    _tenant(),
    _time("time"),
    Column("key", String(40)),
    Column("action", String(128), nullable=False),
    Column("target", String(128), nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", String(64), nullable=False),
    Index(None, "tenant", "n"),
)

usage = Table(
    "usage",
    metadata,
    _tenant(primary_key=True),
    Column("day", String(10), primary_key=True),  # 2026-11-22, in UTC
    Column("kind", String(64), primary_key=True),  # compute_seconds, requests, bytes_in, bytes_out, steps
    Column("amount", Double, nullable=False),
)

programs = Table(
    "programs",
    metadata,
    _tenant(primary_key=True),
    _id(),
    Column("document", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    _time("created"),
    Index(None, "tenant", "created", "id"),
)

program_values = Table(  # initial values of parameters and states
    "program_values",
    metadata,
    _tenant(primary_key=True),
    Column("program", String(40), primary_key=True),
    Column("key", String(200), nullable=False),  # of the file, which programs with equal values share
    Column("sha256", String(64), nullable=False),
    Column("size", Number, nullable=False),
    Column("tensors", LargeBinary, nullable=False),  # JSON list: name, dtype, shape, bytes
    Index(None, "key"),
)

sessions = Table(
    "sessions",
    metadata,
    _id(),
    _tenant(),
    Column("program_id", String(40), nullable=False),
    Column("document", LargeBinary, nullable=False),  # the program, as JSON: a session outlives its registration
    Column("settings", LargeBinary, nullable=False),  # msgpack: the arguments that created it, without tensors
    Column("about", Text, nullable=False),  # JSON: what clients see of the settings
    Column("durability", String(16), nullable=False),
    Column("checkpoint_every", Integer, nullable=False),  # steps between checkpoints without a journal
    Column("dirty", Integer, nullable=False),  # 1 if the session changed after its checkpoint, without a journal
    Column("epoch", Integer, nullable=False),  # goes up when another process takes the session over
    Column("owner", String(40)),  # the API process that holds it
    _time("owner_until", nullable=True),
    Column(
        "seq", Number, nullable=False
    ),  # seq, step, version, accumulated: at the last checkpoint or some seconds ago
    Column("step", Number, nullable=False),
    Column("version", Number, nullable=False),
    Column("accumulated", Number, nullable=False),
    Column("entry", Number, nullable=False),  # number of the last journal entry that the checkpoint contains
    Column("known", Number, nullable=False),  # number of the last entry whose call is known to have ended well
    Column("saved_step", Number, nullable=False),  # step of the checkpoint
    Column("checkpoint", String(200)),  # key of the file to rebuild from; NULL: rebuild from the creation
    Column("sha256", String(64)),  # of that file
    Column("bytes", Number, nullable=False),
    Column("lease_s", Double, nullable=False),
    Column("job", String(40)),  # the job that owns the session, hidden from lists
    _time("created"),
    _time("used"),
    Index(None, "tenant", "id"),
    Index("ix_sessions_bytes", "tenant", "bytes"),  # adds up the bytes of a tenant without reading its rows
    Index(None, "tenant", "created", "id"),
)

journal = Table(
    "journal",
    metadata,
    Column("session", String(40), primary_key=True),
    Column("n", Number, primary_key=True, autoincrement=False),
    Column("seq", Number, nullable=False),  # 0 for a change without a number
    Column("step", Number, nullable=False),  # of the session after the call
    Column("entry", LargeBinary, nullable=False),  # msgpack: op, args, tensors or the key of their file, digest, form
)

answers = Table(
    "answers",
    metadata,
    Column("session", String(40), primary_key=True),
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("digest", String(200), nullable=False),
    Column("answer", LargeBinary),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _tenant(primary_key=True),
    _id(),
    Column("session", String(40)),
    Column("program_id", String(40), nullable=False),
    Column("name", String(128), nullable=False),
    Column("kind", String(16), nullable=False),  # client: made by request; recovery: made by the service
    Column("step", Number, nullable=False),
    Column("key", String(200), nullable=False),  # of the file in the object store
    Column("size", Number, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("about", Text, nullable=False),  # JSON
    _time("created"),
    _time("expires", nullable=True),
    Index(None, "session"),
    Index(None, "key"),
    Index(None, "expires"),
    Index(None, "tenant", "created", "id"),
)

instances = Table(  # the API processes that use the database
    "instances",
    metadata,
    _id(),
    Column("address", String(255), nullable=False),
    _time("started"),
    _time("heartbeat"),
)

idempotency = Table(
    "idempotency",
    metadata,
    _tenant(primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),  # of method, path and body
    Column("status", Integer),  # None while the first request runs
    Column("answer", LargeBinary),
    Column("owner", String(40), nullable=False),
    _time("created"),
    _time("expires"),
    Index(None, "expires"),
)

operations = Table(
    "operations",
    metadata,
    _tenant(primary_key=True),
    _id(),
    Column("kind", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("about", Text, nullable=False),  # JSON
    Column("status", Integer),
    Column("answer", LargeBinary),
    Column("owner", String(40), nullable=False),
    _time("created"),
    _time("ended", nullable=True),
    _time("expires", nullable=True),
    Index(None, "state"),
    Index(None, "tenant", "created", "id"),
)

datasets = Table(
    "datasets",
    metadata,
    _tenant(primary_key=True),
    _id(),  # derived from the content: two tenants may have the same
    Column("name", String(128), nullable=False),
    Column("key", String(200), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size", Number, nullable=False),
    Column("rows", Number, nullable=False),
    Column("columns", Text, nullable=False),  # JSON
    Column("about", Text, nullable=False),  # JSON
    _time("created"),
    _time("expires", nullable=True),
    Index(None, "sha256"),
    Index(None, "expires"),
    Index(None, "tenant", "created", "id"),
)

uploads = Table(
    "uploads",
    metadata,
    _tenant(primary_key=True),
    _id(),
    Column("about", Text, nullable=False),  # JSON
    Column("size", Number, nullable=False),  # bytes that it takes, or may take
    Column("offset", Number, nullable=False),
    _time("created"),
    _time("expires"),
    Index(None, "expires"),
    Index(None, "tenant", "created", "id"),
)

jobs = Table(
    "jobs",
    metadata,
    _id(),
    _tenant(),
    Column("session", String(40), nullable=False),
    Column("dataset", String(40), nullable=False),
    Column("validation_dataset", String(40)),
    Column("state", String(16), nullable=False),
    Column("reason", String(64)),
    Column("asked", String(16)),  # cancel or pause, of a job that runs
    Column("spec", Text, nullable=False),  # JSON
    Column("progress", Text, nullable=False),  # JSON
    Column("error", Text),  # JSON: the problem that ended the job
    Column("priority", Integer, nullable=False),
    Column("events", Number, nullable=False),  # number of the last event
    _time("deadline", nullable=True),
    Column("owner", String(40)),
    _time("owner_until", nullable=True),
    Column("epoch", Integer, nullable=False),  # goes up when a process takes the job over
    _time("created"),
    _time("queued"),  # when it last joined the queue
    _time("started", nullable=True),
    _time("ended", nullable=True),
    Column("waiting", Text),  # JSON: why a job that runs waits: reason, detail, since
    Index(None, "tenant", "id"),
    Index(None, "state"),
    Index(None, "tenant", "created", "id"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job", String(40), primary_key=True),
    Column("n", Number, primary_key=True, autoincrement=False),
    _time("time"),
    Column("kind", String(32), nullable=False),
    Column("data", Text, nullable=False),  # JSON
)

job_metrics = Table(
    "job_metrics",
    metadata,
    Column("job", String(40), primary_key=True),
    Column("kind", String(16), primary_key=True),  # training, validation
    Column("step", Number, primary_key=True, autoincrement=False),
    Column("length", Number, nullable=False),  # number of steps in the row
    Column("metrics", LargeBinary, nullable=False),  # msgpack: column -> float64 values of the steps from `step` on
)
