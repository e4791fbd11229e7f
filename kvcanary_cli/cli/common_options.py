"""Options that several commands have, each with one name, one help and one set of values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class FormatName(StrEnum):
    """Choices of --format where there is one form for people and one for programs."""

    text = "text"
    json = "json"


class BackendName(StrEnum):
    """Choices of --backend."""

    auto = "auto"
    cpu = "cpu"
    triton = "triton"
    reference = "reference"


OutputFormat = Annotated[
    FormatName, typer.Option("--format", help="text for people, json for programs.")
]
OutputFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the result to this file.")
]
Backend = Annotated[
    BackendName, typer.Option("--backend", help="Where plan, verify and write run.")
]
