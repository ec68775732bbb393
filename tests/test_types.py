"""Types: every public function says what it takes and gives, and mypy finds nothing wrong."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECKED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
FILES = [path for folder in CHECKED for path in sorted((ROOT / folder).rglob("*.py"))]


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module, and the methods of its classes, whose names begin without "_"."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body)
        elif isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
            yield node


def unannotated(source: str) -> list[str]:
    """ "line: name" of what public functions leave open: parameters, and what they return."""
    found = []
    for function in public_functions(ast.parse(source).body):
        own = function.args
        given = [
            *own.posonlyargs,
            *own.args,
            *own.kwonlyargs,
            *filter(None, (own.vararg, own.kwarg)),
        ]
        open_ends = [each.arg for each in given if each.annotation is None]
        open_ends = [name for name in open_ends if name not in ("self", "cls")]
        if function.returns is None:
            open_ends.append("return")
        found += [f"{function.lineno}: {function.name}({name})" for name in open_ends]
    return found


def test_what_has_no_type_is_found():
    source = """
def public(a, b: int, *rest, c=1, **more: str):
    def inner(x): ...
def _private(a): ...
class Any:
    def method(self, x) -> None: ...
    async def later(self) -> int: ...
    def __init__(self, x): ...
"""
    assert unannotated(source) == [
        "2: public(a)",
        "2: public(c)",
        "2: public(rest)",
        "2: public(return)",
        "6: method(x)",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_functions_say_their_types(path):
    assert unannotated(path.read_text()) == []


@pytest.mark.slow
def test_mypy_finds_nothing(monkeypatch):
    """As `mypy` does in the repository's folder, where the second time takes seconds."""
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(ROOT)
    output, errors, status = api.run([])
    assert status == 0, output + errors
    assert output.startswith("Success: no issues found in ")
