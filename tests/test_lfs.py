"""Git LFS pointers in the place of files: said as what they are, with the remedy, wherever read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from text_models import byte_level

from dart_core import weights
from dart_core.batch import require_input
from dart_core.engine import Engine
from dart_core.errors import ArenaError
from dart_core.heads import head_kind
from dart_core.lfs import pointers
from dart_core.ngram import NgramModel, import_trie
from dart_core.ngram_inputs import read_chunks
from dart_core.prompts import read_prompt_file

GOLDEN = Path(__file__).parent / "golden" / "dart" / "checkpoint"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def refused(action) -> None:
    with pytest.raises(ArenaError) as caught:
        action()
    message = str(caught.value)
    assert "is a Git LFS pointer" in message and "git lfs pull" in message
    assert "download" in message and "\n" not in message


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("target", "config.json"),
        ("target", "model.safetensors"),
        ("target", "tokenizer.json"),
        ("dart", "config.json"),
        ("dart", "model.safetensors"),
    ],
)
def test_in_a_model_s_folder(part, name, tmp_path):
    models = {each: shutil.copytree(GOLDEN / each, tmp_path / each) for each in ("target", "dart")}
    byte_level().save_pretrained(models["target"])
    assert (models[part] / name).exists()
    (models[part] / name).write_bytes(POINTER)
    refused(lambda: Engine.load(**models, ngram="off", device="cpu", progress=lambda line: None))


def test_a_head_s_is_found_before_its_target_is_loaded(tmp_path):
    head = shutil.copytree(GOLDEN / "dart", tmp_path / "dart")
    (head / "model.safetensors").write_bytes(POINTER)
    refused(lambda: weights.resolve(head, kind="head"))
    refused(lambda: head_kind(head))  # and by who loads a head alone


@pytest.mark.parametrize(
    "read",
    [
        lambda path: import_trie(path, path.with_suffix(".new")),
        NgramModel.open,
        lambda path: weights.resolve(path, kind="ngram"),
        lambda path: weights.resolve(path.parent, kind="ngram", filename=path.name),
        lambda path: list(read_chunks([str(path)])),
        read_prompt_file,
        require_input,
    ],
)
@pytest.mark.parametrize("name", ["small.trie", "text.txt", "text.jsonl.gz"])
def test_in_the_place_of_one_file(read, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(POINTER)
    refused(lambda: read(path))


def test_a_pipe_is_left_to_its_reader(tmp_path):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # so that nobody waits for the other side
    os.write(end, POINTER)
    assert pointers([pipe, tmp_path, tmp_path / "nowhere"]) == []
    assert os.read(end, 99) == POINTER
    os.close(end)
