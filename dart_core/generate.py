"""THE generation loop: prefill, propose, verify, accept, commit. Every engine and every face goes
through it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from dart_core.budget import Sizes, sizes_for
from dart_core.cache import KVCache
from dart_core.drafters import Drafter, DraftRun, DraftSettings, Proposal
from dart_core.errors import ArenaError, check_number
from dart_core.sampling import Sampler, SamplingParams
from dart_core.step import SizeChoice, StageSeconds, Step
from dart_core.target import Target
from dart_core.tree import DraftTree
from dart_core.verify_cost import measure_verify


def check_limits(max_new_tokens: int, max_length: int) -> None:
    """Raises ArenaError for limits under which no run can emit a token, whatever its prompt."""
    for value, what, low in (
        (max_new_tokens, "max new tokens", 1),
        (max_length, "max length", 2),
    ):
        check_number(value, what, whole=True)
        if value < low:
            raise ArenaError(f"{what} {value} is below {low}; ask for at least one token")


def token_budget(prompt_length: int, max_new_tokens: int, max_length: int) -> int:
    """New tokens a run may emit: ``max_length`` counts committed tokens, the prompt included, alike
    for every engine.

    Raises ArenaError where no token could be emitted, and for what is no whole number.
    """
    check_limits(max_new_tokens, max_length)
    if prompt_length == 0:
        raise ArenaError("the prompt is empty: give at least one token")
    if prompt_length >= max_length:
        raise ArenaError(
            f"the prompt has {prompt_length} tokens and max length is {max_length}, prompt "
            "included: shorten the prompt or raise --max-length"
        )
    return min(max_new_tokens, max_length - prompt_length)


def prompt_tensor(prompt_ids: Sequence[int]) -> torch.Tensor:
    """One prompt's ids as int64 [n]. Raises ArenaError for a batch or for what are no ids."""
    prompt = prompt_ids.tolist() if hasattr(prompt_ids, "tolist") else prompt_ids
    if isinstance(prompt, str) or not isinstance(prompt, Iterable):
        raise ArenaError(
            f"a prompt is a list of token ids, whole numbers; got {prompt!r:.60}: "
            "Engine.chat_ids makes one of messages"
        )
    prompt = list(prompt)
    if any(isinstance(entry, Sequence) and not isinstance(entry, str) for entry in prompt):
        raise ArenaError(
            f"got a batch of {len(prompt)} prompts, but a run takes one (batch size 1), a flat "
            "list of token ids: run them one after the other, or give a prompt file"
        )
    if not all(isinstance(entry, (int, np.integer)) for entry in prompt):
        raise ArenaError(f"a prompt is a list of token ids, whole numbers; got {prompt[:4]!r}")
    try:
        return torch.tensor(prompt, dtype=torch.int64)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise ArenaError(
            f"prompt token {max(prompt, key=abs)} is no token id: too large"
        ) from error


def token_set(ids: Iterable[int], what: str = "end-of-sequence ids") -> frozenset[int]:
    """Token ids as a set. Raises ArenaError for what are none."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ArenaError(f"{what} come as a set or list of ints, like {{2}}; got {ids!r:.60}")
    ids = list(ids)
    for token in ids:
        check_number(token, f"each of the {what}", whole=True)
    return frozenset(map(int, ids))


def generate(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    *,
    sampling: SamplingParams = SamplingParams(),
    max_new_tokens: int = 512,
    max_length: int = 2048,
    eos_token_ids: Iterable[int] = frozenset(),
    settings: DraftSettings = DraftSettings(),
    sizes: Sizes | None = None,
    stop_check: Callable[[int], bool] | None = None,
) -> Generator[Step, None, None]:
    """Generate after ``prompt_ids``, one Step at a time; the output is the target's own, whatever
    the drafter.

    eos_token_ids: generation ends with the first of these, which is emitted. stop_check: called
    once with every emitted token, in order; true ends generation with that token. sizes: says how
    large each tree is; None: as ``settings`` ask for it. An unset seed is drawn here. Raises
    ArenaError (on the first ``next``) for a prompt that does not fit or a token outside the
    vocabulary. Closing the generator frees the run's caches at once.
    """
    prompt, eos_token_ids = prompt_tensor(prompt_ids), token_set(eos_token_ids)
    budget = token_budget(len(prompt), max_new_tokens, max_length)
    outside = (prompt < 0) | (prompt >= target.vocab_size)
    if outside.any():
        wrong = int(prompt[outside][0])
        raise ArenaError(
            f"prompt token {wrong} is outside the target's vocabulary of {target.vocab_size}: "
            "was the prompt made with another tokenizer?"
        )
    if not sampling.greedy and sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbelow(2**31))
    # Committed rows never exceed prompt + budget; a verify pass first writes its tree behind them.
    capacity = len(prompt) + budget
    if sizes is None:
        sizes = sizes_for(drafter, settings, lambda: measure_verify(target, drafter.taps))
    with (
        closing(target.new_cache(capacity + settings.tree_budget + 1)) as cache,
        closing(drafter.begin(prompt, capacity, settings, eos_token_ids)) as draft,
    ):
        loop = _Loop(
            target, drafter.taps, draft, sizes, cache, sampling, eos_token_ids, stop_check, budget
        )
        step = loop.prefill(prompt)
        yield step
        while step.finish_reason is None:
            step = loop.verify()
            yield step


class _Loop:
    """The state of one run, and its two kinds of step.

    inference_mode is entered inside each step, never around a yield, where it would leak into the
    consumer.
    """

    def __init__(
        self,
        target: Target,
        taps: Sequence[int],
        draft: DraftRun,
        sizes: Sizes,
        cache: KVCache,
        sampling: SamplingParams,
        eos_token_ids: frozenset[int],
        stop_check: Callable[[int], bool] | None,
        budget: int,
    ) -> None:
        self.target, self.taps, self.draft, self.cache = target, taps, draft, cache
        self.sizes = sizes
        self.sampler = Sampler(sampling)
        self.seed = None if sampling.greedy else sampling.seed
        self.eos_token_ids, self.stop_check = eos_token_ids, stop_check
        self.remaining = budget
        self.index = 0
        self.to_keep: tuple[list[int], torch.Tensor] | None = None  # accepted, not yet in the cache

    @torch.inference_mode()
    def prefill(self, prompt: torch.Tensor) -> Step:
        start = perf_counter()
        output = self.target.prefill(prompt, self.cache, taps=self.taps)
        token = self.sampler.draw(output.logits[0], len(prompt))
        verified = perf_counter()
        emitted, reason = self._cut([token])
        if reason is None:
            self.draft.observe(output.hidden, torch.cat([prompt[1:], torch.tensor([token])]))
        return self._step(
            kind="prefill",
            tokens=emitted,
            accepted=0,
            tree=None,
            path=(),
            bonus=token,
            proposal=None,
            verify_seconds=verified - start,
            start=start,
            reason=reason,
        )

    @torch.inference_mode()
    def verify(self) -> Step:
        with self.target.step_cores(self.cache):
            return self._verify()

    def _verify(self) -> Step:
        start = perf_counter()
        proposal, choice = self._propose()
        tree = proposal.tree
        proposed = perf_counter()
        depths = tree.depths()
        root_position = (
            self.cache.length
        )  # the root is committed, but its row is not in the cache yet
        output = self.target.verify(tree, self.cache, taps=self.taps)
        path, bonus = tree.accept(self.sampler.drawer(output.logits, root_position, depths))
        verified = perf_counter()
        drafts = tree.tokens[path[1:]].tolist()
        emitted, reason = self._cut([*drafts, bonus])
        if reason is None:
            index = torch.tensor(path).to(output.logits.device, non_blocking=True)
            self.to_keep = path, index
            hidden = None
            if output.hidden is not None:
                hidden = output.hidden[index.to(output.hidden.device)]
            self.draft.observe(hidden, torch.tensor([*drafts, bonus]))
            rest = perf_counter() - verified + proposed - start
            rest -= proposal.draft_seconds + proposal.search_seconds
            self.sizes.learn(emitted, len(tree), verified - proposed, rest)
        return self._step(
            kind="verify",
            tokens=emitted,
            accepted=min(len(drafts), len(emitted)),
            tree=tree,
            path=tuple(path),
            bonus=bonus,
            proposal=proposal,
            verify_seconds=verified - proposed,
            start=start,
            reason=reason,
            choice=choice,
        )

    def _propose(self) -> tuple[Proposal, SizeChoice | None]:
        """The tree to verify, and why it has its size."""
        limit = self.sizes.limit()
        if limit == 0:
            self._keep()
            return Proposal(DraftTree.root_only(self.last), 0.0, 0.0, "none"), SizeChoice(0, 1, 1)
        proposal = self.draft.propose(limit, self._keep)
        self._keep()
        kept, choice = self.sizes.choose(proposal)
        if kept is not None and len(kept) < len(proposal.tree):
            proposal = proposal.cut_to(kept)
        return proposal, choice

    def _keep(self) -> None:
        """Commit the last step's rows in the cache: as late as it can be, for the next tree is
        drafted without it, see ``DraftRun.propose``.
        """
        if self.to_keep is not None:
            self.cache.keep(*self.to_keep)
            self.to_keep = None

    def _cut(self, tokens: list[int]) -> tuple[tuple[int, ...], str | None]:
        """What may be emitted of these tokens, and why generation ends there, if it does."""
        for count, token in enumerate(tokens, 1):
            stopped = self.stop_check is not None and self.stop_check(token)
            if stopped or token in self.eos_token_ids:
                return tuple(tokens[:count]), "stop"
            if count == self.remaining:
                return tuple(tokens[:count]), "length"
        self.remaining -= len(tokens)
        return tuple(tokens), None

    def _step(
        self,
        *,
        kind: str,
        tokens: tuple[int, ...],
        accepted: int,
        tree: DraftTree | None,
        path: tuple[int, ...],
        bonus: int,
        proposal: Proposal | None,
        verify_seconds: float,
        start: float,
        reason: str | None,
        choice: SizeChoice | None = None,
    ) -> Step:
        self.last = bonus
        draft = proposal.draft_seconds if proposal else 0.0
        search = proposal.search_seconds if proposal else 0.0
        rest = perf_counter() - start - verify_seconds - draft - search
        step = Step(
            index=self.index,
            kind=kind,
            tokens=tokens,
            drafted=tree.drafted if tree else 0,
            accepted=accepted,
            tree=tree,
            path=path,
            bonus=bonus,
            seconds=StageSeconds(draft, search, verify_seconds, max(rest, 0.0)),
            backend=proposal.backend if proposal else "none",
            candidates=proposal.candidates if proposal else None,
            finish_reason=reason,
            seed=self.seed,
            choice=choice,
        )
        self.index += 1
        return step
