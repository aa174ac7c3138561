"""From a gradient query to a program with its backward pass.

There are two entry points: `append_backward(program, loss)` and `gradients(program, targets, inputs)`. Both return a
`Backward`: the program, and tables about it as data, so that no client parses them from names. The tables hold the
gradient of each variable, the forward op of each backward op, the op after which each gradient is final, and the reason
for each missing gradient.

    query             the query as data: the requested gradients
    append_backward   `append_backward` and `gradients`
    backward_program  `Backward`, the program and its tables
    unreachable       the reason for a missing gradient
    forward_only      the forward program of a program with a backward pass
"""
