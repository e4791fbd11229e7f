"""What the canary and its backends agree on: slot layout, tags, plans, sources, argument checks.

Nothing here computes a hash over a batch and nothing here knows a manager. ``backends/`` and
``canary/`` both import from here; ``abi`` imports from neither.
"""
