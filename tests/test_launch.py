"""The launch scripts, in a copy of the tree whose tools are real or faked by PATH."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.__main__ import build_parser
from dart_core.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
NO_STARTERS = {"fuzz.sh", "lib.sh", "record.sh", "replay.sh", "test.sh"}  # without a preset
NO_STARTERS |= {"train_dart.sh", "train_demo.sh"}
PUBLISHED = [path for path in SCRIPTS if path.name.startswith("qwen3_")]
STARTERS = [path for path in SCRIPTS if path.name not in NO_STARTERS and path not in PUBLISHED]
TOOLS = ("awk", "bash", "cat", "cksum", "dirname", "env", "grep", "mkdir", "pwd", "rm")
TOOLS += ("sleep", "tail", "tee", "touch")


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Clone:
    """A small copy of the tree, and the environment in which its scripts run."""

    def __init__(self, root: Path):
        self.root, self.bin = root / "clone", root / "bin"
        for folder in ("launch", "dart_core", "cpp"):
            shutil.copytree(
                ROOT / folder, self.root / folder, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.bin.mkdir()
        for tool in (*TOOLS, "c++", "df"):
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(root),
            "PYTHON": sys.executable,
            "DART_ARENA_CACHE": str(root / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # nobody answers there
        }

    def fake(self, tool: str, text: str) -> None:
        (self.bin / tool).unlink(missing_ok=True)
        executable(self.bin / tool, text)

    def bash(
        self, *arguments: str | Path, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", *arguments],
            cwd=cwd or self.root,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def library(self, commands: str) -> subprocess.CompletedProcess:
        return self.bash("-c", f"set -euo pipefail; source launch/lib.sh; {commands}")

    def refusal(self, *arguments: str, script="launch/demo.sh", **environment: str) -> str:
        """The one line with which a script gives up."""
        result = self.bash(script, *arguments, **environment)
        assert result.returncode == 1, result
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def install_fake_python(self, text: str) -> None:
        executable(self.venv / "bin" / "python", text)

    def mark_done(self, step: str) -> None:
        key = self.library("source_key").stdout
        (self.venv / f".done-{step}").write_text(key)


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture
def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_scripts_are_strict_and_parse(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if script.name != "lib.sh":
        assert "set -euo pipefail" in script.read_text()
        assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", STARTERS, ids=lambda path: path.name)
def test_starters_name_real_presets_and_let_the_user_win(script):
    *_, last = script.read_text().strip().splitlines()
    assert last.startswith("exec ")
    assert last.endswith('"$@"')
    presets = re.findall(r"--preset[ =](\S+)", last)
    assert presets
    assert set(presets) <= set(PRESETS)


def test_every_published_preset_has_its_script():
    presets = [name for name in PRESETS if name != "demo"]
    names = {f"{name.replace('-', '_')}.sh": name for name in presets}
    names["qwen3_1d7b.sh"] = "qwen3-1.7b"  # as it was published
    assert {path.name for path in PUBLISHED} == set(names)
    for path in PUBLISHED:
        last = path.read_text().strip().splitlines()[-1]
        assert last == f'launch_preset {names[path.name]} "$@"'


def test_ci_runs_the_test_command_of_the_readme():
    command = "bash launch/test.sh"
    assert command in (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    assert f"({command} " in ci
    assert "export CI=true" in ci


def test_no_registry_host_in_what_is_installed_from_it():
    for path in [*SCRIPTS, ROOT / ".ci" / "run", ROOT / "pyproject.toml"]:
        assert not re.search(r"https?://(?!localhost)", path.read_text()), path


@pytest.mark.parametrize("how", ["flag", "flag=", "environment"])
def test_a_taken_port_is_said_before_any_work(clone, how):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        if how == "environment":
            message = clone.refusal(GRADIO_SERVER_PORT=port)
        else:
            message = clone.refusal(
                *(f"--server-port{'=' if how == 'flag=' else ' '}{port}".split())
            )
    assert f"port {port} is taken" in message
    assert "--server-port" in message
    assert not clone.venv.exists()


def test_a_port_that_needs_rights(clone):
    clone.fake("python", "#!/bin/sh\n[ $1 != - ] || exit 2\n")  # as root one may have any
    told = clone.refusal("--server-port", "80", PYTHON="python")
    assert "port 80 needs more rights" in told and "above 1023" in told


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "", "00000", "99999"])
def test_a_port_that_is_none(clone, port):
    assert "expected a number from 1 to 65535" in clone.refusal("--server-port", port)


@pytest.mark.parametrize("script", ["launch/demo.sh", "launch/test.sh"])
def test_no_compiler(clone, free_port, script):
    (clone.bin / "c++").unlink()
    message = clone.refusal(script=script, GRADIO_SERVER_PORT=free_port)
    assert "no C++ compiler found" in message
    assert not clone.venv.exists()


def test_a_compiler_too_old(clone, free_port):
    clone.fake("c++", "#!/bin/sh\nexit 1\n")
    message = clone.refusal(GRADIO_SERVER_PORT=free_port)
    assert "cannot compile C++20" in message


def test_no_python(clone):
    assert "no Python 3.11 or newer" in clone.refusal(PYTHON="")
    clone.fake("python3", "#!/bin/sh\nexit 1\n")  # an old one says no to the version question
    assert "no Python 3.11 or newer" in clone.refusal(PYTHON="python3")


@pytest.mark.parametrize(
    ("free_mb", "what"), [(100, "target model"), (2000, "virtual environment")]
)
def test_too_little_disk(clone, free_port, free_mb, what):
    clone.fake("df", f"#!/bin/sh\necho header\necho fs 1 1 {free_mb * 1024} 1% /\n")
    message = clone.refusal(GRADIO_SERVER_PORT=free_port)
    assert what in message
    assert f"has {free_mb} MB free" in message
    assert not clone.venv.exists()


def test_no_registry_after_an_interrupted_install(clone, free_port):
    """The half-made environment goes, a new one comes, and the dead registry is said at once."""
    leftover = clone.venv / "lib" / "half"
    leftover.mkdir(parents=True)
    (clone.venv / ".unfinished").touch()
    result = clone.bash("launch/demo.sh", GRADIO_SERVER_PORT=free_port)
    assert result.returncode == 1
    assert "cut short" in result.stdout
    assert not leftover.exists()
    assert "error: no package registry answers" in result.stderr
    assert result.stderr.count("\n") == 1
    assert (clone.venv / "bin" / "python").exists()
    assert not (clone.venv / ".unfinished").exists()


def test_an_environment_without_a_working_python_is_made_afresh(clone):
    clone.install_fake_python("#!/bin/sh\nexit 1\n")
    clone.fake(
        "python", '#!/bin/sh\nmkdir -p .venv/bin; printf "#!/bin/sh\\n" > .venv/bin/python\n'
    )
    (clone.venv / "old").touch()
    clone.library("PYTHON=python ensure_venv")
    assert not (clone.venv / "old").exists()


# A Python that has no package modelscope.
NO_MODELSCOPE = """echo >> calls
[ "$2" != "import modelscope" ]
"""
RECORDER = """#!/bin/sh
for argument in "$@"; do printf '[%s]' "$argument"; done >> calls
echo >> calls
"""


def test_a_second_start_goes_straight_to_the_page(clone, free_port):
    clone.install_fake_python(RECORDER)
    clone.mark_done("package")
    (clone.bin / "c++").unlink()  # nothing is built, so nothing is asked for
    result = clone.bash("launch/demo.sh", "--server-port", free_port, "--title", "two words")
    assert result.returncode == 0, result.stderr
    weights, page = (clone.root / "calls").read_text().splitlines()
    assert weights == "[-m][dart_core.demo_target]"
    assert page.startswith("[-m][app][--preset][demo]")
    assert page.endswith(f"[--server-port][{free_port}][--title][two words]")  # the user's win


def test_the_demo_and_its_recordings_name_files_from_where_the_user_stands(clone, free_port):
    clone.install_fake_python(RECORDER)
    clone.mark_done("package")
    here = clone.root.parent.resolve() / "elsewhere"
    here.mkdir()
    (here / "mine.jsonl").write_text("")
    for script, flags, told in (
        (
            "demo.sh",
            ["--prompts", "mine.jsonl", "--server-port", free_port],
            f"[{here}/mine.jsonl]",
        ),
        ("record.sh", ["--output=my runs"], f"[--output={here}/my runs]"),
        ("record.sh", ["--output", "/my runs"], "[--output][/my runs]"),
    ):
        result = clone.bash(clone.root / "launch" / script, *flags, cwd=here)
        assert result.returncode == 0, result.stderr
        assert told in (clone.root / "calls").read_text().splitlines()[-1]


def test_what_the_environment_says_of_paths_leads_nobody_astray(clone, free_port, tmp_path):
    clone.install_fake_python(RECORDER + '[ -z "$PYTHONSAFEPATH" ]\n')
    clone.mark_done("package")
    (tmp_path / "launch").mkdir()
    astray = {"CDPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    result = clone.bash("launch/demo.sh", GRADIO_SERVER_PORT=free_port, **astray)
    assert result.returncode == 0, result.stderr
    assert len((clone.root / "calls").read_text().splitlines()) == 2


@pytest.mark.parametrize("change", ["cpp/bindings.cpp", "pyproject.toml"])
def test_a_change_of_what_is_built_installs_again(clone, free_port, change):
    clone.install_fake_python(RECORDER)
    clone.mark_done("package")
    with (clone.root / change).open("a") as file:
        file.write("\n")
    (clone.bin / "c++").unlink()
    assert "no C++ compiler found" in clone.refusal(GRADIO_SERVER_PORT=free_port)


def test_a_failed_install_is_told_and_not_taken_for_done(clone):
    clone.install_fake_python("#!/bin/sh\necho 'ERROR: no wheel'\nexit 1\n")
    result = clone.library("pip_step package --editable .")
    assert result.returncode == 1
    assert "pip install --editable . failed: ERROR: no wheel" in result.stderr
    assert clone.library("is_done package").returncode == 1
    assert not (clone.venv / ".unfinished").exists()  # pip ended in order: no need to start afresh


def cut_short(clone, begun: Path, sent: signal.Signals) -> tuple[int, str]:
    """Exit status and stderr of an install whose process group got a signal once ``begun`` was
    there.
    """
    clone.install_fake_python("#!/bin/sh\n[ $# = 2 ] || exec sleep 60\n")
    process = subprocess.Popen(
        ["bash", "-c", "set -euo pipefail; source launch/lib.sh; pip_step package --editable ."],
        cwd=clone.root,
        env=clone.environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, sent)
    told = process.communicate(timeout=60)[1]
    return process.returncode, told


def test_a_killed_install_is_not_taken_for_done(clone):
    unfinished = clone.venv / ".unfinished"
    cut_short(clone, unfinished, signal.SIGKILL)
    clone.mark_done("package")
    assert unfinished.exists()
    assert clone.library("is_done package").returncode == 1


def test_ctrl_c_in_an_install_is_told_and_the_next_one_starts_afresh(clone):
    log = clone.venv / "install.log"  # tee's, which comes up with pip
    status, told = cut_short(clone, log, signal.SIGINT)
    assert told == "interrupted: the same command starts .venv afresh\n"
    assert status == 130
    assert (clone.venv / ".unfinished").exists()


@pytest.mark.skipif(not shutil.which("flock"), reason="no flock")
def test_a_second_launcher_waits_for_the_firsts_install(clone):
    """Its half-made environment stays, and what it has installed is not installed again."""
    (clone.bin / "flock").symlink_to(shutil.which("flock"))
    clone.install_fake_python(
        '#!/bin/sh\n[ "$3" != install ] || until [ -e go ]; do sleep 0.05; done\n'
    )
    command = "make_it() { ensure_venv; pip_step package --editable .; }; alone package make_it"
    first = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail; source launch/lib.sh; {command}; exec sleep 60"],
        cwd=clone.root,
        env=clone.environment,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (clone.venv / ".unfinished").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail; source launch/lib.sh; {command}"],
        cwd=clone.root,
        env=clone.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    told = second.stdout.readline()
    (clone.root / "go").touch()
    assert second.communicate(timeout=120)[0] == ""
    first.kill()  # it has gone on to what it installed for, and holds no lock any more
    first.wait()
    assert second.returncode == 0
    assert told == "== another launcher is installing here: waiting for it\n"
    third = clone.library(command)
    assert (third.returncode, third.stdout) == (0, "")


def test_without_chromium_the_tests_run_and_say_so(clone):
    clone.install_fake_python(RECORDER)
    clone.mark_done("package")
    clone.mark_done("dev")
    result = clone.bash("launch/test.sh", "-k", "two words")  # no apt-get on this PATH
    assert result.returncode == 0, result.stderr
    assert "browser tests will be skipped" in result.stdout
    *_, tests = (clone.root / "calls").read_text().splitlines()
    assert tests.startswith("[-m][pytest]") and tests.endswith("[-k][two words]")


# The published app ------------------------------------------------------------------------------


@pytest.fixture
def launching(clone, free_port) -> Clone:
    """A clone with the package installed, its Python a recorder of its calls."""
    clone.install_fake_python(RECORDER)
    clone.mark_done("package")
    clone.environment["GRADIO_SERVER_PORT"] = free_port
    return clone


def page_flags(clone: Clone, *arguments: str, **environment: str):
    """What the page reads out of the call that a launcher makes."""
    calls = clone.root / "calls"
    calls.unlink(missing_ok=True)
    result = clone.bash("launch/qwen3_4b.sh", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    *_, last = calls.read_text().splitlines()
    module, *flags = re.findall(r"\[(.*?)\]", last)[1:]
    assert module == "app"
    return build_parser().parse_args(flags)


def test_a_launcher_starts_what_the_published_script_did(launching, free_port):
    args = page_flags(launching)
    assert (args.preset, args.ngram, args.compare_eagle3) == ("qwen3-4b", "small", True)
    assert (args.max_new_tokens, args.max_length) == (5120, 6400)
    assert (args.share, args.listen, args.api) == (False, False, False)
    assert build_parser().parse_args([]).server_port == 30000  # the script leaves it to the page


def test_every_published_flag_is_taken_and_wins(launching, free_port):
    flags = "--base-model-name-or-path a/t --dart-model-name-or-path a/d "
    flags += "--ngram-model-name-or-path a/n --eagle3-model-name-or-path a/e --template-name qwen "
    flags += "--device cpu --max-new-tokens 7 --max-length 70 --no-use-small-ngram "
    flags += f"--no-compare-eagle3 --share --listen --server-port {free_port}"
    args = page_flags(launching, *flags.split())
    assert args.base_model_name_or_path == "a/t" and args.dart_model_name_or_path == "a/d"
    assert args.ngram_model_name_or_path == "a/n" and args.eagle3_model_name_or_path == "a/e"
    assert (args.template_name, args.device) == ("qwen", "cpu")
    assert (args.max_new_tokens, args.max_length, args.ngram) == (7, 70, "full")
    assert (args.compare_eagle3, args.share, args.listen) == (False, True, True)
    assert args.server_port == int(free_port)
    args = page_flags(launching, "--use-small-ngram", "--compare-eagle3", "--api")
    assert (args.ngram, args.compare_eagle3, args.api) == ("small", True, True)


def test_the_environment_wins_over_the_script_and_flags_over_it(launching):
    said = {
        "DART_ARENA_MAX_LENGTH": "99",
        "DART_ARENA_NGRAM": "off",
        "DART_ARENA_BASE_MODEL_NAME_OR_PATH": "my models/target",
        "DART_ARENA_COMPARE_EAGLE3": "0",
    }
    args = page_flags(launching, **said)
    assert (args.max_length, args.ngram, args.compare_eagle3) == (99, "off", False)
    assert args.base_model_name_or_path == "my models/target"
    started = launching.bash("launch/qwen3_4b.sh", DART_ARENA_TREE_BUDGET="lots")
    assert "== DART_ARENA_TREE_BUDGET=lots: as --tree-budget\n" in started.stdout
    args = page_flags(launching, "--max-length", "98", "--compare-eagle3", **said)
    assert (args.max_length, args.compare_eagle3) == (98, True)
    message = launching.refusal(script="launch/qwen3_4b.sh", DART_ARENA_COMPARE_EAGLE3="maybe")
    assert "DART_ARENA_COMPARE_EAGLE3=maybe: expected 1 or 0" in message


def test_models_are_named_from_where_the_user_stands(launching, tmp_path):
    (tmp_path / "elsewhere" / "my target").mkdir(parents=True)
    flags = ["--base-model-name-or-path", "my target", "--dart-model-name-or-path", "a/d"]
    script = launching.root / "launch" / "qwen3_8b.sh"
    result = launching.bash(script, *flags, cwd=tmp_path / "elsewhere")
    assert result.returncode == 0, result.stderr
    folder = (tmp_path / "elsewhere" / "my target").resolve()
    calls = (launching.root / "calls").read_text()
    assert calls.endswith(
        f"[--base-model-name-or-path][{folder}][--dart-model-name-or-path][a/d]\n"
    )


def test_paths_after_an_equals_sign_and_in_the_environment_are_the_users_too(launching, tmp_path):
    here = tmp_path / "elsewhere"
    (here / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    (here / "p.jsonl").write_text("")
    environment = {"DART_ARENA_DART_MODEL_NAME_OR_PATH": "Qwen/Qwen3-4B"}
    flags = ["--base-model-name-or-path=Qwen/Qwen3-4B", "--prompts", "p.jsonl"]
    script = launching.root / "launch" / "qwen3_4b.sh"
    result = launching.bash(script, *flags, cwd=here, **environment)
    assert result.returncode == 0, result.stderr
    folder = (here / "Qwen" / "Qwen3-4B").resolve()
    assert (
        (launching.root / "calls")
        .read_text()
        .endswith(
            f"[--dart-model-name-or-path][{folder}][--base-model-name-or-path={folder}]"
            f"[--prompts][{here.resolve() / 'p.jsonl'}]\n"
        )
    )


@pytest.mark.parametrize("how", [["--source", "modelscope"], ["--source=modelscope"], []])
def test_modelscope_brings_its_package(launching, how):
    launching.install_fake_python(RECORDER.replace("echo >> calls\n", NO_MODELSCOPE))
    environment = {} if how else {"DART_ARENA_SOURCE": "modelscope"}
    args = page_flags(launching, *how, **environment)
    assert args.source == "modelscope"
    calls = (launching.root / "calls").read_text()
    assert "[pip][install][--disable-pip-version-check][--editable][.[modelscope]]" in calls
    page_flags(launching, *how, **environment)
    assert "[pip]" not in (launching.root / "calls").read_text()
    page_flags(launching, "--source", "modelscope", "--source", "hub")


# Replays ------------------------------------------------------------------------------------------


@pytest.fixture
def replaying(clone) -> Clone:
    """A clone whose .venv-replay is there, its Python a recorder of its calls."""
    executable(clone.root / ".venv-replay" / "bin" / "python", RECORDER)
    key = clone.library("SOURCES=(pyproject.toml); source_key").stdout
    (clone.root / ".venv-replay" / ".done-replay").write_text(key)
    return clone


def test_replays_need_no_compiler_and_take_the_users_arguments(replaying, free_port):
    (replaying.bin / "c++").unlink()
    result = replaying.bash("launch/replay.sh", "--server-port", free_port, "--title", "two words")
    assert result.returncode == 0, result.stderr
    [page] = (replaying.root / "calls").read_text().splitlines()
    assert page == f"[-m][app][--replay][--server-port][{free_port}][--title][two words]"


def test_replays_of_a_folder_named_from_where_the_visitor_stands(replaying, free_port, tmp_path):
    (tmp_path / "elsewhere" / "my runs").mkdir(parents=True)
    script = replaying.root / "launch" / "replay.sh"
    result = replaying.bash(
        script, "my runs", "--server-port", free_port, cwd=tmp_path / "elsewhere"
    )
    assert result.returncode == 0, result.stderr
    folder = (tmp_path / "elsewhere" / "my runs").resolve()
    calls = (replaying.root / "calls").read_text()
    assert calls == f"[-m][app][--replay][{folder}][--server-port][{free_port}]\n"


def test_replays_install_what_pyproject_asks_of_a_page_alone(clone, free_port):
    """From nothing, with a Python that only writes down what pip is asked for."""
    fake = f"""#!/bin/sh
case "$*" in
  "-m venv .venv-replay") mkdir -p .venv-replay/bin; cp "$0" .venv-replay/bin/python ;;
  "- gradio plotly numpy markdown-it-py") exec {sys.executable} "$@" ;;
  "-m pip install"*|"-m app"*) echo "$*" >> calls ;;
  *) [ "$1" != - ] || cat > /dev/null ;;
esac
"""
    clone.fake("python", fake)
    (clone.bin / "cp").symlink_to(shutil.which("cp"))
    (clone.bin / "c++").unlink()
    result = clone.bash("launch/replay.sh", PYTHON="python", GRADIO_SERVER_PORT=free_port)
    assert result.returncode == 0, result.stderr
    install, page = (clone.root / "calls").read_text().splitlines()
    assert page == "-m app --replay"
    asked = dict(re.findall(r"([\w-]+)(>=\S+)", install))
    assert sorted(asked) == ["gradio", "markdown-it-py", "numpy", "plotly"]
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{name}{versions}"' in pyproject for name, versions in asked.items())
    assert not clone.venv.exists()
    clone.bash("launch/replay.sh", PYTHON="python", GRADIO_SERVER_PORT=free_port)
    assert (clone.root / "calls").read_text().count("pip install") == 1  # the second goes straight


def test_replays_say_what_is_missing_before_any_work(clone, free_port):
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    script = "launch/replay.sh"
    assert f"port {port} is taken" in clone.refusal("--server-port", port, script=script)
    taken.close()
    assert "no Python 3.11 or newer" in clone.refusal(script=script, PYTHON="")
    clone.fake("df", "#!/bin/sh\necho header\necho fs 1 1 204800 1% /\n")
    message = clone.refusal(script=script, GRADIO_SERVER_PORT=free_port)
    assert "virtual environment needs 900 MB of disk at .venv-replay, which has 200 MB" in message
    assert not (clone.root / ".venv-replay").exists()


def test_replays_say_that_no_registry_answers(clone, free_port):
    message = clone.refusal(script="launch/replay.sh", GRADIO_SERVER_PORT=free_port)
    assert "no package registry answers" in message


SKIPPING = """
import pytest
def test_skips(): pytest.skip("no browser")
@pytest.mark.gpu
def test_needs_gpu(): pytest.skip("no CUDA device")
@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""


@pytest.mark.parametrize("ci", [False, True])
@pytest.mark.parametrize("at_import", [False, True])
def test_a_skip_is_a_failure_in_ci(tmp_path, ci, at_import):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    text = 'import pytest\npytest.importorskip("no_such_module")\n' if at_import else SKIPPING
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=os.environ | {"CI": "true" if ci else ""},
        capture_output=True,
        text=True,
    )
    last = result.stdout.strip().splitlines()[-1]
    if at_import:
        assert ("1 error" in last) == ci
        assert ("1 skipped" in last) != ci
    else:
        assert ("1 failed, 1 skipped, 1 xfailed" in last) == ci, last
        assert ("2 skipped, 1 xfailed" in last) != ci
