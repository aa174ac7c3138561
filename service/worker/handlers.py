"""The table of handlers by name, and the handlers about programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import orjson

from core.backward.forward_only import clone
from core.compiler.compile import Backward, GradientQuery, append_backward, gradients
from core.ir import Variable
from core.ir.errors import ProgramError
from core.wire import write
from service.worker import (
    columns,
    derive,
    fit,
    fit_check,
    histograms,
    insight,
    onnx_models,
    optimizer_state,
    sessions,
    snapshot,
    tapes,
    training,
)
from service.worker.given import check_values, leaves_of, outputs_of
from service.worker.program_cache import about_program, cached_program
from service.worker.programs import CachedProgram, blocks_of
from service.worker.roomy import step_for_call
from service.worker.running import answer_of, query_from, run, streamed_gradients, times_of
from service.worker.state import Answer, Handler, WorkerState
from service.worker.step_kinds import ForwardStep, GradientStep
from service.worker.stored_values import check_tensors, viewed

__all__ = ["HANDLERS"]

QUERY = tuple(each.name for each in fields(GradientQuery))


def ping(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    return {"worker": state.worker, "device": state.device}, {}


def inspect(cached: CachedProgram, args: dict[str, Any]) -> Answer:
    """The inputs and the size of the program. Raises ProgramError with all its mistakes.

    args: program_id or document, tensors?: name, dtype and shape of each initial value, flawed?, about?:
          further members of the result.
    """
    program = cached.program
    check_tensors(program, args.get("tensors", ()), args)
    types = Counter(op.type for block in blocks_of(program.block) for op in block.ops)
    return {
        "feeds": _signature(program.feeds),
        "parameters": _signature(program.parameters),
        "states": _signature(program.states),
        "blocks": sum(1 for _ in blocks_of(program.block)),
        "ops": types.total(),
        "op_types": dict(types),
        **args.get("about", {}),
    }, {}


def backward(cached: CachedProgram, args: dict[str, Any]) -> Answer:
    """The program with its backward pass, and the tables that describe it.

    args: program_id or document, and the members of a GradientQuery.
    """
    query = query_from({name: args[name] for name in QUERY if name in args})
    if any(query.target_gradients):
        raise ProgramError("a program without values cannot take target gradients", "bad_query")
    if query.loss is not None:
        found = append_backward(cached.program, query.loss, query.parameter_list, query)
    else:
        found = gradients(cached.program, query.targets, query.inputs, None, query)
    return found.as_document(), {}


def cloned(cached: CachedProgram, args: dict[str, Any]) -> Answer:
    """The program without its backward pass. args: program_id or document, for_test, named: digest of its values."""
    named = {} if args.get("named") is None else {"values": args["named"]}
    program = cached.for_test().program if args["for_test"] else clone(cached.program)
    return {"program": write(program) | named}, {}


def graph(cached: CachedProgram, args: dict[str, Any]) -> Answer:
    """The program to draw: with its backward pass if `args` contain a loss or targets, else without."""
    if args.get("loss") is not None or args.get("targets"):
        return backward(cached, args)
    return Backward(cached.program, ()).as_document(), {}


def one_shot_gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients at the given values. The worker keeps only the compiled program, which earlier calls do not change.

    args: program_id, document?, query, fetch, seed, step, returned, stream, compile?, profile?, flawed?,
          values?: the file of parameters and states in place of those that `tensors` lack.
    """
    cached = cached_program(state, args)
    query = query_from(args["query"])
    seeds = {f"target_gradients/{i}": None for i, given in enumerate(query.target_gradients) if given}
    outputs = outputs_of(query, args["fetch"])
    check_values(cached.program, tensors, args, lambda: leaves_of(cached.program, outputs), extra=seeds)
    kind = GradientStep(query, tuple(args["fetch"]), adapts=False)
    if args["stream"]:
        compiled = cached.step(kind, tensors, streamed=True)
    else:
        compiled = step_for_call(cached, kind, tensors, args.get("compile", "auto"))
    times = times_of(args)
    ready = cached.timed(compiled) if times is not None else compiled
    streamed = streamed_gradients(compiled, args)
    out = run(
        state,
        ready.executable,
        viewed(state, cached.program, args, tensors),
        args["seed"],
        args["step"],
        streamed,
        times,
    )
    result, arrays = answer_of(state, compiled, out, args["returned"], streamed=streamed, times=times)
    return result, arrays | {f"state/{name}": value for name, value in out.states.items()}


def evaluate(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The variables `fetch` at the given values, without gradients. The worker keeps only the compiled program.

    args: program_id, document?, fetch, for_test, seed, step, compile, profile?, flawed?, values?: as of
          `one_shot_gradients`.
    """
    cached, fetch = cached_program(state, args), args["fetch"]
    check_values(cached.program, tensors, args, lambda: leaves_of(cached.program, fetch))
    cached = cached.for_test() if args["for_test"] else cached
    compiled = step_for_call(cached, ForwardStep(tuple(fetch), adapts=False), tensors, args["compile"])
    times = times_of(args)
    ready = cached.timed(compiled) if times is not None else compiled
    values = viewed(state, cached.program, args, tensors)
    out = run(state, ready.executable, values, args["seed"], args["step"], times=times)
    return answer_of(state, compiled, out, "none", times=times)


def in_json(handler: Handler) -> Handler:
    """`handler`, whose result becomes the JSON text in the tensor `json` if `args` contain `as_json`.

    The service sends the text on, and does not hold a large result as objects.
    """

    def answering(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
        result, arrays = handler(state, args, tensors)
        if not args.get("as_json"):
            return result, arrays
        return {}, {**arrays, "json": np.frombuffer(orjson.dumps(result), np.uint8)}

    return answering


def _signature(variables: Iterable[Variable]) -> list[dict[str, Any]]:
    return [
        {"name": v.name, "dtype": v.type.dtype, "shape": list(v.type.shape), "trainable": v.trainable}
        for v in variables
    ]


HANDLERS: dict[str, Handler] = {
    "ping": ping,
    "inspect": in_json(about_program(inspect)),
    "backward": in_json(about_program(backward)),
    "clone": in_json(about_program(cloned)),
    "graph": in_json(about_program(graph)),
    "gradients": one_shot_gradients,
    "evaluate": evaluate,
    "analysis": in_json(about_program(insight.analysis)),
    "check": insight.check,
    "onnx.program": onnx_models.program_model,
    "onnx.backward": onnx_models.backward_model,
    "session.create": sessions.create,
    "session.describe": sessions.describe,
    "session.step": training.step,
    "session.gradients": training.gradients,
    "session.update": training.update,
    "session.discard": training.discard,
    "session.configure": sessions.configure,
    "session.evaluate": training.evaluate,
    "session.fit": fit.fit,
    "session.check_fit": fit_check.check_fit,
    "session.evaluate_on": fit.evaluate_on,
    "datasets.forget_deleted": columns.forget_deleted,
    "session.get_parameters": sessions.get_parameters,
    "session.model": onnx_models.session_model,
    "session.histogram": histograms.histogram,
    "session.put_parameters": sessions.put_parameters,
    "session.save": snapshot.save,
    "session.restore": snapshot.restore,
    "session.check_file": snapshot.check,
    "session.derive": derive.derive,
    "session.get_optimizer": optimizer_state.get_optimizer,
    "session.put_optimizer": optimizer_state.put_optimizer,
    "session.delete": sessions.delete,
    "tape.create": tapes.create,
    "tape.describe": tapes.describe,
    "tape.append": tapes.append,
    "tape.values": tapes.values,
    "tape.gradients": tapes.gradients,
    "tape.record": tapes.record,
    "tape.program": tapes.program,
    "tape.renew": tapes.renew,
    "tape.delete": tapes.delete,
}
