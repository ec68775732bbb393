"""The texts that drafters are measured on: what plain decoding writes, with the target's states.

Every engine emits these very texts, so the target need not run again for another head, n-gram or
tree size. On request they are kept on disk, where a later bench of another head finds them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dart_core.drafters import DraftSettings, Proposal, nothing
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.packing import PackedLinear
from dart_core.training.replay import Passage
from dart_core.tree import DraftTree

FORMAT = 1  # of a cached text; another number makes every older file unknown
SAMPLES = 64  # numbers of every weight that the fingerprint looks at


class TextWriter:
    """Plain decoding that keeps the target's states at ``taps`` along its answers."""

    def __init__(self, engine: Engine, settings: GenerationSettings, taps: tuple[int, ...]) -> None:
        self.settings, self.width = settings, len(taps) * engine.target.hidden_size
        self._recorder = _Recorder(taps)
        self._engine = Engine(engine.target, engine.tokenizer, {"text": self._recorder})

    def write(self, prompt_ids: Sequence[int]) -> Passage:
        """What plain decoding answers, drawn as ``settings.sampling`` says (the seed set).

        The states end one token before the text does: no draft begins after its last token.
        """
        with closing(self._engine.stream(prompt_ids, "text", self.settings)) as steps:
            answer = [token for step in steps for token in step.tokens]
        nothing = torch.empty(0, self.width, dtype=self._engine.target.dtype)
        hidden = torch.cat(self._recorder.hidden or [nothing])
        return Passage(torch.tensor([*prompt_ids, *answer]), hidden, len(prompt_ids))


class _Recorder:
    """A drafter without drafts that keeps what the target shows it."""

    name = "text"

    def __init__(self, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self.hidden: list[Tensor] = []

    def begin(
        self, prompt: Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> _Recorder:
        self.hidden = []
        return self

    def observe(self, hidden: Tensor | None, tokens: Tensor) -> None:
        if hidden is not None:
            self.hidden.append(hidden.cpu())
        self._last = int(tokens[-1])

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        return Proposal(DraftTree.root_only(self._last), 0.0, 0.0, "none")

    def close(self) -> None:
        pass


def seen_by(passage: Passage, taps: tuple[int, ...], wanted: tuple[int, ...]) -> Passage:
    """``passage``, whose states are those of ``taps``, with the states of ``wanted`` alone."""
    if taps == wanted:
        return passage
    parts = passage.hidden.chunk(len(taps), dim=1)
    hidden = torch.cat([parts[taps.index(tap)] for tap in wanted], dim=1)
    return Passage(passage.tokens, hidden, passage.prompt)


def weights_fingerprint(engine: Engine) -> str:
    """A hash of config and of some numbers of every weight: another target, another hash."""
    digest = hashlib.sha256(engine.target.config.to_json_string().encode())
    for module in engine.target.model.modules():
        packed = isinstance(module, PackedLinear)
        for weight in [module.unpacked()] if packed else module.parameters(recurse=False):
            flat = weight.detach().flatten()
            some = flat[:: max(1, len(flat) // SAMPLES)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()


class TextCache:
    """Texts with their states in a folder, a file each, of at most ``limit_bytes`` together.

    A text is found again only by the same target, tapped layers, precision, kind of device,
    versions, prompt and settings. The files longest unused go first. What is damaged counts as
    absent. Other files in the folder are left alone.
    """

    def __init__(
        self,
        folder: str | Path,
        engine: Engine,
        settings: GenerationSettings,
        taps: tuple[int, ...],
        *,
        limit_bytes: int,
        log: Callable[[str], None],
    ) -> None:
        self.folder, self.limit, self.log = Path(folder), limit_bytes, log
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArenaError(
                f"--cache {folder}: no folder can be made there ({error.strerror or error}); "
                "choose another place"
            ) from error
        record = asdict(settings)
        del record["draft"]  # changes no text
        record["eos_token_ids"] = sorted(settings.eos_token_ids)
        self._facts = {
            "format": FORMAT,
            "target": weights_fingerprint(engine),
            "eos": sorted(engine.eos_token_ids),
            "taps": taps,
            "dtype": engine.facts["dtype"],
            "device": engine.target.device.type,
            "versions": engine.facts["versions"],
            "settings": record,
        }
        self._full = False

    def get(self, prompt_ids: Sequence[int]) -> Passage | None:
        path = self._path(prompt_ids)
        try:
            with safe_open(str(path), "pt") as file:
                tokens, hidden = file.get_tensor("tokens"), file.get_tensor("hidden")
                known = file.metadata()["sha256"]
            if _content_sha256(tokens, hidden) != known:
                raise ValueError("its content has changed")
            if tokens[: len(prompt_ids)].tolist() != list(prompt_ids):
                raise ValueError("it answers another prompt")
            os.utime(path)  # used now: the last to be dropped
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            self.log(f"cached text {path.name} is damaged ({error}): it is written anew")
            return None
        return Passage(tokens, hidden, len(prompt_ids))

    def put(self, passage: Passage) -> None:
        """Keep a text, if there is room for it; a full disk is reported once and stops no bench."""
        tokens, hidden = passage.tokens.contiguous(), passage.hidden.contiguous()
        metadata = {"sha256": _content_sha256(tokens, hidden)}
        data = save({"tokens": tokens, "hidden": hidden}, metadata)
        path = self._path(tokens[: passage.prompt].tolist())
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        if len(data) > self.limit:  # no room is made for what does not fit
            return
        try:
            self._make_room(self.limit - len(data))
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if not self._full:
                self.log(f"texts are no longer cached: {error.strerror or error}")
            self._full = True

    def _make_room(self, room: int) -> None:
        files = []
        for path in self.folder.glob("text-*.safetensors"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another bench dropped it
                continue
            files.append((status.st_mtime_ns, status.st_size, path))
        used = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if used <= room:
                break
            path.unlink(missing_ok=True)
            used -= size

    def _path(self, prompt_ids: Sequence[int]) -> Path:
        facts = json.dumps({**self._facts, "prompt": list(prompt_ids)}, sort_keys=True)
        return self.folder / f"text-{hashlib.sha256(facts.encode()).hexdigest()[:32]}.safetensors"


def _content_sha256(tokens: Tensor, hidden: Tensor) -> str:
    digest = hashlib.sha256(tokens.numpy().tobytes())
    digest.update(hidden.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
