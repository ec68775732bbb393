"""What a Hugging Face Space and the Docker image are made of, and how they start: in the builder's
order of steps, from a copy that nobody installed.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from huggingface_hub import SpaceHardware
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tiny_trio import BASE, DART, EAGLE3, NGRAM, make_trio

from dart_core.errors import ArenaError
from dart_core.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
FAKES = Path(__file__).parent / "zerogpu"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ZERO_GPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")  # what ZeroGPU supports
SECONDS = 300  # how long a start may take on a loaded machine


@pytest.fixture(scope="module")
def space():
    """launch/space.py as a module."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("space", ROOT / "launch" / "space.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def is_gone(pid: int) -> bool:
    """Whether a process ends, and its parent takes note, within half a minute."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # ended; nobody here reaps an orphan
            return True
        time.sleep(0.1)
    return False


# What the builder reads ---------------------------------------------------------------------------


def front_matter() -> dict:
    _, block, _ = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(block)


def requirements() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {requirement.name: requirement for requirement in found}


def wanted(lines) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {requirement.name: requirement for requirement in found}


def test_the_front_matter_says_what_a_space_needs():
    card = front_matter()
    assert card["sdk"] == "gradio"
    assert (ROOT / card["app_file"]).is_file()
    assert card["license"] == PROJECT["project"]["license"].lower()
    assert card["suggested_hardware"] in {hardware.value for hardware in SpaceHardware}
    assert len(card["short_description"]) <= 60
    assert card["python_version"] in SpecifierSet(PROJECT["project"]["requires-python"])
    preset = PRESETS["qwen3-4b"]
    assert set(card["models"]) == {preset.target, preset.dart, preset.eagle3, preset.ngram}


def test_gradio_is_one_version_everywhere():
    version = front_matter()["sdk_version"]
    assert version in wanted(PROJECT["project"]["dependencies"])["gradio"].specifier
    assert version in requirements()["gradio"].specifier


def test_the_requirements_are_pyprojects():
    """Except that torch must be one that ZeroGPU knows, among those we take anyway."""
    ours, theirs = requirements(), wanted(PROJECT["project"]["dependencies"])
    build = {"cmake", "ninja", "pybind11"}
    assert set(ours) == set(theirs) | build
    for name in set(theirs) - {"torch"}:
        assert ours[name].specifier == theirs[name].specifier, name
    for version in ZERO_GPU_TORCH:
        assert version in ours["torch"].specifier
        assert version in theirs["torch"].specifier
    assert not any(version in ours["torch"].specifier for version in ("2.7.1", "2.12.0", "3.0.0"))


def test_the_build_tools_are_pyprojects():
    ours, scikit = requirements(), PROJECT["tool"]["scikit-build"]
    assert str(ours["cmake"].specifier) == scikit["cmake"]["version"]
    assert str(ours["ninja"].specifier) == scikit["ninja"]["version"]
    assert ours["pybind11"] == wanted(PROJECT["build-system"]["requires"])["pybind11"]


def test_the_requirements_install_without_the_repository():
    """The builder has this one file when it installs them."""
    for requirement in requirements().values():
        assert requirement.url is None, requirement
    assert "spaces" not in requirements()  # the builder's own


# The Docker image ---------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def copied() -> list[str]:
    """The paths of the clone that go into the image."""
    found = []
    for name, rest in instructions():
        if name == "COPY" and "--from=" not in rest:
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            found += sources
    return found


def test_the_image_is_a_spaces_kind():
    lines = instructions()
    assert lines[-1] == ("CMD", '["python", "launch/space.py"]')
    last = max(place for place, (name, _) in enumerate(lines) if name == "FROM")
    final = lines[last:]
    assert ("EXPOSE", "7860") in final
    assert any("--uid 1000" in rest for name, rest in final if name == "RUN")
    assert [rest for name, rest in final if name == "USER"] == ["user"]
    for name, rest in final[final.index(("USER", "user")) :]:
        assert name != "COPY" or "--chown=user" in rest, rest
    (variables,) = (rest for name, rest in final if name == "ENV")
    assert "GRADIO_SERVER_PORT=7860" in variables
    assert "GRADIO_SERVER_NAME=0.0.0.0" in variables
    tools = next(rest for name, rest in lines if name == "RUN" and "pybind11" in rest)
    for tool in ("cmake", "ninja", "pybind11"):
        assert f'"{requirements()[tool]}"' in tools
    build = next(rest for name, rest in lines if name == "RUN" and "cmake --build" in rest)
    # As launch/space.py has it: CMake would else take any Python, and debug code.
    for option in ("-G Ninja", "CMAKE_BUILD_TYPE=Release", "Python_EXECUTABLE=", "pybind11_DIR="):
        assert option in build


def test_all_that_the_image_copies_is_there_and_not_ignored():
    assert {"app", "assets", "cpp", "dart_core", "requirements.txt"} <= set(copied())
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source in allowed, source
    assert allowed <= set(copied())  # neither tests nor weights travel to the builder


# The extension ------------------------------------------------------------------------------------

BUILT = importlib.util.find_spec("dart_core._core")

BUILD = """
import runpy, sys
space = runpy.run_path("launch/space.py")
space["build_extension"](print, limit=float(sys.argv[1]))
from dart_core._native import choose_backend
print(choose_backend("native" if len(sys.argv) > 2 else None))
"""


class Bare:
    """A copy of what a Space gets, with nothing installed of it, and tools as they are given."""

    def __init__(self, root: Path):
        self.root, self.home, self.bin = root / "space", root / "home", root / "bin"
        self.modules = root / "modules"
        for folder in ("app", "dart_core", "launch", "cpp"):
            skipped = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / folder, self.root / folder, ignore=skipped)
        for folder in ("recordings", "demo"):
            (self.root / "assets").mkdir(exist_ok=True)
            (self.root / "assets" / folder).symlink_to(ROOT / "assets" / folder)
        for folder in (self.home, self.bin, self.modules):
            folder.mkdir()
        site = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
        self.environment = {
            "HOME": str(self.home),
            "PATH": str(self.bin),
            # -S: an installed copy of ours stays unseen, so the other packages have to be named.
            "PYTHONPATH": os.pathsep.join([str(self.modules), *dict.fromkeys(site)]),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def cmake(self, install: str) -> Path:
        """A cmake that does ``install`` for --install, and logs every call."""
        (self.modules / "pybind11.py").write_text("def get_cmake_dir(): return '/pybind11'\n")
        log = self.home / "cmake.log"
        script = self.bin / "cmake"
        script.write_text(
            f'#!/bin/bash\necho "$@" >> {log}\nPATH=/usr/bin:/bin\n'
            f"if [[ $1 == --install ]]; then\n{install}\nfi\n"
        )
        script.chmod(0o755)
        return log

    def build(self, limit: float = 60, *more: str, **environment: str) -> list[str]:
        """What ``build_extension`` says, and the backend after it."""
        result = subprocess.run(
            [sys.executable, "-S", "-W", "ignore", "-c", BUILD, str(limit), *more],
            cwd=self.root,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()


@pytest.fixture
def bare(tmp_path):
    return Bare(tmp_path)


def test_what_the_image_copies_suffices_and_nothing_is_built_again(bare, tmp_path):
    image = tmp_path / "image"
    for source in copied():
        target = image / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("*.so"))
        else:
            shutil.copy(ROOT / source, target)
    shutil.copy(BUILT.origin, image / "dart_core")
    bare.root = image
    assert bare.build(0, "native") == ["native"]


INSTALL = f'mkdir -p "$4/dart_core" && cp {BUILT and BUILT.origin} "$4/dart_core/"'


def test_the_extension_is_built_once_where_there_are_tools(bare):
    log = bare.cmake(INSTALL)
    said = bare.build()
    assert said[0].startswith("building the C++ extension")
    assert re.fullmatch(r"built in \d+ s", said[1])
    assert said[2:] == ["native"]
    configure, build, install = log.read_text().splitlines()
    assert "-Dpybind11_DIR=/pybind11" in configure
    assert f"-DPython_EXECUTABLE={sys.executable}" in configure
    assert build.startswith("--build") and install.startswith("--install")
    assert bare.build() == ["native"]  # a second start finds it
    assert len(log.read_text().splitlines()) == 3
    (bare.root / "cpp" / "tree_pruner.cpp").open("a").write("// changed\n")
    assert bare.build()[0].startswith("building")


def test_without_tools_the_twin_does_it_and_says_so(bare):
    (bare.modules / "pybind11.py").write_text("raise ImportError('no pybind11 here')\n")
    *_, told, backend = bare.build()
    assert told.startswith("the C++ extension could not be built (no pybind11 here): its Python")
    assert backend == "twin"


@pytest.mark.parametrize(
    ("script", "limit", "reason"),
    [
        ("echo 'CMake Error: No CMAKE_CXX_COMPILER could be found'; exit 1", 60, "No CMAKE_CXX"),
        ("sleep 1000 & echo $! > $HOME/sleeper; wait", 3, "it took too long"),
        ("mkdir -p $4/dart_core; echo broken > $4/dart_core/_core.abi3.so", 60, "file too short"),
    ],
)
def test_a_build_that_fails_or_hangs_leaves_the_twin(bare, script, limit, reason):
    bare.cmake(script)
    *_, told, backend = bare.build(limit)
    assert reason in told
    assert "some fifty times slower" in told
    assert backend == "twin"
    if (sleeper := bare.home / "sleeper").exists():
        assert is_gone(int(sleeper.read_text()))


def test_a_cache_that_is_not_ours_does_not_stop_the_build(bare):
    bare.cmake(INSTALL)
    (bare.home / "taken").write_text("a file")
    said = bare.build(DART_ARENA_CACHE=str(bare.home / "taken"), TMPDIR=str(bare.home))
    assert said[-1] == "native"
    assert list((bare.home / "dart-arena").glob("extension-*"))


def test_the_real_build_is_cmakes_own(space):
    """What is faked above: our CMake project installs dart_core/_core."""
    lines = (ROOT / "cpp" / "CMakeLists.txt").read_text()
    assert "install(TARGETS _core LIBRARY DESTINATION dart_core)" in lines
    assert "find_package(pybind11 CONFIG REQUIRED)" in lines
    assert len(space._key()) == 16


# What it serves -----------------------------------------------------------------------------------


def test_without_a_gpu_it_plays_recordings(space, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DART_ARENA_PRESET", raising=False)
    said = []
    assert space.load(said.append) == (None, "there is no GPU here, so no model is loaded")
    assert "DART_ARENA_PRESET=demo" in said[0]


def test_with_a_gpu_it_loads_the_4b_preset_with_the_small_ngram(space, monkeypatch):
    import torch

    from dart_core.engine import Engine

    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Engine, "load", lambda *a, **k: asked.append((a, k)) or "engine")
    monkeypatch.delenv("DART_ARENA_PRESET", raising=False)
    assert space.load(print) == ("engine", "")
    monkeypatch.setenv("DART_ARENA_PRESET", "qwen3-8b")
    monkeypatch.setenv("DART_ARENA_NGRAM", "off")
    assert space.load(print) == ("engine", "")
    ((first,), knobs), ((second,), others) = asked
    assert (first, knobs["small_ngram"], knobs["ngram"]) == ("qwen3-4b", True, None)
    assert (second, others["small_ngram"], others["ngram"]) == ("qwen3-8b", False, "off")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"DART_ARENA_PRESET": "qwen3-5b"}, "unknown preset 'qwen3-5b'; known presets: demo"),
        ({"DART_ARENA_NGRAM": "huge"}, "DART_ARENA_NGRAM=huge: expected small, full or off"),
    ],
)
def test_a_wrong_variable_is_told_on_the_page(space, monkeypatch, variables, told):
    monkeypatch.setenv("DART_ARENA_PRESET", "demo")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    engine, absence = space.load(lambda line: None)
    assert engine is None
    assert told in absence


@pytest.mark.parametrize("text", ["abc", "-5", "0", "9999999999", "1.5", "٣"])
@pytest.mark.parametrize("name", ["DART_ARENA_NEW_TOKENS", "GRADIO_SERVER_PORT"])
def test_a_number_that_is_none_is_refused_before_anything_is_loaded(space, monkeypatch, name, text):
    def load(say):
        raise AssertionError("this should have been refused before")

    monkeypatch.setattr(space, "load", load)
    monkeypatch.setenv("GRADIO_SERVER_PORT", "7999")
    monkeypatch.setenv(name, text)
    with pytest.raises(ArenaError, match=f"{name}={text}: expected a number from 1 to"):
        space.main()


def test_a_secret_asks_everybody_for_a_password(space, monkeypatch):
    """Before the page is there as well: then nothing but that it loads is told."""

    class Kept(space.Waiting):
        def __init__(self, host, port):
            super().__init__("127.0.0.1", 0)
            waiting.append(self)

    def load(say):
        say("target: Secret-4B in 2 s")
        return None, "no model is loaded"

    def launch(page, **options):
        asked.append(options["auth"])
        raise KeyboardInterrupt

    waiting, asked = [], []
    monkeypatch.setenv("DART_ARENA_AUTH", "ada:s3cret")
    monkeypatch.setattr(space, "Waiting", Kept)
    monkeypatch.setattr(space, "build_extension", lambda say: None)
    monkeypatch.setattr(space, "load", load)
    monkeypatch.setattr("app.serve.launch", launch)
    with pytest.raises(KeyboardInterrupt):
        space.main()
    assert asked == [[("ada", "s3cret")]]
    assert "Secret-4B" not in waiting[0].page()


def test_a_crash_while_loading_leaves_the_recordings(space, monkeypatch, caplog):
    from dart_core.engine import Engine

    def crash(*arguments, **options):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(Engine, "load", crash)
    monkeypatch.setenv("DART_ARENA_PRESET", "demo")
    engine, absence = space.load(lambda line: None)
    assert engine is None
    assert absence == "demo could not be loaded: RuntimeError; the server's log has the details"
    assert "a secret of the machine" in caplog.text


# The start ----------------------------------------------------------------------------------------


class Server:
    """launch/space.py as a process, and a visitor of its page."""

    def __init__(self, bare: Bare, **environment: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = bare.home / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", str(bare.root / "launch" / "space.py")],
                cwd=bare.home,  # not the root: it has to find that by itself
                env=bare.environment | {"GRADIO_SERVER_PORT": str(self.port)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + SECONDS
        while "Running on" not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        assert json.loads(self.get("/healthz")) == {"status": "ready"}
        config = json.loads(self.get("/config"))
        self.components = {c["id"]: c for c in config["components"]}
        self.events = config["dependencies"]

    def get(self, path: str) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as line:
            line.request("GET", path)
            answer = line.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return text

    def props(self, name: str) -> dict:
        return next(
            component["props"]
            for component in self.components.values()
            if component["props"].get("elem_id") == name
        )

    def click(self, name: str, token: str = "rich", **values) -> dict:
        """Press a button as a browser does; returns the last value of the status line. values:
        elem_id, with _ for -, to what the visitor set.
        """
        button = next(
            key for key, c in self.components.items() if c["props"].get("elem_id") == name
        )
        event = next(e for e in self.events if [button, "click"] in e["targets"])
        data = []
        for key in event["inputs"]:
            props = self.components[key]["props"]
            given = (props.get("elem_id") or "").replace("-", "_")
            data.append(values.get(given, props.get("value")))
        body = {"data": data, "fn_index": event["id"], "trigger_id": button, "session_hash": token}
        headers = {"Content-Type": "application/json", "x-ip-token": token}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as line:
            line.request("POST", "/gradio_api/queue/join", json.dumps(body), headers)
            answer = line.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            line.request("GET", f"/gradio_api/queue/data?session_hash={token}")
            for row in line.getresponse():
                message = json.loads(row[5:]) if row.startswith(b"data:") else {}
                if message.get("msg") == "process_completed":
                    assert message["success"], message
                    return message["output"]["data"][0]
        raise AssertionError(self.log.read_text())

    def close(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture
def start(bare):
    running = []

    def build(**environment: str) -> Server:
        running.append(Server(bare, **environment))
        return running[-1]

    yield build
    for server in running:
        server.close()


def test_a_space_without_its_models_plays_the_recordings_and_says_why(start, bare):
    """Nothing is installed, no compiler, no network, an empty cache."""
    (bare.modules / "pybind11.py").write_text("raise ImportError('no pybind11 here')\n")
    server = start(DART_ARENA_PRESET="qwen3-4b")
    log = server.log.read_text()
    assert "the C++ extension could not be built (no pybind11 here)" in log
    assert "qwen3-4b could not be loaded, so the page plays recorded runs" in log
    facts = server.props("arena-facts")["value"]
    assert "qwen3-4b could not be loaded" in facts
    assert str(bare.home) not in facts
    assert server.props("run-buttons")
    assert server.props("recorded")["choices"]
    assert server.click("replay", speed="at once")["text"].startswith("Replayed: ")
    assert server.close() == 128 + signal.SIGTERM


def hub_cache(trio: Path, cache: Path) -> None:
    """The trio as a hub's cache holds it after a download."""
    for repo in (BASE, DART, EAGLE3, NGRAM):
        folder = cache / f"models--{repo.replace('/', '--')}"
        revision = "0123456789abcdef0123456789abcdef01234567"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(revision)
        shutil.copytree(trio / repo, folder / "snapshots" / revision)


def test_on_zerogpu_a_race_from_the_filled_cache_runs_in_a_rented_worker(start, bare, tmp_path):
    """Offline, over real models: threads, tensors and all."""
    hub_cache(make_trio(tmp_path / "trio"), tmp_path / "hub")
    shutil.copy(FAKES / "spaces.py", bare.modules)
    calls = tmp_path / "calls"
    server = start(
        DART_ARENA_PRESET="qwen3-4b",
        SPACES_ZERO_GPU="true",
        FAKE_SPACES_LOG=str(calls),
        HF_HUB_CACHE=str(tmp_path / "hub"),
        OMP_NUM_THREADS="2",  # whose threads a fork leaves behind
    )
    assert BASE in server.props("arena-facts")["value"]
    asked = {"prompt": "Why is the sky blue?", "knob_max_new_tokens": 24}
    for token in ("rich", "other"):
        told = server.click("run", token, **asked)
        assert re.match(r"Done: .*DART [\d.]+ tokens per second", told["text"]), told
        assert "EAGLE3" in told["text"]
        assert not told["running"]
    told = server.click("run", "poor", **asked)["text"]
    assert told.startswith("No GPU for this run (ZeroGPU quota exceeded: You have exceeded your")
    assert told.endswith("The recorded runs below play without one.")
    rich, other = (json.loads(line) for line in calls.read_text().splitlines())
    assert (rich["token"], other["token"]) == ("rich", "other")  # each visitor's own quota
    assert rich["worker"] == other["worker"] != server.process.pid
    assert rich["seconds"] == 20
    assert server.click("replay", "poor", speed="at once")["text"].startswith("Replayed: ")
    server.close()
    assert is_gone(rich["worker"])  # nobody is left on the GPU
