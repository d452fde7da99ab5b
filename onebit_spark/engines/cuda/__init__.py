"""The steps on an NVIDIA GPU, through CuPy. Kernels are compiled at their first use."""
