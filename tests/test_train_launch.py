"""launch/train_dart.sh and train_demo.sh: which commands they run, with what, in which order."""

from __future__ import annotations

import shlex
import shutil

import pytest
from test_launch import Clone


class Training(Clone):
    """A clone whose Python writes down its calls; `train data` makes its file."""

    def install(self, gpus: int = 0) -> None:
        (self.bin / "wc").symlink_to(shutil.which("wc"))
        self.install_fake_python(f"""#!/bin/sh
case "$*" in *device_count*) echo {gpus}; exit ;; esac
line=
for argument; do line="$line $(printf "'%s'" "$argument")"; done
echo "$line" >> {self.root}/calls
case "$*" in *"${{FAILS:-nothing fails}}"*) exit 3 ;; esac
""")
        self.mark_done("package")

    def calls(self) -> list[list[str]]:
        return [shlex.split(line) for line in (self.root / "calls").read_text().splitlines()]

    def steps(self) -> dict[str, list[str]]:
        """The arguments behind `-m dart_core train STEP`, by step, as called."""
        calls = self.calls()
        assert all(call[:3] == ["-m", "dart_core", "train"] for call in calls)
        return {call[3]: call[4:] for call in calls}


@pytest.fixture
def training(tmp_path) -> Training:
    return Training(tmp_path)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_demo_runs_every_step_once_in_half_of_ten_minutes(training):
    training.install()
    result = training.bash("launch/train_demo.sh", "--output", "my heads")
    assert result.returncode == 0, result.stderr
    steps = training.steps()
    assert list(steps) == ["plan", "data", "ngram", "features", "dart", "eagle3", "eval"]
    heads = training.root / "my heads"
    minutes = [float(value(steps[name], "--minutes")) for name in ("data", "dart", "eagle3")]
    assert sum(minutes) == pytest.approx(5)
    for name in ("ngram", "features", "dart", "eagle3", "eval"):
        assert value(steps[name], "--data") == value(steps["data"], "--output")
        assert value(steps[name], "--holdout") == "16"
    assert value(steps["dart"], "--output") == str(heads / "dart")
    ngram = value(steps["ngram"], "--output")
    assert value(steps["dart"], "--ngram-model-name-or-path") == ngram
    assert "--ngram-model-name-or-path" not in steps["eagle3"]
    assert value(steps["eval"], "--eagle3-model-name-or-path") == str(heads / "eagle3")
    assert "--base-model-name-or-path" not in str(steps)  # the demo's target is the default
    assert f"--preset demo --dart-model-name-or-path {heads}/dart" in result.stdout


def test_text_of_ones_own_leaves_all_the_time_to_the_heads(training, tmp_path):
    training.install()
    (training.root / "my text.jsonl").write_text("")
    (training.root / "prompts.jsonl").write_text("")
    (training.root / "target").mkdir()
    arguments = [
        "--base-model-name-or-path",
        "target",
        "--data",
        "my text.jsonl",
        "--heads",
        "dart",
    ]
    arguments += ["--data", "prompts.jsonl", "--exclude", "prompts.jsonl", "--minutes", "8"]
    result = training.bash("launch/train_dart.sh", *arguments)
    assert result.returncode == 0, result.stderr
    steps = training.steps()
    assert list(steps) == ["plan", "ngram", "features", "dart", "eval"]
    text, prompts = str(training.root / "my text.jsonl"), str(training.root / "prompts.jsonl")
    place = steps["dart"].index("--data")
    assert steps["dart"][place : place + 3] == ["--data", text, prompts]
    assert value(steps["ngram"], "--exclude") == prompts
    assert float(value(steps["dart"], "--minutes")) == 8
    for step in steps.values():
        assert value(step, "--base-model-name-or-path") == str(training.root / "target")


def test_several_gpus_write_side_by_side_and_train_together(training):
    training.install(gpus=2)
    result = training.bash("launch/train_dart.sh", "--base-model-name-or-path", "some/name")
    assert result.returncode == 0, result.stderr
    calls = training.calls()
    writers = [call for call in calls if "data" in call[:4]]
    assert sorted(value(call, "--part") for call in writers) == ["0/2", "1/2"]
    assert sorted(value(call, "--device") for call in writers) == ["cuda:0", "cuda:1"]
    launched = [call for call in calls if call[1] == "accelerate.commands.launch"]
    assert [call[call.index("train") + 1] for call in launched] == ["features", "dart", "eagle3"]
    for call in launched:
        assert value(call, "--num_processes") == "2"
        assert call[call.index("--module") + 1] == "dart_core"
        place = call.index("--data")
        texts = sorted(value(writer, "--output") for writer in writers)
        assert call[place + 1 : place + 4] == [*texts, "--holdout"]


def test_accelerates_own_arguments_are_the_users(training):
    training.install()
    result = training.bash(
        "launch/train_dart.sh", ACCELERATE_ARGS="--num_machines 2 --machine_rank 1"
    )
    assert result.returncode == 0, result.stderr
    launched = [call for call in training.calls() if call[1] == "accelerate.commands.launch"]
    assert len(launched) == 3
    for call in launched:
        assert call[2:6] == ["--num_machines", "2", "--machine_rank", "1"]
        assert call[6:9] == ["--module", "dart_core", "train"]


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_step_that_fails_ends_it(training, gpus):
    training.install(gpus)
    result = training.bash("launch/train_dart.sh", FAILS="train data")
    assert result.returncode != 0
    assert not any("ngram" in call for call in training.calls())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes"], "--minutes needs a value"),
        (["--minutes", "five"], "--minutes five: expected a number"),
        (["--what", "x"], "unknown argument --what"),
        (["--heads", "dart,eagle3"], '--heads "dart,eagle3": expected'),
        (["--data", "missing.jsonl"], "missing.jsonl does not exist"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(training, arguments, says):
    assert says in training.refusal(*arguments, script="launch/train_dart.sh")
    assert not training.venv.exists()
