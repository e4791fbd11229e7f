"""The fast backend without a GPU: kernels that Numba compiles, over the tensors' own memory.

Kernels get addresses and sizes as plain integers. That keeps one compiled version of each (no
variants by layout or writability) and makes a launch cost a few microseconds. Large launches are
cut into ranges that threads work on with the interpreter lock released.
"""
