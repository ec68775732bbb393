"""The n-grams a DART drafter gets: the one asked for, and the other size where it costs nothing."""

from __future__ import annotations

import time
from pathlib import Path

from dart_core import weights
from dart_core.errors import ArenaError
from dart_core.ngram import NgramModel, converted_path, open_published
from dart_core.presets import Preset


def open_ngrams(
    reference: str, preset: Preset, *, small: bool, vocab_size: int, progress: weights.Progress
) -> dict[str, NgramModel]:
    """The n-grams of ``reference`` by name, "small" and "full", the default one first.

    ``small`` says which is the default. It is fetched and converted if need be, the other one is
    opened only where it lies ready on this machine. A reference to a file is that file alone.
    Raises ArenaError where the default cannot be had, or counts another vocabulary.
    """
    name, other = ("small", "full") if small else ("full", "small")
    filename = preset.ngram_name(small=small)
    path = weights.resolve(reference, kind="ngram", filename=filename, progress=progress)
    ngrams = {name: _open(path, vocab_size, progress)}
    beside = weights.already_here(reference, preset.ngram_name(small=not small))
    if beside is not None and _ready(beside, vocab_size):
        try:
            ngrams[other] = _open(beside, vocab_size, progress)
        except ArenaError as error:  # nobody asked for this one
            progress(f"left out: {error}")
    return ngrams


def _open(path: Path, vocab_size: int, progress: weights.Progress) -> NgramModel:
    started = time.perf_counter()
    model = open_published(
        path, vocab_size=vocab_size, cache=weights.cache_dir(), progress=progress
    )
    if model.vocab_size != vocab_size:
        raise ArenaError(
            f"n-gram {path} counts a vocabulary of {model.vocab_size} tokens, the target has "
            f"{vocab_size}: it was built with another tokenizer; give the target's own n-gram, or "
            "none"
        )
    progress(
        f"n-gram {path.name}: order {model.order}, {path.stat().st_size / 2**20:.1f} MiB, "
        f"{model.backend}, in {time.perf_counter() - started:.2f} s"
    )
    return model


def _ready(path: Path, vocab_size: int) -> bool:
    return converted_path(path, vocab_size=vocab_size, cache=weights.cache_dir()).exists()
