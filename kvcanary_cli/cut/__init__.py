"""Cutting a trace: some steps, and for some requests, with the state that they need."""
