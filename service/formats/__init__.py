"""Formats of tensors and programs: JSON, safetensors, graphs."""
