"""The command line over tiny models on disk: what it prints, writes, refuses and returns."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from models import autoregressive, head_config, random_head, tiny_model
from text_models import CHATML, byte_level

from dart_core import cli_compare, cli_run
from dart_core.cli import main
from dart_core.engine import Engine
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head, save_head
from dart_core.ngram import build_ngram
from dart_core.prompts import read_prompt_file
from dart_core.report import check_destination, write_json
from dart_core.target import Target
from dart_core.text import full_decode

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("ar", "dart", "eagle3")
LENGTH = ("--max-new-tokens", "24")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of a tiny target with its tokenizer, two heads and an n-gram, as users name them."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_level(("Ġha", "Ġho"), chat_template=CHATML)
    model = tiny_model(vocab_size=len(tokenizer) + 3)  # padded, as published models are
    model.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    target = Target(model)
    for kind, length in ((DartHead, 7), (Eagle3Head, None)):
        config = head_config(target, draft_length=length, draft_vocab_size=128)
        save_head(random_head(kind, config, seed=1), folder / kind.__name__)
    texts = [autoregressive(target, [t, t + 1], max_new_tokens=60) for t in range(1, 30, 5)]
    build_ngram(texts, 3, target.vocab_size, folder / "tiny.ngram")
    return {
        "base": folder / "target",
        "dart": folder / "DartHead",
        "eagle3": folder / "Eagle3Head",
        "ngram": folder / "tiny.ngram",
    }


@pytest.fixture
def arguments(models):
    """The four published flags, on the CPU in float32."""
    flags = [f"--{name}-model-name-or-path={path}" for name, path in models.items()]
    return [*flags, "--dtype", "float32", "--device", "cpu"]


@pytest.fixture
def tokenizer(models):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models["base"])


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"id": "two", "turns": ["hi", "and?"], "category": "ignored"},
        {"prompt": "hello"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


# generate


@pytest.mark.parametrize("engine", ENGINES)
def test_generate_streams_text_and_writes_json(engine, arguments, tokenizer, tmp_path, capsys):
    path = tmp_path / "run.json"
    code = main(
        ["generate", *arguments, "--engine", engine, "--prompt", "hi", *LENGTH, "--json", str(path)]
    )
    captured = capsys.readouterr()
    assert code == 0
    run = json.loads(path.read_text())
    assert captured.out == run["text"] + "\n"
    assert "target" in captured.err  # progress and figures are on stderr
    assert "tok/s" in captured.err
    assert run["text"] == full_decode(tokenizer, run["output_ids"])
    assert run["prompt_ids"] == tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}],
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    assert list(tmp_path.iterdir()) == [path]  # no half-written file left


def test_json_fields(arguments, capsys):
    code = main(["generate", *arguments, "--prompt", "hi", *LENGTH, "--json", "-"])
    run = json.loads(capsys.readouterr().out)  # nothing but JSON on stdout
    assert code == 0
    assert {
        "engine", "prompt_ids", "output_ids", "text", "finish_reason", "steps", "metrics",
        "settings", "seed", "device", "dtype", "versions", "target", "dart", "ngram",
    } <= set(run)  # fmt: skip
    assert run["engine"] == "dart"
    assert run["dtype"] == "float32"
    assert run["finish_reason"] == "length"
    assert len(run["output_ids"]) == 24
    assert [t for step in run["steps"] for t in step["emitted"]] == run["output_ids"]
    prefill, *verify = run["steps"]
    assert prefill["tree"] is None
    for step in verify:
        tree = step["tree"]
        assert step["drafted"] == len(tree["tokens"]) - 1 <= 60
        assert len(tree["parents"]) == len(tree["scores"]) == len(tree["tokens"])
        drafts = [tree["tokens"][node] for node in tree["path"][1:]]
        assert step["emitted"][: step["accepted"]] == drafts[: step["accepted"]]
        assert set(step["seconds"]) == {"draft", "search", "verify", "rest", "total"}
        assert step["backend"] in {"native", "twin"}
    metrics = run["metrics"]
    assert metrics["tau"] == 23 / len(verify)
    assert {"tokens_per_second", "time_to_first_token", "speculative_decoding"} <= set(metrics)
    assert run["settings"]["draft"]["tree_budget"] == 60


def test_a_chosen_tree_budget_says_what_it_chose_and_why(arguments, capsys):
    flags = ["generate", *arguments, "--prompt", "hi", *LENGTH]
    assert main([*flags, "--json", "-"]) == 0
    told = capsys.readouterr()
    fixed = json.loads(told.out)
    assert "tree budget" not in told.err
    assert main([*flags, "--tree-budget", "auto", "--json", "-"]) == 0
    assert capsys.readouterr().err.count("tree budget auto: ") == 1
    assert main([*flags, "--tree-budget", "auto", "--profile", "--json", "-"]) == 0
    told = capsys.readouterr()
    run = json.loads(told.out)
    assert run["output_ids"] == fixed["output_ids"]
    draft = run["settings"]["draft"]
    assert (draft["tree_budget"], draft["auto_budget"]) == (60, True)
    for step in run["steps"][1:]:
        assert set(step["choice"]) == {"asked", "expected", "cost"}
        assert step["drafted"] <= step["choice"]["asked"] <= 60
    assert fixed["steps"][1]["choice"] is None
    assert told.err.count("tree budget auto: ") == 1


def test_no_folder_of_this_machine_is_told(arguments, models, capsys):
    named = {"target": "base", "dart": "dart", "eagle3": "eagle3", "ngram": "ngram"}
    for command in ("generate", "compare", "check"):
        assert main([command, *arguments, "--prompt", "hi", *LENGTH, "--json", "-"]) == 0
        told = capsys.readouterr()
        run = json.loads(told.out)
        for part, flag in named.items():
            if part in run:
                assert run[part] == "/".join(Path(models[flag]).parts[-2:])
        assert run["target"] and str(Path(models["base"]).parent) not in told.out
        if command == "compare":
            assert f"{run['target']} on " in told.err


def test_compare_says_what_was_chosen(arguments, capsys):
    flags = ["compare", *arguments, "--prompt", "hi", *LENGTH, "--engines", "dart", "--json", "-"]
    assert main([*flags, "--tree-budget", "auto"]) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    steps = result["results"][0]["engines"]["dart"]["steps"][1:]
    choice = result["summary"]["dart"]["chosen_sizes"]
    assert choice["steps"] == len(steps)
    assert choice["mean"] == sum(step["drafted"] for step in steps) / len(steps)
    assert choice["rested"] == sum(step["choice"]["asked"] == 0 for step in steps)
    assert f"dart, tree budget auto: {choice['mean']:.1f} drafts a step" in told.err
    assert result["summary"]["ar"]["chosen_sizes"] is None
    assert told.err.count("tree budget auto: ") == 1


def test_engines_agree_greedy_and_seeded(arguments, capsys):
    for extra in ([], ["--temperature", "1", "--top-k", "40", "--seed", "7"]):
        outputs = []
        for engine in ENGINES:
            flags = ["--engine", engine, "--prompt", "hi", *LENGTH, "--json", "-", *extra]
            assert main(["generate", *arguments, *flags]) == 0
            run = json.loads(capsys.readouterr().out)
            outputs.append(run["output_ids"])
            assert run["seed"] == (7 if extra else None)
        assert outputs[0] == outputs[1] == outputs[2]


def test_unset_seed_is_drawn_and_reported(arguments, capsys):
    flags = ["--engine", "ar", "--prompt", "hi", *LENGTH, "--temperature", "1", "--json", "-"]
    assert main(["generate", *arguments, *flags]) == 0
    captured = capsys.readouterr()
    first = json.loads(captured.out)
    assert f"seed {first['seed']}" in captured.err
    assert main(["generate", *arguments, *flags, "--seed", str(first["seed"])]) == 0
    assert json.loads(capsys.readouterr().out)["output_ids"] == first["output_ids"]


def test_zero_switches_top_p_and_top_k_off(arguments, capsys):
    outputs = []
    for off in (["--top-p", "0", "--top-k", "0"], ["--top-p", "1"]):
        flags = ["--engine", "ar", "--prompt", "hi", *LENGTH, "--temperature", "1", "--seed", "3"]
        assert main(["generate", *arguments, *flags, *off, "--json", "-"]) == 0
        outputs.append(json.loads(capsys.readouterr().out)["output_ids"])
    assert outputs[0] == outputs[1]


def test_prompt_file_runs_turn_by_turn(arguments, tokenizer, prompt_file, capsys):
    flags = ["--prompt-file", str(prompt_file), "--max-new-tokens", "6", "--json", "-"]
    assert main(["generate", *arguments, *flags, "--system-prompt", "kind"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in data["results"]] == [
        "two turn 1", "two turn 2", "prompts:2", "prompts:3",
    ]  # fmt: skip
    texts = [tokenizer.decode(r["prompt_ids"]) for r in data["results"]]
    answer = data["results"][0]["text"]
    assert texts[1].startswith("<s>system\nkind</s>\n<s>user\nhi</s>\n<s>assistant\n" + answer)
    assert "<s>user\nand?</s>" in texts[1]
    assert texts[3].startswith("<s>system\ns</s>\n<s>user\nu</s>")  # its own system message
    assert "settings" in data


def test_a_file_of_one_prompt_is_still_a_list(arguments, prompt_file, capsys):
    flags = ["--prompt-file", str(prompt_file), "--limit", "1", "--max-new-tokens", "2"]
    assert main(["generate", *arguments, *flags, "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        (None, "--prompt -: there is no standard input"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"), "input is no utf-8 text"),
    ],
)
def test_a_standard_input_that_gives_no_prompt_is_one_line(stdin, says, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["generate", "--preset=demo", "--prompt", "-"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1


def test_an_id_of_null_is_none(tmp_path):
    (tmp_path / "some.jsonl").write_text('{"id": null, "prompt": "x"}\n{"id": 0, "prompt": "x"}')
    assert [each.name for each in read_prompt_file(tmp_path / "some.jsonl")] == ["some:1", "0"]


def test_prompts_as_ids_raw_and_from_stdin(arguments, tokenizer, capsys, monkeypatch):
    def prompt_ids(*flags):
        command = ["generate", *arguments, "--max-new-tokens", "1", "--json", "-", *flags]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)["prompt_ids"]

    assert prompt_ids("--prompt-ids", "5,9, 23") == [5, 9, 23]
    raw = tokenizer.encode("a b", add_special_tokens=False)
    assert prompt_ids("--raw", "--prompt", "a b") == raw
    monkeypatch.setattr("sys.stdin", io.StringIO("a b"))
    assert prompt_ids("--raw", "--prompt", "-") == raw


def test_thinking_is_off_unless_asked_for(arguments, tokenizer, capsys):
    for flags, thinking in ([], False), (["--enable-thinking"], True):
        command = ["generate", *arguments, "--prompt", "x", "--max-new-tokens", "1", *flags]
        assert main([*command, "--json", "-"]) == 0
        prompt = tokenizer.decode(json.loads(capsys.readouterr().out)["prompt_ids"])
        assert ("<think></think>" in prompt) is not thinking


def test_stop_and_end_tokens(arguments, tokenizer, capsys):
    command = ["generate", *arguments, "--prompt", "hi", *LENGTH, "--json", "-"]
    assert main(command) == 0
    run = json.loads(capsys.readouterr().out)
    token = run["output_ids"][6]
    first = run["output_ids"].index(token)
    assert main([*command, "--eos-token-id", f"{token},{token}"]) == 0
    ended = json.loads(capsys.readouterr().out)
    assert ended["output_ids"] == run["output_ids"][: first + 1]
    assert ended["finish_reason"] == "stop"
    stop = run["text"][4:6]
    assert main([*command, "--stop", stop, "--stop", "never seen"]) == 0
    stopped = json.loads(capsys.readouterr().out)
    assert stopped["text"] == run["text"][: run["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"
    assert stopped["output_ids"] == run["output_ids"][: len(stopped["output_ids"])]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_only_on_a_terminal_that_wants_it(environment, coloured, monkeypatch):
    from scripted import step

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for stdout in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stdout)
        show = cli_run.Printer()
        show(step(1, [1, 2, 3], accepted=2), ["ab", "c", "d"])
        show(step(2, [4], finish="stop"), ["\x1b\x9be\n"])
        if isinstance(stdout, Terminal) and coloured:
            assert stdout.getvalue() == "\x1b[33mabc\x1b[0md␛\ufffde\n\n"
        else:
            control = "␛\ufffd" if isinstance(stdout, Terminal) else "\x1b\x9b"
            assert stdout.getvalue() == f"abcd{control}e\n\n"


# compare and check


def test_compare_prints_a_table(arguments, tmp_path, capsys):
    path = tmp_path / "compare.json"
    flags = ["--prompt", "hi", *LENGTH, "--json", str(path), "--temperature", "1", "--seed", "5"]
    assert main(["compare", *arguments, *flags]) == 0
    out = capsys.readouterr().out
    for column in ("tok/s", "τ", "speedup", "draft ms", "search ms", "verify ms", "first s"):
        assert column in out
    rows = [line.split() for line in out.splitlines() if line.split()[0] in ENGINES]
    assert [row[0] for row in rows] == list(ENGINES)
    assert all(row[-2:] == ["1", "equal"] for row in rows)
    assert rows[0][1:5] == [rows[0][1], "1.00", "1.00", "×"]
    for said in ("float32", "seed 5", "tree budget 60", "EAGLE3 depth 7", "warm-up excluded"):
        assert said in out
    assert "ar of this run" in out
    data = json.loads(path.read_text())
    engines = data["results"][0]["engines"]
    assert set(engines) == set(ENGINES)
    assert {run["seed"] for run in engines.values()} == {5}
    assert engines["dart"]["speedup"]["baseline"] == "ar of this run"
    speeds = {name: s["tokens_per_second"] for name, s in data["summary"].items()}
    assert data["summary"]["dart"]["speedup"]["value"] == speeds["dart"] / speeds["ar"]


def test_compare_only_some_engines(arguments, capsys):
    assert main(["compare", *arguments, "--engines", "eagle3", "--prompt", "hi", *LENGTH]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row in ENGINES] == ["ar", "eagle3"]


def test_check_counts_equal(arguments, prompt_file, capsys):
    flags = ["--prompt-file", str(prompt_file), "--max-new-tokens", "12"]
    assert main(["check", *arguments, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "two turn 1: dart equal, eagle3 equal (12 tokens)"
    assert len(lines) == 6
    assert lines[-2:] == [
        "4 prompts, float32, greedy: dart 4 equal, 0 tie, 0 DIFFERENT; "
        "eagle3 4 equal, 0 tie, 0 DIFFERENT",
        "plain decoding against itself, 8 tokens a pass instead of one: another token in 0 of 4",
    ]


def test_there_is_something_to_check_against_plain_decoding(arguments, capsys, monkeypatch):
    """Or it is told before anything is loaded."""
    monkeypatch.setattr(cli_compare, "load", None)
    assert main(["check", *arguments, "--prompt", "hi", "--engines", "ar"]) == 1
    assert "error: --engines ar: that is plain decoding" in capsys.readouterr().err
    target = next(flag for flag in arguments if flag.startswith("--base-model"))
    assert main(["check", target, "--prompt", "hi"]) == 1
    assert "nothing to check against plain decoding: give a head" in capsys.readouterr().err


def test_check_finds_a_wrong_engine(arguments, capsys, monkeypatch):
    """One token that the target did not draw."""
    monkeypatch.setattr(Engine, "stream", wrong_token(Engine.stream))
    flags = ["--prompt", "hi", *LENGTH, "--json", "-"]
    assert main(["check", *arguments, *flags]) == 1
    data = json.loads(capsys.readouterr().out)
    figures = {"tie": 0, "tie_rate": 0.0, "largest_gap": None, "largest_share_of_bound": None}
    assert data["summary"]["dart"] == {"equal": 0, "DIFFERENT": 1, **figures}
    assert data["summary"]["eagle3"] == {"equal": 1, "DIFFERENT": 0, **figures}
    assert data["summary"]["ar"] == {"rows": 8, "flipped": 0, "rate": 0.0}
    assert data["results"][0]["own_flip"] is None
    verdict = data["results"][0]["engines"]["dart"]
    assert verdict["status"] == "DIFFERENT"
    assert verdict["gap"] > verdict["difference"]


def wrong_token(stream):
    """``Engine.stream``, but the second step of dart emits another last token than was drawn."""

    def faulty(self, prompt_ids, engine="dart", settings=None):
        for step in stream(self, prompt_ids, engine, settings):
            if engine == "dart" and step.index == 2:
                last = (step.tokens[-1] + 1) % self.target.vocab_size
                step = replace(step, tokens=(*step.tokens[:-1], last))
            yield step

    return faulty


def test_which_ngram_dart_searches_with(arguments, models, capsys):
    def run(*flags):
        command = ["generate", *arguments, "--prompt", "hi", *LENGTH, "--json", "-", *flags]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)

    full, off = run(), run("--ngram", "off")
    assert run("--use-small-ngram")["ngrams"] == run("--ngram", "small")["ngrams"] == ["small"]
    assert full["ngrams"] == ["full"]
    assert full["ngram"] == "/".join(models["ngram"].parts[-2:])  # no folder of the machine
    assert off["ngrams"] == [] and "ngram" not in off
    assert off["output_ids"] == full["output_ids"]
    trees = [[step["tree"]["tokens"] for step in run["steps"][1:]] for run in (full, off)]
    assert trees[0] != trees[1]


# Wrong usage


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prompt", "x", "--top-k", "many"], "invalid int value: 'many'"),
        (["--prompt", "x", "--eos-token-id", "two"], "'two': expected token ids"),
        (["--prompt", "x", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["--prompt", "x", "--engine", "medusa"], "invalid choice: 'medusa'"),
        (["--prompt", "x", "--ngram", "big"], "invalid choice: 'big'"),
        (["--prompt", "x", "--prompt", "y"], "batch size is 1; put several prompts into a JSONL"),
        (["--prompt", "x", "--prompt-ids", "1"], "not allowed with"),
        (["--prompt-ids", "1,2;3,4"], "batch size is 1; put several prompts into a JSONL"),
        (["--prompt-ids", "1,b"], "'1,b': expected token ids"),
        (["--prompt-ids", "1,-4"], "'1,-4': expected token ids"),
        (["--prompt", "x", "--presence-penalty", "0.7"], "--presence-penalty"),
        (["--prompt", "x", "--frequency-penalty", "0.4"], "--frequency-penalty"),
    ],
)
def test_a_line_that_cannot_be_read_is_one_line_and_code_2(flags, says, arguments, capsys):
    assert main(["generate", *arguments, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prompt", "x", "--top-p", "3"], "top-p 3.0 is outside 0 to 1"),
        (["--prompt", "x", "--temperature", "-1"], "temperature -1.0"),
        (["--prompt", "x", "--temperature", "nan"], "temperature nan"),
        (["--prompt", "x", "--top-k", "-2"], "top-k -2"),
        (["--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens 0: expected 1 or more"),
        (["--prompt", "x", "--max-length", "1"], "--max-length 1: expected 2 or more"),
        (["--prompt", "x", "--limit", "0"], "--limit 0: expected 1 or more"),
        (
            ["--prompt", "x", "--tree-budget", "0"],
            "--tree-budget 0: expected a number from 1",
        ),
        (["--prompt", "x", "--beam", "0"], "beam 0"),
        (["--prompt", "x", "--stop", ""], "stop string"),
        (["--prompt", "x", "--device", "gpu"], "device gpu is not supported; expected cpu, cuda"),
        (["--prompt", "x", "--template-name", "vicuna"], "known templates: qwen, chatml"),
        (["--prompt", "x", "--preset", "qwen3-9b"], "known presets: demo"),
        (["--prompt", "x", "--json", "/no/such/folder/x.json"], "no folder /no/such/folder"),
        (["--prompt", "x", "--json", "/tmp/" + "x" * 300], "File name too long"),
        (["--prompt", "x", "--json", "/tmp/" + "x" * 250], "File name too long"),
        (["--prompt", "x", "--json", "/tmp"], "this is a folder"),
        (["--prompt", "x", "--json", ""], '--json "": expected the name of a file'),
        (["--prompt", ""], "prompt is empty"),
        (["--prompt-file", "/no/such.jsonl"], "/no/such.jsonl: No such file"),
        ([], "no prompt: give --prompt"),
    ],
)
def test_what_can_be_mended_is_one_line_and_code_1(flags, says, arguments, capsys):
    """And found before the models are loaded."""
    assert main(["generate", *arguments, *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected a JSON object"),
        ('{"text": "x"}', "line 2: expected exactly one of turns, prompt and messages, got fields"),
        ('{"prompt": "x", "turns": ["y"]}', "got turns and prompt"),
        ('{"prompt": 3}', "line 2: prompt must be a non-empty text"),
        ('{"turns": []}', "line 2: turns must be a non-empty list"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"id": ' + "9" * 5000 + ', "prompt": "x"}', "line 2: not JSON"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "line 2: message 1 has role 'bot'"),
    ],
)
def test_a_bad_line_is_named(line, says, arguments, tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    assert main(["generate", *arguments, "--prompt-file", str(path)]) == 1
    error = capsys.readouterr().err
    assert f"{path}, line 2: " in error
    assert says in error
    assert error.count("\n") == 1


def test_json_is_written_to_a_device_or_through_a_link_never_in_its_place(tmp_path):
    pipe, kept, link = tmp_path / "pipe", tmp_path / "kept.json", tmp_path / "link.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json({"text": "τ"}, str(pipe))
    assert json.loads(os.read(reader, 1000)) == {"text": "τ"}
    os.close(reader)
    assert pipe.is_fifo()
    link.symlink_to(kept.name)
    write_json({"stop": "\udcff"}, str(link))
    assert link.is_symlink()
    assert json.loads(kept.read_text()) == {"stop": "\udcff"}


def test_a_json_file_that_cannot_be_written_is_refused_before_the_run(
    arguments, tmp_path, capsys, monkeypatch
):
    """Rights say yes to root in /proc and on a read-only disk, where no file can be made."""

    def refuse(path, mode="r"):
        raise OSError(errno.EROFS, "Read-only file system")

    path = tmp_path / "x.json"
    command = ["generate", *arguments, "--prompt", "x", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert main([*command, str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: --json {path}: no file can be written there (Read-only file")
    assert error.count("\n") == 1
    if Path("/proc/self").exists():
        assert main([*command, "/proc/x.json"]) == 1
        assert "no file can be written there" in capsys.readouterr().err
    os.mkfifo(path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main([*command, str(path)]) == 1
    assert f"--json {path}: no right to write to it" in capsys.readouterr().err


def test_asking_whether_a_file_can_be_written_leaves_nothing(tmp_path):
    kept, partial = tmp_path / "x.json", tmp_path / "x.json.partial"
    check_destination(str(kept))
    assert list(tmp_path.iterdir()) == []
    kept.write_text("old")
    partial.write_text("of another run")
    check_destination(str(kept))
    assert kept.read_text() == "old"
    assert partial.read_text() == "of another run"


def test_a_file_is_written_in_the_place_of_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "x.jsonl"
    same = [("new.json", tmp_path / "new.json"), (str(kept), Path("x.jsonl"))]
    kept.write_text("read")
    Path("link").symlink_to(kept)
    Path("hard").hardlink_to(kept)
    same += [("link", kept), ("hard", kept)]
    for destination, other in same:
        with pytest.raises(ArenaError, match=rf"^--json {destination} is the prompts itself: give"):
            check_destination(destination, apart_from={"the prompts": ["none", other]})
    check_destination("/dev/null", apart_from={"the prompts": ["/dev/null"]})  # which holds nothing
    check_destination("y.jsonl", apart_from={"the prompts": [kept], "none": None})
    assert kept.read_text() == "read"


def test_figures_do_not_take_the_place_of_the_prompts(arguments, prompt_file, capsys):
    before = prompt_file.read_bytes()
    for command in ("generate", "compare", "check"):
        flags = ["--prompt-file", str(prompt_file), "--json", str(prompt_file)]
        assert main([command, *arguments, *flags]) == 1
        assert "is the file of --prompt-file itself" in capsys.readouterr().err
    assert prompt_file.read_bytes() == before


def test_no_models_named(capsys):
    assert main(["generate", "--prompt", "x"]) == 1
    assert "give --preset" in capsys.readouterr().err


# Failures


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prompt", "a\udcff"], "holds half a character"),
        (["--raw", "--prompt", "a\udcff"], "holds half a character"),
        (["--prompt", "x", "--system-prompt", "\udcff"], "system prompt holds half a character"),
        (["--prompt-ids", "9" * 30], "no token id: too large"),
        (
            ["--prompt", "x", "--tree-budget", "4097"],
            "from 1 to 4096, or auto",
        ),
        (["--prompt", "x", "--eos-token-id", "9" * 30], "outside the target's vocabulary of 264"),
        (["--prompt", "x", "--device", "meta"], "device meta is not supported"),
        (["--prompt", "x", *["--max-new-tokens", "9" * 13, "--max-length", "9" * 14]], "no memory"),
        (["--prompt", "x", "--base-model-name-or-path", "~no-such-user/x"], "no such folder"),
    ],
)
def test_what_only_the_models_can_refuse_is_one_line_too(flags, says, arguments, capsys):
    assert main(["generate", *arguments, "--engine", "ar", *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err.splitlines()[-1]
    assert captured.err.splitlines()[-1].startswith("error: ")


def test_a_stdout_that_is_closed_full_or_ascii(arguments, capsys, monkeypatch):
    command = ["generate", *arguments, "--engine", "ar", "--prompt", "hi", *LENGTH]
    monkeypatch.setattr(sys, "stdout", None)
    assert main(command) == 0
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(command) == 1
    assert "error: No space left" in capsys.readouterr().err
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(command) == 0  # the text holds U+FFFD
    assert b"\\ufffd" in raw.getvalue()
    raw.truncate(0)
    raw.seek(0)
    assert main([*command, "--json", "-"]) == 0
    assert "\ufffd" in json.loads(raw.getvalue())["text"]


def test_failures_are_one_line_and_code_1(arguments, models, capsys):
    flags = ["--prompt", "x", "--base-model-name-or-path", "/no/such/folder"]
    assert main(["generate", *arguments, *flags]) == 1
    assert "/no/such/folder" in capsys.readouterr().err
    long = ["--prompt-ids", ",".join(["1"] * 40), "--max-length", "32"]
    assert main(["generate", *arguments, *long]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "40 tokens" in error
    assert "32" in error
    assert main(["generate", *arguments, "--prompt-ids", "1,100000"]) == 1
    assert "100000 is outside the target's vocabulary" in capsys.readouterr().err
    only = [f"--base-model-name-or-path={models['base']}", "--prompt", "x"]
    assert main(["generate", *only, "--engine", "eagle3"]) == 1
    assert "--eagle3-model-name-or-path" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["generate", "compare", "check"])
def test_what_is_done_is_kept_when_a_prompt_fails(name, arguments, tmp_path, capsys):
    """The third of four prompts does not fit: an error, but the first two were not for nothing."""
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    texts = ["one", "two", "long " * 100, "four"]
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    flags = ["--prompt-file", str(prompts), "--max-new-tokens", "4", "--max-length", "200"]
    assert main([name, *arguments, *flags, "--json", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("error: prompts:3: the prompt has ")
    data = json.loads(path.read_text())
    assert [result["id"] for result in data["results"]] == ["prompts:1", "prompts:2"]
    assert data["error"].startswith("prompts:3: the prompt has ")
    assert data["settings"]["max_length"] == 200
    if name == "compare":
        assert data["summary"]["dart"]["equality"] == {"equal": 2}
        assert "2 equal" in captured.out
    if name == "check":
        assert "2 prompts, float32, greedy: dart 2 equal" in captured.out


def test_what_is_done_is_kept_when_interrupted(arguments, prompt_file, tmp_path, monkeypatch):
    stream, asked = Engine.stream, []

    def interrupted(self, *args):
        asked.append(args)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return stream(self, *args)

    monkeypatch.setattr(Engine, "stream", interrupted)
    path = tmp_path / "out.json"
    flags = ["--prompt-file", str(prompt_file), "--max-new-tokens", "2", "--json", str(path)]
    assert main(["generate", *arguments, *flags]) == 130
    data = json.loads(path.read_text())
    assert (len(data["results"]), data["error"]) == (2, "interrupted")


def test_nothing_is_written_where_nothing_was_done(arguments, tmp_path):
    path = tmp_path / "out.json"
    flags = ["--prompt-ids", "1,100000", "--json", str(path)]
    assert main(["generate", *arguments, *flags]) == 1
    assert not path.exists()


def test_a_conversation_cannot_be_raw(arguments, prompt_file, capsys):
    assert main(["generate", *arguments, "--raw", "--prompt-file", str(prompt_file)]) == 1
    assert "two: a conversation needs the chat template" in capsys.readouterr().err


def test_interrupt_is_one_line_and_code_130(arguments, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Engine, "stream", interrupted)
    assert main(["generate", *arguments, "--prompt", "x"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def command(*flags: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "dart_core", *flags], cwd=ROOT, env=environment, text=True, **options
    )


def test_a_reader_that_leaves_is_no_error(arguments):
    process = command(
        "generate", *arguments, "--prompt", "hi", "--max-new-tokens", "400", "--engine", "ar",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait() == 141
    assert "Traceback" not in error
    assert "BrokenPipe" not in error


def test_help_imports_no_torch():
    code = "import sys; from dart_core.cli import main; main(['-h']); print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in ("generate", "compare", "check", "ngram", "train", "Exit codes: 0 fine; 1 what"):
        assert name in result.stdout
    assert result.stdout.endswith("False\n")


def test_a_package_that_is_missing_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dart_core.cli_train", None)
    assert main(["train"]) == 1
    assert "the command train needs" in capsys.readouterr().err
