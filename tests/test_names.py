"""Models and paths as people may be told of them: by names, without a folder of this machine."""

from __future__ import annotations

import pytest

from dart_core.names import ROOT, model_name, told_facts, without_folders
from dart_core.presets import DEMO_TARGET


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home with a model in it, both with spaces in their names."""
    model = tmp_path / "John Smith" / "My Models" / "Qwen3 4B"
    model.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "John Smith"))
    return tmp_path / "John Smith"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dart head /srv/s3cret/heads/dart in 0.2 s, done", "dart head heads/dart in 0.2 s, done"),
        ("cached in /s3cret/me/x", "cached in me/x"),
        ("config:/s3cret/a/x", "config:a/x"),
        ("at file:///s3cret/a/x", "at a/x"),
        ("--json=/s3cret/x/out.json", "--json=x/out.json"),
        (f"{ROOT}/assets/demo/dart: odd", "assets/demo/dart: odd"),
        ("GET /healthz of https://x.org/a/b", "GET /healthz of https://x.org/a/b"),
        (
            "Cannot reach http://me:s3cret@hub.example:80/api",
            "Cannot reach http://hub.example:80/api",
        ),
        ("12 tokens/s and 3/4, Qwen/Qwen3-4B", "12 tokens/s and 3/4, Qwen/Qwen3-4B"),
    ],
)
def test_lines_name_no_folder(text, told):
    assert without_folders(text) == told


def test_a_path_of_this_machine_may_have_spaces(home):
    model = home / "My Models" / "Qwen3 4B"
    told = without_folders(f"loading {model}/model.safetensors, {model} and {home}/typo: no file")
    assert told == "loading Qwen3 4B/model.safetensors, My Models/Qwen3 4B and ~/typo: no file"
    assert without_folders("from ~/My Models/Qwen3 4B to 2") == "from My Models/Qwen3 4B to 2"
    assert without_folders(str(home)) == "~"


def test_models_have_names(home, monkeypatch):
    assert model_name(DEMO_TARGET) == "SmolLM2-135M-Instruct"
    assert model_name("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert model_name(str(home / "My Models" / "not here")) == "My Models/not here"
    monkeypatch.chdir(home)
    assert model_name("../John Smith/My Models/Qwen3 4B") == "My Models/Qwen3 4B"


def test_facts_name_no_folder(home):
    model = f"{home}/My Models/Qwen3 4B"
    facts = {
        "target": DEMO_TARGET,
        "dart": f"{home}/My Models/not here",
        "dart_notes": [f"head {model!r} is odd"],
        "notices": [f"see {model}"],
        "versions": {"torch": "2"},
        "cuda_graphs": True,
    }
    told = told_facts(facts)
    assert told == {
        "target": "SmolLM2-135M-Instruct",
        "dart": "My Models/not here",
        "dart_notes": ["head 'My Models/Qwen3 4B' is odd"],
        "notices": ["see My Models/Qwen3 4B"],
        "versions": {"torch": "2"},
        "cuda_graphs": True,
    }
