"""Programs as JSON. `read` turns a document into a closed program, and `write` turns a closed program into a
document.

A document is a flat list of blocks with open scopes: an op names its inner blocks by index, and an inner block reads
and overwrites the variables around it. The core knows only closed blocks: single-assignment, typed lists of ops that
read nothing but their parameters and themselves. This package is the only one that deals with scopes.

How a document is read:

1. `document.parse` checks the JSON and gives plain `records` (`RawProgram`, `RawBlock`, `RawOp`, `RawVar`).
2. `scope.Scopes` checks that the blocks form a tree, and collects the outer names that each block reads and writes.
3. `reader.Reader` reads block 0. It resolves each name to its current version, infers types and appends ops to a
`versions.Versions`. For an op with inner blocks in the open form it calls the construct of that name, which emits
closed ops.

A problem in one op does not end the reading. The reader reports it, marks the names that the op writes as unknown, and
goes on, so that one answer lists all mistakes.

`write` gives the closed form: each block has `params` and `results`, and each op of the backward pass names the op of
the client that it belongs to. ``read(write(program)) == program``.

A *construct* is an op that exists only in the open form. It is declared with ``@construct`` by the function that reads
it.

* `read.py`: `read`, the way in.
* `document.py`: the limits and the strict reading of a document.
* `records.py`: the records that this gives.
* `problems.py`: the list of problems.
* `scope.py`: the tree of blocks, and the names that each block reads and writes.
* `site.py`: the place of the op that is being read, and the exception for an op whose problem is already reported.
* `versions.py`: a builder that makes a new variable for each definition of a name.
* `written.py`: the ops of a block under construction, by the variables that they write.
* `op_reader.py`: the attributes and slots of one op.
* `reader.py`: the reader of blocks.
* `control_flow.py`: the constructs `while`, `if_else`, `conditional_block`, `switch_case`, `case` and `net`.
* `recurrence.py`: the constructs `scan` and `recurrent`.
* `row_branches.py`: the construct `if_else_rows`, which sends each row of a batch through one of two blocks.
* `safe_where.py`: the construct `safe_where`, a selection whose unselected side has no gradient.
* `functions.py`: the construct `call`, and the functions of a program.
* `derivatives.py`: the construct `gradients`, derivatives that the program goes on computing with.
* `write.py`: `write`, the way out.
* `samples.py`: one example program for each construct and each op with inner blocks.
"""

from core.wire.document import Limits
from core.wire.read import KEY, read
from core.wire.write import write

__all__ = ["KEY", "Limits", "read", "write"]
