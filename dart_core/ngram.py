"""The n-gram model: counts of token sequences in one memory-mapped file, and what makes the files.

The file (suffix ``.ngram``) is opened in milliseconds whatever its size and shared by all processes
that have it open. Published ``.trie`` files are converted once, without loss, by ``import_trie``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_core import ngram_twin
from dart_core._native import Backend, choose_backend, native
from dart_core.errors import ArenaError
from dart_core.lfs import refuse_pointer
from dart_core.ngram_convert import DEFAULT_MEMORY_MIB, import_trie

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What an OSError says of a folder that nothing can be written to.
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EROFS}


class NgramModel:
    """An open ``.ngram`` file.

    ``order`` n: the model knows n-grams of up to n tokens and looks at the last n - 1 of a context.
    ``backend`` says who answers: "native" or, without the extension, "twin". ``trie`` is that
    backend's own object, for the pruner.
    """

    def __init__(self, trie: Any, backend: Backend, path: Path) -> None:
        self._trie, self.backend, self.path = trie, backend, path
        self.order: int = trie.order
        self.vocab_size: int = trie.vocab_size
        self.root_total: int = trie.root_total
        self.entries: tuple[int, ...] = tuple(trie.entries)  # n-grams by length, from 1 token on
        self.fingerprint: str = trie.fingerprint.hex() if any(trie.fingerprint) else ""

    @classmethod
    def open(cls, path: str | Path, *, backend: Backend | None = None) -> NgramModel:
        """Map a file. Raises FileNotFoundError, or ArenaError with the reason for a file that is
        damaged, truncated or no ``.ngram`` at all.
        """
        backend = choose_backend(backend)
        refuse_pointer(path)
        trie = native().Trie(str(path)) if backend == "native" else ngram_twin.TwinTrie(str(path))
        return cls(trie, backend, Path(path))

    @property
    def trie(self) -> Any:
        if self._trie is None:
            raise ValueError(f"the n-gram {self.path} is closed")
        return self._trie

    def query(
        self, context: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probability of each of ``tokens`` after ``context``, float32 [k], and the length of the
        context's suffix it comes from, int32 [k].

        The longest suffix of at most order - 1 tokens that the token follows answers, by count of
        the longer n-gram over count of the suffix (in float32: times the reciprocal); there is no
        discount for backing off. What no suffix knows has probability 0 and length 0. Reduced files
        hold n-grams of count 0: these give 0 with a length, or NaN for 0 / 0.
        """
        width = self.order - 1
        tail = np.asarray(context[-width:] if len(context) > width else context, dtype=np.int64)
        return self.trie.query(tail, np.asarray(tokens, dtype=np.int64))

    def prefetch(self) -> None:
        """Ask the system to read the whole file into its page cache, in the background."""
        self.trie.prefetch()

    def close(self) -> None:
        """Let go of the file. A pruner made with this model keeps its own hold on it."""
        self._trie = None

    def __enter__(self) -> NgramModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_ngram(
    token_streams: Iterable[Sequence[int] | np.ndarray],
    order: int,
    vocab_size: int,
    path: str | Path,
    *,
    fingerprint: str = "",
    memory_mib: int = DEFAULT_MEMORY_MIB,
) -> None:
    """Count the n-grams of up to ``order`` tokens (2 to 8) in each stream and write them to
    ``path``, whole or not at all.

    No n-gram reaches from one stream into the next and no token is added. ``fingerprint`` is
    ``tokenizer_fingerprint`` of the tokenizer, if known. Any amount of text fits: beyond
    ``memory_mib`` sorted runs go to scratch files beside ``path``.
    """
    path = _output(path)
    digest = bytes.fromhex(fingerprint)
    if choose_backend(None) == "twin":
        nodes = ngram_twin.build(token_streams, order, vocab_size)
        nodes.fingerprint = digest or nodes.fingerprint
        ngram_twin.write(nodes, path)
        return
    builder = native().NgramBuilder(str(path), order, vocab_size, digest, memory_mib << 20)
    for number, stream in enumerate(token_streams):
        try:
            builder.add(np.asarray(stream, dtype=np.int64))
        except (ArenaError, OverflowError) as error:
            raise ArenaError(f"stream {number}: {error}") from error
    builder.finish()


def merge_ngrams(paths: Sequence[str | Path], path: str | Path) -> None:
    """Write the sum of several files of one order (and, where known, one tokenizer)."""
    path = _output(path)
    if choose_backend(None) == "native":
        native().merge_ngrams([str(each) for each in paths], str(path))
    else:
        ngram_twin.write(ngram_twin.merge([ngram_twin.read(each) for each in paths]), path)


def reduce_ngram(path_in: str | Path, threshold: int, path_out: str | Path) -> None:
    """Drop n-grams counted less than ``threshold`` times, as the published ``reduce`` does.

    An n-gram stays if its count reaches ``threshold`` and all its prefixes stay; the count of every
    topmost dropped n-gram is taken off all n-grams above it. So kept counts can end at 0, and the
    root's total, which starts at 0, ends at minus what was dropped.
    """
    path_out = _output(path_out)
    if choose_backend(None) == "native":
        native().reduce_ngram(str(path_in), threshold, str(path_out))
    else:
        ngram_twin.write(ngram_twin.reduce(ngram_twin.read(path_in), threshold), path_out)


def open_published(
    path: str | Path,
    *,
    cache: str | Path,
    vocab_size: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> NgramModel:
    """Open an ``.ngram`` file, or a ``.trie`` by way of its conversion in the ``cache`` folder.

    The conversion is made once per file (by path, size and date) however many processes ask; one
    makes it, in parts that outlast an interruption, the others wait. ``progress`` takes lines that
    say what it needs and how far it is.
    """
    converted = converted_path(path, cache=cache, vocab_size=vocab_size)
    if converted == Path(path):
        return NgramModel.open(converted)
    try:
        if converted.exists():
            try:
                return NgramModel.open(converted)
            except ArenaError as error:  # it is ours to make again
                if progress:
                    progress(f"{error}: it is made again")
                converted.unlink(missing_ok=True)
        converted.parent.mkdir(parents=True, exist_ok=True)
        import_trie(path, converted, vocab_size, once=True, note=progress)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ArenaError(
            f"the conversion of the n-gram cannot be written to {converted.parent} "
            f"({error.strerror}): set DART_ARENA_CACHE to a folder of yours"
        ) from error
    return NgramModel.open(converted)


def converted_path(path: str | Path, *, cache: str | Path, vocab_size: int | None = None) -> Path:
    """The file that ``open_published`` opens: ``path`` itself, or where the conversion of a
    ``.trie`` is kept once it is made.
    """
    path = Path(path)
    if path.suffix != ".trie":
        return path
    status = path.stat()
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{vocab_size}"
    name = f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.ngram"
    return Path(cache) / "ngram" / name


def inspect_ngram(path: str | Path, *, verify: bool = False) -> dict:
    """What a file holds. ``verify`` walks all of it, which finds damage anywhere in its structure,
    and adds ``canonical_sha256``.
    """
    with NgramModel.open(path) as model:
        size, nodes = os.path.getsize(path), sum(model.entries) + 1
        facts = {
            "path": str(path),
            "order": model.order,
            "vocab_size": model.vocab_size,
            "root_total": model.root_total,
            "ngrams": dict(enumerate(model.entries, 1)),
            "nodes": nodes,
            "file_bytes": size,
            "bytes_per_node": round(size / nodes, 2),
            "tokenizer_fingerprint": model.fingerprint,
        }
    if verify:
        facts["canonical_sha256"] = canonical_sha256(path)
    return facts


def canonical_sha256(path: str | Path) -> str:
    """Hash of the contents, whatever the file looked like: sha256 of the lines "t1,t2,..:count",
    one per n-gram in ascending order, the root's total first with no token.

    Takes an ``.ngram`` or (in memory, by the Python twin) a ``.trie``: equal hashes mean that a
    conversion lost nothing. Raises ArenaError for a damaged file.
    """
    if Path(path).suffix == ".trie":
        chunks = _canonical_lines(sorted(ngram_twin.read_trie(path).counts.items()))
    elif choose_backend(None) == "native":
        chunks = native().CanonicalText(native().Trie(str(path)))
    else:
        chunks = _canonical_lines(ngram_twin.TwinTrie(str(path)).paths())
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of a tokenizer's vocabulary: files made with one tokenizer say nothing to another."""
    pairs = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=True).encode()).hexdigest()


def _canonical_lines(items: Iterable[tuple[tuple[int, ...], int]]) -> Iterator[bytes]:
    for path, count in items:
        yield f"{','.join(map(str, path))}:{count}\n".encode()


def _output(path: str | Path) -> Path:
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} for the output file does not exist")
    return path
