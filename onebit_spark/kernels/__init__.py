"""Numba: a compiler with a cache that also works from a zip, and kernels compiled ahead."""
