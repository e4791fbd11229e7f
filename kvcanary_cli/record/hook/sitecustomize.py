"""Loaded by Python at the start of every process below ``kvcanary record``."""

import importlib.machinery
import importlib.util
import os
import sys


def _chain() -> None:
    """Run the sitecustomize that this one stands in front of."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _attach() -> None:
    if not os.environ.get("KVCANARY_RECORD"):
        return
    try:
        from kvcanary_cli.record.attach import attach
    except ImportError as error:
        sys.stderr.write(f"kvcanary: not recording: {error}: is kvcanary installed there?\n")
    else:
        attach()


try:
    _chain()
finally:
    _attach()
