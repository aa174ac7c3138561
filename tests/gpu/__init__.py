"""The checks of a real GPU, as one program: ``python -m tests.gpu`` (`make test-gpu`), at most eight minutes.

It writes a line of JSON for each check and ends with 0 if all is right, 1 if anything is wrong or was left out, and 3
if there is no GPU. ``--checks`` and ``--kinds`` choose some of them. `rig` has the GPU, or the emulated one on which
the tests run the same checks; `constants` and `faults` have checks that need the GPU alone, `units` those that consist
of many small ones (steps of the bench, examples of ops, random programs), which `parallel` gives to processes of their
own (`worker`); `measured` has times, `program` the order and the time that is left. `python -m bench.gpu` compares
steps with those of PyTorch and JAX.
"""
