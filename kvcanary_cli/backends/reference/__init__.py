"""The plain backend: Python integers over rows, to be read. The other backends must equal it."""
