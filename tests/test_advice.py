"""What users are told of what makes it slow, once: the published guide's table of troubles.

Its other rows: running out of memory is in test_room, heads that are missing or mismatched in
test_trio and test_hub.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.arena import Arena
from app.facts import facts_of
from app.layout import facts_list
from dart_core import _native
from dart_core.advice import short_answers
from dart_core.api import DartModel
from dart_core.cli import main
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.templates import TEMPLATE_REGISTRY

GOLDEN = Path(__file__).parent / "golden" / "dart"
MODELS = {"target": GOLDEN / "checkpoint" / "target", "dart": GOLDEN / "checkpoint" / "dart"}
SHORT = GenerationSettings(max_new_tokens=24)
FLAGS = ["--base-model-name-or-path", str(MODELS["target"]), "--dtype", "float32"]
FLAGS += ["--dart-model-name-or-path", str(MODELS["dart"]), "--device", "cpu"]


@pytest.fixture
def ngrams(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))
    shutil.copy(GOLDEN / "trie" / "a_order3.trie", tmp_path / "full.trie")
    shutil.copy(GOLDEN / "trie" / "g_reduce4_order3.trie", tmp_path / "small.trie")
    return tmp_path


def load(**options) -> tuple[Engine, list[str]]:
    said: list[str] = []
    options = {**MODELS, "dtype": torch.float32, "device": "cpu", **options}
    return Engine.load(**options, progress=said.append), said


def test_without_the_extension_the_slow_search_says_how_to_build_it(monkeypatch):
    monkeypatch.setattr(_native, "_core", None)
    monkeypatch.setattr(_native, "_failure", "no such module", raising=False)
    _native._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"fifty times slower.*pip install -e \."):
        engine, said = load()
    slow = engine.generate([5, 9, 23], "dart", SHORT)
    assert slow.steps[1].backend == "twin"
    [notice] = [line for line in engine.facts["notices"] if "slow tree construction" in line]
    assert "C++20 compiler" in notice and "pip install -e ." in notice
    assert notice in said
    monkeypatch.undo()
    engine, said = load()
    assert not [line for line in said if "slow tree construction" in line]
    fast = engine.generate([5, 9, 23], "dart", SHORT)
    assert fast.steps[1].backend == "native" and fast.output_ids == slow.output_ids


def test_the_small_ngrams_lower_acceptance_is_said_once(ngrams):
    engine, said = load(ngram=ngrams, small_ngram=True)
    notices = [line for line in said if "the small n-gram is in use" in line]
    assert notices == engine.facts["notices"]
    assert "acceptance (τ) is lower" in notices[0] and "--ngram full" in notices[0]
    for _ in range(2):
        engine.generate([5, 9, 23], "dart", SHORT)
    assert sum("small n-gram" in line for line in said) == 1  # runs added none
    assert load(ngram=ngrams)[0].facts["notices"] == []
    [without] = load()[0].facts["notices"]
    assert "no n-gram" in without


def test_a_generation_config_that_no_engine_applies_is_told_on_terminal_and_page(tmp_path):
    target = shutil.copytree(MODELS["target"], tmp_path / "target")
    plain = {"temperature": 0.6, "do_sample": True, "top_k": 20, "top_p": 0.9, "max_length": 99}
    neutral = {"repetition_penalty": 1.0, "min_p": 0.0, "num_beams": 1, "suppress_tokens": []}
    config = target / "generation_config.json"
    config.write_text(json.dumps({**plain, **neutral}))
    engine, said = load(target=target)
    assert "not_applied" not in engine.facts
    assert "not applied" not in "".join(said)
    expected = engine.generate([5, 9, 23], "dart", SHORT).output_ids
    odd = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[7]]}
    config.write_text(json.dumps({**plain, **neutral, **odd}))
    engine, said = load(target=target)
    fields = "repetition_penalty 1.3, no_repeat_ngram_size 2, bad_words_ids [[7]]"
    [notice] = [line for line in said if "not applied" in line]
    assert notice in engine.facts["notices"]
    assert f"generation config sets {fields}: not applied here" in notice
    for name in ("ar", "dart"):  # and indeed
        assert engine.generate([5, 9, 23], name, SHORT).output_ids == expected
    assert f"<li>not applied <b>{fields}</b></li>" in facts_list(Arena(engine))
    run = {"facts": engine.facts, "settings": {"temperature": 0}}
    assert ("not applied", fields) in facts_of(run)


def test_a_python_user_is_warned_of_what_is_not_applied(caplog):
    engine, _ = load()
    config = engine.target.model.generation_config
    DartModel(engine)
    assert caplog.records == []
    config.no_repeat_ngram_size = 2
    DartModel(engine)
    [warning] = caplog.records
    assert warning.levelname == "WARNING" and warning.name == "dart_core.api"
    assert "generation config sets no_repeat_ngram_size 2: not applied here" in warning.message


def test_answers_too_short_for_a_speedup_are_said(capsys):
    def told(tokens: int, *flags: str) -> bool:
        command = ["generate", "--prompt-ids", "5,9,23", "--max-new-tokens", str(tokens)]
        assert main([*command, "--ignore-eos", *FLAGS, *flags]) == 0
        return "answers under about 20 show no speedup" in capsys.readouterr().err

    assert told(19)
    assert not told(20)
    assert not told(19, "--engine", "ar")


@pytest.mark.parametrize(("lengths", "said"), [([], False), ([3, 19], True), ([3, 20], False)])
def test_one_long_answer_is_enough(lengths, said):
    notice = short_answers({"new_tokens": length} for length in lengths)
    assert bool(notice) == said
    if said:
        assert notice.startswith("the longest answer has 19 new tokens: ")
        assert "128 tokens or more" in notice


def test_a_wrong_template_lists_the_known_ones(capsys):
    says = r"unknown template 'vicuna'; known templates: qwen, chatml \(all Qwen3 take qwen\)"
    with pytest.raises(ArenaError, match=says):
        TEMPLATE_REGISTRY.get("vicuna")
    assert main(["generate", "--prompt", "x", *FLAGS, "--template-name", "vicuna"]) == 1
    assert "known templates: qwen, chatml" in capsys.readouterr().err


def test_leftovers_of_interrupted_work_block_no_start(ngrams, tmp_path, monkeypatch):
    """An empty lock file, half-written files and a build cache that nobody holds any more."""
    [converted] = _converted(ngrams)
    expected = load(ngram=ngrams)[0].generate([5, 9, 23], "dart", SHORT).output_ids
    whole = converted.read_bytes()
    converted.unlink()
    parts = converted.with_name(converted.name + ".parts")
    parts.mkdir()
    (parts / "lock").touch()
    (parts / "journal").write_bytes(b"half")
    (converted.parent / f"{converted.name}.lock").touch()
    extensions = tmp_path / "extensions" / "dart_core"
    extensions.mkdir(parents=True)
    (extensions / "lock").touch()
    (extensions / "_core.so").write_bytes(b"\x7fELF, half written")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    engine, _ = load(ngram=ngrams)
    assert engine.generate([5, 9, 23], "dart", SHORT).output_ids == expected
    assert converted.read_bytes() == whole
    assert not parts.exists()


def _converted(ngrams: Path) -> list[Path]:
    load(ngram=ngrams)
    return list((ngrams / "cache" / "ngram").glob("*.ngram"))


def test_an_extension_of_other_sources_counts_as_missing():
    """After a pull without a build: said in one line, not by a missing name somewhere."""
    script = (
        "import sys, types, warnings\n"
        "import dart_core\n"
        "sys.modules['dart_core._core'] = dart_core._core = types.ModuleType('dart_core._core')\n"
        "from dart_core import _native\n"
        "warnings.simplefilter('error')\n"
        "try: _native.choose_backend(None)\n"
        "except RuntimeWarning as told: print(told)\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "built from other sources" in told.stdout and "pip install -e ." in told.stdout
