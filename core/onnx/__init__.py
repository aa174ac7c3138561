"""ONNX models as programs, and programs as ONNX models.

    from core.onnx import read_model

    model = read_model(open("model.onnx", "rb").read())
    program = core.read(model.program)

`read_model` returns the JSON form of a program together with the first values of its parameters and states. The graph's
inputs become feeds, its float initialisers parameters, its outputs variables, all under their own names.

* `reading`: from an ONNX model to a program.
"""

from core.onnx.reading import ImportedModel, Loss, embedded, read_model

__all__ = ["ImportedModel", "Loss", "embedded", "read_model"]
