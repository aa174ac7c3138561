"""ONNX models as programs, and programs as ONNX models.

    from core.onnx import read_model, write_model

    model = read_model(open("model.onnx", "rb").read())
    program = core.read(model.program)
    data = write_model(program, values=model.values, outputs=model.outputs)

`read_model` returns the JSON form of a program together with the first values of its parameters and states. The graph's
inputs become feeds, its float initialisers parameters, its outputs variables, all under their own names.

* `reading`: from an ONNX model to a program.
* `writing`: from a program to an ONNX model.
"""

from core.onnx.reading import ImportedModel, Loss, embedded, read_model
from core.onnx.writing import write_model

__all__ = ["ImportedModel", "Loss", "embedded", "read_model", "write_model"]
