"""The native side of the thread pool, as LLVM IR: one small function for each step of the protocol in `pool`.

    void parallel_for(ptr pool, void (*task)(ptr context, i64 chunk), ptr context, i64 chunks)
    void worker_loop(ptr pool)
    void stop_workers(ptr pool)

Each Python function below writes the IR function of the same name and returns it. The comments name the property of the
protocol that an ordering is for; `pool` has the proof.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.atomics import add_atomic, compare_exchange, exchange, load_atomic, store_atomic, subtract_atomic
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module

__all__ = ["ALIGNMENT", "SIZE", "SPINS", "WORKERS", "has_futex", "pool_module"]

# Offsets in the memory of a pool, in bytes. Words that different threads write at the same time are two cache lines
# apart, because processors fetch pairs of lines.
TICKETS, TASK, CONTEXT, TOTAL, PENDING, CALLER_WAITS = 0, 128, 136, 144, 256, 260
SLEEPERS, BUSY, WORKERS, STOP, SPINS = 384, 512, 640, 644, 648
SIZE, ALIGNMENT = 768, 128
GENERATION = TICKETS + 4
"""The upper half of the tickets word, on which idle workers sleep."""

WORDS = {TICKETS: "int64", TASK: "ptr", CONTEXT: "ptr", TOTAL: "int64", SPINS: "int64"}
"""Dtypes of the words; the others are int32."""

ONE, NEXT_GENERATION, CHUNKS_LEFT = IRValue("1", "int32"), I64(1 << 32), I64((1 << 32) - 1)
YIELD = 32
"""Spins between two calls of sched_yield, a power of two."""

FUTEX = {"x86_64": 202, "aarch64": 98}
"""Number of the system call, by machine."""

FUTEX_WAIT, FUTEX_WAKE = 128, 129
"""Operations of the system call futex, private to the process."""

PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ""), "aarch64": ("llvm.aarch64.isb", "i32 15")}
"""The intrinsic that marks a spinning thread for the processor, and its argument."""


def has_futex() -> bool:
    """Whether threads can sleep and wake here. Without that a pool has no workers."""
    return sys.platform == "linux" and platform.machine() in FUTEX


def pool_module() -> Module:
    """All native functions of the pool."""
    writers = (pause, futex_wait, futex_wake, run_chunks, finish, sleep, idle, worker_loop)
    callers = (publish, sleep_until_done, wait_until_done, parallel_for, stop_workers)
    return Module(functions=[write() for write in (*writers, *callers)])


# --- words of the pool, and control flow -----------------------------------------------------------------------------


def _at(f: Function, word: int) -> IRValue:
    return f.at(f.param("pool"), I64(word), "uint8")


def _load(f: Function, word: int, ordering: str) -> IRValue:
    return load_atomic(f, _at(f, word), WORDS.get(word, "int32"), ordering)


def _store(f: Function, value: IRValue, word: int, ordering: str) -> None:
    store_atomic(f, value, _at(f, word), ordering)


def _is_zero(f: Function, value: IRValue) -> IRValue:
    return f.compare("icmp eq", value, IRValue("0", value.dtype))


def _is_set(f: Function, value: IRValue) -> IRValue:
    return f.compare("icmp ne", value, IRValue("0", value.dtype))


def _chunks_left(f: Function, tickets: IRValue) -> IRValue:
    return f.binary("and", tickets, CHUNKS_LEFT)


def _internal(name: str, *params: tuple[str, str], returns: str = "void") -> Function:
    return Function(name, params, returns, noalias=False, internal=True)


@contextmanager
def _repeat(f: Function) -> Iterator[str]:
    """A loop without end; the context's value is the label after it."""
    head, done = f.label("again"), f.label("done")
    f.jump(head)
    f.begin(head)
    yield done
    f.jump(head)
    f.begin(done)


def _leave_if(f: Function, condition: IRValue, label: str) -> None:
    stay = f.label("stay")
    f.branch(condition, label, stay)
    f.begin(stay)


def _increment(f: Function, slot: IRValue) -> None:
    f.write(f.binary("add", f.read(slot, "int64"), I64(1)), slot)


# --- waiting ---------------------------------------------------------------------------------------------------------


def pause() -> Function:
    """``pause(spun)``: a short moment. Every `YIELD` spins another thread may have this core."""
    f = _internal("pause", ("spun", "int64"))
    if has_futex():
        name, argument = PAUSE[platform.machine()]
        f.declarations.add(f"declare void @{name}({argument.split(' ')[0]})")
        f.do(f"call void @{name}({argument})")
    f.declarations.add("declare i32 @sched_yield()")
    with f.when(f.compare("icmp eq", f.binary("and", f.param("spun"), I64(YIELD - 1)), I64(YIELD - 1))):
        f.do("call i32 @sched_yield()")
    return f


def futex_wait() -> Function:
    """``futex_wait(word, value)``: sleep while the int32 at `word` is `value`."""
    return _futex("futex_wait", FUTEX_WAIT)


def futex_wake() -> Function:
    """``futex_wake(word, value)``: wake at most `value` threads that sleep on `word`."""
    return _futex("futex_wake", FUTEX_WAKE)


def _futex(name: str, operation: int) -> Function:
    f = _internal(name, ("word", "ptr"), ("value", "int64"))
    if has_futex():  # without a futex there are no workers, and no thread calls this
        f.declarations.add("declare i64 @syscall(i64, ...)")
        number = FUTEX[platform.machine()]
        word, value = f.param("word"), f.param("value")
        f.do(f"call i64 (i64, ...) @syscall(i64 {number}, {word}, i64 {operation}, {value}, ptr null)")
    return f


# --- running a job ---------------------------------------------------------------------------------------------------


def run_chunks() -> Function:
    """``run_chunks(pool)``: claim and run chunks until none is left; returns how many ran on this thread."""
    f = _internal("run_chunks", ("pool", "ptr"), returns="i64")
    ran, tickets = f.slot("int64"), f.slot("int64")
    f.write(I64(0), ran)
    f.write(_load(f, TICKETS, "acquire"), tickets)
    with _repeat(f) as done:
        seen = f.read(tickets, "int64")
        left = _chunks_left(f, seen)
        _leave_if(f, _is_zero(f, left), done)
        # read before the claim: if the claim succeeds, they belong to the job of `seen`
        task, context, total = (_load(f, word, "monotonic") for word in (TASK, CONTEXT, TOTAL))
        fewer = f.binary("sub", seen, I64(1))
        found, claimed = compare_exchange(f, _at(f, TICKETS), seen, fewer, "acq_rel", "acquire")

        def run() -> None:
            f.do(f"call void {task.name}({context}, {f.binary('sub', total, left)})")
            _increment(f, ran)
            f.write(_load(f, TICKETS, "acquire"), tickets)

        f.either(claimed, run, lambda: f.write(found, tickets))
    f.do(f"ret {f.read(ran, 'int64')}")
    return f


def finish() -> Function:
    """``finish(pool, ran)``: a worker takes off the chunks that it ran; the last one wakes a caller that sleeps."""
    f = _internal("finish", ("pool", "ptr"), ("ran", "int64"))
    ran = f.convert(f.param("ran"), "int32")
    before = subtract_atomic(f, _at(f, PENDING), ran, "seq_cst")
    with f.when(f.compare("icmp eq", before, ran)), f.when(_is_set(f, _load(f, CALLER_WAITS, "seq_cst"))):
        f.do(f"call void @futex_wake({_at(f, PENDING)}, i64 1)")
    return f


# --- a worker --------------------------------------------------------------------------------------------------------


def sleep() -> Function:
    """``sleep(pool)``: a worker sleeps until the generation changes, unless there is work or the pool stops."""
    f = _internal("sleep", ("pool", "ptr"))
    add_atomic(f, _at(f, SLEEPERS), ONE, "seq_cst")
    tickets = _load(f, TICKETS, "seq_cst")  # after SLEEPERS: the publisher sees the sleeper, or this sees the job
    nothing = _is_zero(f, _chunks_left(f, tickets))
    runs = _is_zero(f, _load(f, STOP, "seq_cst"))
    with f.when(f.binary("and", nothing, runs)):
        generation = f.op(f"lshr {tickets}, 32", "int64")
        f.do(f"call void @futex_wait({_at(f, GENERATION)}, {generation})")
    subtract_atomic(f, _at(f, SLEEPERS), ONE, "seq_cst")
    return f


def idle() -> Function:
    """``idle(pool)``: spin, then sleep, until there may be work; returns whether the pool stops."""
    f = _internal("idle", ("pool", "ptr"), returns="i1")
    limit = f.load(_at(f, SPINS), "int64")
    spun, stops = f.slot("int64"), f.slot("bool")
    f.write(I64(0), spun)
    f.write(IRValue("false", "bool"), stops)
    with _repeat(f) as done:
        _leave_if(f, _is_set(f, _chunks_left(f, _load(f, TICKETS, "monotonic"))), done)
        stop = _is_set(f, _load(f, STOP, "monotonic"))
        f.write(stop, stops)
        _leave_if(f, stop, done)
        enough = f.compare("icmp sge", f.read(spun, "int64"), limit)
        with f.when(enough):
            f.do(f"call void @sleep({f.param('pool')})")
        _leave_if(f, enough, done)
        f.do(f"call void @pause({f.read(spun, 'int64')})")
        _increment(f, spun)
    f.do(f"ret {f.read(stops, 'bool')}")
    return f


def worker_loop() -> Function:
    """``worker_loop(pool)``: the life of a worker, until `stop_workers`."""
    f = Function("worker_loop", [("pool", "ptr")], noalias=False)
    pool = f.param("pool")
    with _repeat(f) as ended:
        ran = f.op(f"call i64 @run_chunks({pool})", "int64")
        with f.when(_is_set(f, ran)):
            f.do(f"call void @finish({pool}, {ran})")
        _leave_if(f, f.op(f"call i1 @idle({pool})", "bool"), ended)
    return f


def stop_workers() -> Function:
    """``stop_workers(pool)``: ask all workers to end. Chunks that are left can still be claimed."""
    f = Function("stop_workers", [("pool", "ptr")], noalias=False)
    _store(f, IRValue("0", "int32"), WORKERS, "seq_cst")
    _store(f, ONE, STOP, "seq_cst")
    add_atomic(f, _at(f, TICKETS), NEXT_GENERATION, "seq_cst")  # a worker about to sleep finds another generation
    f.do(f"call void @futex_wake({_at(f, GENERATION)}, i64 {2**31 - 1})")
    return f


# --- the caller ------------------------------------------------------------------------------------------------------


def publish() -> Function:
    """``publish(pool, task, context, chunks)``: make a job known, and wake workers that sleep."""
    f = _internal("publish", ("pool", "ptr"), ("task", "ptr"), ("context", "ptr"), ("chunks", "int64"))
    chunks = f.param("chunks")
    for value, word in ((f.param("task"), TASK), (f.param("context"), CONTEXT), (chunks, TOTAL)):
        _store(f, value, word, "monotonic")
    _store(f, f.convert(chunks, "int32"), PENDING, "monotonic")
    old = _load(f, TICKETS, "monotonic")
    generation = f.binary("add", f.op(f"and {old}, {-(1 << 32)}", "int64"), NEXT_GENERATION)
    exchange(f, _at(f, TICKETS), f.binary("or", generation, chunks), "seq_cst")
    with f.when(_is_set(f, _load(f, SLEEPERS, "seq_cst"))):  # after TICKETS: see `sleep`
        f.do(f"call void @futex_wake({_at(f, GENERATION)}, {f.binary('sub', chunks, I64(1))})")
    return f


def sleep_until_done() -> Function:
    """``sleep_until_done(pool)``: the caller sleeps until no chunk is pending."""
    f = _internal("sleep_until_done", ("pool", "ptr"))
    _store(f, ONE, CALLER_WAITS, "seq_cst")
    with _repeat(f) as done:
        pending = _load(f, PENDING, "seq_cst")  # after CALLER_WAITS: `finish` sees the caller, or this sees 0
        _leave_if(f, _is_zero(f, pending), done)
        f.do(f"call void @futex_wait({_at(f, PENDING)}, {f.op(f'zext {pending} to i64', 'int64')})")
    _store(f, IRValue("0", "int32"), CALLER_WAITS, "monotonic")
    return f


def wait_until_done() -> Function:
    """``wait_until_done(pool)``: the caller spins, then sleeps, until no chunk is pending."""
    f = _internal("wait_until_done", ("pool", "ptr"))
    limit = f.load(_at(f, SPINS), "int64")
    spun = f.slot("int64")
    f.write(I64(0), spun)
    with _repeat(f) as done:
        _leave_if(f, _is_zero(f, _load(f, PENDING, "acquire")), done)

        def spin() -> None:
            f.do(f"call void @pause({f.read(spun, 'int64')})")
            _increment(f, spun)

        enough = f.compare("icmp sge", f.read(spun, "int64"), limit)
        f.either(enough, lambda: f.do(f"call void @sleep_until_done({f.param('pool')})"), spin)
    return f


def parallel_for() -> Function:
    """``parallel_for(pool, task, context, chunks)``: see `pool`."""
    f = Function(
        "parallel_for", [("pool", "ptr"), ("task", "ptr"), ("context", "ptr"), ("chunks", "int64")], noalias=False
    )
    pool, task, context, chunks = f.params
    owns = f.slot("bool")
    f.write(IRValue("false", "bool"), owns)
    has_workers = _is_set(f, _load(f, WORKERS, "monotonic"))
    many = f.compare("icmp sgt", chunks, I64(1))
    fits = f.compare("icmp sle", chunks, I64(2**31 - 1))
    with f.when(f.binary("and", has_workers, f.binary("and", many, fits))):
        _, owned = compare_exchange(f, _at(f, BUSY), IRValue("0", "int32"), ONE, "acquire", "monotonic")
        f.write(owned, owns)

    def share() -> None:
        f.do(f"call void @publish({pool}, {task}, {context}, {chunks})")
        ran = f.op(f"call i64 @run_chunks({pool})", "int64")
        subtract_atomic(f, _at(f, PENDING), f.convert(ran, "int32"), "seq_cst")
        f.do(f"call void @wait_until_done({pool})")
        _store(f, IRValue("0", "int32"), BUSY, "release")

    def run_alone() -> None:
        with f.loop(I64(0), chunks) as chunk:
            f.do(f"call void {task.name}({context}, {chunk})")

    f.either(f.read(owns, "bool"), share, run_alone)
    return f
