"""Defaults of speculative decoding (SPEC_SERVING_ARGS 2.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Release

CAPPED_ALGORITHMS = frozenset(
    {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO"}
)
"""Algorithms for which max_running_requests gets a default."""

_ALIASES = {"NEXTN": "EAGLE"}
_WIDE_ARCHITECTURES = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"})
_NGRAM_BREADTH = 10
_NGRAM_DRAFT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationInputs:
    """What was given about speculation; None = not given.

    Attributes:
        algorithm: As given, any case.
        num_steps: ``--speculative-num-steps``.
        topk: ``--speculative-eagle-topk``.
        draft_tokens: ``--speculative-num-draft-tokens``.
        architecture: Of the target model; None = not known.
        block_size: ``--speculative-dflash-block-size`` or the dspark one, or the draft model's.
        draft_config_known: The draft model's config.json was given.
        ngram_breadth: ``--speculative-ngram-max-bfs-breadth``.
        adaptive: ``--speculative-adaptive``.
    """

    algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    architecture: str | None = None
    block_size: int | None = None
    draft_config_known: bool = False
    ngram_breadth: int | None = None
    adaptive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What the server makes of it.

    Attributes:
        algorithm: Upper case, aliases resolved; None = no speculation.
        num_steps: None = unknown (with speculation) or none.
        topk: The same.
        draft_tokens: D; 0 without speculation, None = unknown.
        rule: How the numbers came about, for people.
        why_unknown: What is missing, or empty.
        give: What would settle it, or empty.
    """

    algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = 0
    rule: str = "no speculation"
    why_unknown: str = ""
    give: str = ""


def algorithm_of(text: str | None) -> str | None:
    """Upper-case algorithm with aliases resolved; None for none."""
    if text is None or text.strip().upper() in ("", "NONE", "NULL"):
        return None
    upper = text.strip().upper()
    return _ALIASES.get(upper, upper)


def default_running_requests(
    release: Release, algorithm: str | None, *, architecture: str | None = None
) -> tuple[int, str] | None:
    """max_running_requests that speculation (or DeepSeek-V4) sets if none is given.

    Returns:
        The number, for all workers together, and the rule; None if nothing sets one.
    """
    if architecture == "DeepseekV4ForCausalLM":
        return 256, "rule 2.8: DeepSeek-V4 sets 256"
    if algorithm is None:
        return None
    if release < (0, 4, 4):
        return 32, "rule 2.8: speculation sets 32"
    if algorithm in CAPPED_ALGORITHMS:
        return 48, f"rule 2.8: {algorithm} sets 48"
    return None


def resolve_speculation(given: SpeculationInputs) -> Speculation:
    """Steps, topk and draft tokens."""
    algorithm = algorithm_of(given.algorithm)
    if algorithm is None:
        # The canary reads the number of draft tokens whether or not there is an algorithm.
        return Speculation(draft_tokens=given.draft_tokens or 0)
    if given.adaptive:
        return _adaptive(algorithm, given)
    if algorithm == "NGRAM":
        return _ngram(given)
    if algorithm in ("DFLASH", "DSPARK"):
        return _block(algorithm, given)
    return _eagle(algorithm, given)


def _adaptive(algorithm: str, given: SpeculationInputs) -> Speculation:
    del given
    return Speculation(
        algorithm=algorithm,
        topk=1,
        draft_tokens=None,
        rule="rule 2.8: adaptive, topk 1",
        why_unknown="adaptive speculation takes the middle candidate of its own configuration",
        give="--set speculative_num_draft_tokens=N with N = middle candidate + 1",
    )


def _ngram(given: SpeculationInputs) -> Speculation:
    topk = given.ngram_breadth or _NGRAM_BREADTH
    draft = given.draft_tokens or _NGRAM_DRAFT
    return Speculation(
        algorithm="NGRAM",
        topk=topk,
        draft_tokens=draft,
        num_steps=draft // topk,
        rule=f"rule 2.8: NGRAM, breadth {topk}, draft {draft}",
    )


def _block(algorithm: str, given: SpeculationInputs) -> Speculation:
    extra = 1 if algorithm == "DSPARK" else 0
    draft = given.draft_tokens
    rule = f"rule 2.8: {algorithm}, given"
    if draft is None and given.block_size is not None:
        draft = given.block_size + extra
        rule = f"rule 2.8: {algorithm}, block {given.block_size}" + (" + 1" if extra else "")
    if draft is None and given.draft_config_known and algorithm == "DFLASH":
        draft, rule = 16, "rule 2.8: DFLASH, the draft model names no block size"
    unknown = draft is None
    return Speculation(
        algorithm=algorithm,
        num_steps=1 if algorithm == "DFLASH" else given.num_steps,
        topk=1 if algorithm == "DFLASH" else given.topk,
        draft_tokens=draft,
        rule=rule,
        why_unknown=f"{algorithm} takes the block size of its draft model" if unknown else "",
        give=f"--speculative-{algorithm.lower()}-block-size N" if unknown else "",
    )


def _eagle(algorithm: str, given: SpeculationInputs) -> Speculation:
    steps, topk, draft = given.num_steps, given.topk, given.draft_tokens
    rule = "given"
    if steps is None:
        chosen = _default_triple(algorithm, given.architecture)
        if chosen is None:
            return Speculation(
                algorithm=algorithm,
                topk=topk,
                draft_tokens=draft if draft is not None and (topk or 0) > 1 else None,
                rule="rule 2.8",
                why_unknown="the default of the speculation depends on the model's architecture",
                give="--model-config config.json, or --speculative-num-steps, "
                "--speculative-eagle-topk and --speculative-num-draft-tokens",
            )
        steps, topk, draft = chosen
        rule = f"rule 2.8: {algorithm} default {steps}/{topk}/{draft}"
    if topk is None:
        return Speculation(
            algorithm=algorithm,
            num_steps=steps,
            draft_tokens=None,
            rule="rule 2.8",
            why_unknown="--speculative-num-steps is given without --speculative-eagle-topk",
            give="--speculative-eagle-topk",
        )
    if topk == 1:
        forced = steps + 1
        if draft != forced:
            rule = f"rule 2.8: topk 1, steps {steps} + 1" + (
                "" if draft is None else f" (given: {draft})"
            )
        draft = forced
    if draft is None:
        return Speculation(
            algorithm=algorithm,
            num_steps=steps,
            topk=topk,
            draft_tokens=None,
            rule="rule 2.8",
            why_unknown=f"topk is {topk} and --speculative-num-draft-tokens is not given",
            give="--speculative-num-draft-tokens",
        )
    return Speculation(
        algorithm=algorithm, num_steps=steps, topk=topk, draft_tokens=draft, rule=rule
    )


def _default_triple(algorithm: str, architecture: str | None) -> tuple[int, int, int] | None:
    if algorithm == "STANDALONE":
        return 3, 1, 4
    if architecture is None:
        return None
    return (5, 4, 8) if architecture in _WIDE_ARCHITECTURES else (3, 1, 4)
