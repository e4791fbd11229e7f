"""Importing the packages costs neither torch nor a compiler."""

from __future__ import annotations

import subprocess
import sys


def test_packages_import_without_heavy_modules() -> None:
    code = (
        "import sys, kvcanary_cli.canary, kvcanary_cli.capacities\n"
        "heavy = {'torch', 'numpy', 'numba', 'triton'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
