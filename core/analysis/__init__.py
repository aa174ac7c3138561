"""Analysis of programs and of runs: cost, memory, machine code, time, and the correctness of gradients.

`analyse` gives one JSON-ready document about a program and a gradient query, before anything runs: types, work and peak
memory of the step, the forward values that the backward pass reads, the parts of each gradient, and the regions of
machine code. It differentiates and compiles the program as a run would do, and reads the resulting blocks and plans; it
changes nothing. `check_gradients` and `profile_of` look at runs instead.

* `report.py`: `analyse`, the whole document.
* `compiled.py`: the regions of machine code of a step, their memory, and the reasons why other ops have none.
* `records.py`: bytes that machine code stores for loops, before anything runs.
* `numeric.py`: `check_gradients`, a comparison of gradients with finite differences.
* `profile.py`: `profile_of`, the time of each kernel of a run.
* `place.py`: locations in the client's program as JSON.
"""

from core.analysis.numeric import Comparison, check_gradients
from core.analysis.report import analyse
from core.cost.memory import Memory, predict_memory
from core.cost.work import count_work

__all__ = ["Comparison", "Memory", "analyse", "check_gradients", "count_work", "predict_memory"]
