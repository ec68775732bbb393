"""Imports run one way, app -> dart_core -> cpp, and importing the package does nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = sorted((ROOT / "dart_core").rglob("*.py"))
NATIVE = [path for path in sorted((ROOT / "cpp").rglob("*")) if path.suffix in {".cpp", ".h"}]


def roots(node: ast.stmt) -> set[str]:
    """The top-level packages that an import statement names; none for another statement."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import; write the full name"
        return {node.module.partition(".")[0]}
    return set()


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_knows_no_page(path):
    names = set().union(*(roots(node) for node in ast.walk(ast.parse(path.read_text()))))
    assert not names & {"app", "gradio", "gradio_client", "plotly", "spaces"}


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name)
def test_the_native_code_knows_neither_torch_nor_python(path):
    headers = re.findall(r'#include\s*[<"]([^>"]+)[>"]', path.read_text())
    assert not [name for name in headers if name.startswith(("torch/", "ATen/", "c10/"))]
    if path.name != "bindings.cpp":
        assert not [name for name in headers if name.startswith(("pybind11/", "Python.h"))]


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_finding_weights_needs_only_the_standard_library():
    """launch/ asks the bare Python about weights before anything is installed."""
    code = """
import sys
before = set(sys.modules)
import dart_core.demo_target, dart_core.presets, dart_core.weights
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - set(sys.stdlib_module_names) - {"dart_core"}))
"""
    assert run(code) == "[]"


def test_flags_are_judged_before_anything_slow_is_imported():
    """--help and a mistyped flag are answered at once: torch alone takes seconds to import."""
    commands = ["generate", "compare", "check", "api", "batch", "bench", "ngram", "train"]
    lines = {
        0: [["--help"], *([command, "--help"] for command in commands)],
        2: [
            ["generate", "--tree-budget", "x"],
            *([command, "--no-such-flag"] for command in commands),
            ["nonesuch"],
            ["batch", "in.jsonl"],
        ],
        1: [
            ["generate", "--preset", "demo"],  # no prompt
            ["generate", "--prompt", "x"],  # no models
            ["compare", "--preset", "nonesuch", "--prompt", "x"],
            ["check", "--preset", "demo", "--prompt", "x", "--max-new-tokens", "0"],
            ["generate", "--preset", "demo", "--prompt-file", "nowhere.jsonl"],
            ["api", "--preset", "demo", "--queue", "-1"],
            ["api"],
            ["batch", "nowhere.jsonl", "out.jsonl", "--preset", "demo"],
            ["bench", "--preset", "demo", "--quick"],
        ],
    }
    code = f"""
import contextlib, io, sys
import app.__main__, dart_core.cli
ends = []
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for code, lines in {lines}.items():
        ends += [(line, end) for line in lines if (end := dart_core.cli.main(line)) != code]
    for flags in (["--help"], ["--no-such-flag"], ["--preset", "nonesuch"], ["--tree-budget", "0"]):
        with contextlib.suppress(SystemExit):
            app.__main__.main(flags)
print(ends, sorted({{"torch", "transformers", "gradio", "uvicorn"}} & set(sys.modules)))
"""
    assert run(code) == "[] []"


def test_no_helper_of_the_tests_is_taken_for_a_package():
    """``python tests/soak.py`` puts this folder before all others, and packages try to import
    others that need not be there: httpcore2 takes any trio.py it finds.
    """
    code = """
import sys
sys.path.insert(0, "tests")
import huggingface_hub.hf_api, numpy, starlette.applications, uvicorn
print([m.__name__ for m in [*sys.modules.values()] if "/tests/" in str(getattr(m, "__file__", ""))])
"""
    assert run(code) == "[]"


def test_importing_the_core_touches_nothing():
    """No process, connection, download, thread, thread setting, environment variable or GPU."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in CORE
        if path.stem != "__main__"
    ]
    # Other packages do things of their own when imported: their imports come first, unwatched.
    foreign = {
        ast.unparse(node)
        for path in CORE
        for node in ast.parse(path.read_text()).body
        if roots(node) and not roots(node) & {"dart_core", "__future__"}
    }
    code = f"""
import importlib, os, sys, threading
import torch
{chr(10).join(sorted(foreign))}

def state():
    return {{
        **os.environ,
        "threads": threading.active_count(),
        "torch threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "CUDA": torch.cuda.is_initialized(),
    }}

before, events = state(), []
watched = ("subprocess.", "socket.", "os.system", "os.exec", "os.fork", "os.posix_spawn")
sys.addaudithook(lambda event, args: events.append(event) if event.startswith(watched) else None)
for name in {modules}:
    importlib.import_module(name)
print(events, sorted(before.items() ^ state().items(), key=str))
"""
    assert run(code) == "[] []"
