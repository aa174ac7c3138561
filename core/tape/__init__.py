"""Tapes: programs that grow op by op while they run.

A client appends ops to a tape and gets their values at once (`immediate`, as in PyTorch and Chainer) or on request
(`lazy`, as in DyNet: only the ops that a requested value needs are run, each once). `gradients` differentiates a
variable on the tape. `record_gradients` appends the ops of the backward pass instead, so that they can be
differentiated in turn.

Data flow. `Tape.append` gives the ops and leaves to `reader`, which reads them as the reader of whole programs does;
then they go to the `Trace`, the list of ops with its values. To compute values, the tape collects the ops that reach
them and have no value yet. To compute gradients, it collects the ops that reach the target. Either list becomes a
`Form`, a list of ops without names and places. `Steps` compiles each form once, so a training loop in the client
compiles once. The step runs with the values of the trace, and the results are stored there.

* `tape.py`: `Tape`, the way in.
* `trace.py`: the ops by place, their leaves, values and uses, and the undoing of a failed call.
* `structure.py`: ops of repeated requests, with their types and the plans of their passes.
* `reader.py`: reading of the ops and leaves that a client appends.
* `steps.py`: compiled steps, cached by form.
* `playback.py`: the order of the backward pass, and the op after which each gradient is final.
* `record.py`: gradients as further ops of the tape, and the reasons for missing gradients.
* `results.py`: the records that a tape returns.
"""

from core.tape.results import Appended, Evaluated, Extension, Gradients
from core.tape.steps import MachineCode, Steps
from core.tape.structure import Structure
from core.tape.tape import Tape, TapeLimits

__all__ = ["Appended", "Evaluated", "Extension", "Gradients", "MachineCode", "Steps", "Structure", "Tape", "TapeLimits"]
