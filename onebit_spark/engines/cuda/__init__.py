"""The steps on a GPU: one more runner. It needs CuPy and a device of NVIDIA; the kernels are compiled at first use."""
