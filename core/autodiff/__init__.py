"""Reverse-mode differentiation of one block: its adjoint, cotangents, VJP rules, activity and gradient hooks.

`Adjoint` walks the ops of one block in reverse and applies the VJP rule of each op; `Cotangents` adds the contributions
to a variable with one `sum`, right after the last of them. Rules are written in the op vocabulary, so a backward pass
is an ordinary program: it can be optimised, executed, sent to a client, and differentiated again. A rule never undoes
broadcasting, never accumulates and never sees a missing cotangent; `Adjoint` does all three. `Dependence` knows which
ops lie between a seed and the requested variables; the walk skips all others.

Control flow needs no second mechanism: the rule of a control-flow op builds an `Adjoint` of each inner block
(core/ops/control).

The cotangent of an embedding table may be rows: a pair of ordinary arrays. `Cotangents` keeps rows apart from whole
cotangents, merges rows with rows, and scatters rows into a table before it adds them to anything else.

    adjoint     the backward pass of one block; `vjp` and `pullback`
    vjp         the rule of one op, applied to symbols
    cotangents  contributions in, one complete cotangent of each variable out
    activity    which outputs depend, differentiably, on which inputs
    hooks       clip, scale, check or record a gradient where it is complete
"""
