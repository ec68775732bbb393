"""What a bench was measured with, told without the folders of the machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_core.bench import Bench
from dart_core.bench_speed import SpeedBench
from dart_core.names import ROOT, told_facts, without_folders
from dart_core.report import settings_record

WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def bench_provenance(
    bench: Bench | SpeedBench, arguments: Sequence[str], prompt_files: Mapping[str, Path]
) -> dict[str, Any]:
    """Command, date, versions, machine, models, settings and prompts; no folder of this machine."""
    facts = told_facts(bench.engine.facts)
    facts["versions"] = {**facts["versions"], "dart-arena": _own_version()}
    own = bench.engine.facts
    heads = {
        name: sha
        for name in ("dart", "eagle3")
        if name in own and (sha := _weights_sha256(Path(own[name])))
    }
    return {
        "command": " ".join(["python -m dart_core", *map(_quoted, arguments)]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git_describe(),
        **facts,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "head_sha256": heads,
        "settings": {**settings_record(bench.settings), "tree_budgets": bench.budgets},
        "prompt_files": [
            {
                "set": name,
                "name": path.name,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for name, path in prompt_files.items()
        ],
    }


def _quoted(argument: str) -> str:
    return shlex.quote(without_folders(argument))


def _own_version() -> str | None:
    try:
        return importlib.metadata.version("dart-arena")
    except importlib.metadata.PackageNotFoundError:
        return None


def _weights_sha256(folder: Path) -> str | None:
    for name in WEIGHTS:
        try:
            with (folder / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # a hub id, or the other of the two
            continue
    return None


def _git_describe() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        command = ["git", "describe", "--always", "--dirty"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
