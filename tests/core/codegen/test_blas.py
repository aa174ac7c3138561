"""Routines of the BLAS and LAPACK of SciPy, called by address."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import ctypes, sys
from core.codegen.blas import address_of

found = {name: address_of(name) for name in ("sgemm", "dgemm", "dsyevd")}
assert "scipy.linalg" not in sys.modules, "the package was imported"

import scipy.linalg
from scipy.linalg import cython_blas, cython_lapack

capsules = {**cython_lapack.__pyx_capi__, **cython_blas.__pyx_capi__}
name_of = ctypes.pythonapi.PyCapsule_GetName
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
assert found == {name: pointer_of(capsules[name], name_of(capsules[name])) for name in found}
assert scipy.linalg.det([[1.0, 2.0], [3.0, 5.0]]) < 0
"""


def test_routines_are_found_without_the_package_and_are_those_of_a_later_import():
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
