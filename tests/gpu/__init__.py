"""The checks of a real GPU, as one program: ``python -m tests.gpu`` (`make test-gpu`), at most eight minutes.

It writes a line of JSON for each check and ends with 0 if all is right, 1 if anything is wrong or was left out, and 3
if there is no GPU. `rig` has the GPU, or the emulated one on which the tests run the same checks; `constants`, `steps`
and `faults` have the checks, `program` their order and the time that is left. The peers of the bench run on the
processor only, so their times are not among the results.
"""
