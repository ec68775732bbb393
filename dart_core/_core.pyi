"""Native core; private to dart_core. See cpp/bindings.cpp and the headers beside it."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

INTERFACE: int
MAX_VOCAB_SIZE: int

class Trie:
    def __init__(self, path: str) -> None: ...
    @property
    def order(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def root_total(self) -> int: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def entries(self) -> list[int]: ...
    def prefetch(self) -> None: ...
    def query(
        self, context: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]: ...

class CanonicalText:
    def __init__(self, trie: Trie) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...

class NgramBuilder:
    def __init__(
        self, path: str, order: int, vocab_size: int, fingerprint: bytes, memory_bytes: int
    ) -> None: ...
    def add(self, tokens: NDArray[np.int64]) -> None: ...
    def finish(self) -> None: ...

def merge_ngrams(inputs: Sequence[str], output: str) -> None: ...
def reduce_ngram(input: str, threshold: int, output: str) -> None: ...

class TrieImport:
    def __init__(
        self,
        input: str,
        output: str,
        *,
        folder: str,
        identity: str,
        vocab_size: int,
        memory_bytes: int,
    ) -> None: ...
    def step(self) -> bool: ...
    @property
    def order(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def read(self) -> int: ...
    @property
    def merged(self) -> int: ...

class TreePruner:
    def __init__(
        self,
        trie: Trie | None,
        *,
        levels: int,
        beam: int,
        ngram_weight: float,
        level_weights: Sequence[float],
        logit_weights: Sequence[float],
        eos_tokens: Sequence[int],
    ) -> None: ...
    def search(
        self,
        tokens: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        counts: NDArray[np.int32],
        context: NDArray[np.int64],
        budget: int,
        out_tokens: NDArray[np.int64],
        out_parents: NDArray[np.int32],
        out_scores: NDArray[np.float32],
        out_probabilities: NDArray[np.float32],
        out_ngram: NDArray[np.float32],
        candidates: bool = False,
    ) -> (
        int
        | tuple[int, NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]
    ): ...

class RowMatrix:
    def __init__(self, weights: NDArray[np.float32]) -> None: ...
    @staticmethod
    def runs_here() -> bool: ...
    def multiply(self, inputs: int, rows: int, bias: int, outputs: int, threads: int) -> None: ...
    def unpack(self) -> NDArray[np.float32]: ...

def rms_norm(
    inputs: int, weight: int, epsilon: float, rows: int, size: int, outputs: int
) -> None: ...
