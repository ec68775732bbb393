"""Tree sizes chosen by cost and acceptance: both are injected here, and the sizes must follow."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from models import autoregressive, head_config, output, random_head, run, tiny_target

from dart_core.acceptance import Acceptance
from dart_core.budget import ChosenSizes, best_first, recorded_sizes, sizes_for
from dart_core.drafters import DraftSettings, Proposal
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head
from dart_core.metrics import chosen_sizes, sizes_in_words
from dart_core.ngram import NgramModel, build_ngram
from dart_core.sampling import SamplingParams
from dart_core.tree import DraftTree
from dart_core.verify_cost import ROWS, VerifyCost, measure_verify

CAP = 60
FLAT = VerifyCost([1, 64], [0.02, 0.0201])
STEEP = VerifyCost([1, 2, 64], [0.02, 0.2, 2.0])
CHEAP_TO_8 = VerifyCost([1, 9, 10, 64], [0.02, 0.0201, 0.2, 2.0])


class Text:
    """A text, and drafts of it: trees of four children a node, whose first child is the text's own
    token with probability ``right``, and is scored so unless ``told`` says otherwise.
    """

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.position = 0

    def token(self, place: int) -> int:
        return 10 * place

    def tree(self, limit: int, right: float, told: float | None = None) -> DraftTree:
        tokens, parents, scores = [self.token(self.position)], [-1], [0.0]
        told = right if told is None else told
        chances = np.array([told, *[(1 - told) / 9] * 3])
        pool, kept = [(0.0, 0, 0, True)], []  # score, node, depth, whether it is the text's
        while pool and len(kept) < limit:
            best = max(range(len(pool)), key=lambda at: pool[at][0])
            score, node, depth, true = pool.pop(best)
            if node or depth:
                kept.append(node)
            if depth == 8:
                continue
            hit = true and self.rng.random() < right
            for child, chance in enumerate(chances):
                tokens.append(
                    self.token(self.position + depth + 1) + (0 if hit and child == 0 else 1 + child)
                )
                parents.append(node)
                scores.append(score + float(np.log(chance)))
                pool.append((scores[-1], len(tokens) - 1, depth + 1, hit and child == 0))
        tree = DraftTree.of(tokens, parents, scores)
        return tree.cut_to(np.sort(np.array([0, *kept])))


def play(sizes, cost, steps, right, *, draft=lambda limit: 0.001, told=None, seed=0):
    """Let ``sizes`` decide over ``steps`` steps: (asked, verified, emitted) of each.

    cost: a VerifyCost, or a function of the step. right: likewise a number or a function.
    """
    text, played = Text(seed), []
    for step in range(steps):
        now = right(step) if callable(right) else right
        curve = (cost(step) if callable(cost) else cost).curve(CAP + 1)
        asked, kept, path = sizes.limit(), np.array([0]), [0]
        if asked:
            tree = text.tree(asked, now, told)
            kept, choice = sizes.choose(Proposal(tree, draft(asked), 0.0, "native"))
            assert choice.asked == asked
            tree = tree.cut_to(kept)
            path, _ = tree.accept(
                lambda node, tree=tree: text.token(text.position + tree.depths()[node] + 1)
            )
        tokens = [text.token(text.position + 1 + i) for i in range(len(path))]
        text.position += len(path)
        sizes.learn(tokens, len(kept), float(curve[len(kept) - 1]), 0.0001)
        played.append((asked, len(kept) - 1, len(tokens)))
    return played


def chosen(cost=FLAT, most=CAP, recorded=()) -> ChosenSizes:
    return ChosenSizes(cost, most, recorded)


def mean_size(played) -> float:
    return float(np.mean([verified for _, verified, _ in played]))


# The sizes follow the cost
# ---------------------------------------------------------------------------


def test_where_size_costs_nothing_trees_are_as_large_as_allowed():
    played = play(chosen(FLAT), FLAT, 40, 0.7)
    assert mean_size(played[8:]) > 0.9 * CAP
    assert max(verified for _, verified, _ in played) == CAP


def test_where_a_second_row_costs_ten_plain_steps_nothing_is_verified():
    played = play(chosen(STEEP), STEEP, 200, 0.7)
    assert {verified for _, verified, _ in played} == {0}
    asked = [step for step, (limit, _, _) in enumerate(played) if limit]
    assert len(asked) < 15  # it hardly drafts, either
    assert asked[-1] > 60  # but it goes on trying


def test_sizes_stop_where_the_cost_rises():
    played = play(chosen(CHEAP_TO_8), CHEAP_TO_8, 40, 0.7)
    assert Counter(verified for _, verified, _ in played).most_common(1)[0][0] == 8
    assert max(verified for _, verified, _ in played) == 8


def test_a_wrong_calibration_is_mended_by_what_passes_take():
    played = play(chosen(FLAT), CHEAP_TO_8, 400, 0.7)
    assert 6 <= mean_size(played[-60:]) <= 10


def test_a_larger_cost_of_everything_changes_no_size():
    slower = VerifyCost(CHEAP_TO_8.rows, 30 * CHEAP_TO_8.seconds)
    sizes = [[v for _, v, _ in play(chosen(cost), cost, 60, 0.7, draft=lambda n: 0.0)]
             for cost in (CHEAP_TO_8, slower)]  # fmt: skip
    assert sizes[0] == sizes[1]


# ... and the acceptance
# ---------------------------------------------------------------------------

LINE = VerifyCost([1, 64], [0.02, 0.02 * (1 + 63 * 0.1)])  # a row costs a tenth of a pass


def test_text_that_is_easier_to_foresee_gets_larger_trees():
    sizes = [mean_size(play(chosen(LINE), LINE, 80, right)) for right in (0.3, 0.6, 0.9)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_sizes_follow_a_text_that_turns_easy_and_hard_again():
    played = play(chosen(LINE), LINE, 360, lambda step: 0.9 if 120 <= step < 240 else 0.2)
    hard, easy, again = played[60:120], played[180:240], played[300:]
    assert mean_size(easy) > 2 * mean_size(hard)
    assert mean_size(easy) > 2 * mean_size(again)


def test_a_head_that_overrates_itself_is_found_out():
    """Scores promise nine right tokens in ten; one in twenty is."""
    played = play(chosen(LINE), LINE, 300, 0.05, told=0.9)
    assert mean_size(played[-100:]) < 0.5
    honest = play(chosen(LINE), LINE, 300, 0.9)
    assert mean_size(honest[-100:]) > 4


def test_where_drafting_does_not_pay_it_rests_and_comes_back():
    played = play(chosen(LINE), LINE, 400, lambda step: 0.02 if step < 200 else 0.9,
                  draft=lambda limit: 0.03, told=0.9)  # fmt: skip
    hopeless, mended = played[40:200], played[-60:]
    assert np.mean([asked == 0 for asked, _, _ in hopeless]) > 0.7
    assert np.mean([asked == 0 for asked, _, _ in mended]) < 0.2
    assert mean_size(mended) > 2


def test_speed_is_that_of_the_best_fixed_size_or_better():
    for cost in (FLAT, LINE, CHEAP_TO_8, STEEP):
        for right in (0.3, 0.9):
            speeds = {}
            for name in (0, 8, 16, 32, CAP, "auto"):
                sizes = chosen(cost, recorded=() if name == "auto" else [(name, name)] * 120)
                played = play(sizes, cost, 120, right)
                curve = cost.curve(CAP + 1)
                seconds = sum(curve[size] + 0.001 * (asked > 0) for asked, size, _ in played)
                speeds[name] = sum(emitted for _, _, emitted in played) / seconds
            assert speeds["auto"] > 0.96 * max(speeds.values()), (right, speeds)


def test_fewer_drafts_are_asked_for_only_where_that_saves_time():
    cheap = VerifyCost([1, 9, 10, 64], [0.02, 0.0201, 0.2, 2.0])
    slow = play(chosen(cheap), cheap, 80, 0.7, draft=lambda limit: 0.0005 * limit)
    assert all(8 <= asked <= 16 for asked, _, _ in slow[30:])
    flat = play(chosen(FLAT), FLAT, 80, 0.7, draft=lambda limit: 0.001)
    assert np.mean([asked for asked, _, _ in flat[20:]]) > 0.8 * CAP


# Cost and acceptance themselves
# ---------------------------------------------------------------------------


def test_a_cost_is_a_line_between_sizes_and_goes_on_beyond():
    cost = VerifyCost([1, 5, 9], [0.010, 0.014, 0.026])
    assert cost.curve(5).tolist() == pytest.approx([0.010, 0.011, 0.012, 0.013, 0.014])
    assert cost.curve(17)[-1] == pytest.approx(0.026 + 8 * 0.002)


def test_an_interrupted_measurement_does_not_make_larger_sizes_dear():
    assert VerifyCost([1, 2, 4], [0.01, 0.9, 0.012]).curve(2)[1] == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [([], []), ([2, 4], [1, 2]), ([1, 1], [1, 2]), ([1, 2], [1]), ([1], [0.0]), ([1], [np.nan])],
)
def test_what_is_no_cost_is_refused(rows, seconds):
    with pytest.raises(ArenaError, match="rows from 1 upwards"):
        VerifyCost(rows, seconds)


def test_a_cost_is_measured_for_every_size_and_leaves_no_cache_behind():
    target = tiny_target("qwen3")
    cost = measure_verify(target, taps=(1, 2))
    assert cost.rows.tolist() == list(ROWS)
    assert (cost.seconds > 0).all()
    assert (np.diff(cost.curve(80)) >= 0).all()


def test_an_engine_measures_once_and_only_where_it_is_asked_to():
    target = tiny_target("llama")
    engine = Engine(target, None, {"dart": DartDrafter(dart_head(target), {}, target.embed)})
    plain = GenerationSettings(max_new_tokens=4, ignore_eos=True)
    list(engine.stream([1, 2], "dart", plain))
    assert engine._verify_cost is None
    auto = GenerationSettings(
        max_new_tokens=4, ignore_eos=True, draft=DraftSettings(auto_budget=True)
    )
    list(engine.stream([1, 2], "ar", auto))
    assert engine._verify_cost is None
    list(engine.stream([1, 2], "dart", auto))
    measured = engine._verify_cost
    before = measured.seconds.copy()
    list(engine.stream([1, 2], "dart", auto))
    assert engine.verify_cost is measured
    assert (measured.seconds == before).all()  # a run follows a copy of its own


def test_a_run_knows_what_the_one_before_it_found_out_about_drafting():
    def slow(limit: int) -> float:
        return 0.0005 * limit

    first = chosen(CHEAP_TO_8)
    play(first, CHEAP_TO_8, 60, 0.7, draft=slow)
    settings = DraftSettings(auto_budget=True)
    second = sizes_for(None, settings, lambda: CHEAP_TO_8, before=first)
    assert all(asked <= 16 for asked, _, _ in play(second, CHEAP_TO_8, 10, 0.7, draft=slow))
    other = sizes_for(None, DraftSettings(40, True), lambda: CHEAP_TO_8, before=first)
    assert other.limit() == 40  # another most: what was found out does not fit


def test_before_anything_is_known_a_score_is_a_log_probability():
    tree = DraftTree.of([1, 2, 3, 4], [-1, 0, 1, 0], np.log([1.0, 0.5, 0.25, 0.125]))
    assert Acceptance().chances(tree).tolist() == pytest.approx([1.0, 0.5, 0.25, 0.125])


def test_the_text_shows_what_became_of_nodes_that_were_not_verified():
    acceptance, tree = Acceptance(), DraftTree.of([0, 1, 2], [-1, 0, 1], [0.0, -1.1, -3.1])
    for _ in range(200):
        acceptance.drafted(tree)
        acceptance.committed([1])  # a step that verified nothing
        acceptance.committed([2, 7])
    assert acceptance.chances(tree)[1] > 0.8
    assert acceptance.chances(tree)[2] > 0.2  # believed: 0.05
    for _ in range(200):
        acceptance.drafted(tree)
        acceptance.committed([5])
    assert acceptance.chances(tree)[1:].max() < 0.1


def test_copied_nodes_are_judged_by_themselves_and_stand_where_their_chance_puts_them():
    scores = [0.0, -0.2, -1.5, np.nan, np.nan]
    tree = DraftTree.of([0, 1, 2, 3, 4], [-1, 0, 0, 1, 3], scores)
    acceptance = Acceptance()
    before = acceptance.chances(tree)
    assert before[1] > before[3] > before[4]
    for _ in range(200):
        acceptance.drafted(tree)
        acceptance.committed([1, 3, 4, 9])
    right = acceptance.chances(tree)
    assert right[3] > 0.6 and right[4] > 0.6
    assert best_first(tree, right).tolist() == [0, 1, 3, 4, 2]
    for _ in range(400):
        acceptance.drafted(tree)
        acceptance.committed([1, 8])
    assert acceptance.chances(tree)[3] < 0.15
    assert best_first(tree, acceptance.chances(tree)).tolist() == [0, 1, 2, 3, 4]


# Trees and runs
# ---------------------------------------------------------------------------


def dart_head(target):
    return random_head(DartHead, head_config(target, draft_length=7, draft_vocab_size=64), 3)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A target and its drafters by name."""
    target = tiny_target("llama", num_hidden_layers=4, vocab_size=128)
    streams = [autoregressive(target, [t, t + 1], max_new_tokens=60) for t in range(1, 20, 3)]
    path = tmp_path_factory.mktemp("ngram") / "ngram"
    build_ngram(streams, 3, target.vocab_size, path)
    eagle3 = random_head(Eagle3Head, head_config(target, draft_length=None, draft_vocab_size=64), 3)
    return target, {
        "dart": DartDrafter(dart_head(target), {"full": NgramModel.open(path)}, target.embed),
        "eagle3": Eagle3Drafter(eagle3, target.embed),
    }


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_the_best_nodes_of_a_large_tree_are_the_small_tree(parts, name):
    target, drafters = parts
    prompt = torch.tensor([5, 9, 2, 77])
    output = target.prefill(prompt, target.new_cache(8), taps=drafters[name].taps)

    def propose(budget: int, limit: int | None = None) -> Proposal:
        settings = DraftSettings(tree_budget=budget, candidates=True)
        drafted = drafters[name].begin(prompt, 64, settings, frozenset())
        drafted.observe(output.hidden, torch.tensor([9, 2, 77, 30]))
        return drafted.propose(limit)

    with torch.inference_mode():
        large = propose(CAP)
        for count in (0, 1, 2, 7, 16, 33, 59):
            order = best_first(large.tree, np.ones(len(large.tree)))
            cut = large.cut_to(np.sort(order[: count + 1]))
            assert cut.tree.drafted == count
            pool = cut.candidates
            inside = pool.node >= 0
            assert inside.sum() == count
            assert (cut.tree.tokens[pool.node[inside]] == pool.tokens[inside]).all()
            if count:
                for small in (propose(count).tree, propose(CAP, count).tree):
                    assert cut.tree.tokens.tolist() == small.tokens.tolist()
                    assert cut.tree.parents.tolist() == small.parents.tolist()
                    assert cut.tree.scores.tolist() == small.scores.tolist()


SAMPLED = SamplingParams(temperature=0.8, top_k=20, seed=11)


@pytest.mark.parametrize("lookup", [0, 6])
@pytest.mark.parametrize(
    ("cost", "sampling"),
    [(FLAT, SamplingParams()), (LINE, SAMPLED), (STEEP, SamplingParams())],
    ids=["flat", "line-sampled", "steep"],
)
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_chosen_sizes_change_no_text_and_recorded_ones_repeat_the_run(
    parts, name, cost, lookup, sampling
):
    target, drafters = parts
    prompt, options = [3, 1, 4, 1, 5], {"max_new_tokens": 60, "sampling": sampling}
    expected = autoregressive(target, prompt, **options)
    settings = DraftSettings(tree_budget=24, auto_budget=True, prompt_lookup=lookup)
    chooser = sizes_for(drafters[name], settings, lambda: cost)
    steps = run(target, drafters[name], prompt, settings=settings, sizes=chooser, **options)
    assert output(steps) == expected
    assert all(step.choice for step in steps[1:])
    assert all(step.drafted <= 24 for step in steps)
    sizes = recorded_sizes(steps)
    assert len(sizes) == len(steps) - 1
    sizes = tuple(map(tuple, json.loads(json.dumps(sizes))))
    again = DraftSettings(tree_budget=24, auto_budget=True, prompt_lookup=lookup, sizes=sizes)
    other = FLAT if cost is STEEP else STEEP  # what would be chosen without them
    chooser = sizes_for(drafters[name], again, lambda: other)
    repeated = run(target, drafters[name], prompt, settings=again, sizes=chooser, **options)
    assert recorded_sizes(repeated) == sizes
    for step, twin in zip(steps[1:], repeated[1:], strict=True):
        assert twin.tokens == step.tokens
        assert twin.tree.tokens.tolist() == step.tree.tokens.tolist()
        assert twin.tree.parents.tolist() == step.tree.parents.tolist()
        assert (twin.path, twin.choice.asked) == (step.path, step.choice.asked)


def test_plain_decoding_chooses_nothing(parts):
    target, _ = parts
    from dart_core.drafters.autoregressive import AutoregressiveDrafter

    settings = DraftSettings(auto_budget=True)
    steps = run(target, AutoregressiveDrafter(), [1, 2], settings=settings, max_new_tokens=5)
    assert all(step.choice is None for step in steps)
    assert chosen_sizes(steps) is None


@pytest.mark.parametrize(
    "sizes",
    [((8, 9),), ((61, 2),), ((3,),), ((4, -1),), ((2, 2), (1, 2)), (4, 4), (("4", 4),)],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(ArenaError, match=r"sizes\[\d\]"):
        DraftSettings(auto_budget=True, sizes=sizes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": ((8, 8),)}, "give auto_budget=True with them"),
        ({"sizes": 4, "auto_budget": True}, "sizes must be a Sequence; got 4"),
        ({"tree_budget": "auto"}, "in Python that is auto_budget=True"),
        ({"auto_budget": "yes"}, "auto_budget must be True or False; got 'yes'"),
        ({"candidates": 1}, "candidates must be True or False; got 1"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(options, said):
    with pytest.raises(ArenaError, match=said):
        DraftSettings(**options)


def test_only_steps_have_sizes():
    with pytest.raises(ArenaError, match="a step of the run must be a Step; got 1"):
        recorded_sizes([1])
    with pytest.raises(ArenaError, match="the steps of the run must be a Sequence; got 5"):
        recorded_sizes(5)


def test_what_was_chosen_is_told_with_its_reasons(parts):
    target, drafters = parts
    settings = DraftSettings(auto_budget=True)
    steps = run(
        target, drafters["dart"], [1, 2], settings=settings, sizes=chosen(STEEP), max_new_tokens=60
    )
    sizes = chosen_sizes(steps)
    assert (sizes["steps"], sizes["mean"], sizes["largest"]) == (59, 0, 0)
    assert sizes["rested"] > 40
    assert sizes["emitted"] == sizes["cost"] == 1
    words = sizes_in_words(sizes)
    assert "0.0 drafts a step (0 to 0)" in words
    assert f"rested in {sizes['rested']} of 59 steps" in words
