"""Reverse-mode differentiation of one block: its adjoint, cotangents, VJP rules, activity and gradient hooks.

`Adjoint` walks the ops of one block in reverse and applies the VJP rule of each op. `Cotangents` adds the contributions
to a variable with one `sum`, right after the last of them. Rules are written in ops, so a backward pass is an ordinary
program: it can be optimised, executed, sent to a client, and differentiated again. A rule never undoes broadcasting,
never accumulates and never sees a missing cotangent; `Adjoint` does all three. `Activity` finds the ops between the
requested variables and the targets; the walk skips all others.

Control flow needs no second mechanism: the rule of a control-flow op builds an `Adjoint` of each inner block
(core/ops/control).

The cotangent of an embedding table may be row-sparse: a pair of ordinary arrays, row numbers and values. `Cotangents`
merges row-sparse contributions with each other, and scatters them into a table before it adds them to a dense one.

    adjoint     the backward pass of one block; `vjp` and `pullback`
    vjp         the rule of one op, applied to symbols
    cotangents  the sum of the contributions to each variable's cotangent
    activity    the differentiable dependence of outputs on inputs
    hooks       ops that clip, scale, check or record a gradient
"""
