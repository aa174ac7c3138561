"""Models from files: their programs, and the values that belong to them.

value_file   the file of initial values, as it is stored
model_files  a model with external data, or in a zip file, as one protobuf
losses       the loss of a model in the words of a request
importer     ONNX models become programs, in processes of their own
handlers     the handler of these processes
"""

from service.models.importer import Importer, Read
from service.models.value_file import write_values

__all__ = ["Importer", "Read", "write_values"]
