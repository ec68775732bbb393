"""Sampling: processed logits to a token, by noise keyed to the position of the token being drawn.

A token is drawn as the arg-max of processed logit + Gumbel noise, and the noise is a function of
(seed, absolute position, token id) alone. So the token a target draws at a position is the same
whether the position is reached by plain decoding or inside any draft tree: speculation cannot
change a sampled text, only its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dart_core.errors import ArenaError, check_number

# Temperatures below this are greedy, in every engine: dividing by less overflows half precision
# and changes nothing.
GREEDY_TEMPERATURE = 1e-5
MAX_SEED = 2**63 - 1

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's logits become tokens.

    temperature: 0 (or anything below GREEDY_TEMPERATURE) is greedy. top_k, top_p: applied in
    transformers' order, temperature -> top-k -> top-p. ``top_k=0`` is off; ``top_p`` of 0 or 1 is
    off (0 is how the published interface says "off"). seed: 0 .. 2^63 - 1, keys the noise; None
    draws one when the run starts, and the run reports it.

    Raises ArenaError for values outside these ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_number(self.temperature, "temperature")
        check_number(self.top_p, "top-p")
        check_number(self.top_k, "top-k", whole=True)
        if self.seed is not None:
            check_number(self.seed, "the seed", whole=True)
        if not 0.0 <= self.temperature <= 100.0:
            raise ArenaError(
                f"temperature {self.temperature} is outside 0 to 100; 0 is greedy, "
                "1 the model's own distribution"
            )
        if self.top_k < 0:
            raise ArenaError(f"top-k {self.top_k} is negative; use 0 to switch it off")
        if not 0.0 <= self.top_p <= 1.0:
            raise ArenaError(f"top-p {self.top_p} is outside 0 to 1; 0 or 1 switches it off")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ArenaError(f"seed {self.seed} is outside 0 to 2^63 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


def _signed(value: int) -> int:
    value &= _MASK64
    return value - 2**64 if value >= 2**63 else value


def _mix(value: int) -> int:
    """splitmix64's finaliser on a Python integer (Steele, Lea, Flood 2014)."""
    value &= _MASK64
    value = (value ^ (value >> 30)) * _MIX1 & _MASK64
    value = (value ^ (value >> 27)) * _MIX2 & _MASK64
    return value ^ (value >> 31)


def _shift_xor(value: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 shifts keep the sign in torch; the mask makes the shift the unsigned one.
    return value ^ ((value >> bits) & ((1 << (64 - bits)) - 1))


def gumbel_noise(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64 like ``tokens`` (int64), a pure function of (seed, position,
    token id).

    Counter-based: int64 arithmetic that wraps alike on CPU and GPU. The uniforms are (n + 1/2) /
    2^52, so they lie strictly inside (0, 1) and the noise is finite.
    """
    key = _mix(_mix(seed + _GOLDEN) + position * _GOLDEN)
    value = tokens * _signed(_GOLDEN) + _signed(key)
    value = _shift_xor(value, 30) * _signed(_MIX1)
    value = _shift_xor(value, 27) * _signed(_MIX2)
    value = _shift_xor(value, 31)
    uniform = (((value >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def process_logits(
    logits: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Temperature, then top-k, then top-p over one row of logits [V], as transformers' logits
    warpers do it.

    Returns the surviving scores (float32 [m], unnormalised log-probabilities) and their token ids
    (int64 [m]), or None for the ids when every token survived.
    """
    scores = logits.float() / params.temperature
    ids = None
    if 0 < params.top_k < len(scores):
        kth = torch.topk(scores, params.top_k).values[-1]
        ids = torch.nonzero(scores >= kth).squeeze(-1)  # ties with the k-th stay, as there
        scores = scores[ids]
    if 0.0 < params.top_p < 1.0:
        ordered, order = torch.sort(scores)
        keep = ordered.softmax(-1).cumsum(-1) > 1.0 - params.top_p
        keep[-1] = True
        order = order[keep].sort().values
        scores = scores[order]
        ids = order if ids is None else ids[order]
    return scores, ids


def greedy_tokens(logits: torch.Tensor) -> torch.Tensor:
    """The lowest id among the maxima of every row of [N, V] (``torch.argmax`` promises no order
    among equals).
    """
    if logits.device.type == "cpu":
        # numpy's argmax promises the first maximum
        known = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        return torch.from_numpy(known.numpy().argmax(axis=-1))
    return first_maxima(logits)


def first_maxima(logits: torch.Tensor) -> torch.Tensor:
    """``greedy_tokens`` on a device, V for a row whose maximum is not finite: so the host need not
    read the logits themselves.
    """
    best = logits.amax(dim=-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    found = (logits == best) & best.isfinite()
    return torch.where(found, ids, logits.shape[-1]).amin(dim=-1).long()


class Sampler:
    """Draws the target's tokens for one run; every engine of a comparison uses the same parameters
    and seed.
    """

    def __init__(self, params: SamplingParams):
        if not params.greedy and params.seed is None:
            raise ValueError("a sampling run needs its seed resolved first")
        self.params = params

    def draw(self, logits: torch.Tensor, position: int) -> int:
        """The token at ``position`` for one row of logits [V]."""
        if self.params.greedy:
            token = int(greedy_tokens(logits[None])[0])
            return self._checked(token, logits[None], 0, 0)
        assert self.params.seed is not None  # as __init__ saw to it
        scores, ids = process_logits(logits, self.params)
        tokens = torch.arange(len(scores), device=scores.device) if ids is None else ids
        race = scores.double() + gumbel_noise(self.params.seed, position, tokens)
        first = int(greedy_tokens(race[None])[0])  # ids ascend, so it is the lowest of equals
        self._checked(first, race[None], 0, position)
        return first if ids is None else int(ids[first])

    def drawer(
        self, logits: torch.Tensor, root_position: int, depths: Sequence[int] | np.ndarray
    ) -> Callable[[int], int]:
        """The target's draws over a verified tree: node -> token that follows it.

        logits [N, V] of the tree's nodes; the root stands at ``root_position``, a node of depth d
        draws the token at ``root_position + d + 1``. Greedy draws all nodes in one batch; sampling
        draws only the nodes the walk visits.
        """
        if self.params.greedy:
            tokens = greedy_tokens(logits).tolist()
            return lambda node: self._checked(tokens[node], logits, node, node)
        return lambda node: self.draw(logits[node], root_position + int(depths[node]) + 1)

    @staticmethod
    def _checked(token: int, logits: torch.Tensor, node: int, where: int) -> int:
        if token < logits.shape[-1] and (
            logits.device.type != "cpu" or torch.isfinite(logits[node, token])
        ):
            return token
        raise _not_finite(where)


def _not_finite(where: int) -> ArenaError:
    return ArenaError(
        f"the target's logits are not finite (row {where}): its weights are damaged or its "
        "dtype overflows; try --dtype bfloat16 or float32"
    )
