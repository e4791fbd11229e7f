"""From what a server was told to what it resolves: options by version, defaults, KV memory.

No torch, no numpy in here: ``check-capacities`` and ``suggest-flags`` start without either.
"""

from __future__ import annotations
