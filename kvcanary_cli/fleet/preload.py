"""What every worker needs, imported once in the process that workers are forked from.

Imports take seconds and hundreds of megabytes; forked workers share both. Nothing here starts a
thread or touches a GPU, which a fork would not survive.
"""

from __future__ import annotations

import kvcanary_cli.attribution.diagnose
import kvcanary_cli.backends.cpu.backend
import kvcanary_cli.fleet.worker
import kvcanary_cli.serving.trace_capacities
import kvcanary_cli.trace.folder_reader  # noqa: F401
