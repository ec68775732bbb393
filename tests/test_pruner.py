"""The tree pruner: recordings of the published search, exhaustive search, native against twin."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from golden_dart import DART, searches, tries

from dart_core._native import native
from dart_core.errors import ArenaError
from dart_core.ngram import NgramModel, build_ngram, import_trie, merge_ngrams, reduce_ngram
from dart_core.pruner import TreePruner
from dart_core.tree import Candidates, DraftTree

BACKENDS = ["native", "twin"]
FIELDS = ("tokens", "parents", "scores", "probabilities", "ngram")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for name in tries():
        import_trie(DART / "trie" / f"{name}.trie", folder / f"{name}.ngram")
    return folder


def pad(rows, dtype) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(int(tree.tokens[i]) for i in tree.path(node)) for node in range(len(tree))]


def check_tree(tree: DraftTree, root: int, budget: int) -> None:
    """What holds for any tree: rooted, closed, ordered by depth, within budget, scores falling."""
    assert tree.tokens[0] == root
    assert tree.parents[0] == -1
    assert tree.drafted <= budget
    assert (tree.parents[1:] >= 0).all()
    assert (tree.parents[1:] < np.arange(1, len(tree))).all()
    assert (np.diff(tree.depths()) >= 0).all()
    assert (tree.scores[1:] <= tree.scores[tree.parents[1:]]).all()
    dtypes = [getattr(tree, field).dtype for field in FIELDS]
    assert dtypes == [np.int64, np.int32, np.float32, np.float32, np.float32]


def assert_same(a, b, fields=FIELDS) -> None:
    for field in fields:
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)


# The published search


def golden_search(case: dict, folder, backend: str) -> tuple[DraftTree, Candidates]:
    model = NgramModel.open(folder / case["trie"].replace(".trie", ".ngram"), backend=backend)
    pruner = TreePruner(
        model,
        levels=case["draft_length"],
        beam=case["beam_width"],
        ngram_weight=case["ngram_weight"],
        eos_token_ids=[case["eos_token"]],
        level_weights=case["level_weights"],
        logit_weights=case["logit_weights"],
    )
    context = case["prompt_tokens"]
    return pruner.search(
        pad(case["topk_tokens"], np.int64),
        pad(case["topk_scores"], np.float32),
        context,
        context[-1],
        case["remain_total"],
        counts=[len(row) for row in case["topk_tokens"]],
        candidates=True,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", searches(), ids=lambda case: str(case["id"]))
def test_published_trees(case, backend, golden):
    tree, _ = golden_search(case, golden, backend)
    check_tree(tree, case["draft_tokens"][0], case["remain_total"])
    expected = {}  # path -> advisory score, the root's is none
    for row in case["retrieve_indices"]:
        row = [node for node in row if node >= 0]
        for end in range(1, len(row) + 1):
            path = tuple(case["draft_tokens"][node] for node in row[:end])
            expected[path] = [0.0, *case["advisory_node_scores"]][row[end - 1]]
            assert case["tree_position_ids"][row[end - 1]] == end - 1
    found = paths(tree)
    assert set(found) == set(expected)
    assert len(found) == len(expected)
    scores = [expected[path] for path in found]
    np.testing.assert_allclose(tree.scores, scores, rtol=1e-5, atol=1e-5)


def test_default_weights_are_the_published_ones(golden):
    cases = [case for case in searches() if "default_weights" in case["tags"]]
    assert cases
    for case in cases:
        model = NgramModel.open(golden / case["trie"].replace(".trie", ".ngram"))
        pruner = TreePruner(
            model,
            levels=case["draft_length"],
            beam=case["beam_width"],
            ngram_weight=case["ngram_weight"],
            eos_token_ids=[case["eos_token"]],
        )
        arrays = pad(case["topk_tokens"], np.int64), pad(case["topk_scores"], np.float32)
        context = case["prompt_tokens"]
        tree, _ = pruner.search(*arrays, context, context[-1], case["remain_total"])
        assert_same(tree, golden_search(case, golden, "native")[0])


# Every tree there is


@pytest.mark.parametrize("backend", BACKENDS)
def test_best_of_all_paths(backend, tmp_path):
    """With a beam that drops nothing, the tree is the best of all paths, scored here in doubles."""
    rng = np.random.default_rng(11)
    stream = rng.integers(0, 6, size=400)
    build_ngram([stream], 3, 6, tmp_path / "x.ngram")
    model = NgramModel.open(tmp_path / "x.ngram", backend=backend)
    text = "".join(chr(97 + token) for token in stream)

    def count(tokens) -> int:
        gram = "".join(chr(97 + token) for token in tokens)
        return sum(text.startswith(gram, at) for at in range(len(text)))

    def ngram(context, token) -> float:
        for length in (2, 1):
            if count([*context[-length:], token]):
                return count([*context[-length:], token]) / count(context[-length:])
        return 0.0

    levels, width, weight = 3, 4, 0.7
    for _ in range(8):
        tokens = np.array([rng.permutation(6)[:width] for _ in range(levels)])
        probabilities = np.sort(rng.dirichlet(np.ones(width), size=levels))[:, ::-1]
        context = [int(token) for token in rng.integers(0, 6, size=4)]
        scores = {}
        for depth in range(1, levels + 1):
            for ranks in itertools.product(range(width), repeat=depth):
                path, score = [], 0.0
                for level, rank in enumerate(ranks):
                    term = math.log(probabilities[level, rank] + 1e-10) * 0.9**level
                    if level > 0:
                        term += weight * math.log(
                            ngram([*context, *path], tokens[level, rank]) + 1e-10
                        )
                    score += (level + 1) ** -0.7 * term
                    path.append(int(tokens[level, rank]))
                scores[tuple(path)] = score
        ranked = sorted(scores, key=scores.get, reverse=True)
        for budget in (1, 5, 17, 40, 84, 300):
            pruner = TreePruner(model, levels=levels, beam=64, ngram_weight=weight)
            tree, _ = pruner.search(tokens, probabilities, context, context[-1], budget)
            check_tree(tree, context[-1], budget)
            found = {path[1:]: score for path, score in zip(paths(tree), tree.scores, strict=True)}
            assert set(found) - {()} == set(ranked[:budget])
            for path in ranked[:budget]:
                assert found[path] == pytest.approx(scores[path], rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ngram_weight", [0, 0.5])
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 59])
def test_ties_never_cut_a_node_from_its_parent(budget, ngram_weight, backend, golden):
    """Top-1 probability 1 and all others 0: every level's first child ties with its parent."""
    model = NgramModel.open(golden / "a_order3.ngram", backend=backend)
    pruner = TreePruner(model, levels=8, ngram_weight=ngram_weight)
    rng = np.random.default_rng(12)
    tokens = np.array([rng.permutation(512)[:25] for _ in range(8)])
    probabilities = np.zeros((8, 25), dtype=np.float32)
    probabilities[:, 0] = 1
    tree, _ = pruner.search(tokens, probabilities, [3, 4], 4, budget)
    check_tree(tree, 4, budget)
    assert tree.drafted == budget
    if ngram_weight == 0:  # the chain of certain tokens, as deep as the budget allows
        assert tree.depths().max() == min(budget, 8)
        assert (tree.scores[1:] == 0).sum() == min(budget, 8)
    with ThreadPoolExecutor(4) as pool:
        for other, _ in pool.map(
            lambda _: pruner.search(tokens, probabilities, [3, 4], 4, budget), range(16)
        ):
            assert_same(tree, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_scores_go_to_the_lower_level_then_rank_then_parent(backend):
    everything_ties = np.ones((3, 3), dtype=np.float32)
    tokens = np.array([[10, 11, 12], [20, 21, 22], [30, 31, 32]])
    pruner = TreePruner(None, levels=3, beam=2, backend=backend)
    tree, _ = pruner.search(tokens, everything_ties, [1], 1, 8)
    assert paths(tree) == [
        (1,),
        *((1, token) for token in (10, 11, 12)),
        (1, 10, 20),
        (1, 11, 20),
        (1, 10, 21),
        (1, 11, 21),
        (1, 10, 22),
    ]


# End of sequence


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_ends_the_sequence_is_expanded_only_where_there_is_room(backend):
    tokens = np.array([[9, 1, 2], [3, 4, 5]])
    probabilities = np.array([[0.8, 0.15, 0.05], [0.5, 0.3, 0.2]], dtype=np.float32)
    for beam, parents in ((1, {1}), (2, {1, 2}), (3, {9, 1, 2})):
        pruner = TreePruner(None, levels=2, beam=beam, eos_token_ids={9, 77}, backend=backend)
        tree, _ = pruner.search(tokens, probabilities, [6], 6, 100)
        assert {path[1] for path in paths(tree) if len(path) == 3} == parents
        assert (6, 9) in paths(tree)  # it is a candidate all the same
    only = TreePruner(None, levels=2, beam=2, eos_token_ids=[9, 1, 2], backend=backend)
    tree, _ = only.search(tokens, probabilities, [6], 6, 100)
    assert {path[1] for path in paths(tree) if len(path) == 3} == {9, 1}


# Native against twin


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """n-grams of orders 2 to 5; the last of each order has n-grams of count 0 and 0 / 0."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(13)
    files = []
    for order in (2, 3, 4, 5):
        for name in ("x", "y"):
            streams = [rng.integers(0, 14, size=n) ** 2 % 30 for n in (300, 40, 3)]
            build_ngram(streams, order, 30, folder / f"{name}{order}.ngram")
        both = [folder / f"{name}{order}.ngram" for name in ("x", "y")]
        merge_ngrams(both, folder / f"merged{order}.ngram")
        reduce_ngram(folder / f"merged{order}.ngram", 3, folder / f"reduced{order}.ngram")
        files += [folder / f"merged{order}.ngram", folder / f"reduced{order}.ngram"]
    opened = [{b: NgramModel.open(path, backend=b) for b in BACKENDS} for path in files]
    return [*opened, dict.fromkeys(BACKENDS)]


def draw_case(rng, models):
    """A random call; often small, tied, ragged or with numbers that are no probability."""
    levels, width = int(rng.integers(1, 10)), int(rng.integers(1, 34))
    beam, ending = int(rng.choice([1, 2, 5, 20, 40])), int(rng.integers(0, 12))
    if rng.random() < 0.4:  # narrow, and most tokens end the sequence: the beam is seldom full
        levels, width = int(rng.integers(4, 10)), int(rng.integers(2, 5))
        beam, ending = int(rng.integers(2, 7)), 25
    settings = {
        "levels": levels,
        "beam": beam,
        "ngram_weight": float(rng.choice([0, 0.25, 0.5, 1.3])),
        "eos_token_ids": rng.permutation(40)[:ending].tolist(),
    }
    if rng.random() < 0.3:
        settings["level_weights"] = rng.choice([0, 0.5, 1], size=levels).tolist()
        settings["logit_weights"] = rng.choice([0, 1, 2], size=levels).tolist()
    tokens = np.array([rng.permutation(40)[:width] for _ in range(levels)]) - 2
    probabilities = rng.dirichlet(np.full(width, rng.choice([0.05, 0.5, 5])), size=levels)
    kind = rng.random()
    if kind < 0.25:
        probabilities = rng.choice([0, 0.25, 0.5, 1], size=(levels, width))
    elif kind < 0.35:
        odd = [np.nan, np.inf, -np.inf, -1, 2, 1e-45, 0.5]
        probabilities = rng.choice(odd, size=(levels, width))
    elif kind < 0.8:
        probabilities = -np.sort(-probabilities, axis=1)
    counts = None
    if rng.random() < 0.3:
        counts = rng.integers(0 if rng.random() < 0.2 else 1, width + 1, size=levels)
    context = rng.integers(-2, 33, size=rng.integers(1, 9))
    budget = int(rng.choice([0, 1, 2, 3, 7, 16, 60, 150, 300]))
    model = models[rng.integers(len(models))]
    call = (tokens, probabilities.astype(np.float32), context, int(context[-1]), budget)
    return model, settings, call, counts


def test_native_search_is_the_twins(models):
    rng = np.random.default_rng(14)
    seen = {"unknown": 0, "nan": 0, "full": 0, "short": 0, "eos": 0}
    for _ in range(700):
        model, settings, call, counts = draw_case(rng, models)
        native, twin = (TreePruner(model[b], **settings, backend=b) for b in BACKENDS)
        assert (native.backend, twin.backend) == ("native", "twin")
        expected, expected_pool = twin.search(*call, counts=counts, candidates=True)
        tree, none = native.search(*call, counts=counts)
        assert none is None
        check_tree(tree, call[3], call[4])
        assert_same(tree, expected)
        # Asking for the pool scores everything: the tree must not depend on what is left out.
        tree, pool = native.search(*call, counts=counts, candidates=True)
        assert_same(tree, expected)
        assert_same(pool, expected_pool, ("tokens", "parents", "scores", "node"))
        if settings["ngram_weight"] and model["native"]:
            seen["unknown"] += int((tree.ngram == 0).sum())
            seen["nan"] += int(np.isnan(tree.ngram[tree.depths() > 1]).sum())
        seen["full" if tree.drafted == call[4] else "short"] += 1
        seen["eos"] += bool(np.isin(tree.tokens[tree.parents[1:]], settings["eos_token_ids"]).any())
    assert min(seen.values()) > 20, seen


def test_candidates_are_the_whole_pool(models):
    rng = np.random.default_rng(15)
    for _ in range(40):
        model, settings, call, counts = draw_case(rng, models)
        pruner = TreePruner(model["native"], **settings)
        tree, pool = pruner.search(*call, counts=counts, candidates=True)
        assert (pool.parents < np.arange(len(pool.parents))).all()
        kept = pool.node >= 0
        assert kept.sum() == tree.drafted
        order = pool.node[kept]
        assert sorted(order) == list(range(1, len(tree)))
        np.testing.assert_array_equal(pool.tokens[kept], tree.tokens[order])
        np.testing.assert_array_equal(pool.scores[kept], tree.scores[order])
        above = np.where(pool.parents < 0, 0, pool.node[pool.parents])
        np.testing.assert_array_equal(above[kept], tree.parents[order])
        if tree.drafted and not kept.all():
            assert pool.scores[~kept].max() <= tree.scores[1:].min()


# Calls


def test_a_tree_stays_as_it_was(models):
    rng = np.random.default_rng(16)
    pruner = TreePruner(models[2]["native"], levels=4)
    calls = []
    for _ in range(2):
        tokens = np.array([rng.permutation(30)[:10] for _ in range(4)])
        calls.append((tokens, rng.dirichlet(np.ones(10), size=4), [1, 2], 2, 20))
    first, pool = pruner.search(*calls[0], candidates=True)
    copies = [getattr(first, field).copy() for field in FIELDS], pool.scores.copy()
    pruner.search(*calls[1], candidates=True)
    for field, copy in zip(FIELDS, copies[0], strict=True):
        np.testing.assert_array_equal(getattr(first, field), copy)
    np.testing.assert_array_equal(pool.scores, copies[1])
    assert_same(first, pruner.search(*calls[0])[0])


def test_a_search_that_finds_nothing_tells_nothing_of_the_one_before(models):
    pruner = TreePruner(models[2]["native"], levels=2)
    tokens, probabilities = np.arange(6).reshape(2, 3), np.full((2, 3), 0.3, dtype=np.float32)
    tree, pool = pruner.search(tokens, probabilities, [7], 7, 5, candidates=True)
    assert (tree.drafted, len(pool.tokens)) == (5, 12)
    tree, pool = pruner.search(tokens, probabilities, [7], 7, 5, counts=[0, 3], candidates=True)
    assert (tree.drafted, len(pool.tokens)) == (0, 0)


def test_fewer_levels_than_made_for_and_arrays_of_other_kinds(models):
    pruner = TreePruner(models[2]["native"], levels=8)
    tokens = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    probabilities = np.array([[0.5, 0.3, 0.2]] * 3)
    tree, _ = pruner.search(tokens[:2], probabilities[:2], [7], 7, 5)
    for same in (
        (tokens.astype(np.int32)[:2], probabilities.astype(np.float32)[:2], (0, 7)),
        (tokens.T.copy().T[:2], np.asfortranarray(probabilities)[:2], np.array([7])),
        (tokens[:2].tolist(), probabilities[:2].tolist(), [7]),
    ):
        assert_same(pruner.search(same[0], same[1], same[2], 7, 5)[0], tree)
    assert len(pruner.search(tokens[:0], probabilities[:0], [7], 7, 5)[0]) == 1
    assert len(pruner.search(tokens[:, :0], probabilities[:, :0], [7], 7, 5)[0]) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_mistakes_are_named(backend, models):
    pruner = TreePruner(models[0][backend], levels=2, backend=backend)
    tokens, probabilities = np.ones((2, 3), dtype=np.int64), np.ones((2, 3), dtype=np.float32)
    for call, reason in (
        ((tokens, probabilities[:, :2], [1], 1, 5), r"\[levels, k\]"),
        ((tokens[0], probabilities[0], [1], 1, 5), r"\[levels, k\]"),
        ((np.ones((3, 3)), np.ones((3, 3)), [1], 1, 5), "at most 2 levels"),
        ((tokens, probabilities, [1, 2], 1, 5), "end with the root 1"),
        ((tokens, probabilities, [], 1, 5), "end with the root 1"),
        ((tokens, probabilities, [1], 1, -1), "budget -1"),
    ):
        with pytest.raises(ArenaError, match=reason):
            pruner.search(*call)
    for counts in ([3], [3, 4], [-1, 3]):
        with pytest.raises(ArenaError, match="counts must be 2 numbers"):
            pruner.search(tokens, probabilities, [1], 1, 5, counts=counts)
    for settings, reason in (
        ({"levels": 0}, "levels 0"),
        ({"levels": 2, "beam": 0}, "beam 0"),
        ({"levels": 2, "ngram_weight": -1}, "n-gram weight -1"),
        ({"levels": 2, "ngram_weight": float("nan")}, "n-gram weight nan"),
        ({"levels": 2, "level_weights": [1]}, "need 2 numbers"),
        ({"levels": 2, "logit_weights": [1, -1]}, "from 0 to a million"),
        ({"levels": 2, "level_weights": [1, 1e30]}, "from 0 to a million"),
    ):
        with pytest.raises(ArenaError, match=reason):
            TreePruner(None, **settings, backend=backend)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_starts_no_thread_and_keeps_no_memory(golden):
    code = f"""
import numpy as np
from dart_core.ngram import NgramModel
from dart_core.pruner import TreePruner

def figures():
    with open("/proc/self/status") as file:
        values = dict(line.split(":", 1) for line in file)
    return int(values["Threads"]), int(values["VmRSS"].split()[0])

rng = np.random.default_rng(17)
pruner = TreePruner(NgramModel.open({str(golden / "a_order3.ngram")!r}), levels=8)
tokens = np.array([rng.permutation(500)[:25] for _ in range(8)])
probabilities = rng.dirichlet(np.ones(25), size=8).astype(np.float32)
search = lambda: pruner.search(tokens, probabilities, [1, 2], 2, 60)
[search() for _ in range(100)]
before = figures()
for _ in range(5000): search()
after = figures()
print(after[0] - before[0], after[1] - before[1])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    threads, kibibytes = map(int, result.stdout.split())
    assert threads == 0
    assert kibibytes < 512  # a leak of 100 bytes a call would show


# The core by itself: what its callers check is checked once more where memory is at stake


def core(**changes):
    settings = {
        "levels": 2,
        "beam": 3,
        "ngram_weight": 0.5,
        "level_weights": [1.0, 1.0],
        "logit_weights": [1.0, 1.0],
        "eos_tokens": [],
    }
    return native().TreePruner(None, **{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"levels": 0, "level_weights": [], "logit_weights": []}, "at least one level"),
        ({"levels": -1, "level_weights": [], "logit_weights": []}, "at least one level"),
        ({"beam": 0}, "a beam from 1 to 4096"),
        ({"beam": 4097}, "a beam from 1 to 4096"),
        ({"ngram_weight": -0.1}, "ngram_weight"),
        ({"ngram_weight": 1.1e6}, "ngram_weight"),
        ({"ngram_weight": math.nan}, "ngram_weight"),
        ({"level_weights": [1.0]}, "level_weights must be 2 numbers"),
        ({"level_weights": [1.0, -1.0]}, "level_weights"),
        ({"level_weights": [math.nan, 1.0]}, "level_weights"),
        ({"logit_weights": [1.0, 1.0, 1.0]}, "logit_weights must be 2 numbers"),
        ({"logit_weights": [1.0, 1.1e6]}, "logit_weights"),
    ],
)
def test_the_core_takes_no_settings_out_of_range(changes, reason):
    with pytest.raises(ArenaError, match=reason):
        core(**changes)


def test_the_core_takes_the_ends_of_every_range():
    core(levels=1, beam=4096, ngram_weight=1e6, level_weights=[1e6], logit_weights=[0.0])
    core(beam=1, ngram_weight=0.0, level_weights=[0.0, 0.0], logit_weights=[1e6, 1e6])


def core_search(pruner, width=3, levels=2, counts=None, context=(7,), budget=5):
    tokens = np.arange(levels * width, dtype=np.int64).reshape(levels, width)
    probabilities = np.full((levels, width), 1 / max(width, 1), dtype=np.float32)
    counts = np.array([width] * levels if counts is None else counts, dtype=np.int32)
    size = max(budget, 0) + 1
    arrays = [np.empty(size, dtype=kind) for kind in (np.int64, np.int32, *[np.float32] * 3)]
    context = np.array(context, dtype=np.int64)
    return pruner.search(tokens, probabilities, counts, context, budget, *arrays, False)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"levels": 3}, "candidates for 3 levels, the pruner was made for 2"),
        ({"counts": [3, 4]}, "level 1 claims 4 candidates in rows of 3"),
        ({"counts": [-1, 3]}, "level 0 claims -1"),
        ({"context": ()}, "context is empty"),
        ({"budget": -1}, "budget"),
        ({"width": 1 << 21}, "more than 4194304 scores"),
        ({"width": (1 << 22) + 1, "levels": 1}, "more than 4194304 scores"),
    ],
)
def test_the_core_takes_no_call_out_of_range(call, reason):
    with pytest.raises(ArenaError, match=reason):
        core_search(core(), **call)


def test_the_core_takes_the_largest_calls():
    assert core_search(core(), budget=0) == 1
    assert core_search(core(), levels=0) == 1
    assert core_search(core(), counts=[0, 3]) == 1
    assert core_search(core(), counts=[3, 0]) == 4
    assert core_search(core(), budget=100) == 1 + 3 + 9
    assert core_search(core(), width=1 << 20, budget=9) == 10  # all 4194304 scores it may take
