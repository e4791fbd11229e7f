"""Server versions: parsing, order, and which version's rules apply (SPEC_SERVING_ARGS, head).

Rules are known for the versions that were read. Another version takes the rules of the nearest
read one below it, and the choice says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvcanary_cli.errors import InputError

Release = tuple[int, int, int]
"""Major, minor, patch: what rules are compared with. A post release counts as its release."""

NEWEST = "0.5.23"

READ: tuple[str, ...] = (
    "0.4.0.post2",
    "0.4.1.post7",
    "0.4.2.post4",
    "0.4.3.post4",
    "0.4.4.post4",
    "0.4.5.post3",
    "0.4.6.post5",
    "0.4.7.post1",
    "0.4.8.post1",
    "0.4.9.post6",
    "0.4.10.post2",
    "0.5.1.post3",
    "0.5.2",
    "0.5.3.post3",
    "0.5.4",
    "0.5.5",
    "0.5.6",
    "0.5.7",
    "0.5.8",
    "0.5.9",
    "0.5.10",
    "0.5.11",
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15",
    "0.5.16",
    "0.5.18",
    "0.5.20",
    "0.5.22",
    "0.5.23",
)
"""Versions whose rules were read, oldest first."""

FIRST_WITH_CANARY: Release = (0, 5, 13)

_PATTERN = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:\.?post(\d{1,4}))?(.*)", re.DOTALL)
# What may follow the numbers: pre-release marks, .devN, +local parts, an image's suffix.
_SUFFIX = re.compile(r"(?:(?:\.?(?:rc|a|b|dev)\d*)|[-+].*)*", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A release: ``0.5.13.post1`` is (0, 5, 13), post 1.

    Attributes:
        release: Major, minor, patch.
        post: Post-release number, 0 without one.
        text: As it was written, without a leading ``v``.
    """

    release: Release
    post: int
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Version:
    """Parse ``0.5.13``, ``v0.5.13.post1``, ``0.5.14.dev3+g123``, ``0.5.3rc0``.

    Raises:
        InputError: The text is not a version.
    """
    plain = text.strip()
    match = _PATTERN.fullmatch(plain)
    if match is None or not _SUFFIX.fullmatch(match[5]):
        raise InputError(
            f"'{plain[:60]}' is not a server version",
            hint=f"write it as three numbers, such as {NEWEST} or 0.5.12.post1",
        )
    release = (int(match[1]), int(match[2]), int(match[3]))
    return Version(release, int(match[4] or 0), plain.removeprefix("v"))


READ_VERSIONS: tuple[Version, ...] = tuple(parse_version(text) for text in READ)


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Whose rules apply, and why.

    Attributes:
        rules: Version whose rules apply; always one of ``READ_VERSIONS``.
        stated: Version as stated, or None.
        basis: ``given``, or a sentence that says what was assumed.
    """

    rules: Version
    stated: Version | None
    basis: str

    @property
    def release(self) -> Release:
        """Release whose rules apply."""
        return self.rules.release


def choose_version(text: str | None) -> VersionChoice:
    """Rules for the stated version; the newest read version if none is stated.

    Raises:
        InputError: The text is not a version.
    """
    newest = READ_VERSIONS[-1]
    if text is None:
        return VersionChoice(
            newest, None, f"no version was stated; the rules of {newest}, the newest known, apply"
        )
    stated = parse_version(text)
    same = [known for known in READ_VERSIONS if known.release == stated.release]
    if same:
        return VersionChoice(same[0], stated, "given")
    below = [known for known in READ_VERSIONS if known.release < stated.release]
    if not below:
        oldest = READ_VERSIONS[0]
        return VersionChoice(
            oldest,
            stated,
            f"{stated} is older than every version that was read; the rules of {oldest} apply",
        )
    reason = (
        "is newer than every version that was read"
        if below[-1] is newest
        else "was not read; rules that it changed would be missed"
    )
    return VersionChoice(below[-1], stated, f"{stated} {reason}; the rules of {below[-1]} apply")
