"""Models in the ONNX format: programs as ONNX models.

    writing    a program as an ONNX model
"""
