"""From nothing to measured heads by the command line, with a tiny target that knows a tiny
language: training makes heads better, and two processes train as one does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from dart_core.cli import main
from tests.models import tiny_model
from tests.text_models import byte_level

CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WORDS = ("red", "blue", "green", "black", "white", "brown")


def question(number: int) -> str:
    return f"mix {WORDS[number % 6]} and {WORDS[number // 6 % 6]}"


def answer(number: int) -> str:
    return f"{WORDS[number % 6]} and {WORDS[number // 6 % 6]} are {WORDS[(number + 2) % 6]} now."


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target's folder: 80 steps of training have taught it to answer in sentences."""
    folder = tmp_path_factory.mktemp("target")
    tokenizer = byte_level(chat_template=CHAT)
    model = tiny_model("qwen3", vocab_size=len(tokenizer), initializer_range=0.05)
    texts = [
        tokenizer.apply_chat_template(
            [
                {"role": "user", "content": question(number)},
                {"role": "assistant", "content": answer(number)},
            ],
            tokenize=False,
        )
        for number in range(36)
    ]
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(80):
        part = slice(step % 3, None, 3)
        model(ids[part], labels=labels[part]).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def common(target):
    return ["--base-model-name-or-path", str(target), "--threads", "1", "--dtype", "float32"]


@pytest.fixture(scope="module")
def text(common, tmp_path_factory):
    """Conversations that the target wrote."""
    folder = tmp_path_factory.mktemp("text")
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": question(number)}) + "\n" for number in range(36))
    )
    path = folder / "text.jsonl"
    writing = ["--prompts", str(prompts), "--output", str(path), "--conversations", "36"]
    short = ["--max-new-tokens", "40", "--batch", "18", "--greedy-share", "1"]
    assert main(["train", "data", *common, *writing, *short]) == 0
    return path


def rates(report: dict, engine: str) -> list[float]:
    return [report["hits"][engine]["hit@1"][0], *report["tau"]["held-out"][engine].values()]


@pytest.mark.slow
def test_from_nothing_to_heads_that_beat_untrained_ones(text, common, tmp_path, capsys):
    excluded = tmp_path / "evaluation.jsonl"
    excluded.write_text(json.dumps({"turns": [question(7)]}) + "\n")
    data = ["--data", str(text), "--holdout", "6", "--cache", str(tmp_path / "features")]
    data += ["--exclude", str(excluded)]
    ngram = str(tmp_path / "demo.ngram")
    assert main(["train", "ngram", *common, *data, "--output", ngram]) == 0
    assert main(["train", "features", *common, *data]) == 0
    for kind in ("dart", "eagle3"):
        sizes = ["--draft-vocab-size", "64", "--anchors", "24", "--steps", "60", "--rows", "3"]
        output = ["--output", str(tmp_path / kind)]
        if kind == "dart":
            output += ["--ngram-model-name-or-path", ngram]
        assert main(["train", kind, *common, *data, *sizes, *output]) == 0
        provenance = json.loads((tmp_path / kind / "provenance.json").read_text())
        assert provenance["excluded_records"] == 1
        assert provenance["sequences"] == 35
        assert provenance["steps"] == 60
        assert provenance["command"].startswith("python -m dart_core ")
        assert provenance["commands"] == [provenance["command"]]
        lines = [json.loads(line) for line in (tmp_path / kind / "log.jsonl").open()]
        measured = [line for line in lines if "tau" in line]
        assert [measured[0]["step"], measured[-1]["step"]] == [0, 60]
        for name in ("hit@1", "hit@5", "hit@10"):
            assert measured[-1][name][0] > measured[0][name][0]
        assert measured[-1]["tau"]["60"] > measured[0]["tau"]["60"]
        curves = (tmp_path / kind / "curves.html").read_text()
        for title in ("loss", "held-out hit@10", "held-out τ", "learning rate"):
            assert title in curves
    figures = tmp_path / "figures.json"
    heads = ["--dart-model-name-or-path", str(tmp_path / "dart")]
    heads += ["--eagle3-model-name-or-path", str(tmp_path / "eagle3")]
    heads += ["--ngram-model-name-or-path", ngram, "--budgets", "4,16", "--json", str(figures)]
    heads += ["--prompt-file", str(excluded), "--max-new-tokens", "40"]
    capsys.readouterr()
    assert main(["train", "eval", *common, *data, *heads]) == 0
    printed = capsys.readouterr().out
    report = json.loads(figures.read_text())
    engines = {"dart", "eagle3", "dart+ngram"}
    assert set(report["tau"]) == {"held-out", "evaluation"}
    assert set(report["tau"]["evaluation"]) == engines
    assert set(report["tau"]["held-out"]) == engines | {"dart untrained", "eagle3 untrained"}
    assert len(report["hits"]["dart"]["hit@5"]) == 4
    for kind in ("dart", "eagle3"):
        assert f"{kind} untrained" in printed
        trained, untrained = rates(report, kind), rates(report, f"{kind} untrained")
        assert all(new > old for new, old in zip(trained, untrained, strict=True)), printed
    assert main(["train", "eval", *common, *data]) == 1
    assert "nothing to evaluate" in capsys.readouterr().err


def test_the_plan_says_what_it_takes_before_anything_is_done(common, target, tmp_path, capsys):
    output = tmp_path / "none" / "yet"
    plan = ["train", "plan", *common, "--output", str(output), "--head-minutes", "2"]
    a_token = 3 * 64 * 4 + 32 * 6 + 5  # three states in fp32, 32 ids with probabilities
    assert main([*plan, "--text-minutes", "2.5"]) == 0
    printed = capsys.readouterr().out
    assert f"{target}: 7 layers, 64 wide, vocabulary of 259; float32 on 1 x cpu" in printed
    assert f"{a_token} bytes a token, a million of them {a_token} MB" in printed
    assert "2 min 30 s" in printed
    assert printed.count("2 min 00 s") == 2  # each head
    data = tmp_path / "x.jsonl"
    data.write_text("x" * 4_300_000)
    assert main([*plan, "--data", str(data), "--cache-gib", "0.5", "--heads", "dart"]) == 0
    printed = capsys.readouterr().out
    assert "1.00 million tokens" in printed
    assert f"about {a_token} MB, of which 537 MB are kept and the rest computed again" in printed
    assert not output.exists()


def test_text_without_a_supervised_token_is_refused_before_training(common, tmp_path, capsys):
    """Case: the text's marker of an answer differs from the template's by one newline."""
    wrong = "<s>user\nhi</s>\n<s>assistantyo</s>"
    right = "<s>user\nhi</s>\n<s>assistant\nyo</s>"
    data, output = tmp_path / "x.jsonl", tmp_path / "head"
    arguments = ["train", "dart", *common, "--data", str(data), "--holdout", "1"]
    arguments += ["--cache", str(tmp_path / "features"), "--steps", "1", "--anchors", "4"]
    arguments += ["--output", str(output), "--draft-vocab-size", "64"]
    data.write_text("".join(json.dumps({"text": wrong}) + "\n" for _ in range(5)))
    for kind in ("eagle3", "dart"):
        arguments[1] = kind
        assert main(arguments) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: 0 supervised tokens in 5 of 5 records")
        assert "assistantyo" in error
        assert not list(output.glob("*.safetensors"))
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in [wrong, right] * 3))
    assert main(arguments) == 0
    assert "warning: 0 supervised tokens in 3 of 6 records" in capsys.readouterr().err


def losses(folder) -> list[float]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").open()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
def test_training_without_a_cache_is_the_same_training(text, common, tmp_path, capsys):
    """States that the size limit keeps off the disk are computed in every step."""
    for gib in ("1", "0"):
        arguments = [
            "--data",
            str(text),
            "--holdout",
            "4",
            "--cache",
            str(tmp_path / f"cache{gib}"),
        ]
        arguments += ["--draft-vocab-size", "64", "--anchors", "8", "--steps", "20", "--rows", "2"]
        arguments += ["--cache-gib", gib, "--output", str(tmp_path / gib)]
        assert main(["train", "eagle3", *common, *arguments]) == 0
    assert "keeps 0% of them" in capsys.readouterr().err
    assert [len(list((tmp_path / f"cache{gib}").glob("*.safetensors"))) for gib in "10"] == [1, 0]
    assert losses(tmp_path / "0") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parts"), [("dart", [20, 40]), ("eagle3", [20])])
def test_two_processes_take_the_steps_of_one(kind, parts, text, common, tmp_path):
    """The same losses from the same global batch, also after a resume."""
    data = ["--data", str(text), "--holdout", "4", "--cache", str(tmp_path / "features")]
    sizes = ["--draft-vocab-size", "64", "--anchors", "8", "--rows", "2"]

    def launched(name: str, steps: int) -> None:
        arguments = [*("train", kind), *common, *data, *sizes, "--sequences", "1"]
        arguments += ["--steps", str(steps), "--output", str(tmp_path / name)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "-m", "dart_core"]
        result = subprocess.run(
            [*command, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr

    for steps in parts:
        launched("two", steps)
        output = ["--steps", str(steps), "--sequences", "2", "--output", str(tmp_path / "one")]
        assert main(["train", kind, *common, *data, *sizes, *output]) == 0
    assert len(losses(tmp_path / "one")) == len(parts)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert json.loads((tmp_path / "two" / "provenance.json").read_text())["processes"] == 2


def hit_rates(folder) -> list[float]:
    """hit@1 by position as measured before, while and after a head was trained."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").open()]
    return [line["hit@1"] for line in lines if "hit@1" in line]


def test_a_trained_head_is_trained_further(text, common, tmp_path, capsys):
    data = ["--data", str(text), "--holdout", "6", "--cache", str(tmp_path / "features")]
    sizes = ["--draft-vocab-size", "64", "--anchors", "24", "--rows", "3"]

    def train(kind: str, name: str, steps: int, *more: str) -> int:
        output = ["--output", str(tmp_path / name), "--steps", str(steps)]
        return main(["train", kind, *common, *data, *sizes, *output, *more])

    for kind in ("eagle3", "dart"):
        assert train(kind, kind, 40) == 0
        first = tmp_path / kind
        # Another vocabulary would be chosen: the head brings its own.
        more = ["--draft-vocab-size", "32", "--init-from", str(first)]
        assert train(kind, f"more-{kind}", 1, *more) == 0
        before = hit_rates(first)[-1]
        assert hit_rates(tmp_path / f"more-{kind}")[0] == pytest.approx(before, abs=0.03)
        assert sum(before) > sum(hit_rates(first)[0]) + 0.1
    capsys.readouterr()
    assert train("dart", "slots", 1, "--rows", "4", "--init-from", str(tmp_path / "dart")) == 1
    assert "has 3 mask slots" in capsys.readouterr().err
    assert train("eagle3", "kind", 1, "--init-from", str(tmp_path / "dart")) == 1
    assert "this folder looks like a DART head" in capsys.readouterr().err
