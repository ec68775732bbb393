"""The engine on recorded checkpoints: loading, stop rules, isolation, end to end."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from text_models import CHATML, byte_level

from dart_core.drafters import DraftSettings
from dart_core.engine import ENGINES, Engine, Generation, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.ngram import import_trie
from dart_core.sampling import GREEDY_TEMPERATURE, SamplingParams
from dart_core.step import finish_of

GOLDEN = Path(__file__).parent / "golden"
DART = GOLDEN / "dart" / "checkpoint"
EAGLE3 = GOLDEN / "eagle3" / "checkpoint"


@pytest.fixture(scope="module")
def dart_engine(tmp_path_factory) -> Engine:
    said = []
    engine = Engine.load(
        target=DART / "target",
        dart=DART / "dart",
        ngram=GOLDEN / "dart" / "trie" / "a_order3.trie",
        dtype=torch.float32,
        device="cpu",
        progress=said.append,
    )
    told = [line.split()[0] for line in said]  # the first to load the n-gram also converts it
    assert [word for word in told if word != "converting"] == ["target", "dart", "n-gram"]
    return engine


@pytest.fixture(scope="module")
def ngram_folder(tmp_path_factory) -> Path:
    """Both sizes under their published names."""
    folder = tmp_path_factory.mktemp("ngram")
    trie = GOLDEN / "dart" / "trie"
    shutil.copy(trie / "a_order3.trie", folder / "full.trie")
    shutil.copy(trie / "g_reduce4_order3.trie", folder / "small.trie")
    return folder


@pytest.fixture
def load_dart(monkeypatch, tmp_path):
    """Loads the recorded DART checkpoint with options, conversions kept apart."""
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))

    def load(**options) -> Engine:
        options = {"dtype": torch.float32, "device": "cpu", "dart": DART / "dart", **options}
        return Engine.load(target=DART / "target", **options)

    return load


@pytest.fixture(scope="module")
def eagle3_engine() -> Engine:
    return Engine.load(
        target=EAGLE3 / "target", eagle3=EAGLE3 / "head", dtype=torch.float32, device="cpu"
    )


@pytest.fixture(scope="module")
def engines(dart_engine, eagle3_engine) -> dict[str, Engine]:
    """Where each of ENGINES is loaded."""
    return {"ar": dart_engine, "dart": dart_engine, "eagle3": eagle3_engine}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    runs = json.loads((GOLDEN / "dart" / "generate" / "runs.json").read_text())
    return [run["prompt"] for run in runs[:6]]


def settings(**options) -> GenerationSettings:
    return GenerationSettings(**{"max_new_tokens": 40, "max_length": 400, **options})


def test_what_is_loaded_is_told(dart_engine, eagle3_engine):
    assert set(dart_engine.drafters) == {"ar", "dart"}
    assert set(eagle3_engine.drafters) == {"ar", "eagle3"}
    assert dart_engine.facts["dtype"] == "float32"
    assert dart_engine.facts["device"] == "cpu"
    assert set(dart_engine.facts["versions"]) == {"python", "torch", "transformers"}
    assert dart_engine.eos_token_ids == {511}


# n-grams


def test_both_sizes_of_the_ngram_where_they_cost_nothing(load_dart, ngram_folder, prompts):
    full = load_dart(ngram=ngram_folder)  # converts full.trie, and only this one
    assert full.ngrams == ("full",)
    small = load_dart(ngram=ngram_folder, small_ngram=True)  # now both are converted
    assert small.ngrams == ("small", "full")
    assert load_dart(ngram=ngram_folder).ngrams == ("full", "small")
    assert small.facts["ngrams"] == ["small", "full"]
    assert small.facts["ngram"] == str(ngram_folder)

    def trees(engine, name):
        draft = DraftSettings(tree_budget=20, ngram=name)
        run = engine.generate(prompts[0], "dart", settings(draft=draft, max_new_tokens=12))
        return run.output_ids, [step.tree.tokens.tolist() for step in run.steps[1:]]

    choices = {name: trees(small, name) for name in (None, "small", "full", "off")}
    assert choices[None] == choices["small"]
    assert choices["full"] == trees(full, None)
    assert choices["off"] == trees(load_dart(ngram="off"), None)
    outputs, drafts = zip(*choices.values(), strict=True)
    assert all(output == outputs[0] for output in outputs)
    assert len({str(tree) for tree in drafts}) == 3


def test_an_ngram_of_one_file_or_none(load_dart, ngram_folder, dart_engine, eagle3_engine):
    assert dart_engine.ngrams == ("full",)
    file = load_dart(ngram=ngram_folder / "small.trie", small_ngram=True)
    assert file.ngrams == ("small",)
    none = load_dart()
    assert none.ngrams == () and none.facts["ngrams"] == [] and "ngram" not in none.facts
    assert eagle3_engine.ngrams == () and "ngrams" not in eagle3_engine.facts


def test_an_ngram_nobody_asked_for_may_be_damaged(load_dart, ngram_folder, tmp_path):
    import_trie(ngram_folder / "full.trie", tmp_path / "demo.ngram", 512)
    (tmp_path / "small.ngram").write_bytes(b"damaged")
    said = []
    options = {"preset": "demo", "ngram": tmp_path, "engines": ("ar", "dart")}
    assert load_dart(**options, progress=said.append).ngrams == ("full",)
    assert said[-1].startswith("left out: ") and "small.ngram" in said[-1]
    with pytest.raises(ArenaError, match=r"small\.ngram"):
        load_dart(**options, small_ngram=True)


@pytest.mark.parametrize("name", ["medium", "", 3, ["full"]])
def test_an_unknown_ngram_is_refused_before_the_first_step(dart_engine, name):
    draft = DraftSettings(ngram=name)
    with pytest.raises(ArenaError, match=r"is not loaded; loaded n-grams: full; \"off\" drafts"):
        dart_engine.stream([1, 2], "dart", settings(draft=draft))
    assert dart_engine.generate([1, 2], "ar", settings(draft=draft, max_new_tokens=1)).steps


def test_thinking_is_known_from_the_template(dart_engine):
    target = dart_engine.target
    plain = CHATML.replace("enable_thinking", "nothing_of_the_kind")
    for template, thinks in ((CHATML, True), (plain, False), (None, False)):
        assert Engine(target, byte_level(chat_template=template)).thinks is thinks


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.9)])
def test_the_engine_judges_what_it_ran(dart_engine, prompts, sampling):
    """With an unset seed, by the one the runs report."""
    prompt = prompts[0]
    plain = dart_engine.generate(prompt, "ar", settings(sampling=sampling)).steps
    seeded = replace(sampling, seed=plain[0].seed)
    steps = dart_engine.generate(prompt, "dart", settings(sampling=seeded)).steps
    assert dart_engine.judge(prompt, plain, steps, sampling).status == "equal"
    step = steps[2]
    steps[2] = replace(step, tokens=(*step.tokens[:-1], (step.tokens[-1] + 1) % 512))
    assert dart_engine.judge(prompt, plain, steps, sampling).status == "DIFFERENT"


# runs


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.8, seed=3)])
def test_drafters_save_steps_and_change_nothing(dart_engine, eagle3_engine, prompts, sampling):
    for engine, name in ((dart_engine, "dart"), (eagle3_engine, "eagle3")):
        for prompt in prompts:
            plain = engine.generate(prompt, "ar", settings(sampling=sampling))
            drafted = engine.generate(prompt, name, settings(sampling=sampling))
            assert drafted.output_ids == plain.output_ids
            assert drafted.text == plain.text
            assert drafted.finish_reason == plain.finish_reason
        assert drafted.metrics["tau"] > 1.2


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_asking_for_candidates_changes_no_tree(dart_engine, eagle3_engine, prompts, name):
    """And gives the whole pool: the kept nodes among many that were pruned away."""
    engine = {"dart": dart_engine, "eagle3": eagle3_engine}[name]
    draft = DraftSettings(tree_budget=12)
    for prompt in prompts[:3]:
        plain = engine.generate(prompt, name, settings(draft=draft)).steps
        asked = settings(draft=replace(draft, candidates=True))
        for step, other in zip(plain, engine.generate(prompt, name, asked).steps, strict=True):
            assert step.candidates is None
            if step.tree is None:
                continue
            tree, pool = other.tree, other.candidates
            assert step.tree.tokens.tolist() == tree.tokens.tolist()
            assert step.tree.parents.tolist() == tree.parents.tolist()
            assert len(pool.tokens) > 100
            kept = pool.node >= 0
            assert sorted(pool.node[kept]) == list(range(1, len(tree)))
            assert (pool.tokens[kept] == tree.tokens[pool.node[kept]]).all()
            above = [pool.node[parent] if parent >= 0 else 0 for parent in pool.parents[kept]]
            assert (above == tree.parents[pool.node[kept]]).all()


def cut_inside(run: Generation) -> bool:
    """Its last round had accepted more than was emitted."""
    return len(run.steps[-1].tokens) < len(run.steps[-1].path)


@pytest.mark.parametrize("name", ENGINES)
def test_a_stop_string_ends_ids_text_and_counts_at_one_place(engines, prompts, name):
    """The same place for every engine, whether or not the string was completed inside a round."""
    engine = engines[name]
    whole = engine.generate(prompts[0], "ar", settings())
    inside = 0
    for start in range(4, len(whole.text) - 3, 9):
        stop = whole.text[start : start + 3]
        cut = engine.generate(prompts[0], name, settings(stop=(stop,)))
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.finish_reason == "stop"
        count = len(cut.output_ids)
        assert cut.output_ids == whole.output_ids[:count]
        assert stop in engine.tokenizer.decode(cut.output_ids)
        assert stop not in engine.tokenizer.decode(cut.output_ids[:-1])
        assert cut.metrics["new_tokens"] == count
        inside += cut_inside(cut)
    assert name == "ar" or inside > 1


@pytest.mark.parametrize("name", ENGINES)
def test_the_users_end_of_sequence_joins_the_models(engines, prompts, name):
    """Wherever in a round it falls; and the next run owes nothing to the one that it ended."""
    engine = engines[name]
    inside = 0
    for prompt in prompts[:2]:
        whole = engine.generate(prompt, "ar", settings(max_new_tokens=24))
        for place in range(1, 9):
            ids = whole.output_ids[: whole.output_ids.index(whole.output_ids[place]) + 1]
            end = settings(max_new_tokens=24, eos_token_ids=frozenset({ids[-1]}))
            run = engine.generate(prompt, name, end)
            assert run.output_ids == ids
            assert run.finish_reason == "stop"
            assert run.text == engine.tokenizer.decode(ids, skip_special_tokens=True)
            assert run.metrics["new_tokens"] == len(ids)
            assert run.metrics["tau"] == (len(ids) - 1) / (len(run.steps) - 1)
            inside += cut_inside(run)
        assert engine.generate(prompt, name, settings(max_new_tokens=24)).text == whole.text
    assert name == "ar" or inside > 1


@pytest.mark.parametrize("name", ENGINES)
def test_the_budget_is_exact_wherever_a_round_crosses_it(engines, prompts, name):
    engine = engines[name]
    inside = 0
    for prompt in prompts[:2]:
        whole = engine.generate(prompt, "ar", settings()).output_ids
        for budget in (1, 2, 7, 8, 9, 16, 17):
            run = engine.generate(prompt, name, settings(max_new_tokens=budget))
            assert run.output_ids == whole[:budget]
            assert run.finish_reason == "length"
            assert run.metrics["new_tokens"] == budget
            inside += cut_inside(run)
    assert name == "ar" or inside > 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("temperature", [1e-8, 1e-6, 1e-5, 1e-4])
def test_temperatures_near_zero_give_the_greedy_text(engines, prompts, name, temperature):
    """Above the threshold too: no logits here lie so close that such a temperature mixes them."""
    sampling = SamplingParams(temperature, seed=None if temperature < GREEDY_TEMPERATURE else 4)
    for prompt in prompts[:2]:
        expected = engines[name].generate(prompt, "ar", settings()).output_ids
        run = engines[name].generate(prompt, name, settings(sampling=sampling))
        assert run.output_ids == expected


@pytest.mark.parametrize("name", ENGINES)
def test_a_seed_names_one_text_whatever_ran_in_between(engines, prompts, name):
    def text(seed: int) -> str:
        random.seed()
        torch.seed()
        chosen = settings(sampling=SamplingParams(1.0, seed=seed), max_new_tokens=30)
        return engines[name].generate(prompts[0], name, chosen).text

    first = text(42)
    engines[name].generate(prompts[1], name, settings(sampling=SamplingParams(0.7, seed=9)))
    assert text(42) == first
    assert text(43) != first


def test_ignore_eos_goes_on_to_the_budget(eagle3_engine):
    runs = json.loads((GOLDEN / "eagle3" / "generate" / "runs.json").read_text())["runs"]
    eos = next(iter(eagle3_engine.eos_token_ids))
    ended = next(run for run in runs if run["expected_truncated_output"][-1] == eos)
    for name in ("ar", "eagle3"):
        run = eagle3_engine.generate(ended["prompt"], name, settings(max_new_tokens=128))
        assert run.finish_reason == "stop" and run.output_ids[-1] == eos
        goes_on = settings(max_new_tokens=128, ignore_eos=True)
        assert len(eagle3_engine.generate(ended["prompt"], name, goes_on).output_ids) == 128


@pytest.mark.parametrize("drafted", ["dart", "eagle3"])
def test_two_threads_at_once_answer_as_alone(engines, prompts, drafted):
    engine = engines[drafted]
    jobs = [
        (prompts[i % 2], ("ar", drafted)[i // 2 % 2], settings(max_new_tokens=5 + i))
        for i in range(20)
    ]
    alone = [engine.generate(*job).output_ids for job in jobs]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda job: engine.generate(*job).output_ids, jobs))
    assert together == alone


def test_one_failing_run_leaves_the_other_alone(dart_engine, prompts):
    steps = dart_engine.stream(prompts[0], "dart", settings())
    next(steps)
    with pytest.raises(ArenaError, match="outside the target's vocabulary"):
        dart_engine.generate([9999], "ar", settings())
    rest = [token for step in steps for token in step.tokens]
    assert rest == dart_engine.generate(prompts[0], "ar", settings()).output_ids[1:]


def test_only_a_run_that_has_ended_says_why(dart_engine, prompts):
    steps = dart_engine.generate(prompts[0], "ar", settings()).steps
    assert finish_of(steps) == "length"
    for unended in (steps[:-1], []):
        with pytest.raises(ValueError, match="has not ended"):
            finish_of(unended)


def test_errors_come_before_the_first_step(dart_engine):
    says = "'eagle3' is not loaded; loaded engines: ar, dart: .* --eagle3-model-name-or-path"
    with pytest.raises(ArenaError, match=says):
        dart_engine.stream([1, 2], "eagle3")
    with pytest.raises(ArenaError, match="unknown engine 'medusa'; loaded engines: ar, dart"):
        dart_engine.stream([1, 2], "medusa")
    with pytest.raises(ArenaError, match="max length"):
        dart_engine.stream(list(range(20)), "ar", settings(max_length=20))


def test_lists_are_taken_as_sets_and_tuples():
    given = GenerationSettings(eos_token_ids=[2, np.int64(3), 2], stop=["a", "b"])
    assert given.eos_token_ids == frozenset({2, 3}) and given.stop == ("a", "b")
    assert replace(given, max_new_tokens=3).stop == given.stop
    for wrong, said in (
        ({"eos_token_ids": 2}, "come as a set or list of ints"),
        ({"stop": "text"}, "come as a list of texts, got 'text'"),
        ({"stop": 5}, "come as a list of texts, got 5"),
        ({"max_new_tokens": "5"}, r"max new tokens must be a whole number.*'5' \(str\)"),
        ({"max_new_tokens": 0}, "max new tokens 0 is below 1"),
        ({"max_length": 1}, "max length 1 is below 2"),
        ({"draft": 16}, "draft must be a DraftSettings; got 16"),
        ({"sampling": 0.7}, "sampling must be a SamplingParams; got 0.7"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False; got 'no'"),
    ):
        with pytest.raises(ArenaError, match=said):
            GenerationSettings(**wrong)


def test_what_is_no_prompt_or_number_is_told_before_the_first_step(dart_engine):
    for prompt, options, said in (
        (None, {}, "a prompt is a list of token ids"),
        ("text", {}, "a prompt is a list of token ids"),
        ([1, 2], {"max_new_tokens": 5.0}, "max new tokens must be a whole number"),
        ([1, 2], {"max_length": 64.5}, "max length must be a whole number"),
    ):
        with pytest.raises(ArenaError, match=said):
            dart_engine.stream(prompt, "dart", settings(**options))
    for run in (dart_engine.stream, dart_engine.generate):
        with pytest.raises(ArenaError, match="settings must be a GenerationSettings; got 16"):
            run([1, 2], "dart", 16)
    assert len(dart_engine.generate(iter([1, 2]), "ar", settings()).prompt_ids) == 2


def test_a_run_that_memory_cannot_hold_is_refused_before_it(dart_engine):
    with pytest.raises(ArenaError, match=r"no memory .* take \d+\.\d GiB, cpu has"):
        dart_engine.stream([1], "ar", settings(max_new_tokens=10**12, max_length=10**13))


def test_beyond_the_targets_positions_it_warns_once(dart_engine, prompts, caplog, monkeypatch):
    monkeypatch.setattr(dart_engine.target.config, "max_position_embeddings", 300)
    for _ in range(2):
        dart_engine.generate(prompts[0], "ar", settings(max_new_tokens=1, max_length=300))
    assert "positions" not in caplog.text
    for _ in range(2):
        dart_engine.generate(prompts[0], "ar", settings(max_new_tokens=1, max_length=301))
    assert caplog.text.count("max length 301 goes beyond the 300 positions") == 1


def test_a_prompt_and_budget_beyond_max_length_warn(dart_engine, prompts, caplog):
    run = dart_engine.generate(prompts[0], "dart", settings(max_length=len(prompts[0]) + 7))
    assert run.finish_reason == "length" and len(run.output_ids) == 7
    assert "at most 7 tokens" in caplog.text


def test_bf16_packed_and_plain_give_the_same_engine(prompts):
    """Packing for the CPU must not change what a head or target computes, beyond rounding."""
    engine = Engine.load(
        target=DART / "target", dart=DART / "dart", dtype=torch.bfloat16, device="cpu"
    )
    run = engine.generate(prompts[0], "dart", settings(draft=DraftSettings(tree_budget=16)))
    assert engine.facts["dtype"] == "bfloat16"
    assert run.metrics["tau"] > 1.2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no target"),
        ({"target": "nowhere/at all"}, "nowhere"),
        ({"target": DART / "target", "engines": ("ar", "dart")}, "needs its head"),
        ({"target": DART / "target", "engines": ("medusa",)}, "known engines: ar, dart, eagle3"),
        ({"preset": "qwen3-9000b"}, "known presets"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_a_sentence(options, said):
    with pytest.raises(ArenaError, match=said):
        Engine.load(**options)
