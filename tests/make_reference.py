"""The reference in assets/reference, from what the code itself says: flags and docstrings.

    python tests/make_reference.py

A test fails where the files are not what this would write.
"""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import dart_core
from app.__main__ import build_parser as app_parser
from dart_core.cli import EXIT_CODES, build_parser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "assets" / "reference"
COMMAND = "python tests/make_reference.py"
MADE = f"Made by `{COMMAND}` from {{}}: change those, not this file.\n"
WIDTH = 100
COLUMN = 33  # where the explanations of flags begin


# Command lines ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Flags that are explained together. rows: the finished lines of text."""

    title: str
    description: str | None
    rows: str

    def text(self) -> str:
        said = f"{self.description}\n\n" if self.description else ""
        return f"{said}```text\n{self.rows}\n```\n"


@dataclass(frozen=True)
class Command:
    """A command line: its synopsis, what it does, its flags."""

    name: str
    line: str
    synopsis: str
    description: str | None
    groups: tuple[Group, ...]


def command_lines() -> str:
    """assets/reference/command-lines.md. argparse's own help differs between Pythons and widths of
    terminals; this is read from what it is made of.
    """
    commands = list(_commands())
    shared = _shared(commands)
    parts = [
        "# Command lines\n",
        MADE.format("the flags' own definitions"),
        "| command | what it does |\n| --- | --- |\n"
        + "".join(f"| [`{c.name}`](#{_anchor(c.name)}) | {c.line} |\n" for c in commands),
        f"{EXIT_CODES} The page ends with 0 after Ctrl-C, 143 after SIGTERM; the "
        "API server with 0 after either.\n",
        "## Flags of several commands\n",
    ]
    parts += [f"### {title}\n\n{group.text()}" for title, group in shared.items()]
    for command in commands:
        parts.append(f"## {command.name}\n")
        parts.append(f"```text\n{command.synopsis}\n```\n")
        parts.append(f"{command.description or command.line}\n")
        elsewhere = [g.title for g in command.groups if shared.get(g.title) == g]
        for group in command.groups:
            if group.title not in elsewhere:
                parts.append(f"**{group.title}**\n\n{group.text()}")
        if elsewhere:
            links = ", ".join(f"[{title}](#{_anchor(title)})" for title in elsewhere)
            parts.append(f"Also the flags of: {links}.\n")
    return "\n".join(parts)


def _commands() -> Iterator[Command]:
    page = app_parser()
    yield _command(page, page.description)
    for name, line in _choices(build_parser())[1]:
        parsers, lines = _choices(build_parser(name))
        line = dict(lines)[name]
        inner = _choices(parsers[name])
        if not inner[0]:
            yield _command(parsers[name], line)
        for action, what in inner[1]:
            yield _command(inner[0][action], what)


def _choices(parser: argparse.ArgumentParser):
    """Its commands' parsers by name, and (name, line of help) in their order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices, [
                (choice.dest, choice.help) for choice in action._choices_actions
            ]
    return {}, []


def _command(parser: argparse.ArgumentParser, line: str) -> Command:
    groups = tuple(
        Group(group.title.removeprefix("positional "), group.description, rows)
        for group in parser._action_groups
        if (rows := _rows(group._group_actions, parser))
    )
    return Command(parser.prog, line, _synopsis(parser), parser.description, groups)


def _rows(actions: list[argparse.Action], parser: argparse.ArgumentParser) -> str:
    lines = []
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        said = (action.help or "") % {**vars(action), "prog": parser.prog}
        if isinstance(action, argparse.BooleanOptionalAction):  # Python 3.11 and 3.12 add it
            said = said.removesuffix(f" (default: {action.default})")
        wrapped = textwrap.wrap(said, WIDTH - COLUMN, break_on_hyphens=False)
        name = _name(action)
        if len(name) + 2 <= COLUMN and wrapped:
            name = name.ljust(COLUMN) + wrapped.pop(0)
        lines += [name, *(" " * COLUMN + rest for rest in wrapped)]
    return "\n".join(lines)


def _name(action: argparse.Action) -> str:
    """A flag or argument with its value, as in ``--stop TEXT``."""
    default = action.dest.upper() if action.option_strings else action.dest
    value = argparse.HelpFormatter("")._format_args(action, default) if action.nargs != 0 else ""
    return f"{', '.join(action.option_strings)} {value}".strip()


def _synopsis(parser: argparse.ArgumentParser) -> str:
    """How it is called: what must be given; all else is [options]."""
    required = [
        " | ".join(_name(action) for action in group._group_actions).join("()")
        for group in parser._mutually_exclusive_groups
        if group.required
    ]
    required += [_name(a) for a in parser._actions if a.option_strings and a.required]
    required += [_name(a) for a in parser._actions if not a.option_strings]
    text = " ".join([parser.prog, "[options]", *required])
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _shared(commands: list[Command]) -> dict[str, Group]:
    """Groups that are the same in several commands, by title."""
    counts = Counter(group for command in commands for group in command.groups)
    found: dict[str, Group] = {}
    for group, count in counts.items():
        often = count > max(1, counts[found.get(group.title)])
        if often and "\n" in group.rows and group.title != "options":
            found[group.title] = group
    return found


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


# Python names -------------------------------------------------------------------------------------

# What the names of the package itself take and give, by module.
BESIDE = {
    "dart_core.api": ("run_settings", "Output", "Chunk", "NgramFile"),
    "dart_core.templates": ("TemplateRegistry",),
    "dart_core.engine": ("Engine", "GenerationSettings", "Generation"),
    "dart_core.sampling": ("SamplingParams",),
    "dart_core.drafters": ("DraftSettings",),
    "dart_core.step": ("Step", "StageSeconds"),
}
PUBLISHED = ("_dart_generate", "_eagle3_generate", "_ar_generate")  # in spite of their names


def python_names() -> str:
    """assets/reference/python.md, read from the source: nothing is imported for it."""
    parts = ["# Python names\n", MADE.format("docstrings and signatures")]
    parts.append("## dart_core\n")
    parts.append("`from dart_core import` any of these; what they need is loaded when they are.\n")
    for name, module in dart_core._HOMES.items():
        parts += _described(module, name)
    for module, names in BESIDE.items():
        parts.append(f"## {module}\n")
        for name in names:
            parts += _described(module, name)
    return "\n".join(parts)


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """The functions, classes and assignments of a module by name."""
    path = ROOT / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def _described(module: str, name: str) -> Iterator[str]:
    node = _definitions(module)[name]
    yield f"### {name}\n"
    if isinstance(node, ast.Assign):
        yield f"`{ast.unparse(node)}`: see [{module}](#{_anchor(module)}).\n"
        return
    if isinstance(node, ast.FunctionDef):
        yield _signature(name, node.args, node.returns)
        yield from _docstring(node)
        return
    yield from _constructor(name, node)
    yield from _docstring(node)
    for member in node.body:
        if not isinstance(member, ast.FunctionDef):
            continue
        decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
        if member.name.startswith("_") and member.name not in PUBLISHED:
            continue
        if decorators & {"property", "cached_property"}:
            kind = f": {ast.unparse(member.returns)}" if member.returns else ""
            yield f"```python\n{name}.{member.name}{kind}\n```\n"
        else:
            bound = "staticmethod" not in decorators
            yield _signature(f"{name}.{member.name}", member.args, member.returns, bound=bound)
        yield from _docstring(member)


def _constructor(name: str, node: ast.ClassDef) -> Iterator[str]:
    """How the class is called: what ``__init__`` takes, or a dataclass's fields."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            if len(member.args.args) > 1 or member.args.kwonlyargs:
                yield _signature(name, member.args, bound=True)
            return
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    given = {"field(repr=False)": None, "field(default_factory=dict)": ast.Constant(...)}
    values = [field.value and given.get(ast.unparse(field.value), field.value) for field in fields]
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(field.target.id, field.annotation) for field in fields],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[value for value in values if value is not None],
    )
    yield _signature(name, arguments)


def _signature(
    name: str, arguments: ast.arguments, returns: ast.expr | None = None, *, bound: bool = False
) -> str:
    """A call with its annotations, one argument a line where it is long. bound: no first one."""
    positional = arguments.posonlyargs + arguments.args
    without = len(positional) - len(arguments.defaults)
    defaults = [None] * without + list(arguments.defaults)
    parts = [_argument(*pair) for pair in zip(positional, defaults, strict=True)][bound:]
    if arguments.vararg:
        parts.append("*" + _argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += map(_argument, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        parts.append("**" + _argument(arguments.kwarg, None))
    end = f" -> {ast.unparse(returns)}" if returns else ""
    text = f"{name}({', '.join(parts)}){end}"
    if len(text) > WIDTH:
        inner = "".join(f"    {part},\n" for part in parts)
        text = f"{name}(\n{inner}){end}"
    return f"```python\n{text}\n```\n"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return argument.arg + kind
    equals = " = " if kind else "="
    return f"{argument.arg}{kind}{equals}{ast.unparse(default)}"


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    if text := ast.get_docstring(node):
        yield f"{text.replace('``', '`')}\n"


# Files --------------------------------------------------------------------------------------------

FILES = {"command-lines.md": command_lines, "python.md": python_names}


def outdated(folder: Path = FOLDER) -> list[str]:
    """The names of the files that are not as they would be written now."""
    return [name for name, text in FILES.items() if _read(folder / name) != text()]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
