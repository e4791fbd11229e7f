"""Make the environment that the SGLang tests run in: ``build/engines/sglang-VERSION``.

    python tests/engines/setup_sglang.py

Prints the interpreter's path; a finished environment is used again. Where the package index does
not offer the engine or cannot be reached, it says so and ends with status 69. SGLang is installed
without its dependencies, because those ask for a GPU build of everything.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.environment import Environment, main

SGLANG = "0.5.23"
_PACKAGES = (
    "numpy",
    "orjson",
    "psutil",
    "pybase64",
    "requests",
    "triton",
    "packaging",
    "pillow",
    "msgspec",
    "pydantic",
    "pyzmq",
    "tqdm",
    "ipython",
    "aiohttp",
    "transformers==5.19.0",
    "tokenizers==0.23.2",
    "fastapi",
    "uvicorn",
    "uvloop",
    "einops",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "python-multipart",
    "partial_json_parser",
    "compressed-tensors==0.18.0",
    "openai==2.8.0",
    "gguf",
    "dill",
    "apache-tvm-ffi==0.1.11",
    "xgrammar==0.2.7",
    # Builds the n-gram corpus on first use, with a C++ compiler.
    "ninja",
    # Imported by `python -m sglang.launch_server` alone.
    "jsonschema",
    "soundfile",
)
ENVIRONMENT = Environment(
    engine="sglang",
    version=SGLANG,
    torch="torch==2.13.0",
    steps=(("install", "--no-deps", f"sglang=={SGLANG}"), ("install", *_PACKAGES)),
)

if __name__ == "__main__":
    main(ENVIRONMENT)
