"""Every shipped configuration is shown with a command (which tests/docs runs)."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_every_configuration_has_a_command() -> None:
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in CONFIGS.glob("*.yaml"))
    assert len(files) == 9
    for name in files:
        assert f" configs/{name}" in readme, name
        assert f"[{name}]({name})" in readme
