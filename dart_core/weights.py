"""From a reference to local files: a folder, a hub's repository, or the demo's target.

Nothing here imports torch or a hub's client until it is needed, so asking for weights that are
already there is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from dart_core.errors import ArenaError
from dart_core.json_file import read_object
from dart_core.lfs import WHAT, pointers, refuse_pointer
from dart_core.memory import is_out_of_memory
from dart_core.presets import DEMO_ASSETS, DEMO_TARGET
from dart_core.references import MODELSCOPE, Remote, local_path, parse_remote

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["target", "head", "ngram", "tokenizer", "config"]
Progress = Callable[[str], None]

PATTERNS: dict[str, list[str]] = {
    "target": ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"],
    "head": ["config.json", "*.safetensors", "pytorch_model.bin"],
    "tokenizer": ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"],
    "config": ["config.json"],
}
# What any tokenizer needs one of; without them transformers may well make an empty one.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "*.model",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
    "tekken.json",
)
WEIGHT_FILES = {"target": ("*.safetensors",), "head": ("*.safetensors", "pytorch_model.bin")}
HEAD_FILES = ("model.safetensors", "pytorch_model.bin")  # the first of them is read


def cache_dir() -> Path:
    """Where converted weights are kept: $DART_ARENA_CACHE, else the user's cache folder."""
    chosen = os.environ.get("DART_ARENA_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return (Path(chosen) if chosen else Path(home) / "dart-arena").expanduser()
    except RuntimeError as error:  # a container's user without a home folder
        raise ArenaError(
            f"no home folder for {chosen or home}: set DART_ARENA_CACHE to a folder of yours"
        ) from error


def resolve(
    reference: str | os.PathLike[str],
    *,
    kind: Kind = "target",
    filename: str | None = None,
    revision: str | None = None,
    progress: Progress = print,
) -> Path:
    """The local path of what ``reference`` names, downloaded into the hub's cache if need be.

    A reference is a path, an id (``owner/name``, ``owner/name@revision``; ``modelscope:`` before it
    says from where) or DEMO_TARGET. ``kind`` "target" and "head" give a folder with ``config.json``
    and weights, "config" one with ``config.json`` at least; "tokenizer" one with a tokenizer;
    "ngram" gives the file ``filename`` (or ``reference`` itself, if a file). ``revision``: of an id
    that does not say one.
    HF_HUB_OFFLINE, HF_HOME, HF_TOKEN and HF_ENDPOINT are honoured. Raises ArenaError that names the
    reference, what was tried and the remedy.
    """
    reference = os.fspath(reference)
    if reference == DEMO_TARGET:
        from dart_core.demo_target import fetch_demo_target

        return fetch_demo_target(progress)
    local = local_path(reference)
    if kind == "ngram":
        if local is not None and local.is_file():
            refuse_pointer(local)
            return local
        if filename is None:
            raise ArenaError(f"n-gram {reference!r} is not a file; name the file inside it too")
    if local is None:
        remote = remote_of(reference, kind, revision)
        local = client(remote).fetch(remote, kind, wanted_files(kind, filename), progress)
    return _checked(local, reference, kind, filename or "")


def wanted_files(kind: Kind, filename: str | None = None) -> list[str]:
    """Patterns of what is fetched of a repository."""
    return PATTERNS[kind] if kind != "ngram" else [filename or "*"]


def already_here(reference: str | os.PathLike[str], filename: str) -> Path | None:
    """The file ``filename`` of an n-gram's folder or repository where it needs no download."""
    reference = os.fspath(reference)
    local = local_path(reference)
    if local is not None:
        path = local / filename
        return path if path.is_file() else None
    remote = parse_remote(reference)
    if remote is None:
        return None
    return client(remote).cached_file(remote, filename)


def remote_of(reference: str, kind: Kind, revision: str | None = None) -> Remote:
    """The repository of a reference that names nothing on this machine. Raises ArenaError."""
    remote = parse_remote(reference)
    if Path(reference).is_relative_to(DEMO_ASSETS):
        raise ArenaError(
            f"{kind} {reference!r} is not there: the demo's heads and n-gram lie in the "
            "repository, not in the package; install its clone with pip install -e ."
        )
    if remote is None:
        raise ArenaError(
            f"{kind} {reference!r}: no such folder, and not a hub id either; "
            "expected a path that exists or owner/name"
        )
    if revision is None:
        return remote
    if remote.revision not in (None, revision):
        raise ArenaError(f"{kind} {reference!r} says another revision than {revision!r}: give one")
    return Remote(remote.id, revision, remote.source)


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a model's folder. Raises ArenaError where it is damaged."""
    path = folder / "config.json"
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise ArenaError(f"{path} cannot be loaded ({error}); get it again") from None


def client(remote: Remote) -> ModuleType:
    """The module that talks to the repository's hub."""
    if remote.source == MODELSCOPE:
        from dart_core import from_modelscope

        return from_modelscope
    from dart_core import hub

    return hub


def _checked(folder: Path, reference: str, kind: Kind, filename: str) -> Path:
    """What ``resolve`` returns. filename: of an n-gram, else not looked at."""
    if not folder.is_dir():
        raise ArenaError(f"{kind} {reference!r} is a file; expected a folder")
    own: dict[str, list[tuple[str, ...]]] = {
        "ngram": [(filename,)],
        "tokenizer": [_TOKENIZER_FILES],
        "config": [("config.json",)],
    }
    wanted = own.get(kind) or [("config.json",), WEIGHT_FILES[kind]]
    for names in wanted:
        if not any(path for name in names for path in folder.glob(name)):
            holds = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            missing = " or ".join(names)
            raise ArenaError(f"{kind} {reference!r}: no {missing} in {folder}; it holds {holds}")
    if kind == "target" and not (folder / "model.safetensors").is_file():
        _require_shards(folder, reference)
    if kind == "head":  # before the target is loaded
        there = [folder / name for name in HEAD_FILES if (folder / name).exists()]
        for path in there[:1]:
            refuse_pointer(path)
    if kind != "ngram":
        return folder
    refuse_pointer(folder / filename)
    return folder / filename


def _require_shards(folder: Path, reference: str) -> None:
    """Raises ArenaError that names the first weight file of the index that is not there."""
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(read_object(index)["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return  # transformers says what is wrong with it
    for shard in shards:
        if not _is_inside(shard):
            raise ArenaError(
                f"target {reference!r}: {index} names the weight file {shard!r:.60}, which is no "
                "file in its folder; get the model's files again, from whom you trust"
            )
    missing = sorted(shard for shard in shards if not (folder / shard).exists())
    if missing:
        raise ArenaError(
            f"target {reference!r}: no {missing[0]} in {folder}, {len(missing)} of {len(shards)} "
            "weight files missing; get the model's files again"
        )


def _is_inside(name: object) -> bool:
    """Does a name read from a file stay in that file's folder?"""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    return not any(  # of another system too: the folder may go there
        path.is_absolute() or path.drive or ".." in path.parts
        for path in (PurePosixPath(name), PureWindowsPath(name))
    )


@contextmanager
def readable(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turns whatever transformers raises over a damaged or foreign folder into an ArenaError."""
    try:
        yield
    except ArenaError:
        raise
    except Exception as error:  # of any type: the reader of each file format has its own
        if is_out_of_memory(error):
            raise
        if found := pointers(Path(path).glob("*")):
            raise ArenaError(f"{what} {path} cannot be loaded: {found[0].name} is {WHAT}") from None
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ArenaError(
            f"{what} {path} cannot be loaded ({reason}); check that this is the folder of a whole "
            "causal language model, and get damaged files again"
        ) from error


def load_tokenizer(folder: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
    """The tokenizer in a local folder. Raises ArenaError where its files are missing or damaged."""
    from transformers import AutoTokenizer

    if not any(path for name in _TOKENIZER_FILES for path in Path(folder).glob(name)):
        raise ArenaError(
            f"{folder} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}): copy the "
            "model's tokenizer files into it, or write them there with tokenizer.save_pretrained"
        )
    with readable(folder, "the tokenizer in"):
        return AutoTokenizer.from_pretrained(folder)
