"""Do the tests notice? Changes one operator, number or condition at a time and runs the tests.

    python tests/mutants.py [--only tree.py] [--sample 40 --seed 1] [--list]

Covers what must not be wrong unnoticed: the acceptance rule, the draws, the counting of tokens and
steps, and the tree search in C++ and in Python. A change that no test fails for has survived; it is
named with its line, and the exit code is 1. Changes that mean the same stand in ``SAME``, with why.
First the tests of each file must pass without a change; of a sample they must only be found.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What is changed, and the tests that must notice, the quick ones first.
TESTS = {
    "dart_core/tree.py": ["test_tree.py", "test_sampling.py", "test_pruner.py"],
    "dart_core/sampling.py": [
        "test_sampling.py",
        "test_ties.py",
        "test_generate.py",
        "test_sampled_law.py",
    ],
    "dart_core/metrics.py": ["test_metrics.py"],
    "dart_core/generate.py": ["test_steps.py", "test_generate.py", "test_overlap.py"],
    "dart_core/pruner_twin.py": ["test_pruner.py"],
    "cpp/tree_pruner.cpp": ["test_pruner.py"],
}
# Changed lines that no test can tell from the original: (file, a part of the line, the change).
SAME: dict[tuple[str, str, str], str] = {
    ("dart_core/tree.py", "place = np.full(size + 1", "1 -> 2"): "the last entry stays the last",
    ("dart_core/tree.py", "place = np.full(len(self) + 1", "1 -> 2"): "the same",
    ("dart_core/tree.py", "if count > 1 and not", "Gt -> GtE"): "no parents are all well",
    ("dart_core/tree.py", "width = (count + 7) //", "FloorDiv -> Mult"): "the rest is cut",
    ("dart_core/tree.py", "width = (count + 7) //", "7 -> 8"): "the rest is cut",
    ("dart_core/sampling.py", "0 < params.top_k < len", "Lt -> LtE"): "the k best of k are all",
    ("dart_core/sampling.py", 'device.type == "cpu"', "Eq -> NotEq"): "the other finds the same",
    ("dart_core/generate.py", "torch.tensor(path).to", "True -> False"): "it waits, no more",
    ("dart_core/generate.py", "len(kept) < len(proposal", "Lt -> LtE"): "cut to all of it",
    ("dart_core/pruner_twin.py", "np.where(probabilities > 0", "Gt -> GtE"): "0 stays 0",
    ("cpp/tree_pruner.cpp", "const float clamped = prob", "> -> >="): "0 stays 0",
    ("cpp/tree_pruner.cpp", "beam_.assign(1, {0.0F, 0})", "0 -> 1"): "the root's place is not read",
    ("cpp/tree_pruner.cpp", "? kLowest", "< -> <="): "less is left out",
    ("cpp/tree_pruner.cpp", "choice.score <= floor", "<= -> <"): "less is left out",
    ("cpp/tree_pruner.cpp", "if (beam_.empty() ||", "|| -> &&"): "levels of nothing add nothing",
    ("cpp/tree_pruner.cpp", "(vector.size() < size) vector.resize", "< -> <="): "to its own size",
    ("cpp/tree_pruner.cpp", "std::size_t width = std::min", "std::min -> std::max"): "more room",
    ("cpp/tree_pruner.cpp", "const float best = best_parent", "+ -> -"): "a bound too high",
    ("cpp/tree_pruner.cpp", "levels_[level].width = 0", "0 -> 1"): "a rank that cannot win",
    ("cpp/tree_pruner.cpp", "if (best > floor)", "> -> >="): "a score equal to the worst loses",
    ("dart_core/pruner_twin.py", "if width == 0 or not beam", "Or -> And"): "a short cut",
}
SECONDS = 240  # a change that makes the tests run on and on is noticed


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what it is in words, and the file's text with it."""

    file: str
    line: int
    change: str
    text: str

    def same(self) -> str | None:
        """Why it means the same as the original, where it does."""
        line = (ROOT / self.file).read_text().splitlines()[self.line - 1]
        for (file, part, change), why in SAME.items():
            if file == self.file and part in line and change == self.change:
                return why
        return None


# Python -------------------------------------------------------------------------------------------

SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def python_mutants(file: str) -> Iterator[Mutant]:
    """Every change of a module. Types, decorators, messages and docstrings stay as they are."""
    text = (ROOT / file).read_text()
    for number in range(sum(1 for _ in _sites(ast.parse(text)))):
        tree = ast.parse(text)
        line, change, apply = next(
            site for place, site in enumerate(_sites(tree)) if place == number
        )
        apply()
        yield Mutant(file, line, change, ast.unparse(tree))


def _sites(tree: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Line, change in words, and what makes it, of every place in a tree."""
    negative = {
        id(node.operand)
        for node in ast.walk(tree)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    }
    for node in _code(tree):
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                yield _swap(node.lineno, operator, node.ops.__setitem__, place)
        elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPPED:
            yield _swap(node.lineno, node.op, lambda name, new, n=node: setattr(n, name, new), "op")
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            was = node.value
            new = not was if isinstance(was, bool) else was + 1
            sign = "-" if id(node) in negative else ""
            change = f"{sign}{was} -> {sign}{new}"
            yield node.lineno, change, lambda n=node, v=new: setattr(n, "value", v)
        elif isinstance(node, ast.Name) and node.id in NAMES:
            new = NAMES[node.id]
            yield node.lineno, f"{node.id} -> {new}", lambda n=node, v=new: setattr(n, "id", v)
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(
            node.test, ast.Compare
        ):
            yield (
                node.test.lineno,
                "condition turned round",
                lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test)),
            )


def _swap(line: int, was: ast.AST, put: Callable, place: object) -> tuple:
    new = SWAPPED[type(was)]
    return line, f"{type(was).__name__} -> {new.__name__}", lambda: put(place, new())


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below whose change is a change of behaviour that a test could see."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from _code(child)


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutant's text, or the extension from a mutant's build."""

    def __init__(self, name: str, text: str | None, path: Path) -> None:
        self.name, self.text, self.path = name, text, path

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        if self.text is None:
            loader = importlib.machinery.ExtensionFileLoader(name, str(self.path))
            return importlib.util.spec_from_file_location(name, self.path, loader=loader)
        return importlib.util.spec_from_loader(name, self, origin=str(self.path))

    def exec_module(self, module) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.text, str(self.path), "exec"), module.__dict__)


# C++ ----------------------------------------------------------------------------------------------

OPERATORS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " && ": " || ", " || ": " && ",
    " += ": " -= ", "std::min": "std::max", "std::max": "std::min",
}  # fmt: skip
PLACES = re.compile("|".join(map(re.escape, OPERATORS)) + r"|(?<![\w.])\d+(?=[^\w.])")


def cpp_mutants(file: str) -> Iterator[Mutant]:
    """Every change of a C++ file outside comments, messages and preprocessor lines."""
    lines = (ROOT / file).read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if code.lstrip().startswith("#") or '"' in code or "to_string" in code:
            continue
        if "fetch(" in code or ".reserve(" in code:  # only speed depends on them
            continue
        for found in PLACES.finditer(code):
            was = found.group()
            new = OPERATORS.get(was) or str(int(was) + 1)
            changed = line[: found.start()] + new + line[found.end() :]
            text = "".join([*lines[:number], changed, *lines[number + 1 :]])
            yield Mutant(file, number + 1, f"{was.strip()} -> {new.strip()}", text)


class _Build:
    """The extension in a folder of its own, of which one file changes at a time."""

    def __init__(self, folder: Path) -> None:
        import pybind11

        self.sources, self.folder = folder / "cpp", folder / "build"
        shutil.copytree(ROOT / "cpp", self.sources)
        options = [
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DCMAKE_BUILD_TYPE=None",
            "-DCMAKE_CXX_FLAGS=-O1 -D_GLIBCXX_ASSERTIONS",
        ]
        command = ["cmake", "-S", str(self.sources), "-B", str(self.folder), *options]
        subprocess.run(command, check=True, capture_output=True)
        if not self.make():
            raise SystemExit("the extension does not build; see pip install -e .")

    def make(self, file: str = "", text: str = "") -> bool:
        """Whether it builds, with one file's text changed."""
        if file:
            (self.sources / Path(file).name).write_text(text)
        done = subprocess.run(["cmake", "--build", str(self.folder)], capture_output=True)
        return done.returncode == 0

    def library(self) -> Path:
        return next(self.folder.glob("_core*.so"))


# The run ------------------------------------------------------------------------------------------


def outcome(mutant: Mutant, build: _Build | None = None) -> str:
    """ "noticed", "survived", or "not built" where C++ does not compile."""
    if build is None:
        name = mutant.file.removesuffix(".py").replace("/", ".")
        return _tested(_Mutated(name, mutant.text, ROOT / mutant.file), TESTS[mutant.file])
    try:
        if not build.make(mutant.file, mutant.text):
            return "not built"
        return _tested(_Mutated("dart_core._core", None, build.library()), TESTS[mutant.file])
    finally:
        shutil.copy(ROOT / mutant.file, build.sources)


def require_tests(file: str, *options: str) -> None:
    """Ends the program unless the tests of a file pass while nothing is changed."""
    if _tested(None, TESTS[file], *options) != "survived":
        tests = " ".join(f"tests/{name}" for name in TESTS[file])
        raise SystemExit(
            f"the tests of {file} fail without any change, so that nothing can be said: see "
            f"pytest {tests} (the test tools come by pip install --group dev)"
        )


def _tested(mutated: _Mutated | None, tests: list[str], *options: str) -> str:
    """Run the tests in a fork, which imports the project afresh but not the libraries."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 3
        with contextlib.suppress(BaseException):
            import pytest

            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            if mutated:
                sys.meta_path.insert(0, mutated)
            paths = [str(ROOT / "tests" / name) for name in tests]
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *options, *paths]))
        os._exit(code)
    ended, status = 0, 0
    ends = time.monotonic() + SECONDS
    try:
        while not ended and time.monotonic() < ends:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the tests started goes with them
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
    return "survived" if ended and status == 0 else "noticed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", action="append", help="files whose name contains this")
    parser.add_argument("--sample", type=int, metavar="N", help="N changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--list", action="store_true", help="name the changes, run nothing")
    args = parser.parse_args()
    files = [f for f in TESTS if not args.only or any(part in f for part in args.only)]
    mutants = [
        mutant
        for file in files
        for mutant in (cpp_mutants if file.endswith(".cpp") else python_mutants)(file)
    ]
    if args.sample:
        mutants = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
        mutants.sort(key=lambda each: list(TESTS).index(each.file))
    if args.list:
        for each in mutants:
            print(f"{each.file}:{each.line}: {each.change}")
        return 0
    import scipy.stats  # noqa: F401  (what every fork would import again)
    import torch
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401

    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT))
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        build = None
        if any(each.file.endswith(".cpp") for each in mutants):
            build = _Build(Path(folder))
        for file in dict.fromkeys(each.file for each in mutants):
            require_tests(file, *(["--collect-only"] if args.sample else []))
        for number, each in enumerate(mutants, 1):
            found = "same" if each.same() else ""
            found = found or outcome(each, build if each.file.endswith(".cpp") else None)
            counts[each.file, found] += 1
            print(f"\r{number} of {len(mutants)}", end="", file=sys.stderr, flush=True)
            if found == "survived":
                print(f"\rsurvived: {each.file}:{each.line}: {each.change}", flush=True)
    print("\n| file | noticed | survived | mean the same | do not compile |")
    print("| --- | --- | --- | --- | --- |")
    for file in files:
        row = [counts[file, name] for name in ("noticed", "survived", "same", "not built")]
        print(f"| {file} | {' | '.join(map(str, row))} |")
    return int(any(name == "survived" for _, name in counts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
