"""The Python client of Backpass: programs written in Python, a tape that computes while it records, and sessions that
train both.

    import backpass_client as bp

    with bp.Tape("http://127.0.0.1:8080") as tape:
        x = bp.Variable([1.0, 2.0, 3.0])
        y = (bp.tanh(x) * x).sum()
        y.backward()
        print(y.value, x.grad)

Every op of the catalogue (`GET /v1/ops`) is a function of this package under its name: ``bp.softmax(x, axis=0)``. It
works on a tape and in a function under `program`, which becomes a program without a service.

    @bp.program
    def line(x: bp.f32["batch", 2], y: bp.f32["batch"]):
        w = bp.parameter("w", [2])
        return {"loss": bp.mse_loss(x @ w, y)}

The package needs httpx and numpy.

Files, each importing only from the lines above it:

foreign_names     names of other libraries
errors, hints     exceptions; errors for attributes that an object lacks
text              short texts of results
onnx_file         ONNX models as the bytes to send
op_table          the ops that the client knows, and hints for other names
torch_graphs      nodes of programs of `torch.export`
torch_functions, torch_operators  operators of PyTorch as operators of ONNX
torch_poles, torch_rewrites       operators of PyTorch as other ones, which export with their values and gradients
torch_gradients   where gradients end or change in a module of PyTorch
torch_export      modules of PyTorch as ONNX models that train
torch_tensors     tensors of PyTorch as arrays, and arrays as weights of a module
rows, tensorfile  sparse gradients; messages with tensors as safetensors files
names             names of the variables of one tape
address           the address of a service, the key for it, and the certificates to trust
answers           answers that are not the expected ones, and the wait before a retry
connection        HTTP requests to one service, with retries
streams           gradients that arrive during the backward pass
results           the gradients and values of a response
checkpoints       sessions as files
event_streams     events as they happen
jobs              training on stored datasets by the service
indexing          ``x[...]`` as a list of ops
arithmetic        Python's operators as ops
op_results        the results of an op that has several
batch             the ops and leaves that a tape records between two requests
recorder          who records an op: a tape or a program under construction
idempotent_calls  calls with sequence numbers, which the service executes once
expression        values on a tape
arguments         Python's arguments as the slots and attributes of an op
variable          leaves of a tape
lists             Python's arguments as values of variables and as members of a request
builder           programs written in Python
tape              the tape itself
sessions          sessions: training in the service
datasets          stored tables, and their upload
programs          registered programs
functions         every op as a function
differentiate     `grad` and `value_and_grad`
optimizers        gradient descent on variables
nn                layers of neural networks for the builder
jacobians         products with Jacobians and Hessians, and these matrices
job_queue         the jobs of a service
open_sessions     the sessions and tapes of a service
torch_models      modules of PyTorch as programs
remote_module     a module of PyTorch that runs in the service; imported at first use, because it needs torch
keys              API keys
operations        long calls that go on in the service
tenants           limits and use of tenants, and the audit log
service           a service with all that it stores
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from backpass_client import nn
from backpass_client.builder import (
    Builder,
    BuiltProgram,
    InvalidOp,
    Symbol,
    Type,
    bf16,
    bool_,
    built,
    cond,
    constant,
    f16,
    f32,
    f64,
    feed,
    i8,
    i16,
    i32,
    i64,
    parameter,
    program,
    safe_where,
    scan,
    scope,
    state,
    switch,
    typed,
    u8,
    update,
    while_loop,
)
from backpass_client.checkpoints import Checkpoint
from backpass_client.datasets import Dataset
from backpass_client.differentiate import grad, value_and_grad
from backpass_client.errors import BackpassError, PreconditionFailed, Refused, Unreachable
from backpass_client.expression import Expression, Playback
from backpass_client.functions import function
from backpass_client.jacobians import hessian, hvp, jacobian, jvp, vjp
from backpass_client.jobs import Job, JobFailed
from backpass_client.keys import Key
from backpass_client.op_results import Results
from backpass_client.op_table import hint_for, op_table
from backpass_client.operations import Operation
from backpass_client.optimizers import SGD
from backpass_client.programs import Program
from backpass_client.results import Evaluation, Gradients
from backpass_client.rows import Rows
from backpass_client.service import Service
from backpass_client.sessions import OptimizerState, Session, Step, Stopped
from backpass_client.streams import GradientStream
from backpass_client.tape import Tape, immediate, lazy
from backpass_client.tenants import AuditEntry, Tenant, UsageRow
from backpass_client.torch_models import from_torch
from backpass_client.variable import Variable

if TYPE_CHECKING:
    from backpass_client._ops import *  # noqa: F403  (a stub)
    from backpass_client.remote_module import RemoteModule as RemoteModule

__all__ = [
    "SGD",
    "AuditEntry",
    "BackpassError",
    "Builder",
    "BuiltProgram",
    "Checkpoint",
    "Dataset",
    "Evaluation",
    "Expression",
    "GradientStream",
    "Gradients",
    "InvalidOp",
    "Job",
    "JobFailed",
    "Key",
    "Operation",
    "OptimizerState",
    "Playback",
    "PreconditionFailed",
    "Program",
    "Refused",
    "Results",
    "Rows",
    "Service",
    "Session",
    "Step",
    "Stopped",
    "Symbol",
    "Tape",
    "Tenant",
    "Type",
    "Unreachable",
    "UsageRow",
    "Variable",
    "bf16",
    "bool_",
    "built",
    "cond",
    "constant",
    "f16",
    "f32",
    "f64",
    "feed",
    "from_torch",
    "function",
    "grad",
    "hessian",
    "hvp",
    "i8",
    "i16",
    "i32",
    "i64",
    "immediate",
    "jacobian",
    "jvp",
    "lazy",
    "nn",
    "parameter",
    "program",
    "safe_where",
    "scan",
    "scope",
    "state",
    "switch",
    "typed",
    "u8",
    "update",
    "value_and_grad",
    "vjp",
    "while_loop",
]


if not TYPE_CHECKING:  # a type checker reads the ops from _ops.pyi

    def __getattr__(name: str) -> Any:
        """The op `name` as a function. Raises AttributeError for a name that is no op, with the names that it may mean.

        An op of a newer service, which the client does not know, is ``function(name)``.
        """
        if name == "RemoteModule":  # a class of torch, which the rest of the package does not need
            from backpass_client.remote_module import RemoteModule

            return RemoteModule
        if name in op_table()["ops"]:
            return function(name)
        layer = nn.layer_of(name)
        of_package = f"did you mean nn.{layer}?" if layer else hint_for(name, [*__all__, "RemoteModule"])
        hint = "" if name.startswith("_") else of_package
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and '; '}{hint}")


def __dir__() -> list[str]:
    of_torch = ["RemoteModule"] if find_spec("torch") else []  # tools read all names: inspect.getmembers
    return sorted({*globals(), *op_table()["ops"], *of_torch})
