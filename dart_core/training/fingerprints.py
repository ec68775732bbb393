"""What something was made from, as short hashes: of files, of text, of a target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dart_core.errors import ArenaError
from dart_core.training.data import Sequence, require_file
from dart_core.weights import WEIGHT_FILES, read_config

DIGITS = 16  # of a fingerprint: enough to tell any two apart, and short enough to be read
GIVE_SAME = "give the same again, or another --output"
NOT_NOTED = "(an older version did not note it)"
UNMARKED = ("_name_or_path", "transformers_version")  # of a config: they change nothing


def file_sha256(path: str | Path) -> str:
    """Of its content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_files(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """Files of data with their sha256, in an order that does not depend on the given one. Raises
    ArenaError for one that is not there.
    """
    found = []
    for path in map(Path, paths):
        require_file(path)
        found.append((path, file_sha256(path)))
    return sorted(found, key=lambda each: each[1])


def in_words(paths: Iterable[str | Path]) -> str:
    """Names and fingerprints of files in this order."""
    told = (f"{Path(path).name} ({file_sha256(path)[:DIGITS]})" for path in paths)
    return ", ".join(told) or "none"


def text_fingerprint(sequences: Iterable[Sequence]) -> str:
    """Of all tokens in order, and which of them are supervised: whatever they were made from."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(len(sequence.tokens).to_bytes(8, "little"))
        digest.update(sequence.tokens.astype("<i4").tobytes())
        digest.update(sequence.supervised.tobytes())
    return digest.hexdigest()[:DIGITS]


def target_fingerprint(folder: Path) -> str:
    """Of a model's config and weights, wherever its folder is. Reads all of them."""
    config = {name: value for name, value in read_config(folder).items() if name not in UNMARKED}
    files = sorted(path for pattern in WEIGHT_FILES["target"] for path in folder.glob(pattern))
    with ThreadPoolExecutor() as pool:  # the interpreter is free while bytes are hashed
        weights = [
            (path.name, sha256)
            for path, sha256 in zip(files, pool.map(file_sha256, files), strict=True)
        ]
    made = json.dumps([config, weights], sort_keys=True)
    return hashlib.sha256(made.encode()).hexdigest()[:DIGITS]


def check_same(what: str, begun: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> None:
    """Raises ArenaError where ``what`` was begun with anything else than ``now``, or with an older
    version that did not note it: ``what`` is the beginning of that sentence, ``remedy`` its end.
    """
    others = [name for name, value in now.items() if begun.get(name) != value]
    if others:
        told = (f"{name} {begun.get(name, NOT_NOTED)}, not {now[name]}" for name in others)
        raise ArenaError(f"{what} {'; '.join(told)}: {remedy}")
