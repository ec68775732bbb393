"""What a user should know about how it runs: said once, at loading or after the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dart_core._native import choose_backend
from dart_core.drafters import Drafter
from dart_core.drafters.dart import DartDrafter

SHORT_ANSWER = 20  # tokens: below it, prefill and the first steps are most of the time
# What transformers' generate would do to the text where a model's generation config says so, and no
# engine here does; by the values, besides None, that ask for nothing. Temperature, top-k, top-p,
# lengths and end tokens are settings of a run.
NOT_APPLIED: dict[str, tuple] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "stop_strings": ([], ""),
    "max_time": (),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "token_healing": (False,),
    "num_beams": (1,),
    "constraints": ([],),
    "force_words_ids": ([],),
    "penalty_alpha": (0,),
    "dola_layers": (),
    # where it samples
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}


def not_applied(generation_config: Any) -> str:
    """The fields of a target's generation config, with their values, that would change the text of
    transformers' ``generate`` and change none here, whatever the engine; "" for none.
    """
    said = {name: getattr(generation_config, name, None) for name in NOT_APPLIED}
    return ", ".join(
        f"{name} {value!r:.60}"
        for name, value in said.items()
        if value is not None and value not in NOT_APPLIED[name]
    )


def not_applied_notice(fields: str) -> str:
    """``not_applied`` as a sentence."""
    return (
        f"the target's generation config sets {fields}: not applied here, whatever the engine, so "
        "texts differ from those of transformers' generate"
    )


def loading_notices(drafters: Mapping[str, Drafter]) -> list[str]:
    """What makes the loaded engines slower, or accept less, than they could."""
    dart = drafters.get("dart")
    if not isinstance(dart, DartDrafter):
        return []
    lines = []
    if choose_backend(None) == "twin":
        lines.append(
            "slow tree construction: the native extension is missing, so DART searches with its "
            "Python twin, some fifty times slower; with a C++20 compiler, build it: "
            "pip install -e . (launch/*.sh do)"
        )
    if not dart.ngrams:
        lines.append(
            "no n-gram: DART drafts from its head alone, with a lower acceptance length; "
            "--ngram-model-name-or-path gives it one"
        )
    elif next(iter(dart.ngrams)) == "small":
        lines.append(
            "the small n-gram is in use: quick to load, but acceptance (τ) is lower than with the "
            "full one; for benchmarks and production: --ngram full"
        )
    return lines


def short_answers(metrics: Iterable[Mapping[str, Any]]) -> str | None:
    """A line where every answer is too short for a speedup to show."""
    longest = max((figures.get("new_tokens", 0) for figures in metrics), default=0)
    if not 0 < longest < SHORT_ANSWER:
        return None
    return (
        f"the longest answer has {longest} new tokens: answers under about {SHORT_ANSWER} show no "
        "speedup, for the first step drafts nothing; judge it by answers of 128 tokens or more"
    )
