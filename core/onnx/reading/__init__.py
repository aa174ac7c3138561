"""From an ONNX model to a program in its JSON form.

1. `model.parse` reads the protobuf, fills in external data and lets `onnx` check the model.
2. `graph.GraphReader` walks the nodes in order. Each node goes to the converter of its operator, or else through the
   function body that the model or the ONNX standard gives for it.
3. A converter (`operators/`) is a short function of a `node.Node`. It reads inputs as typed values and calls
   `node.emit` for each op of the program. The op's own declaration gives the types of its results, so a mistake is
   reported with the node's name.
4. `draft.Draft` collects the ops of the program, gives names and writes the JSON document.

A node without an equivalent in a program is reported with its name, its operator and the reason, and reading goes on:
one error lists all refused nodes.

**Known values.** An op whose operands are all known is computed at once and becomes a constant. Float initializers are
trained, so they are not known, except as values that configure a node (scales, bounds, pads).

**Open sizes.** A size that the model leaves open has no number in the program. `worlds` gives each open size a few
sample numbers, and `Draft` infers the types of all values for each of them. Where all samples agree on a size, or on
the relation of two sizes, a converter uses it, for example to write a reshape with static attributes. A number that
depends on a case distinction, such as ``min(size, 64)``, has samples of its own. So no converter takes the case of the
samples for the case of every run.

* `read.py`: `read_model`, the way in.
* `model.py`: the protobuf, its external data and its check.
* `order.py`: nodes behind those that they read.
* `subgraphs.py`: the graphs inside of nodes.
* `arrays.py`: dtypes, and arrays from tensors of the protobuf.
* `values.py`: values of a graph: a tensor, a sequence or an optional.
* `worlds.py`: sample sizes, and facts about numbers that hold in every run.
* `columns.py`: samples taken apart into single sizes and elements.
* `cases.py`: sizes and elements that depend on a case distinction.
* `case_rules.py`: bounds and divisors that decide a case.
* `folding.py`: computes an op on known arrays.
* `elements.py`: known elements of vectors of sizes.
* `dynamic_sizes.py`: the sizes of results whose sizes are operands.
* `reshaping.py`: reshapes to open sizes, by static ops where the samples allow.
* `cells.py`: variables that inner blocks write.
* `borders.py`: borders whose widths come with the run.
* `bodies.py`: bodies of loops.
* `sequences.py`: sequences as tensor arrays.
* `draft.py`: the program under construction.
* `document.py`: the JSON form of a draft, and its names.
* `registry.py`: the table of converters.
* `node.py`: the node that a converter reads.
* `graph.py`: the walk over nodes, scopes and functions.
* `resampling.py`: resizing along axes of open sizes.
* `windows.py`: the windows of convolutions and poolings.
* `steps.py`: a `scan` over a body of emitted ops.
* `losses.py`: a loss appended to the model.
* `training.py`: the initializers that the model trains, and those that its steps give new values.
"""

from core.onnx.reading.losses import Loss
from core.onnx.reading.model import embedded
from core.onnx.reading.read import ImportedModel, read_model

__all__ = ["ImportedModel", "Loss", "embedded", "read_model"]
