"""How well a diagnosis finds known faults: every kind, many times, in a trace that is clean."""
