"""A JSONL file of prompts into one of answers: in order, through crashes, by several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_trio import make_trio, trio_flags

from dart_core import batch, batch_answers, cli_batch, cli_run
from dart_core.batch import Batch, Share, read_records
from dart_core.batch_answers import line_settings
from dart_core.chat_format import with_fields
from dart_core.cli import main
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.memory import OutOfMemory
from dart_core.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
LINES = [
    {"id": "a", "prompt": "Hello", "temperature": 0.7, "max_tokens": 12},
    {"prompt": "Good day", "category": "nobody asks"},
    {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1, "seed": 5, "top_k": 40},
    {"turns": ["one", "two"], "max_tokens": 6},
    {"prompt": "stop", "stop": "zzz", "max_tokens": None},
    {"id": 7, "prompt": "half \ud83d"},
]
TIMES = ("tokens_per_second", "decode_seconds", "total_seconds")


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    root = make_trio(tmp_path_factory.mktemp("trio"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DART_ARENA_CACHE", str(root / "cache"))
        flags = ["--dtype=float32", "--device=cpu", "--max-new-tokens=16", "--seed=3"]
        yield [*trio_flags(root), *flags]


@pytest.fixture
def source(tmp_path) -> Path:
    return written(tmp_path / "in.jsonl", LINES)


def written(path: Path, lines: list) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def run(source: Path, output: Path, flags: list[str], *more: str) -> int:
    return main(["batch", str(source), str(output), *flags, *more])


def records(path: Path) -> list[dict]:
    """What is the same in every run of one batch."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in r.items() if name not in TIMES} for r in found]


@pytest.fixture(scope="module")
def expected(flags, tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("expected")
    assert run(written(folder / "in.jsonl", LINES), folder / "out.jsonl", flags) == 0
    return records(folder / "out.jsonl")


# One process --------------------------------------------------------------------------------------


def test_every_line_has_its_answer_or_error_in_order(expected):
    assert [record["line"] for record in expected] == [1, 2, 3, 4, 5, 6]
    first, second, third, turns, _, half = expected
    assert (first["id"], first["prompt"], first["seed"]) == ("a", "Hello", 3 + 1)
    assert first["new_tokens"] == 12 and second["new_tokens"] == 16
    assert second["seed"] is None and "category" not in second
    assert third["messages"] == LINES[2]["messages"] and third["seed"] == 5
    assert turns["turns"] == ["one", "two"] and len(turns["responses"]) == 2
    assert turns["new_tokens"] == 12 and "response" not in turns
    assert half["id"] == 7 and "holds half a character" in half["error"]
    assert "response" not in half
    for record in (first, second, third):
        assert record["engine"] == "dart" and record["finish_reason"] == "length"
        assert record["tau"] == (record["new_tokens"] - 1) / record["verify_steps"]


@pytest.mark.parametrize("name", ["ar", "eagle3"])
def test_every_engine_answers_alike(name, flags, source, tmp_path, expected):
    assert run(source, tmp_path / "out.jsonl", flags, "--engine", name) == 0
    for record, other in zip(records(tmp_path / "out.jsonl"), expected, strict=True):
        for field in ("line", "response", "responses", "seed", "new_tokens", "error"):
            assert record.get(field) == other.get(field)


def test_answers_are_the_engines(flags, expected):
    paths = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    engine = Engine.load(target=paths["base-model-name-or-path"], dtype=torch.float32, device="cpu")
    ids = engine.chat_ids([{"role": "user", "content": "Hello"}])
    sampling = SamplingParams(0.7, seed=4)
    run = engine.generate(ids, "ar", GenerationSettings(max_new_tokens=12, sampling=sampling))
    assert expected[0]["response"] == run.text
    assert expected[0]["prompt_tokens"] == len(ids)


def test_bad_lines_do_not_stop_the_rest(flags, tmp_path, capsys):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object"),
        ({"text": "x"}, "expected exactly one of turns, prompt and messages"),
        ({"prompt": "x", "temperature": -1}, "temperature -1 is outside"),
        ({"prompt": "x", "temperature": "hot"}, "temperature must be a number; got 'hot'"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens: max new tokens 0 is below 1"),
        ({"prompt": "x", "max_tokens": "x"}, "max_tokens: max new tokens must be a whole number"),
        ({"prompt": "x", "seed": -1}, "seed -1 is outside"),
        ({"prompt": "x", "presence_penalty": 0.7}, "presence_penalty 0.7 is not supported here"),
        ({"prompt": "x", "stop": [""]}, "a stop string is a text of at least one character"),
        ({"prompt": "long " * 900}, "max length is 2048"),
        ('{"prompt": "x", "id": NaN}', "a number that JSON does not know"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "message 1 has role 'bot'"),
    ]
    lines = [line if isinstance(line, str) else json.dumps(line) for line, _ in bad]
    latin1 = '{"prompt": "né"}'.encode("latin-1")
    data = b"\xef\xbb\xbf" + "\n\n".join(lines).encode() + b"\n" + latin1 + b'\n{"prompt": "x"}'
    source.write_bytes(data)
    assert run(source, output, flags) == 0
    found = records(output)
    *told, summary = capsys.readouterr().err.splitlines()
    assert len(found) == len(bad) + 2
    for record, number, (_, says) in zip(found, range(1, 99, 2), bad, strict=False):
        assert record["line"] == number  # blank lines count, and have no answer
        assert says in record["error"]
        assert not record["error"].startswith("line")
        assert f"line {number}: {record['error']}" in told  # its number, once
    assert "not UTF-8" in found[-2]["error"] and found[-1]["new_tokens"] == 16
    assert f"{len(bad) + 2} lines: 1 answered, {len(bad) + 1} failed; 16 new tokens" in summary


def test_what_is_there_is_neither_lost_nor_repeated(
    flags, source, tmp_path, expected, capsys, monkeypatch
):
    """Cut anywhere, also within a line; and once it is whole, nothing is loaded any more."""
    output = tmp_path / "out.jsonl"
    run(source, output, flags)
    whole = output.read_bytes()
    second = len(whole.splitlines(keepends=True)[0])
    for cut in (0, 1, 12, second - 1, second, second + 40, len(whole) - 1):
        output.write_bytes(whole[:cut])
        assert run(source, output, flags) == 0
        assert records(output) == expected
        assert (
            output.read_bytes()[: whole[:cut].rfind(b"\n") + 1]
            == (whole[: whole[:cut].rfind(b"\n") + 1])
        )
    capsys.readouterr()
    monkeypatch.setattr(cli_run, "load", None)
    assert run(source, output, flags) == 0
    error = capsys.readouterr().err
    assert "6 lines are answered already; 0 are left" in error
    assert "6 lines: 5 answered, 1 failed" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_killed_and_started_again(flags, tmp_path):
    lines = [{"prompt": f"Number {n}", "temperature": 0.5} for n in range(8)]
    source, output = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "dart_core", "batch", str(source), str(output), *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (output.exists() and output.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = output.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert run(source, output, flags) == 0
    assert output.read_bytes().startswith(kept)
    assert [record["line"] for record in records(output)] == list(range(1, 9))
    assert run(source, tmp_path / "fresh.jsonl", flags) == 0
    assert records(output) == records(tmp_path / "fresh.jsonl")


def test_interrupted_it_says_how_to_go_on(flags, source, tmp_path, capsys, monkeypatch):
    answer, asked = batch_answers.answer_line, []

    def interrupted(line, **options):
        asked.append(line)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return answer(line, **options)

    monkeypatch.setattr(batch_answers, "answer_line", interrupted)
    output = tmp_path / "out.jsonl"
    assert run(source, output, flags) == 130
    assert len(records(output)) == 2
    assert f"{output} is not complete: the same command goes on" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_failures_of_the_machine(flags, source, tmp_path, monkeypatch, capsys, expected):
    """One is that line's error, and can be tried again; several in a row end the batch."""
    generate, output, failing = Engine.stream, tmp_path / "out.jsonl", [2]
    calls = []

    def stream(self, *args):
        calls.append(args)
        if len(calls) in failing:
            raise failing_with
        return generate(self, *args)

    monkeypatch.setattr(Engine, "stream", stream)
    failing_with = OutOfMemory("out of memory while generating: 1 GiB more were asked for")
    assert run(source, output, flags) == 0
    assert records(output)[1] == {
        "line": 2,
        "error": "out of memory while generating: 1 GiB more were asked for",
    }
    calls.clear()
    failing.clear()
    assert run(source, output, flags, "--retry-errors") == 0
    assert records(output) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    failing_with, failing = RuntimeError("device-side assert\ntriggered"), range(2, 9)
    calls.clear()
    assert run(source, tmp_path / "new.jsonl", flags) == 1
    assert [record["line"] for record in records(tmp_path / "new.jsonl")] == [1, 2, 3]
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "error: 3 lines in a row failed, the last with RuntimeError: device-side assert"
    )


def test_a_shortage_of_memory_ends_the_batch_before_it_spoils_the_rest(
    flags, source, tmp_path, monkeypatch, capsys, expected
):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("dart_core.target.free_memory", lambda device: 100)
        assert run(source, output, flags) == 1
    assert len(records(output)) == 2
    assert "3 lines in a row failed, the last with no memory for a run" in capsys.readouterr().err
    assert run(source, output, flags, "--retry-errors") == 0
    assert records(output) == expected


def test_the_first_lines_alone_and_then_the_rest(flags, source, tmp_path, expected):
    output = tmp_path / "out.jsonl"
    assert run(source, output, flags, "--limit", "2") == 0
    assert records(output) == expected[:2]
    assert run(source, output, flags, "--limit", "1") == 0
    assert run(source, output, flags) == 0
    assert records(output) == expected


def test_texts_as_they_stand_and_system_prompts(flags, tmp_path):
    source = written(tmp_path / "in.jsonl", [{"prompt": "Hello"}, {"turns": ["a", "b"]}])
    assert run(source, tmp_path / "raw.jsonl", flags, "--raw") == 0
    plain, turns = records(tmp_path / "raw.jsonl")
    assert plain["prompt_tokens"] == len("Hello")
    assert "a conversation needs the chat template" in turns["error"]
    assert run(source, tmp_path / "system.jsonl", flags, "--system-prompt", "Be brief.") == 0
    assert records(tmp_path / "system.jsonl")[0]["prompt_tokens"] > plain["prompt_tokens"] + 9


def test_an_output_is_of_one_set_of_settings(flags, source, tmp_path, capsys, monkeypatch):
    """But for what no text depends on."""
    output = tmp_path / "out.jsonl"
    assert run(source, output, flags, "--limit=2", "--top-p=1") == 0
    before = output.read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(cli_run, "load", None)  # found before anything is loaded
        for more, was, now in (
            (["--temperature=1", "--max-new-tokens=8"],
             "temperature 0.0, max new tokens 16", "temperature 1.0, max new tokens 8"),
            (["--seed=4"], "seed 3", "seed 4"),
            (["--base-model-name-or-path=/no"], "target ", "target '/no'"),
            (["--dtype=bfloat16"], "dtype 'float32'", "dtype 'bfloat16'"),
            (["--stop=x"], "stop []", "stop ['x']"),
            (["--system-prompt=Be brief."], "system prompt None", "system prompt 'Be brief.'"),
            (["--enable-thinking"], "enable thinking False", "enable thinking True"),
        ):  # fmt: skip
            assert run(source, output, flags, *more) == 1
            error = capsys.readouterr().err
            assert f"{output} was begun with {was}" in error
            assert f"; this command says {now}: give the same, or another output\n" in error
    assert output.read_bytes() == before
    [target] = [flag for flag in flags if flag.startswith("--base-model-name-or-path=")]
    folder = Path(target.partition("=")[2])
    monkeypatch.chdir(folder.parent)
    again = ["--engine=ar", "--max-length=1024", "--tree-budget=9"]
    assert run(source, output, flags, *again, f"--base-model-name-or-path={folder.name}") == 0
    assert [record.get("engine") for record in records(output)][:3] == ["dart", "dart", "ar"]


def test_an_answer_has_the_settings_of_its_line(flags, tmp_path, capsys, monkeypatch):
    own = {"prompt": "hi", "temperature": 0.9, "top_p": 0, "seed": 7, "max_tokens": 3, "stop": "z"}
    source, output = written(tmp_path / "in.jsonl", [own, {"prompt": "ho"}]), tmp_path / "out.jsonl"
    assert run(source, output, flags) == 0
    settings, plain = (record["settings"] for record in records(output))
    expected = {"temperature": 0.9, "top_p": 1.0, "seed": 7, "max_new_tokens": 3, "stop": ["z"]}
    assert settings == {**plain, **expected}
    assert run(source, output, flags) == 0  # they are the same still
    before = output.read_bytes()
    capsys.readouterr()
    monkeypatch.setattr(cli_run, "load", None)
    for change, was, now in (
        ({"temperature": 0}, "temperature 0.9", "temperature 0"),
        ({"max_tokens": 4, "stop": ["z"]}, "max new tokens 3", "max new tokens 4"),
        ({"max_tokens": None}, "max new tokens 3", "max new tokens 16"),
    ):
        written(source, [{**own, **change}, {"prompt": "ho"}])
        assert run(source, output, flags) == 1
        error = capsys.readouterr().err
        assert was in error and now in error and "give the same, or another output" in error
    assert output.read_bytes() == before


def test_a_link_stays_one_and_rights_stay(flags, tmp_path):
    lines = [{"prompt": "hi", "max_tokens": 2}, {"prompt": "ho", "max_tokens": 0}]
    source, kept = written(tmp_path / "in.jsonl", lines), tmp_path / "kept" / "answers.jsonl"
    kept.parent.mkdir()
    kept.touch(mode=0o600)
    (tmp_path / "out.jsonl").symlink_to(kept)
    assert run(source, tmp_path / "out.jsonl", flags) == 0
    written(source, [lines[0], {"prompt": "ho", "max_tokens": 2}])
    assert run(source, tmp_path / "out.jsonl", flags, "--retry-errors") == 0
    assert (tmp_path / "out.jsonl").is_symlink() and kept.stat().st_mode & 0o777 == 0o600
    assert [record["line"] for record in records(kept)] == [1, 2]
    assert "error" not in records(kept)[1]


def test_answers_of_a_version_that_wrote_no_settings_are_continued(source, tmp_path):
    output = written(tmp_path / "out.jsonl", [{"line": 1, "id": "a", "prompt": "Hello", "new": 1}])
    kept = Batch(source, output, settings={"temperature": 1.0})
    assert kept.done == 1
    kept.write({"line": 3, "error": "no memory"})
    kept.write({"line": 2, "response": "yes"})
    kept._file.close()
    assert "settings" not in records(output)[1]
    with pytest.raises(ArenaError, match=r"begun with temperature 1\.0; this command says temper"):
        Batch(source, output, settings={"temperature": 0.5})
    written(output, [records(output)[1]])
    assert Batch(source, output, retry_errors=True, settings={"temperature": 0.5}).done == 0


# Several processes --------------------------------------------------------------------------------


def test_two_processes_share_the_lines(flags, source, tmp_path, expected):
    output = tmp_path / "out.jsonl"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    command += ["--num_processes", "2", "--main_process_port", port, "--mixed_precision", "no"]
    subprocess.run(
        [*command, "-m", "dart_core", "batch", str(source), str(output), *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        timeout=300,
    )
    assert records(output) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_whoever_finishes_last_puts_the_parts_together(
    flags, source, tmp_path, expected, monkeypatch, capsys
):
    """Also where one was killed within a line, and the next run has other processes."""
    output = tmp_path / "out.jsonl"

    def process(index: int, count: int) -> int:
        monkeypatch.setenv("RANK", str(index))
        monkeypatch.setenv("WORLD_SIZE", str(count))
        return run(source, output, flags)

    assert process(1, 2) == 0
    assert not output.exists()
    part = tmp_path / "out.jsonl.part-0001"
    assert [record["line"] for record in records(part)] == [2, 4, 6]
    part.write_bytes(part.read_bytes()[:-20])
    assert process(2, 3) == 0
    assert process(0, 3) == 0
    assert "out.jsonl: " not in capsys.readouterr().err
    assert process(1, 3) == 0
    assert "out.jsonl: 6 lines: 5 answered, 1 failed" in capsys.readouterr().err
    assert records(output) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert process(1, 2) == 0  # nothing is left to do
    assert records(output) == expected


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, Share(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Share(3, 4, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Share(1, 2, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Share(1, 2, 1)),
    ],
)
def test_who_a_process_is(environment, share):
    assert Share.of_environment(environment) == share


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "1"}, "process 1 of 1 .*counted from 0"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "process 4 of 4"),
        ({"WORLD_SIZE": "0"}, "process 0 of 0"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE='': expected a number; unset it"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1': expected a number"),
    ],
)
def test_an_environment_that_makes_no_share_is_refused(environment, says):
    """And does not leave lines out without a word."""
    with pytest.raises(ArenaError, match=says):
        Share.of_environment(environment)


def test_every_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cli_batch._own_gpu(Share(5, 8, local=1)) == "cuda:1"
    with pytest.raises(ArenaError, match="process 3 of this machine finds 2 GPUs"):
        cli_batch._own_gpu(Share(2, 8, local=2))


# What is refused ----------------------------------------------------------------------------------


def test_one_process_at_a_time(source, tmp_path):
    first = Batch(source, tmp_path / "out.jsonl")
    with pytest.raises(ArenaError, match="another process is writing"):
        Batch(source, tmp_path / "out.jsonl")
    assert first.finish() is None
    Batch(source, tmp_path / "out.jsonl").finish()


def test_processes_together_replace_no_file_that_another_appends_to(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in (1, 2, 3)))

    def answer(own: Batch, line: int) -> None:
        own.write({"line": line, "prompt": f"p{line}", "response": "x"})

    all_three = Batch(source, output)
    for index, finished in ((0, None), (1, ArenaError)):
        share = Batch(source, output, Share(index, 2), limit=2)
        answer(share, index + 1)
        if finished is None:
            assert share.finish() is None
        else:
            with pytest.raises(ArenaError, match="another process is writing"):
                share.finish()
    answer(all_three, 3)  # what it would have lost
    assert all_three.finish() is not None
    assert [record["line"] for record in records(output)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("foreign", [b"notes", b"notes\n", b'{"a": 1}\n', b"[1]\n", b'{"line'])
def test_a_file_of_someone_elses_is_left_alone(foreign, source, tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_bytes(foreign)
    if b'{"line": '.startswith(foreign):  # the beginning of a record
        assert list(read_records(output)) == []
        return
    with pytest.raises(ArenaError, match="line 1, is nothing that batch has written"):
        Batch(source, output)
    assert output.read_bytes() == foreign


def test_answers_to_other_prompts_are_not_continued(source, tmp_path):
    output = tmp_path / "out.jsonl"
    for record in ({"line": 1, "id": "a", "prompt": "Bye"}, {"line": 9, "error": "x"}):
        written(output, [record])
        with pytest.raises(ArenaError, match=rf"answer to line {record['line']} of another input"):
            Batch(source, output)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/no/such.jsonl", "{}/out.jsonl"], "input /no/such.jsonl: No such file"),
        (["{}/empty.jsonl", "{}/out.jsonl"], "empty.jsonl is empty; expected one JSON object"),
        (["{}/in.jsonl", "{}/in.jsonl"], "is the input itself"),
        (["{}/in.jsonl", "-"], "batch writes a file"),
        (["{}/in.jsonl", "/no/such/out.jsonl"], "OUTPUT /no/such/out.jsonl: no folder /no/such"),
        (["{}/in.jsonl", "{}"], "this is a folder"),
        (["{}/in.jsonl", "/dev/null"], "OUTPUT /dev/null is no regular file"),
        (["{}/in.jsonl", "{}/pipe"], "/pipe is no regular file: batch reads it again"),
        (["{}/in.jsonl", "{}/out.jsonl", "--temperature=-1"], "temperature -1.0 is outside"),
        (["{}/in.jsonl", "{}/out.jsonl", "--limit=0"], "--limit 0: expected 1 or more"),
        (["{}/in.jsonl", "{}/out.jsonl", "--preset=qwen3-9b"], "known presets: demo"),
    ],
)
def test_what_can_be_mended_is_one_line(arguments, says, source, tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    os.mkfifo(tmp_path / "pipe")
    given = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    models = [] if any("preset" in argument for argument in given) else ["--preset=demo"]
    assert main(["batch", *given, *models]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1


def test_a_lines_own_settings_win():
    settings = GenerationSettings(stop=("a",), sampling=SamplingParams(0.3, 7, 0.5))
    plain = line_settings({"temperature": None}, settings, seed=9)
    assert plain.sampling == SamplingParams(0.3, 7, 0.5, seed=9) and plain.stop == ("a",)
    given = {"temperature": 1, "top_p": 0.9, "top_k": 3, "seed": 1, "max_tokens": 4, "stop": "b"}
    own = line_settings(given, settings, seed=9)
    assert own.sampling == SamplingParams(1, 3, 0.9, seed=1)
    assert (own.max_new_tokens, own.stop) == (4, ("b",))
    assert line_settings({"temperature": 0}, settings, seed=9).sampling.seed is None


@pytest.mark.parametrize("field", sorted(batch.OWN))
def test_what_a_line_sets_is_what_its_record_says(field):
    """The record of a line and the run of it read its fields apart."""
    values = {"stop": ("b", ["b", "c"]), "top_p": (0.5, 1), "temperature": (0, 0.5)}
    for value in values.get(field, (1, 2)):
        own = with_fields({field: value}, GenerationSettings(sampling=SamplingParams(0.3, 7, 0.5)))
        ((name, said),) = batch.own_settings({field: value}).items()
        ran = getattr(own, name) if hasattr(own, name) else getattr(own.sampling, name)
        assert (list(ran) if name == "stop" else ran) == said, value


def test_of_two_names_the_record_says_the_one_that_won():
    for names in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        given = dict(zip(names, (5, 9), strict=True))
        won = with_fields(given, GenerationSettings()).max_new_tokens
        assert batch.own_settings(given) == {"max_new_tokens": won}


def test_totals_of_nothing():
    assert str(batch.Totals()) == "0 lines: 0 answered, 0 failed"
