"""Which target, heads and n-gram belong together: by their ids, and by their sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from app.__main__ import build_parser
from dart_core.cli_checks import check_models
from dart_core.engine import Engine
from dart_core.errors import ArenaError
from dart_core.presets import PRESETS, get_preset, smaller_preset
from dart_core.references import parse_remote
from dart_core.trio import choose_trio, preset_by_sizes, require_partner

GOLDEN = Path(__file__).parent / "golden" / "dart" / "checkpoint"
PUBLISHED = [name for name in PRESETS if name != "demo"]
ROLES = ("target", "dart", "eagle3", "ngram")


def parts(trio) -> tuple[str | None, ...]:
    return tuple(getattr(trio, role) for role in ROLES)


def refusal(*arguments, **options) -> str:
    with pytest.raises(ArenaError) as caught:
        choose_trio(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("role", ["target", "dart", "eagle3"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_any_published_id_brings_its_partners(name, role):
    preset = get_preset(name)
    trio = choose_trio(**{role: getattr(preset, role)})
    assert parts(trio) == parts(preset)
    assert trio.preset is preset


def test_the_ngram_alone_means_the_published_apps_trio():
    assert choose_trio(ngram="fvliang/dart-qwen3-ngram").preset is get_preset("qwen3-4b")
    # Beside a target of the user's own it says nothing: every Qwen3 shares it.
    trio = choose_trio(target="/my/qwen3", ngram="fvliang/dart-qwen3-ngram")
    assert parts(trio) == ("/my/qwen3", None, None, "fvliang/dart-qwen3-ngram")


def test_what_is_given_wins_over_the_preset():
    trio = choose_trio("qwen3-8b", target="/my/qwen3-8b", ngram="off")
    assert trio.target == "/my/qwen3-8b"
    assert trio.dart == "fvliang/qwen8b-dart"
    assert trio.ngram == "off"
    # Another published target is another trio, also behind launch/qwen3_4b.sh.
    assert parts(choose_trio("qwen3-4b", target="Qwen/Qwen3-8B")) == parts(get_preset("qwen3-8b"))


def test_revisions_stay_with_the_reference_they_pin():
    trio = choose_trio(target="Qwen/Qwen3-4B@abc1234", dart="fvliang/qwen4b-dart@v1.0")
    assert trio.target == "Qwen/Qwen3-4B@abc1234"
    assert trio.dart == "fvliang/qwen4b-dart@v1.0"
    assert trio.eagle3 == "AngelSlim/Qwen3-4B_eagle3"
    assert parse_remote(trio.target).revision == "abc1234"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"target": "Qwen/Qwen3-8B", "dart": "fvliang/qwen4b-dart"},
            "DART head 'fvliang/qwen4b-dart' belongs to target Qwen/Qwen3-4B, not to target "
            "'Qwen/Qwen3-8B': give --dart-model-name-or-path fvliang/qwen8b-dart, or "
            "--base-model-name-or-path Qwen/Qwen3-4B",
        ),
        (
            {"target": "Qwen/Qwen3-8B@main", "eagle3": "AngelSlim/Qwen3-14B_eagle3"},
            "give --eagle3-model-name-or-path AngelSlim/Qwen3-8B_eagle3",
        ),
        (
            {"dart": "fvliang/Qwen3-32B-dart", "eagle3": "AngelSlim/Qwen3-14B_eagle3"},
            "give --eagle3-model-name-or-path AngelSlim/Qwen3-32B_eagle3, or "
            "--dart-model-name-or-path fvliang/qwen14b-dart",
        ),
        (
            {"dart": "AngelSlim/Qwen3-4B_eagle3"},
            "'AngelSlim/Qwen3-4B_eagle3' is the EAGLE3 head of Qwen/Qwen3-4B, not a DART head: "
            "give --dart-model-name-or-path fvliang/qwen4b-dart",
        ),
        (
            {"target": "fvliang/qwen8b-dart"},
            "is the DART head of Qwen/Qwen3-8B, not a target",
        ),
        (
            {"preset": "demo", "ngram": "fvliang/dart-qwen3-ngram"},
            "counts the tokens of Qwen/Qwen3-1.7B, not of",
        ),
    ],
)
def test_what_does_not_belong_together_names_the_right_partner(given, says):
    assert says in refusal(given.pop("preset", None), **given)


def test_the_page_refuses_a_mismatch_before_anything_is_loaded():
    flags = ["--base-model-name-or-path", "Qwen/Qwen3-8B"]
    args = build_parser().parse_args([*flags, "--dart-model-name-or-path", "fvliang/qwen4b-dart"])
    with pytest.raises(ArenaError, match="fvliang/qwen8b-dart"):
        check_models(args)


def test_modelscope_has_its_own_names():
    trio = choose_trio("qwen3-1.7b", source="modelscope")
    assert parts(trio) == (
        "modelscope:Qwen/Qwen3-1.7B",
        "modelscope:fvliang/Qwen3-1.7B-dart",
        "modelscope:AngelSlim/Qwen3-1.7B_eagle3",
        "modelscope:fvliang/dart-qwen3-ngram",
    )
    # Either spelling is understood, wherever it comes from.
    assert choose_trio(dart="fvliang/Qwen3-8B-dart@v2").dart == "fvliang/qwen8b-dart@v2"
    trio = choose_trio(dart="fvliang/qwen8b-dart@v2", source="modelscope")
    assert trio.dart == "modelscope:fvliang/Qwen3-8B-dart@v2"
    assert trio.target == "modelscope:Qwen/Qwen3-8B"
    trio = choose_trio(target="hub:Qwen/Qwen3-8B", source="modelscope")
    assert (trio.target, trio.dart) == ("hub:Qwen/Qwen3-8B", "modelscope:fvliang/Qwen3-8B-dart")
    assert "known sources: hub, modelscope" in refusal("qwen3-4b", source="ftp")


def test_local_folders_come_from_no_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    trio = choose_trio(target="Qwen/Qwen3-4B", source="modelscope")
    assert trio.target == "Qwen/Qwen3-4B"
    assert trio.dart == "modelscope:fvliang/Qwen3-4B-dart"
    assert choose_trio("demo", source="modelscope") == choose_trio("demo")


# By sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_target_is_known_by_its_sizes(name):
    sizes = get_preset(name).sizes._asdict()
    assert preset_by_sizes({**sizes, "model_type": "qwen3"}) is get_preset(name)
    assert preset_by_sizes({**sizes, "num_hidden_layers": 5}) is None


def test_a_head_of_another_size_names_the_right_partner():
    eight, head = (
        get_preset("qwen3-8b").sizes._asdict(),
        {"hidden_size": 2560, "vocab_size": 151936},
    )
    with pytest.raises(ArenaError) as caught:
        require_partner("dart", "/my/head", head, "/my/target", eight)
    assert str(caught.value) == (
        "DART head '/my/head' was made for another target than '/my/target' (it expects hidden "
        "size 2560, the target's is 4096): give --dart-model-name-or-path fvliang/qwen8b-dart"
    )
    assert require_partner("dart", "/my/head", head | {"hidden_size": 4096}, "t", eight) is None
    wider = head | {"hidden_size": 2048, "target_hidden_size": 4096}  # its own width is its matter
    assert require_partner("eagle3", "/my/head", wider, "t", eight) is None
    nested = {"text_config": eight}
    with pytest.raises(ArenaError, match="fvliang/qwen8b-dart"):
        require_partner("dart", "/my/head", head, "t", nested)


def test_heads_of_one_hidden_size_are_told_apart_by_a_warning():
    """Qwen3-14B and 32B share it: nothing fails, only acceptance is low."""
    thirty_two = get_preset("qwen3-32b").sizes._asdict()
    head = {"hidden_size": 5120, "vocab_size": 151936, "intermediate_size": 17408}
    warning = require_partner("eagle3", "/my/head", head, "/my/target", thirty_two)
    assert "looks made for Qwen/Qwen3-14B" in warning
    far = require_partner("eagle3", "/home/me/s3cret/x/head", head, "/home/me/s3cret/t", thirty_two)
    assert "s3cret/x" not in far and "/home" not in far and "x/head" in far
    assert "AngelSlim/Qwen3-32B_eagle3" in warning


def test_a_mismatched_local_folder_is_refused_before_the_target_is_loaded(tmp_path, monkeypatch):
    head = tmp_path / "head"
    shutil.copytree(GOLDEN / "dart", head)
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    monkeypatch.setattr("dart_core.loading.Target.load", None)  # not to be called
    with pytest.raises(
        ArenaError, match=r"it expects vocabulary 99, the target's is \d+\): give the"
    ):
        Engine.load(target=GOLDEN / "target", dart=head, dtype=torch.float32, device="cpu")


def test_a_local_target_of_published_sizes_takes_published_partners(tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(GOLDEN / "target", folder)
    config = json.loads((folder / "config.json").read_text())
    sizes = get_preset("qwen3-14b").sizes._asdict()
    (folder / "config.json").write_text(json.dumps(config | sizes))
    asked: list[str] = []

    def resolve(reference, *, kind, progress):
        asked.append(reference)
        if reference != str(folder):
            raise ArenaError("stop here")
        return folder

    monkeypatch.setattr("dart_core.loading.weights.resolve", resolve)
    said: list[str] = []
    with pytest.raises(ArenaError, match="stop here"):
        Engine.load(target=folder, engines=["dart"], progress=said.append)
    assert "has the sizes of Qwen/Qwen3-14B: taking that one's partners" in said[0]
    assert asked == [str(folder), "fvliang/qwen14b-dart", "fvliang/qwen14b-dart"]
    monkeypatch.undo()
    with pytest.raises(ArenaError, match="engine dart needs its head: give --dart-model"):
        Engine.load(target=GOLDEN / "target", engines=["dart"])


def test_the_next_smaller_preset():
    assert smaller_preset("qwen3-8b") == "qwen3-4b"
    assert smaller_preset("qwen3-1.7b") is None
    assert smaller_preset("demo") is None
    assert smaller_preset(None) is None


def test_flags_that_say_the_same_thing_twice_the_last_wins():
    parse = build_parser().parse_args
    assert parse(["--ngram", "small", "--no-use-small-ngram"]).ngram == "full"
    assert parse(["--ngram", "off", "--use-small-ngram"]).ngram == "small"
    assert parse(["--use-small-ngram", "--ngram", "full"]).ngram == "full"
