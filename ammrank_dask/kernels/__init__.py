"""The numba kernels: serial, without allocation in inner loops, without randomness of their own."""
