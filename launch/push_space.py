"""Make a Hugging Face Space of this clone, or bring one up to date.

    python launch/push_space.py OWNER/NAME             # says what it would push, and pushes nothing
    python launch/push_space.py OWNER/NAME --push      # pushes it; log in or set HF_TOKEN first

The hub refuses plain git objects that are binary or above 10 MB: they get LFS rules in a commit of
their own, before the files come, and afterwards it is asked whether the large ones went that way.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package need not be installed

from dart_core.presets import PRESETS  # noqa: E402

RECORDINGS = "recordings"  # as launch/space.py has it
LEFT_OUT = ("tests/", ".ci/", ".gitattributes")  # the last is written anew for the Space
LARGE = 10_000_000  # bytes of a plain git object, at most
ATTRIBUTES = ".gitattributes"
SDKS = ("gradio", "docker")


class Refused(Exception):
    """What the user can mend, in one line."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to push: its path in the clone and in the Space, and whether LFS holds it."""

    path: str
    size: int
    lfs: bool


def main(arguments: Sequence[str] | None = None, api: Any = None) -> int:
    """api: an HfApi; None makes one when it is needed. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python launch/push_space.py", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("space", metavar="OWNER/NAME")
    parser.add_argument("--push", action="store_true", help="push; without it: say what would be")
    parser.add_argument("--private", action="store_true", help="a new Space is private")
    parser.add_argument(
        "--sdk",
        choices=SDKS,
        default="gradio",
        help="gradio, as ZeroGPU needs it, or docker for a dedicated GPU (default: gradio)",
    )
    parser.add_argument("--hardware", metavar="NAME", help="ask for it: zero-a10g is ZeroGPU")
    parser.add_argument("--preset", metavar="NAME", help="sets the Space's DART_ARENA_PRESET")
    args = parser.parse_args(arguments)
    try:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", args.space):
            raise Refused(f"{args.space!r}: expected OWNER/NAME")
        if args.preset and args.preset not in (*PRESETS, RECORDINGS):
            known = ", ".join((*PRESETS, RECORDINGS))
            raise Refused(f"--preset {args.preset}: expected one of {known}")
        files = collect(ROOT)
        for file in files:
            print(f"{_size(file.size)}  {'LFS' if file.lfs else '   '}  {file.path}")
        held = [file for file in files if file.lfs]
        print(
            f"{_size(sum(f.size for f in files))}  in {len(files)} files, {len(held)} of them "
            f"({_size(sum(f.size for f in held)).strip()}) through LFS"
        )
        if not args.push:
            print(f"nothing was pushed: add --push to make the Space {args.space} of it")
            return 0
        if api is None:
            api = _hub()
        print(f"pushed to {push(api, args, files)}")
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def collect(root: Path) -> list[File]:
    """What git tracks below ``root``, less what a Space has no use for, as it lies there now."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True
        )
    except FileNotFoundError:
        raise Refused("no git found, which tells what to push; install it") from None
    if listed.returncode != 0:
        raise Refused(f"{root} is no git clone: {listed.stderr.strip().splitlines()[-1]}")
    files = []
    for path in sorted(filter(None, listed.stdout.split("\0"))):
        if path.startswith(LEFT_OUT):
            continue
        try:
            with (root / path).open("rb") as file:
                binary = b"\0" in file.read(8192)
            size = (root / path).stat().st_size
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from None
        files.append(File(path, size, binary or size > LARGE))
    return files


def attributes(files: Sequence[File]) -> str:
    """The Space's .gitattributes: a rule for every file that LFS holds."""
    held = (file.path for file in files if file.lfs)
    return "".join(f"{path} filter=lfs diff=lfs merge=lfs -text\n" for path in held)


def card(text: str, sdk: str) -> str:
    """README.md for a Space of this kind: a Docker one has another front matter."""
    if sdk == "gradio":
        return text
    lines = text.split("\n")
    end = lines.index("---", 1)
    ours = ("sdk:", "sdk_version:", "app_file:", "python_version:", "suggested_hardware:")
    kept = [line for line in lines[1:end] if not line.startswith(ours)]
    return "\n".join(["---", *kept, "sdk: docker", "app_port: 7860", *lines[end:]])


def push(api: Any, args: argparse.Namespace, files: Sequence[File]) -> str:
    """Push, and return the Space's address."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    where = {"repo_id": args.space, "repo_type": "space"}
    try:
        url = api.create_repo(
            **where, space_sdk=args.sdk, private=args.private or None, exist_ok=True
        )
        if args.preset:
            api.add_space_variable(args.space, "DART_ARENA_PRESET", args.preset)
        rules = CommitOperationAdd(ATTRIBUTES, attributes(files).encode())
        api.create_commit(**where, operations=[rules], commit_message="What LFS holds")
        readme = card((ROOT / "README.md").read_text(encoding="utf-8"), args.sdk)
        contents = {"README.md": readme.encode()}
        changes: list[Any] = [
            CommitOperationAdd(file.path, contents.get(file.path, str(ROOT / file.path)))
            for file in files
        ]
        ours = {ATTRIBUTES, *(file.path for file in files)}
        gone = sorted(set(api.list_repo_files(**where)) - ours)
        changes += [CommitOperationDelete(path) for path in gone]
        api.create_commit(**where, operations=changes, commit_message="DART Arena")
        large = [file.path for file in files if file.size > LARGE]
        plain = [f.path for f in api.get_paths_info(paths=large, **where) if f.lfs is None]
        if plain:
            raise Refused(f"the hub did not take {', '.join(plain)} through LFS")
        if args.hardware:
            api.request_space_hardware(args.space, args.hardware)
    except LocalTokenNotFoundError:
        raise Refused("not logged in: run `hf auth login`, or set HF_TOKEN") from None
    except Refused:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        if isinstance(error, (HfHubHTTPError, OSError, ValueError)):
            raise Refused(f"{args.space}: {reason}") from None
        raise Refused(  # the network's client has errors of its own
            f"the hub did not take it ({reason}): check the network, HF_ENDPOINT and HF_TOKEN, "
            "then push again"
        ) from None
    return str(url)


def _hub() -> Any:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise Refused(f"--push: {error}; run: pip install huggingface_hub") from None
    return HfApi()


def _size(count: int) -> str:
    return f"{count / 1e6:8.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
