"""Presets: the published trios, and the demo's own files."""

from __future__ import annotations

import pytest

from dart_core.errors import ArenaError
from dart_core.ngram import reduce_ngram
from dart_core.presets import DEMO_ASSETS, DEMO_TARGET, PRESETS, get_preset
from dart_core.weights import resolve

PUBLISHED = {
    "qwen3-1.7b": ("Qwen/Qwen3-1.7B", "fvliang/qwen1.7b-dart", "AngelSlim/Qwen3-1.7B_eagle3"),
    "qwen3-4b": ("Qwen/Qwen3-4B", "fvliang/qwen4b-dart", "AngelSlim/Qwen3-4B_eagle3"),
    "qwen3-8b": ("Qwen/Qwen3-8B", "fvliang/qwen8b-dart", "AngelSlim/Qwen3-8B_eagle3"),
    "qwen3-14b": ("Qwen/Qwen3-14B", "fvliang/qwen14b-dart", "AngelSlim/Qwen3-14B_eagle3"),
    "qwen3-32b": ("Qwen/Qwen3-32B", "fvliang/qwen32b-dart", "AngelSlim/Qwen3-32B_eagle3"),
}


def test_the_presets_are_the_demo_and_the_published_trios():
    assert set(PRESETS) == {"demo", *PUBLISHED}
    assert all(name == preset.name for name, preset in PRESETS.items())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trio(name):
    preset = get_preset(name)
    assert (preset.target, preset.dart, preset.eagle3) == PUBLISHED[name]
    assert preset.ngram == "fvliang/dart-qwen3-ngram"
    assert preset.ngram_name(small=False) == "full.trie"
    assert preset.ngram_name(small=True) == "small.trie"
    assert preset.template == "qwen"


def test_the_demo_needs_no_hub():
    demo = get_preset("demo")
    assert demo.target == DEMO_TARGET
    assert resolve(demo.dart, kind="head") == DEMO_ASSETS / "dart"
    assert resolve(demo.eagle3, kind="head") == DEMO_ASSETS / "eagle3"
    for small, name in ((False, "demo.ngram"), (True, "small.ngram")):
        file = resolve(demo.ngram, kind="ngram", filename=demo.ngram_name(small=small))
        assert file == DEMO_ASSETS / "ngram" / name


def test_the_demos_small_ngram_is_what_its_card_says(tmp_path):
    reduce_ngram(DEMO_ASSETS / "ngram" / "demo.ngram", 4, tmp_path / "small.ngram")
    small = (DEMO_ASSETS / "ngram" / "small.ngram").read_bytes()
    assert (tmp_path / "small.ngram").read_bytes() == small
    assert sum(path.stat().st_size for path in DEMO_ASSETS.rglob("*")) < 60e6


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ArenaError, match="unknown preset 'qwen3-3b'") as caught:
        get_preset("qwen3-3b")
    assert all(name in str(caught.value) for name in PRESETS)
