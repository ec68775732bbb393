"""What launch/push_space.py pushes, and how, to a hub that only notes it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import LocalTokenNotFoundError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def pushing():
    spec = importlib.util.spec_from_file_location("push_space", ROOT / "launch" / "push_space.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["push_space"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["push_space"]


class Hub:
    """The calls of an HfApi, in order. there: what the Space holds before."""

    def __init__(self, there=(), plain=()):
        self.calls, self.there, self.plain = [], list(there), set(plain)

    def create_repo(self, **options):
        self.calls.append(("create", options))
        return "the Space's address"

    def add_space_variable(self, *arguments):
        self.calls.append(("variable", arguments))

    def request_space_hardware(self, *arguments):
        self.calls.append(("hardware", arguments))

    def list_repo_files(self, **where):
        assert where["repo_type"] == "space"
        return self.there

    def create_commit(self, operations, **options):
        assert options["repo_type"] == "space"
        self.calls.append(("commit", operations))

    def get_paths_info(self, paths, **where):
        for path in paths:
            yield SimpleNamespace(path=path, lfs=None if path in self.plain else {"size": 1})

    @property
    def commits(self) -> list[list]:
        return [what for call, what in self.calls if call == "commit"]


@pytest.fixture
def clone(tmp_path, monkeypatch, pushing):
    """A small clone with all kinds of files."""
    files = {
        "README.md": (ROOT / "README.md").read_bytes(),
        "app/page.py": b"print()\n",
        "assets/big.txt": b"x" * 10_000_001,
        "assets/head.safetensors": b"\0" * 100,
        "tests/test_page.py": b"pass\n",
        "tests/golden/x.trie": b"\0",
        ".ci/run": b"true\n",
        ".gitattributes": b"*.png binary\n",
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / "untracked.log").write_text("not ours")
    monkeypatch.setattr(pushing, "ROOT", tmp_path)
    return tmp_path


PUSHED = ["README.md", "app/page.py", "assets/big.txt", "assets/head.safetensors"]


def test_by_default_it_says_what_it_would_push_and_pushes_nothing(clone, pushing, capsys):
    hub = Hub()
    assert pushing.main(["me/arena"], hub) == 0
    assert hub.calls == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:4]] == PUSHED
    assert lines[2] == "   10.00 MB  LFS  assets/big.txt"
    assert [" LFS " in line for line in lines[:4]] == [False, False, True, True]
    assert "in 4 files, 2 of them (10.00 MB) through LFS" in lines[4]
    assert "add --push" in lines[5]


def test_the_rules_for_lfs_come_before_the_files(clone, pushing):
    hub = Hub(there=[".gitattributes", "README.md", "old.py"])
    arguments = ["me/arena", "--push", "--private", "--preset", "demo", "--hardware", "zero-a10g"]
    assert pushing.main(arguments, hub) == 0
    assert [call for call, _ in hub.calls] == ["create", "variable", "commit", "commit", "hardware"]
    assert hub.calls[0][1] == {
        "repo_id": "me/arena",
        "repo_type": "space",
        "space_sdk": "gradio",
        "private": True,
        "exist_ok": True,
    }
    assert hub.calls[1][1] == ("me/arena", "DART_ARENA_PRESET", "demo")
    assert hub.calls[4][1] == ("me/arena", "zero-a10g")
    (rules,), files = hub.commits
    assert rules.path_in_repo == ".gitattributes"
    assert rules.path_or_fileobj.decode().splitlines() == [
        f"{path} filter=lfs diff=lfs merge=lfs -text" for path in PUSHED[2:]
    ]
    added = [change for change in files if isinstance(change, CommitOperationAdd)]
    assert [change.path_in_repo for change in added] == PUSHED
    assert Path(added[2].path_or_fileobj).stat().st_size == 10_000_001
    assert added[0].path_or_fileobj == (ROOT / "README.md").read_bytes()
    gone = [change for change in files if isinstance(change, CommitOperationDelete)]
    assert [change.path_in_repo for change in gone] == ["old.py"]


def test_a_large_file_that_did_not_go_through_lfs_is_an_error(clone, pushing, capsys):
    assert pushing.main(["me/arena", "--push"], Hub(plain=["assets/big.txt"])) == 1
    assert "error: the hub did not take assets/big.txt through LFS" in capsys.readouterr().err


def test_a_docker_space_has_a_front_matter_of_its_own(clone, pushing):
    hub = Hub()
    assert pushing.main(["me/arena", "--push", "--sdk", "docker"], hub) == 0
    assert hub.calls[0][1]["space_sdk"] == "docker"
    text = hub.commits[1][0].path_or_fileobj.decode()
    _, block, rest = text.split("---\n", 2)
    card = yaml.safe_load(block)
    assert (card["sdk"], card["app_port"]) == ("docker", 7860)
    assert not {"sdk_version", "app_file", "python_version", "suggested_hardware"} & set(card)
    before = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert card["models"] == yaml.safe_load(before[1])["models"]
    assert rest == before[2]


@pytest.mark.parametrize("space", ["arena", "me/arena/x", "me/a b", ""])
def test_a_wrong_name_is_refused(clone, pushing, capsys, space):
    hub = Hub()
    assert pushing.main([space, "--push"], hub) == 1
    assert hub.calls == []
    assert f"error: {space!r}: expected OWNER/NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LocalTokenNotFoundError("no token"), "not logged in: run `hf auth login`"),
        (ConnectionError("no route to host\nand more"), "me/arena: no route to host\n"),
        (RuntimeError("name or service not known"), "the hub did not take it (name or service"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(clone, pushing, capsys, error, told):
    def refuse(**options):
        raise error

    hub = Hub()
    hub.create_repo = refuse
    assert pushing.main(["me/arena", "--push"], hub) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {told}")
    assert said.count("\n") == 1


def test_an_unknown_preset_is_refused(clone, pushing, capsys):
    hub = Hub()
    assert pushing.main(["me/arena", "--push", "--preset", "qwen3-5b"], hub) == 1
    assert hub.calls == []
    assert "--preset qwen3-5b: expected one of demo, qwen3-1.7b" in capsys.readouterr().err


def test_a_folder_without_git_is_told(tmp_path, monkeypatch, pushing, capsys):
    monkeypatch.setattr(pushing, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert pushing.main(["me/arena"]) == 1
    assert f"error: {tmp_path} is no git clone" in capsys.readouterr().err


def test_what_is_missing_is_told_in_one_line(clone, pushing, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert pushing.main(["someone/arena", "--push"]) == 1
    assert capsys.readouterr().err.endswith("; run: pip install huggingface_hub\n")
    monkeypatch.setenv("PATH", "")
    assert pushing.main(["someone/arena"]) == 1
    assert capsys.readouterr().err == "error: no git found, which tells what to push; install it\n"


def test_ours_goes_without_tests_and_within_a_spaces_size(pushing):
    files = {file.path: file for file in pushing.collect(ROOT)}
    for needed in ("README.md", "requirements.txt", "launch/space.py", "app/page.py", "Dockerfile"):
        assert needed in files
    assert not [path for path in files if path.startswith(("tests/", ".ci/"))]
    assert files["assets/demo/dart/model.safetensors"].lfs
    assert not files["app/page.py"].lfs
    assert sum(file.size for file in files.values()) < 200e6
