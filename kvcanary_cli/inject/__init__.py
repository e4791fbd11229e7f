"""Known faults put into clean traces, with the ground truth: what a diagnosis is measured by."""
