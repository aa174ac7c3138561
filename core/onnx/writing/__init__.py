"""A closed program as an ONNX model of the default operator set.

    model       `write_model`: a program -> the bytes of a model
    prepare     the block to write: composites without a rule expanded, dead ops eliminated, constants folded
    registry    the table of rules: op of the catalogue -> function that writes its nodes
    graph       one graph under construction: its nodes, names and constants
    site        the place of one op in a graph; the functions that rules call
    dtypes      the dtypes of ONNX, and those that onnxruntime computes with
    output_types  the dtypes and shapes of outputs that follow from the operator
    arrays      stacks and tensor arrays as tensors
    blocks      the ops of a block, one after the other
    sizes       the open sizes of a program and their names
    fold        operators on small constants, computed while the model is written
    rules/      the rules, one file for each family of ops

A rule ends in the same arguments as the kernel of its op: ``rule(w, *inputs, **attrs)``, where the inputs are tensors
of the graph and `w` is its `Site`. It returns a tensor, or a tuple of tensors if the op has several outputs. It raises
`Refused` where ONNX cannot express the op, and every refusal of a program is reported in one error.
"""

from core.onnx.writing.model import NEWEST, OLDEST, write_model

__all__ = ["NEWEST", "OLDEST", "write_model"]
