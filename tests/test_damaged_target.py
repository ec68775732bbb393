"""Targets that are damaged, incomplete or something else: one sentence, never noise for weights."""

from __future__ import annotations

import json
import logging

import pytest
from models import tiny_model
from text_models import CHATML, byte_level

from dart_core.engine import Engine
from dart_core.errors import ArenaError


@pytest.fixture
def folder(tmp_path):
    tokenizer = byte_level(chat_template=CHATML)
    tiny_model(vocab_size=len(tokenizer), num_hidden_layers=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def refused(folder) -> str:
    with pytest.raises(ArenaError) as caught:
        Engine.load(target=folder, engines=["ar"], device="cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("content", [b"", b"\xff" * 900, None])
def test_damaged_weights(folder, content):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:9000] if content is None else content)
    assert "cannot be loaded" in refused(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "zzz"}'])
def test_a_config_that_is_no_language_models(folder, content):
    (folder / "config.json").write_text(content)
    assert "cannot be loaded" in refused(folder)


def test_weights_of_other_shapes(folder):
    change_config(folder, hidden_size=32)
    assert "cannot be loaded" in refused(folder)


def test_missing_tensors_are_never_filled_with_noise(folder):
    change_config(folder, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    message = refused(folder)
    assert "tensors that config.json asks for are not in the weights" in message
    assert "model.layers.2." in message


def test_unused_tensors_are_told(folder, caplog):
    change_config(folder, num_hidden_layers=1, layer_types=["full_attention"])
    with caplog.at_level(logging.WARNING):
        Engine.load(target=folder, engines=["ar"], device="cpu")
    assert "model.layers.1." in caplog.text
    assert "are not used" in caplog.text


def test_a_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    assert refused(folder).startswith("the tokenizer in")


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_a_folder_without_a_tokenizer(folder, model_type):
    """transformers makes an empty tokenizer of it, for some kinds of model."""
    for path in folder.glob("*token*"):
        path.unlink()
    change_config(folder, model_type=model_type)
    message = refused(folder)
    assert "holds no tokenizer (none of tokenizer.json, " in message
    assert "copy the model's tokenizer files into it" in message
