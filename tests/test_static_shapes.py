"""The static form against the dynamic one, as it runs and as a graph would replay it, on a CPU."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import (
    autoregressive,
    head_config,
    output,
    random_head,
    random_trees,
    run,
    tiny_model,
    tiny_target,
)
from replaying import RecordedCalls

from dart_core import static_shapes
from dart_core.capture import CudaGraphs, require_one_gpu, run_eagerly
from dart_core.check import compare
from dart_core.drafters import DraftSettings
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head
from dart_core.sampling import SamplingParams
from dart_core.static_shapes import (
    BorrowedCache,
    cache_bucket,
    roomy_bucket,
    row_bucket,
)
from dart_core.target import Target
from dart_core.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden"
TAPS = (1, 2, 3)
CLOSE = {"rtol": 1e-4, "atol": 1e-3}  # logits reach 10, tapped states 100
TEXT = np.random.default_rng(7).integers(0, 512, 400)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """Windows of 16 rows, so that short runs cross their borders."""
    monkeypatch.setattr(static_shapes, "CACHE_STEP", 16)


@cache
def plain(family: str) -> Target:
    return tiny_target(family)


def static(family: str, capture) -> Target:
    target = tiny_target(family)
    target.use_static_shapes(capture)
    return target


@pytest.fixture(params=["as it is", "replayed"])
def capture(request):
    return run_eagerly if request.param == "as it is" else RecordedCalls()


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    parents = [-1, *(int(rng.integers(max(0, i - 6), i)) for i in range(1, nodes))]
    return DraftTree.of(rng.integers(0, 512, nodes), parents)


def filled(target: Target, rows: int, capacity: int):
    cache = target.new_cache(capacity)
    target.prefill(torch.from_numpy(TEXT[:rows]), cache)
    return cache


def rows_of(cache) -> torch.Tensor:
    return torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])[
        ..., : cache.length, :
    ]


# Buckets
# -------


def test_buckets_hold_what_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(static_shapes, "CACHE_STEP", 256)
    assert [row_bucket(rows) for rows in (1, 3, 17, 61, 256, 257)] == [1, 4, 24, 64, 256, None]
    assert [cache_bucket(rows) for rows in (1, 256, 257, 4096, 4097)] == [256, 256, 512, 4096, 4608]
    for rows in range(1, 40000, 37):
        assert rows <= cache_bucket(rows) <= max(rows + 255, rows * 9 / 8 + 1)
        assert roomy_bucket(rows) >= cache_bucket(rows)


# The verify pass
# ---------------


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_verify_is_the_dynamic_pass(family, capture):
    """Random trees, one after the other, across the borders of windows and of rows."""
    dynamic, target, rng = plain(family), static(family, capture), np.random.default_rng(3)
    windows = set()
    for start in (1, 14, 30):
        expected, found = filled(dynamic, start, 200), filled(target, start, 200)
        for nodes in (1, 2, 3, 9, 25, 1, 60):
            tree = random_tree(rng, nodes)
            theirs = dynamic.verify(tree, expected, taps=TAPS)
            ours = target.verify(tree, found, taps=TAPS)
            torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
            torch.testing.assert_close(ours.hidden, theirs.hidden, **CLOSE)
            path = tree.path(int(rng.integers(0, nodes)))
            expected.keep(path)
            found.keep(path, torch.tensor(path))
            torch.testing.assert_close(rows_of(found), rows_of(expected), **CLOSE)
        windows |= set(found.passes)
        found.close()
    assert len({window for _, window, _ in windows}) >= 3, "no border of a window was crossed"
    if isinstance(capture, RecordedCalls):
        assert capture.recorded == len(windows) < capture.replayed == 21


def test_without_taps_there_are_no_states(capture):
    target = static("qwen3", capture)
    cache = filled(target, 5, 100)
    assert target.verify(DraftTree.root_only(3), cache).hidden is None
    assert target.verify(DraftTree.root_only(3), cache, taps=(2,)).hidden.shape == (1, 64)


def test_padding_changes_nothing(capture):
    """Whatever lies in unread rows, and whatever tokens the padding holds, not a bit differs."""
    target, rng = static("llama", capture), np.random.default_rng(1)
    tree, before = random_tree(rng, 5), random_tree(rng, 8)  # one bucket for both

    def verified(rubbish: float) -> torch.Tensor:
        cache = filled(target, 20, 100)
        cache._blocks[0][..., 20:, :] = rubbish
        # the padding's inputs on the device, from a fuller tree, and what that one wrote
        target.verify(before, cache)
        cache.keep([])
        logits = target.verify(tree, cache).logits.clone()
        cache.close()
        return logits

    clean = verified(0.0)
    assert torch.equal(verified(1e30), clean)
    assert torch.equal(verified(-1e30), clean)


def test_padding_tokens_are_never_seen(monkeypatch):
    """Other tokens and positions in the padding of a pass leave its real rows as they are."""
    target, tree = static("qwen3", run_eagerly), random_tree(np.random.default_rng(2), 5)
    cache = filled(target, 20, 100)
    expected = target.verify(tree, cache).logits.clone()
    cache.keep([])
    [step] = cache.passes.values()
    send = step._inputs.send

    def with_garbage():
        step._inputs.host["tokens"][5:] = 511
        step._inputs.host["positions"][5:] = 77
        send()

    monkeypatch.setattr(step._inputs, "send", with_garbage)
    assert torch.equal(target.verify(tree, cache).logits, expected)


def test_rejected_nodes_that_overflowed_poison_nothing(capture):
    """0 * NaN is NaN: a node whose keys and values are not finite must not outlive its step."""
    target, dynamic = static("qwen3", capture), plain("qwen3")
    cache, expected = filled(target, 20, 100), filled(dynamic, 20, 100)
    tree = random_tree(np.random.default_rng(4), 8)
    target.verify(tree, cache)
    cache._blocks[0][..., 21:28, :] = torch.nan  # as if seven nodes had overflowed
    cache.keep([0])
    dynamic.verify(tree, expected)
    expected.keep([0])
    root = DraftTree.root_only(9)
    torch.testing.assert_close(
        target.verify(root, cache).logits, dynamic.verify(root, expected).logits, **CLOSE
    )
    cache.close()
    cache._blocks[0][:] = torch.nan  # and no run may inherit another's
    again = filled(target, 20, 100)
    assert again is cache and again.length == 20
    assert target.verify(root, again).logits.isfinite().all()


def test_a_cache_may_be_filled_to_its_last_row(capture):
    """The last window ends with the cache, whatever its bucket; beyond it the dynamic form runs."""
    target, dynamic = static("llama", capture), plain("llama")
    tree = random_tree(np.random.default_rng(5), 9)
    for rows in (55, 56):  # 64 and 65 rows with the tree
        cache, expected = filled(target, rows, 64), filled(dynamic, rows, 65)
        assert cache.window_limit == 64
        torch.testing.assert_close(
            target.verify(tree, cache, taps=TAPS).logits,
            dynamic.verify(tree, expected, taps=TAPS).logits,
            **CLOSE,
        )
        assert bool(cache.passes) == (rows == 55)
        cache.free()


def test_what_has_no_static_form_runs_in_the_dynamic_one(monkeypatch):
    target, dynamic = static("qwen3", run_eagerly), plain("qwen3")
    monkeypatch.setattr(static_shapes, "row_bucket", lambda rows: row_bucket(rows, (1, 2, 4)))
    huge = random_tree(np.random.default_rng(6), 5)
    cache, expected = filled(target, 10, 100), filled(dynamic, 10, 100)
    theirs = dynamic.verify(huge, expected).logits
    torch.testing.assert_close(target.verify(huge, cache).logits, theirs, **CLOSE)
    cache._blocks[0][..., 12:15, :] = torch.nan
    cache.keep([0, 1])
    assert cache._blocks[0].isfinite().all()  # its rejected nodes are cleared too
    foreign = filled(dynamic, 10, 100)  # not out of the target's pool
    torch.testing.assert_close(target.verify(huge, foreign).logits, theirs, **CLOSE)
    assert not cache.passes


# The caches' pool
# ----------------


def test_the_next_run_replays_what_an_earlier_one_captured():
    capture = RecordedCalls()
    target = static("qwen3", capture)
    first = filled(target, 10, 100)
    target.verify(DraftTree.root_only(1), first)
    other = filled(target, 10, 100)  # two runs at once have a cache each
    assert other is not first
    target.verify(DraftTree.root_only(1), other)
    assert capture.recorded == 2
    first.close()
    first.close()  # of no harm
    other.close()
    third = filled(target, 12, 90)
    target.verify(DraftTree.root_only(1), third)
    assert third in (first, other)
    assert capture.recorded == 2
    longer = filled(target, 10, roomy_bucket(100) + 1)
    assert longer not in (first, other) and longer.window_limit > first.window_limit
    assert sum(bool(cache.passes) for cache in (first, other)) == 1, "the cache at rest is freed"


def test_caches_at_rest_make_room(monkeypatch):
    target = static("qwen3", run_eagerly)
    target.new_cache(100).close()
    monkeypatch.setattr("dart_core.target.free_memory", lambda device: 0)
    target.new_cache(100).close()  # needs no more memory
    assert target._static.pool.fits(100)
    with pytest.raises(ArenaError, match=r"no memory for a run of 5000 tokens"):
        target.new_cache(5000)
    assert not target._static.pool.fits(100)


def test_a_tight_memory_takes_the_exact_length(monkeypatch):
    target = static("qwen3", run_eagerly)
    bytes_a_row = 7 * 2 * 2 * 16 * 4
    monkeypatch.setattr("dart_core.target.free_memory", lambda device: 100 * bytes_a_row)
    assert target.new_cache(100).window_limit == 100


# Drafting, and whole runs
# ------------------------


@cache
def drafters(family: str) -> dict:
    target = plain(family)
    config = {"draft_vocab_size": target.vocab_size // 2}
    dart = random_head(DartHead, head_config(target, draft_length=7, **config), seed=1)
    eagle3 = random_head(Eagle3Head, head_config(target, draft_length=None, **config), seed=2)
    return {"dart": (DartDrafter, (dart, {})), "eagle3": (Eagle3Drafter, (eagle3,))}


def drafter(family: str, name: str, capture=None):
    kind, parts = drafters(family)[name]
    made = kind(*parts, plain(family).embed)
    if capture is not None:
        made.use_static_shapes(capture)
    return made


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_drafting_is_the_dynamic_one(name, capture):
    """Round by round the same candidates, whatever was accepted; the first round is a prefill's."""
    rng, settings = np.random.default_rng(8), DraftSettings(tree_budget=40, candidates=True)
    prompt = torch.from_numpy(TEXT[:20])
    made = [drafter("qwen3", name), drafter("qwen3", name, capture)]
    for run_number in range(2):
        runs = [each.begin(prompt, 100, settings, frozenset()) for each in made]
        for count in (20, 1, 2, 3, 5, 8, 1, 9, 4):
            hidden, tokens = torch.randn(count, 192), torch.from_numpy(rng.integers(0, 512, count))
            proposals = []
            for each in runs:
                each.observe(hidden, tokens)
                proposals.append(each.propose())
            theirs, ours = proposals
            assert ours.tree.tokens.tolist() == theirs.tree.tokens.tolist()
            assert ours.tree.parents.tolist() == theirs.tree.parents.tolist()
            np.testing.assert_allclose(
                ours.candidates.scores, theirs.candidates.scores, rtol=1e-4, atol=1e-5
            )
        dynamic, found = runs[0].cache, runs[1].cache
        length = dynamic.length
        assert found.length == length == 53
        torch.testing.assert_close(found.keys[:, :length], dynamic.keys[:, :length], **CLOSE)
        torch.testing.assert_close(found.values[:, :length], dynamic.values[:, :length], **CLOSE)
        if isinstance(capture, RecordedCalls):
            assert capture.replayed == 7 * (run_number + 1), "all but the prefill's and the nine"
            assert capture.recorded == len(found.passes)
        runs[1].close()


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_padding_of_a_draft_pass_is_never_seen(name):
    made, settings = drafter("llama", name, run_eagerly), DraftSettings(candidates=True)
    hidden, tokens = torch.randn(3, 192), torch.tensor([5, 6, 7])

    def scores(rubbish: float) -> np.ndarray:
        started = made.begin(torch.tensor([1]), 100, settings, frozenset())
        started.cache.keys[:] = started.cache.values[:] = rubbish
        for step in started.cache.passes.values():
            step._hidden.fill_(rubbish)
        started.observe(hidden, tokens)
        found = started.propose().candidates.scores
        started.close()
        return found

    clean = scores(0.0)
    assert (scores(1e30) == clean).all()
    assert (scores(-1e30) == clean).all()


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(0.9, 40, 0.95, seed=5)], ids=["greedy", "sampled"]
)
def test_every_drafter_emits_what_plain_decoding_emits(family, sampling, capture):
    """Two prompts one after the other, over the same caches; the text is the dynamic form's."""
    target = static(family, capture)
    tried = {
        "ar": AutoregressiveDrafter(),
        "dart": drafter(family, "dart", capture),
        "eagle3": drafter(family, "eagle3", capture),
    }
    for prompt in ([5, 9, 23], TEXT[:30].tolist()):
        options = {"max_new_tokens": 30, "sampling": sampling}
        expected = autoregressive(plain(family), prompt, **options)
        tried["forced"] = random_trees(expected, 3, 21, 512)
        for name, each in tried.items():
            settings = DraftSettings(tree_budget=21, eagle3_depth=4, eagle3_top_k=5)
            steps = run(target, each, prompt, settings=settings, **options)
            assert output(steps) == expected, name


def test_half_precision_runs_in_static_shapes_too():
    """As on a GPU: the dtypes of masks, states and heads fit together, and texts agree."""
    capture = RecordedCalls()
    target = Target(tiny_model("qwen3").to(torch.bfloat16))
    dynamic, tree = Target(target.model), random_tree(np.random.default_rng(2), 9)
    target.use_static_shapes(capture)
    caches = filled(target, 30, 100), filled(dynamic, 30, 100)
    ours, theirs = (t.verify(tree, c) for t, c in zip((target, dynamic), caches, strict=True))
    assert ours.logits.dtype == torch.bfloat16
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0.1, atol=0.3)
    for name in ("dart", "eagle3"):
        kind, (head, *rest) = drafters("qwen3")[name]
        each = kind(deepcopy(head).to(torch.bfloat16), *rest, target.embed)
        each.use_static_shapes(capture)
        before = capture.replayed
        steps = run(target, each, [5, 9, 23], max_new_tokens=12)
        assert len(output(steps)) == 12
        assert capture.replayed - before == 2 * (len(steps) - 1)


def test_interleaved_runs_keep_apart():
    """Two runs of one target, step by step in turn, as a race makes them."""
    from dart_core.generate import generate

    capture = RecordedCalls()
    target, each = static("qwen3", capture), drafter("qwen3", "eagle3", capture)
    prompts = ([5, 9, 23], [7, 7, 1, 2])
    settings = DraftSettings(tree_budget=12, eagle3_depth=2, eagle3_top_k=4)
    runs = [generate(target, each, p, max_new_tokens=24, settings=settings) for p in prompts]
    texts = [[], []]
    for _ in range(60):
        for text, steps in zip(texts, runs, strict=True):
            text += next(steps, None).tokens if len(text) < 24 else ()
    expected = [autoregressive(plain("qwen3"), prompt, max_new_tokens=24) for prompt in prompts]
    assert texts == expected


def test_a_divergence_is_judged_over_the_static_form():
    """The two rows that a verdict compares come from one borrowed cache, and stay apart."""
    target, prompt = static("qwen3", run_eagerly), [5, 9, 23]
    steps = run(target, AutoregressiveDrafter(), prompt, max_new_tokens=8)
    others = run(target, AutoregressiveDrafter(), [5, 9, 24], max_new_tokens=8)
    verdict = compare(target, prompt, steps, others, SamplingParams())
    assert verdict.status == "DIFFERENT" and verdict.difference < verdict.bound
    assert "no such difference" in verdict.reason


# The replay that stands for a graph
# ----------------------------------


def test_the_recorder_finds_what_python_decides_per_call():
    """The dynamic form, recorded, replays the step it was recorded in: it could not be captured."""
    target, rng = tiny_target("qwen3"), np.random.default_rng(9)
    cache = filled(target, 10, 100)
    found = torch.zeros(4, 512)
    tokens, mask = torch.zeros(4, dtype=torch.int64), torch.ones(4, 14, dtype=torch.bool)

    def call():
        positions = torch.arange(cache.length, cache.length + 4)
        found.copy_(target.forward(tokens, positions, cache, mask=mask).logits)

    with torch.inference_mode():
        replay = RecordedCalls()(call)
        tokens.copy_(torch.from_numpy(rng.integers(0, 512, 4)))
        replay()
        replayed = found.clone()
        call()
        torch.testing.assert_close(replayed, found, **CLOSE)  # the buffer is read anew ...
        cache.length -= 3
        mask = mask[:, :11]
        replay()
        replayed = found.clone()
        call()
        assert not torch.allclose(replayed, found, **CLOSE)  # ... the cache's length is not


def test_the_recorder_refuses_what_waits_for_the_device():
    values = torch.ones(3)
    for call in (lambda: values.sum().item(), lambda: values[values > 0], lambda: values.nonzero()):
        with pytest.raises(RuntimeError, match="not permitted"):
            RecordedCalls()(call)


# The switch
# ----------


def test_graphs_are_refused_where_they_cannot_be(tmp_path):
    with pytest.raises(ArenaError, match="need a CUDA GPU, and the models go to cpu; leave"):
        CudaGraphs(tiny_target())
    with pytest.raises(ArenaError, match="need a CUDA GPU"):
        Target.load(tmp_path, device="cpu", cuda_graphs=True)  # before anything is read
    gpus = [torch.device("cuda", index) for index in range(2)]
    with pytest.raises(ArenaError, match="spread over 2 devices"):
        require_one_gpu(gpus)
    require_one_gpu(gpus[:1])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_experts": 8}, "routes tokens to experts"),
        ({"num_local_experts": 8}, "routes tokens to experts"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "has dynamic RoPE"),
    ],
)
def test_a_target_that_the_host_must_look_into_is_refused(config, says, monkeypatch):
    monkeypatch.setattr("dart_core.capture.require_one_gpu", lambda devices: None)
    target = SimpleNamespace(config=SimpleNamespace(**config), device="cuda", layer_devices=[])
    with pytest.raises(ArenaError, match=f"{says}, which reads values on the host"):
        CudaGraphs(target)


def test_the_switch_reaches_target_and_drafters(monkeypatch):
    """Engine.load with graphs, and calls recorded in their place: trained heads, the same text."""
    capture = RecordedCalls()
    monkeypatch.setattr("dart_core.target.CudaGraphs", lambda target: capture)
    for module in ("target", "loading"):
        monkeypatch.setattr(f"dart_core.{module}.require_one_gpu", lambda devices: None)
        # A packed product is none of torch's operators, so nothing of it would be recorded.
        monkeypatch.setattr(f"dart_core.{module}.pack_layers", lambda model: None)
    for name, head in (("dart", {"dart": "dart"}), ("eagle3", {"eagle3": "head"})):
        checkpoint = GOLDEN / name / "checkpoint"
        parts = {role: checkpoint / folder for role, folder in head.items()}
        parts |= {"target": checkpoint / "target", "dtype": torch.float32, "device": "cpu"}
        settings = GenerationSettings(max_new_tokens=40, ignore_eos=True)
        expected = Engine.load(**parts).generate([5, 9, 23], "ar", settings).output_ids
        engine = Engine.load(**parts, cuda_graphs=True)
        before = capture.replayed
        for each in ("ar", name):
            made = engine.generate([5, 9, 23], each, settings)
            assert made.output_ids == expected
        drafted = sum(step.kind == "verify" for step in made.steps)
        assert capture.replayed - before == 39 + 2 * drafted  # a short prompt is drafted from too
        assert max(step.accepted for step in made.steps) >= 2


# On a GPU
# --------


def on_gpu(graphs: bool, dtype=torch.float32) -> Target:
    target = Target(tiny_model("qwen3").to("cuda", dtype))
    target.use_static_shapes(CudaGraphs(target) if graphs else run_eagerly)
    return target


@pytest.mark.gpu
def test_a_graph_gives_what_the_same_call_gives_eagerly():
    graphs, eager, rng = on_gpu(True), on_gpu(False), np.random.default_rng(3)
    for start in (1, 30):
        captured, expected = filled(graphs, start, 200), filled(eager, start, 200)
        for nodes in (1, 9, 25, 1, 60, 9):
            tree = random_tree(rng, nodes)
            ours = graphs.verify(tree, captured, taps=TAPS)
            theirs = eager.verify(tree, expected, taps=TAPS)
            torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
            torch.testing.assert_close(ours.hidden, theirs.hidden, **CLOSE)
            path = tree.path(int(rng.integers(0, nodes)))
            captured.keep(path)
            expected.keep(path)
        captured.close()
        expected.close()


@pytest.mark.gpu
def test_a_captured_step_waits_for_the_device_once():
    """Neither the pass nor what follows it reads the device, but for the draws."""
    target = on_gpu(True)
    cache = filled(target, 20, 100)
    tree = random_tree(np.random.default_rng(3), 20)
    target.verify(tree, cache, taps=TAPS)
    cache.keep([0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hidden = target.verify(tree, cache, taps=TAPS).hidden
        index = torch.tensor(tree.path(19)).to("cuda", non_blocking=True)
        cache.keep(tree.path(19), index)
        hidden[index]
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ar", "dart", "eagle3"])
def test_runs_over_graphs_emit_what_plain_decoding_emits(name):
    target = on_gpu(True)
    each = AutoregressiveDrafter()
    if name != "ar":
        kind, (head, *rest) = drafters("qwen3")[name]
        each = kind(head.to("cuda"), *rest, target.embed)
        each.use_static_shapes(target.capture)
    plainly = Target(tiny_model("qwen3").to("cuda"))
    for prompt in ([5, 9, 23], [5, 9, 23], TEXT[:30].tolist()):
        expected = autoregressive(plainly, prompt, max_new_tokens=40)
        assert output(run(target, each, prompt, max_new_tokens=40)) == expected
    if name != "ar":
        head.to("cpu")


def test_a_borrowed_cache_is_told_from_another():
    assert isinstance(static("qwen3", run_eagerly).new_cache(10), BorrowedCache)
    assert not isinstance(plain("qwen3").new_cache(10), BorrowedCache)
