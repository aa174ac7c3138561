"""The engine runs calls in worker processes: the interface for the routes, and a pool that implements it.

answer_room   a bound on the bytes of large answers
protocol      the interface `Engine`, its results and its errors
devices       the workers to start, and their devices
memory        the memory of each worker
child         one worker as an operating-system process
spare         one process more, which takes the place of a lost worker on a GPU
process       one worker as the service sees it: start, call, cancel, kill
pending_call  one call from its start to its reply
dispatch      the queue of calls and the choice of a worker
line          whether the calls of a task wait in that queue
embedded      the pool: supervision and replacement of workers
stateless     calls of processes that keep no state, which can run again
"""

from service.engine.answer_room import AnswerRoom
from service.engine.embedded import EmbeddedPool
from service.engine.memory import UnusableSettings, worker_memory
from service.engine.protocol import (
    Barred,
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
from service.engine.stateless import run_stateless

__all__ = [
    "AnswerRoom",
    "Barred",
    "DeadlineExceeded",
    "EmbeddedPool",
    "Engine",
    "EngineError",
    "NoCapacity",
    "QueueFull",
    "RemoteError",
    "Reply",
    "UnusableSettings",
    "WorkerInfo",
    "WorkerLost",
    "run_stateless",
    "worker_memory",
]
