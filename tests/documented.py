"""What a Markdown text of ours says about commands, flags, files, links and names, held against
what there is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import dart_core
from app.__main__ import build_parser as app_parser
from dart_core.cli import build_parser, model_references
from dart_core.errors import ArenaError
from dart_core.trio import choose_trio

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("app", "assets", "cpp", "dart_core", "launch", "tests")
COMMANDS = ("generate", "compare", "check", "api", "batch", "bench", "ngram", "train")
PAGE = ("demo.sh", "replay.sh", "qwen3_")  # launchers whose arguments go to the page
OURS = re.compile(r"(\S+/)?(python|bash|accelerate) ")
OTHERS = re.compile(r"(docker|git|pip|uv) ")
SUFFIXES = ("trie", "ngram", "gz", "venv", "py", "sh", "cpp", "js", "css")  # no Python names
MODULES = ("api", "engine", "sampling", "drafters", "templates", "errors", "step")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def problems(text: str, folder: Path = ROOT) -> list[str]:
    """What is wrong in a document that lies in ``folder``; empty where all is well."""
    prose = FENCE.sub("", text)
    found = []
    for words in commands(text):
        found += [f"{shlex.join(words)}: {what}" for what in command_problems(words)]
    for span in spans(text):
        found += [f"`{span}`: {what}" for what in span_problems(span)]
    for name in set(re.findall(r"[\w/.-]+\.(?:sh|py|cpp|js|css)\b", text)) - {"plotly.js"}:
        if not any(path.match(name) for path in tracked()):
            found.append(f"{name}: no such file")
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link and not link_leads(link, text, folder):
            found.append(f"{link}: leads nowhere")
    for code in blocks(text, "python"):
        try:
            compile(code, "a Python block", "exec")
        except SyntaxError as error:
            found.append(f"a Python block: {error}")
    return found


def blocks(text: str, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(text) if kind == language]


def spans(text: str) -> list[str]:
    """Code within lines, each in one line."""
    found = re.findall(r"`([^`]+)`", FENCE.sub("", text))
    return [" ".join(span.split()) for span in found]


@cache
def tracked() -> list[Path]:
    """The repository's own files."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path for path in paths if "__pycache__" not in path.parts]


# Command lines ------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The command lines of a document as words, from bash blocks and from code within lines."""
    variables: dict[str, list[str]] = {}
    for block in blocks(text, "bash"):
        yield from _shell(block, variables)
    for span in spans(text):
        if OURS.match(span):
            yield from _shell(span, {})


def _shell(script: str, variables: dict[str, list[str]]) -> Iterator[list[str]]:
    """As a shell would read it: continued lines, comments, variables, loops."""
    for line in script.replace("\\\n", " ").splitlines():
        if loop := re.match(r"\s*for (\w+) in (.+); do$", line):
            variables[loop[1]] = loop[2].split()
            continue
        lines = [line]
        for name, values in variables.items():
            if f"${name}" in line:
                lines = [each.replace(f"${name}", value) for each in lines for value in values]
        if given := re.fullmatch(r'(\w+)="(.*)"', lines[0]):
            variables[given[1]] = [given[2]]
            continue
        for each in lines:
            words: list[str] = []
            for word in [*shlex.split(each, comments=True), ";"]:
                if word not in ("&&", ";", "|"):
                    words.append(word)
                    continue
                if words:
                    yield words
                words = []


def command_problems(words: list[str]) -> Iterator[str]:
    """What is wrong with a command line, where it is one of ours."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    for word in words:
        if word.partition("/")[0] in FOLDERS and "/" in word and not (ROOT / word).exists():
            yield f"no {word}"
    program = Path(words[0]).name if words else ""
    if program in ("python", "accelerate") and "-m" in words:
        module, *rest = words[words.index("-m") + 1 :]
        if module in ("app", "dart_core"):
            yield from _parsed(module, rest)
    elif program == "bash" and len(words) > 1 and Path(words[1]).name.startswith(PAGE):
        yield from _parsed("app", words[2:])
    elif len(words) > 1 and (script := ROOT / words[1]).is_file():
        text = script.read_text(encoding="utf-8")
        known = re.findall(r"--[a-z][\w-]*", text)
        if script.name != "test.sh":  # its arguments are pytest's
            flags = (word for word in words[2:] if word.startswith("--"))
            yield from (f"no flag {flag}" for flag in flags if flag not in known)


def _parsed(module: str, words: list[str]) -> Iterator[str]:
    command = next((word for word in words if not word.startswith("-")), None)
    if module == "dart_core" and words in ([], [command], [command, "…"]):
        if words and command not in COMMANDS:
            yield f"no command {command}"
        return
    if len(words) == 2 and command in ("ngram", "train") and not words[1].startswith("-"):
        if words[1] not in _choices(command):  # the command alone, as texts name it
            yield f"no command {words[1]}"
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parser = app_parser() if module == "app" else build_parser(command)
            args = parser.parse_args([word for word in words if word != "…"])
        if hasattr(args, "preset"):
            choose_trio(args.preset, source=args.source, **model_references(args))
    except SystemExit as exit_:
        if exit_.code:
            yield said.getvalue().strip()
    except ArenaError as error:
        yield str(error)


@cache
def _choices(command: str) -> list[str]:
    """The commands of a command."""
    actions = build_parser(command)._subparsers._group_actions[0].choices[command]
    return list(actions._subparsers._group_actions[0].choices)


@cache
def flags() -> frozenset[str]:
    """Every flag of the page and of the commands."""
    parsers = [app_parser(), *(build_parser(command) for command in COMMANDS)]
    found: set[str] = set()
    for parser in parsers:
        for action in parser._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return frozenset(found)


# Names --------------------------------------------------------------------------------------------


def span_problems(span: str) -> Iterator[str]:
    """What is wrong with code within a line: flags, paths, variables, Python names."""
    if OURS.match(span) or OTHERS.match(span):
        return  # a command line
    for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
        if flag not in flags() and flag not in _launchers():
            yield f"no flag {flag}"
    for variable in re.findall(r"DART_ARENA_\w+", span):
        if variable not in _launchers() and not _settable(variable):
            yield f"nothing reads {variable}"
    path = span.split()[0]
    if path.partition("/")[0] in FOLDERS and "/" in path and not any(ROOT.glob(path)):
        yield "no such file or folder"
    if named := re.fullmatch(r"(?:from (\w+) )?import (\w+)", span):
        module = import_module(named[1] or named[2])
        if named[1] and not hasattr(module, named[2]):
            yield f"no {named[2]} in {named[1]}"
    if dotted := re.fullmatch(r"(\w*)((?:\.\w+)*)(?:\(.*\)|\[.*\])?", span):
        yield from _name_problems(dotted[1], dotted[2].split(".")[1:])


@cache
def _launchers() -> str:
    """All that tells of flags and variables beside the parsers."""
    paths = [*(ROOT / "launch").glob("*.sh"), *(ROOT / "launch").glob("*.py")]
    paths += [*(ROOT / "dart_core").rglob("*.py"), *(ROOT / "app").glob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _settable(variable: str) -> bool:
    """Whether the launchers turn it into a flag."""
    names = re.search(r"^SETTABLE=\((.*?)\)", _launchers(), re.MULTILINE | re.DOTALL)
    return variable.removeprefix("DART_ARENA_") in names[1].split()


def namespace() -> dict[str, object]:
    """Our Python names as documents use them, and what they call an instance."""
    names: dict[str, object] = {"dart_core": dart_core}
    for module in map(import_module, (f"dart_core.{name}" for name in MODULES)):
        for name, value in vars(module).items():
            if getattr(value, "__module__", "").startswith("dart_core"):
                names[name] = value
    names |= {name: getattr(dart_core, name) for name in dart_core._HOMES}
    return names | {
        "model": names["DartModel"],
        "template": names["ChatTemplate"],
        "engine": names["Engine"],
        "output": names["Output"],
    }


def _name_problems(first: str, rest: list[str]) -> Iterator[str]:
    names = namespace()
    if not rest or rest[-1] in SUFFIXES:
        return
    if first == "dart_core" and "dart_core." + ".".join(rest) in _modules():
        return
    if first and first not in names:
        return
    owners = [names[first]] if first else [names["DartModel"], names["Engine"], names["Output"]]
    if not any(_has(owner, rest) for owner in owners):
        yield f"no {'.'.join(rest)} in {first or 'DartModel, Engine and Output'}"


def _has(owner: object, path: list[str]) -> bool:
    for name in path:
        fields = getattr(owner, "__dataclass_fields__", {})
        if not hasattr(owner, name) and name not in fields:
            return False
        owner = getattr(owner, name, None)
    return True


@cache
def _modules() -> frozenset[str]:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "dart_core").rglob("*.py")]
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in paths)


# Links --------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
        found.add(kept.replace(" ", "-"))
    return found


def link_leads(link: str, text: str, folder: Path) -> bool:
    path, _, anchor = link.partition("#")
    if path and not (folder / path).exists():
        return False
    if not anchor:
        return True
    return anchor in anchors((folder / path).read_text(encoding="utf-8") if path else text)
