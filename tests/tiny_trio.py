"""A published trio in small: local folders that bear the hub's names, so that published scripts run
as they stand from their parent folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from models import head_config, random_head
from transformers import AutoTokenizer

from dart_core import DartModel
from dart_core.engine import Engine
from dart_core.heads import Eagle3Head, save_head
from dart_core.target import Target

GOLDEN = Path(__file__).parent / "golden" / "dart"
BASE = "Qwen/Qwen3-4B"
DART = "fvliang/qwen4b-dart"
EAGLE3 = "AngelSlim/Qwen3-4B_eagle3"
NGRAM = "fvliang/dart-qwen3-ngram"

# What Qwen3's template makes of a conversation without tools or thoughts.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


def make_trio(root: Path) -> Path:
    """The recorded target and DART head, a random EAGLE3 head, and n-grams in the published format,
    under the published names; returns ``root``.
    """
    shutil.copytree(GOLDEN / "checkpoint" / "target", root / BASE)
    tokenizer = AutoTokenizer.from_pretrained(root / BASE)
    tokenizer.chat_template = QWEN3
    tokenizer.save_pretrained(root / BASE)
    shutil.copytree(GOLDEN / "checkpoint" / "dart", root / DART)
    target = Target.load(root / BASE, device="cpu")
    config = head_config(target, draft_length=None, draft_vocab_size=128)
    save_head(random_head(Eagle3Head, config, seed=1), root / EAGLE3)
    (root / NGRAM).mkdir(parents=True)
    shutil.copy(GOLDEN / "trie" / "a_order3.trie", root / NGRAM / "full.trie")
    shutil.copy(GOLDEN / "trie" / "g_reduce4_order3.trie", root / NGRAM / "small.trie")
    return root


def trio_flags(root: Path, *, eagle3: bool = True) -> list[str]:
    """The flags of a command line that name the models of a trio that ``make_trio`` made."""
    names = {"base": BASE, "dart": DART, "ngram": NGRAM}
    if eagle3:
        names["eagle3"] = EAGLE3
    return [f"--{name}-model-name-or-path={root / path}" for name, path in names.items()]


def load_trio(root: Path) -> DartModel:
    """All of a trio that ``make_trio`` made, in float32."""
    return DartModel.from_pretrained(
        base_model_name_or_path=root / BASE,
        dart_model_name_or_path=root / DART,
        ngram_model_name_or_path=root / NGRAM / "full.trie",
        eagle3_model_name_or_path=root / EAGLE3,
        torch_dtype=torch.float32,
    )


@contextmanager
def cached_trio(root: Path) -> Iterator[Path]:
    """``make_trio`` in a folder that holds the program's cache, too."""
    make_trio(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DART_ARENA_CACHE", str(root / "cache"))
        yield root


def load_engine(root: Path) -> Engine:
    """The same as an engine alone, on the CPU; its n-gram is the folder."""
    return Engine.load(
        target=root / BASE,
        dart=root / DART,
        eagle3=root / EAGLE3,
        ngram=root / NGRAM,
        dtype=torch.float32,
        device="cpu",
    )
