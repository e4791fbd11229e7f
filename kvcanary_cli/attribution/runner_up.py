"""The class that a broken rule could be taken for, and the fact that excludes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.result import RuledOut

if TYPE_CHECKING:
    from kvcanary_cli.attribution.ownership import Root
    from kvcanary_cli.attribution.result import OwnershipFinding

_GIVES = {
    what.FREE_BY_NON_OWNER: "gave them back",
    what.OWN_BY_NON_OWNER: "handed them over",
    what.DOUBLE_ALLOC: "was given them",
}


def runner_up(found: OwnershipFinding, root: Root, cls: str, own: str) -> RuledOut:
    """What a finding that nobody's damage shows is not.

    Args:
        found: The broken rule.
        root: What it goes back to.
        cls: Class of the finding.
        own: Class that the rule stands for where nothing went before; ``cls`` unless another
            broken rule did.
    """
    if root.what not in ("", found.what, *what.READS) and root.event < found.event:
        other = own if own != cls else "use_after_free"
        return RuledOut(
            other, f"event {root.event} broke {root.what} before, and {found.what} follows from it"
        )
    if found.what in what.READS:
        return _not_read_wrongly(found, root)
    actor, whose = found.actor or "nobody that the trace names", _whose(found.owner)
    if found.what == what.WRITE_BY_NON_OWNER:
        if found.step is None:
            return RuledOut("late_write", "a copy wrote the slots, no forward did")
        if found.actor is None:
            return RuledOut("late_write", "a padding row wrote the slots, no request did")
        return RuledOut("use_after_free", f"{actor} did not read the slots, it wrote them")
    if found.what == what.READ_BEFORE_WRITE:
        return RuledOut("use_after_free", f"the slots were {whose} when read, not given back")
    if found.what == what.DOUBLE_FREE:
        return RuledOut(
            "use_after_free",
            f"event {found.event} gave back slots that were free: it took them from no holder",
        )
    if found.what in what.MATCHES:
        text = f"the slots were {whose} already when {actor} matched them"
        return RuledOut("use_after_free", text)
    if found.what == what.PUBLISH_OF_FREE:
        return RuledOut("use_after_free", "the slots were free already when they were published")
    text = f"the slots were {whose} when {actor} {_GIVES[found.what]}"
    held = "" if found.owner is None else ", not given back before"
    return RuledOut("use_after_free", text + held)


def _not_read_wrongly(found: OwnershipFinding, root: Root) -> RuledOut:
    """Of a read of slots that are free, or another's."""
    if not root.what and root.by is not None:
        given = "" if found.owner is None else f" and {_whose(found.owner)} when they were read"
        text = f"{root.by} gave the slots back at event {root.event}: they were free{given}"
        return RuledOut("double_alloc", text)
    return RuledOut("late_write", f"event {found.event} read the slots, it did not write them")


def _whose(owner: str | None) -> str:
    if owner is None:
        return "free"
    return "the prefix cache's" if owner == "tree" else f"{owner}'s"
