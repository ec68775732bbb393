"""What the documents say is so: command lines, flags, files, links, names and Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from documented import ROOT, blocks, commands, problems
from tiny_trio import BASE, DART, EAGLE3, NGRAM, make_trio

from dart_core.presets import DEMO_ASSETS, PRESETS

README = ROOT / "README.md"
CARD = ROOT / "assets" / "demo" / "README.md"
MIGRATION = ROOT / "assets" / "reference" / "migration.md"
FLAGS = ROOT / "assets" / "reference" / "command-lines.md"


@pytest.mark.parametrize(
    "document", [README, CARD, MIGRATION, FLAGS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_is_said_is_there(document):
    found = problems(document.read_text(encoding="utf-8"), document.parent)
    assert not found, "\n".join(found)


WRONG = """
# Broken

Call `python -m app --use-tiny-ngram`, then `DartModel.from_thin_air()` and `.dart_degenerate`;
`dart_core.no_module`, `from dart_core import DratModel`, `assets/none`, `--no-such-flag`,
`DART_ARENA_NONSENSE`, nowhere.py. [This](none.md), [that](README.md#none) and [here](#none).

```bash
python -m dart_core generate --prompt x --preset demo --tree-budgets 5   # only bench has it
python -m dart_core compare --base-model-name-or-path Qwen/Qwen3-4B \\
  --dart-model-name-or-path fvliang/qwen8b-dart --prompt x
bash launch/qwen3_5b.sh
bash launch/demo.sh --no-such-page
python launch/push_space.py me/mine --force
for size in 16 x; do
  python -m dart_core check --preset demo --prompt x --tree-budget $size
done
accelerate launch --num_processes 2 -m dart_core batch in.jsonl
python -m dart_core sing
```

```python
print("
```
"""


def test_every_kind_of_mistake_is_found():
    found = problems(WRONG, ROOT)
    for says in (
        "python -m app --use-tiny-ngram: ",
        "no from_thin_air in DartModel",
        "no dart_degenerate in",
        "no no_module in dart_core",
        "no DratModel in dart_core",
        "`assets/none`: no such file or folder",
        "no flag --no-such-flag",
        "nothing reads DART_ARENA_NONSENSE",
        "nowhere.py: no such file",
        "none.md: leads nowhere",
        "README.md#none: leads nowhere",
        "#none: leads nowhere",
        "unrecognized arguments: --tree-budgets 5",
        "'fvliang/qwen8b-dart' belongs to target Qwen/Qwen3-8B",
        "no launch/qwen3_5b.sh",
        "unrecognized arguments: --no-such-page",
        "no flag --force",
        "'x': expected a whole number or auto",
        "the following arguments are required: OUTPUT",
        "no command sing",
        "a Python block: ",
    ):
        assert any(says in problem for problem in found), says
    assert not any("--tree-budget 16:" in problem for problem in found)


def test_the_readme_has_the_commands_that_it_must():
    """None of the checks above is passed by reading nothing."""
    said = [" ".join(words) for words in commands(README.read_text(encoding="utf-8"))]
    for start in ("bash launch/demo.sh", "bash launch/replay.sh", "bash launch/test.sh"):
        assert start in said
    for command in ("generate", "compare", "check", "bench", "batch", "api", "ngram", "train"):
        assert any(line.startswith(f"python -m dart_core {command} ") for line in said), command
    assert any(line.startswith("python -m app --preset") for line in said)
    card = [" ".join(words) for words in commands(CARD.read_text(encoding="utf-8"))]
    assert sum(line.startswith("python -m dart_core train ") for line in card) >= 7


def test_the_table_of_presets_is_the_presets():
    rows, above = {}, [""] * 4
    _, _, table = README.read_text(encoding="utf-8").partition("\n| preset |")
    for line in table.partition("\n\n")[0].splitlines():
        if line.startswith("| `"):
            name, *cells = (cell.strip().strip("`") for cell in line.strip("| ").split("|"))
            above = rows[name] = [
                old if cell == "same" else cell for cell, old in zip(cells, above, strict=True)
            ]
    assert list(rows) == list(PRESETS)
    for name, preset in PRESETS.items():
        parts = [preset.target, preset.dart, preset.eagle3, preset.ngram]
        if name == "demo":
            assert [DEMO_ASSETS.parent.parent / cell for cell in rows[name][1:]] == [
                Path(part) for part in parts[1:]
            ]
        else:
            assert rows[name] == parts


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """The models that the documents name, in small, and the files that a reader would have."""
    root = make_trio(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv("DART_ARENA_CACHE", str(root / "cache"))
    demo = replace(
        PRESETS["qwen3-4b"],
        name="demo",
        target=str(root / BASE),
        dart=str(root / DART),
        eagle3=str(root / EAGLE3),
        ngram=str(root / NGRAM),
    )
    monkeypatch.setitem(PRESETS, "demo", demo)
    file = root / BASE / "generation_config.json"
    many = {"eos_token_id": list(range(0, 512, 16))}  # answers are short
    file.write_text(json.dumps(json.loads(file.read_text()) | many))
    (root / "prompts.jsonl").write_text('{"prompt": "Hello", "max_tokens": 4}\n{"prompt": "Hi"}\n')
    return root


@pytest.mark.parametrize("document", [README, MIGRATION], ids=lambda path: path.name)
def test_the_python_blocks_run(small, document, capsys):
    """One after the other, as a reader would paste them; only the models are small."""
    names: dict = {}
    for code in blocks(document.read_text(encoding="utf-8"), "python"):
        exec(code, names)
    assert names
    if document is README:
        assert capsys.readouterr().out.count("\n") >= 2
