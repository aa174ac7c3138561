"""Where work runs: the interface the routes use, and the pool of worker processes behind it."""

from service.engine.embedded import EmbeddedPool
from service.engine.protocol import (
    DeadlineExceeded,
    Engine,
    EngineError,
    NoCapacity,
    QueueFull,
    RemoteError,
    Reply,
    WorkerInfo,
    WorkerLost,
)

__all__ = [
    "DeadlineExceeded",
    "EmbeddedPool",
    "Engine",
    "EngineError",
    "NoCapacity",
    "QueueFull",
    "RemoteError",
    "Reply",
    "WorkerInfo",
    "WorkerLost",
]
