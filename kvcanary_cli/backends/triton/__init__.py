"""Plan, verify and write on a GPU, in Triton; the same kernels run in Triton's interpreter.

One kernel a file. Only imported when the backend is asked for: the kernels need triton at import.
"""
