"""Benchmarks: compilation, calls, training steps and memory, of Backpass and of its peers."""
