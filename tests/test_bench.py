"""``bench`` over tiny models: replayed acceptance is that of real runs, and nothing is mixed up."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import autoregressive, head_config, random_head, tiny_model
from safetensors.torch import load_file
from text_models import CHATML, byte_level

from dart_core import cli_bench, cli_bench_acceptance
from dart_core.bench import Bench, in_rotation
from dart_core.bench_figures import geometric, ratio
from dart_core.bench_texts import TextCache, TextWriter, seen_by
from dart_core.bench_variants import _Levels, _Search, drafted_taps, replays, variants
from dart_core.check import Verdict
from dart_core.cli import main
from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head, save_head
from dart_core.names import ROOT
from dart_core.ngram import build_ngram
from dart_core.sampling import SamplingParams
from dart_core.target import Target

DRAFT = DraftSettings(eagle3_depth=3, eagle3_top_k=24)
GREEDY = GenerationSettings(max_new_tokens=28, draft=DRAFT)
SAMPLED = replace(GREEDY, sampling=SamplingParams(0.7, seed=5))
ENDS = frozenset({7, 40, 99, 130, 222})  # with so many, texts end at different places
BUDGETS = (4, 30)
PROMPTS = ([3, 1, 4], [1, 5, 9, 2], [6])
SLOTS, DRAFT_VOCAB = 5, 28


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a tiny target, two heads, another DART head, and an n-gram of the target's."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_level(("Ġha", "Ġho"), chat_template=CHATML)
    model = tiny_model(vocab_size=len(tokenizer) + 3, max_position_embeddings=4096)
    model.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    target = Target(model)
    texts = [
        autoregressive(target, prompt, sampling=sampling, max_new_tokens=60)
        for prompt in (*PROMPTS, [1, 2], [70, 3])
        for sampling in (GREEDY.sampling, SAMPLED.sampling)
    ]
    build_ngram(texts, 4, target.vocab_size, folder / "tiny.ngram")
    # Random heads hit a token now and then if they know few, and those that occur.
    common = Counter(token for text in texts for token in text).most_common(DRAFT_VOCAB)
    known = torch.tensor(sorted(token for token, _ in common))
    for name, kind, length in (
        ("dart", DartHead, SLOTS),
        ("another", DartHead, SLOTS),
        ("eagle3", Eagle3Head, None),
    ):
        config = head_config(target, draft_length=length, draft_vocab_size=DRAFT_VOCAB)
        head = random_head(kind, config, seed=len(name))
        head.set_draft_vocabulary(known)
        save_head(head, folder / name)
    return folder


@pytest.fixture(scope="module")
def engine(models):
    return Engine.load(
        target=models / "target",
        dart=models / "dart",
        eagle3=models / "eagle3",
        ngram=models / "tiny.ngram",
        dtype=torch.float32,
        device="cpu",
    )


@pytest.fixture
def flags(models):
    return [
        f"--base-model-name-or-path={models / 'target'}",
        f"--dart-model-name-or-path={models / 'dart'}",
        f"--eagle3-model-name-or-path={models / 'eagle3'}",
        f"--ngram-model-name-or-path={models / 'tiny.ngram'}",
        *("--dtype=float32", "--device=cpu", "--max-new-tokens=16", "--tree-budgets=4,30"),
    ]


@pytest.fixture
def sets(tmp_path):
    """Two prompt files of three prompts, the first of them with two turns."""
    paths = []
    for name in ("letters", "words"):
        path = tmp_path / f"{name}.jsonl"
        lines = [{"turns": ["hi", "and?"]}, {"prompt": f"{name}!"}, {"prompt": "hello"}]
        path.write_text("\n".join(map(json.dumps, lines)))
        paths.append(path)
    return paths


def bench(flags, sets, out, *extra: str) -> tuple[int, dict]:
    arguments = [argument for path in sets for argument in ("--prompt-file", str(path))]
    code = main(["bench", *flags, *arguments, "--json", str(out), *extra])
    return code, json.loads(out.read_text()) if out.exists() else {}


def drafters(engine: Engine) -> dict:
    return {name: drafter for name, drafter in engine.drafters.items() if name != "ar"}


def passage_of(engine: Engine, prompt: list[int], settings: GenerationSettings):
    taps = drafted_taps(drafters(engine).values())
    return TextWriter(engine, settings, taps).write(prompt)


# Replay


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ends", [frozenset(), ENDS], ids=["long", "ended"])
def test_replayed_steps_are_those_of_real_runs(engine, settings, ends):
    settings = replace(settings, eos_token_ids=ends)
    chosen = variants(drafters(engine), settings.draft, ablate=False)
    assert [variant.engine for variant in chosen] == ["dart", "dart", "eagle3"]
    accepted = Counter()
    for prompt in PROMPTS:
        passage = passage_of(engine, prompt, settings)
        for name, drafter in drafters(engine).items():
            own = [variant for variant in chosen if variant.engine == name]
            eos = ends | engine.eos_token_ids
            found = replays(drafter, passage, eos, own, BUDGETS)
            for variant in own:
                for budget in BUDGETS:
                    draft = replace(variant.settings, tree_budget=budget)
                    run = engine.generate(prompt, name, replace(settings, draft=draft))
                    assert run.output_ids == passage.tokens[len(prompt) :].tolist()
                    verify = run.steps[1:]
                    replayed = found[variant.name, budget]
                    assert list(replayed.accepted) == [step.accepted for step in verify]
                    assert replayed.new_tokens == len(run.output_ids) - 1
                    accepted[name] += sum(replayed.accepted)
    assert min(accepted.values()) > 5  # else little was compared


@torch.inference_mode()
def trees(drafter, passage, settings: DraftSettings) -> list[tuple[list[int], list[int]]]:
    """What it proposes after each token of the text, one being accepted at a time."""
    run = drafter.begin(passage.tokens[: passage.prompt], len(passage.tokens), settings, ENDS)
    start, found = 1, []
    for end in range(passage.prompt + 1, len(passage.tokens)):
        run.observe(passage.hidden[start - 1 : end - 1], passage.tokens[start:end])
        tree = run.propose().tree
        found.append((tree.tokens.tolist(), tree.parents.tolist()))
        start = end
    return found


def test_looked_up_drafts_are_the_drafter_s_own(engine, models):
    """All n-grams and ablations against a drafter that runs its head."""
    passage = passage_of(engine, PROMPTS[1], SAMPLED)
    weights = load_file(models / "dart" / "model.safetensors")
    drafter = engine.drafters["dart"]
    own = [v for v in variants({"dart": drafter}, DraftSettings(), ablate=True) if not v.plain]
    assert len(own) == 2 + 2 + 2 + 4  # n-grams, weights, lookups, mask slots
    levels, seen = _Levels(drafter, passage), set()
    for variant in own:
        head = drafter.head
        if variant.slots is not None:  # a head that has no more slots, of the same weights
            head = DartHead(replace(head.config, draft_length=variant.slots))
            head.load_state_dict(weights)
            head.eval()
        direct = DartDrafter(head, drafter.ngrams, drafter.embed)
        settings = replace(variant.settings, tree_budget=30)
        found = trees(_Search(drafter, variant, levels), passage, settings)
        assert found == trees(direct, passage, settings), variant.name
        seen.add(str(found))
    assert len(seen) >= 6  # few mask slots, n-gram or not, and its weight do matter


@torch.inference_mode()
def test_plain_scores_are_cumulative_log_probabilities(engine):
    passage = passage_of(engine, [2, 7, 1, 8], GREEDY)
    drafter = engine.drafters["dart"]
    plain = [v for v in variants({"dart": drafter}, DraftSettings(), ablate=True) if v.plain]
    assert [variant.settings.ngram for variant in plain] == ["off", "full"]
    search = _Search(drafter, plain[0], _Levels(drafter, passage))
    settings = replace(plain[0].settings, tree_budget=50)
    run = search.begin(passage.tokens[:4], 60, settings, frozenset())
    run.observe(None, passage.tokens[1:9])
    tree = run.propose().tree
    assert tree.tokens[0] == passage.tokens[8]
    assert len(tree) == 51 and tree.depths().max() >= 2
    parents = tree.parents[1:]
    expected = tree.scores[parents] + np.log(tree.probabilities[1:])
    np.testing.assert_allclose(tree.scores[1:], expected, rtol=1e-5)


def test_a_drafter_sees_the_layers_it_reads(engine):
    taps = drafted_taps(drafters(engine).values())
    wider = TextWriter(engine, GREEDY, (1, *taps, 6)).write([3, 1, 4])
    narrow = TextWriter(engine, GREEDY, taps).write([3, 1, 4])
    assert torch.equal(seen_by(wider, (1, *taps, 6), taps).hidden, narrow.hidden)
    assert torch.equal(wider.tokens, narrow.tokens)


# The command


def test_record_and_tables(flags, sets, tmp_path, capsys):
    code, record = bench(flags, sets, tmp_path / "out.json", "--limit=2", "--tree-budget=4")
    printed = capsys.readouterr()
    assert code == 0
    assert record["interrupted"] is False
    assert set(record["engines"]) == {"ar", "dart", "eagle3"}
    assert record["engines"]["ar"]["tau"] == 1.0
    for name, found in record["engines"].items():
        assert found["tokens_per_second"] > 0
        assert found["equality"] == {"equal": 6}  # two prompts a set, one of them of two turns
        # All sets weigh alike; a real run's τ is over all steps.
        assert found["tau"] == pytest.approx(np.mean([s["tau"] for s in found["sets"].values()]))
        if name != "ar":
            replayed = [p["replays"][found["variant"]]["4"] for p in record["prompts"]]
            tokens, steps = map(sum, zip(*replayed, strict=True))
            assert tokens / steps == found["runs"]["tau"]
            assert steps == found["runs"]["verify_steps"]
            low, high = found["tau_interval"]
            assert 1 <= low <= found["tau"] <= high
    assert [(p["set"], p["id"]) for p in record["prompts"]] == [
        ("letters", "letters:1"), ("words", "words:1"),
        ("letters", "letters:2"), ("words", "words:2"),
    ]  # fmt: skip
    assert record["sets"]["letters"] == {
        "prompts": 2, "turns": 3, "new_tokens": 48, "timed_prompts": 2,
    }  # fmt: skip
    assert [list(variant["budgets"]) for variant in record["variants"]] == [["4", "30"]] * 3
    assert record["settings"]["draft"]["tree_budget"] == 4
    assert record["dtype"] == "float32" and record["versions"]["torch"] == torch.__version__
    assert {"command", "date", "git", "device_name", "cores", "ngrams", "definitions"} <= set(
        record
    )
    assert [each["name"] for each in record["prompt_files"]] == ["letters.jsonl", "words.jsonl"]
    assert all(len(each["sha256"]) == 64 for each in record["prompt_files"])
    assert set(record["head_sha256"]) == {"dart", "eagle3"}
    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)
    assert "| letters | 2 |" in printed.out and "| dart, full n-gram |" in printed.out
    assert "min left" in printed.err and "min left" not in printed.out
    assert not (tmp_path / "out.json.partial").exists()


def test_ratios_are_of_the_same_prompts_and_run(flags, sets, tmp_path):
    _, record = bench(flags, sets, tmp_path / "out.json", "--speed-prompts=2")
    engines, ratios = record["engines"], record["ratios"]
    timed = [prompt for prompt in record["prompts"] if prompt["timed"]]
    assert len(timed) == 4 and len(record["prompts"]) == 6
    for name, over in (("dart", "ar"), ("dart", "eagle3"), ("eagle3", "ar")):
        logs = [
            math.log(p["timed"][name]["tokens_per_second"] / p["timed"][over]["tokens_per_second"])
            for p in timed
        ]
        found = ratios[f"{name}_vs_{over}"]
        assert found == pytest.approx(math.exp(np.mean(logs)))
        speeds = engines[name]["tokens_per_second"], engines[over]["tokens_per_second"]
        assert found == pytest.approx(speeds[0] / speeds[1])
    for prompt in timed:
        for engine in prompt["timed"].values():
            assert engine["tokens"] / engine["seconds"] == engine["tokens_per_second"]


def test_prompts_given_twice_weigh_no_more(flags, sets, tmp_path):
    """Each of the two is told with its own figures, and they are those of the prompt alone: nothing
    is remembered from the first.
    """
    once = bench(flags, sets[:1], tmp_path / "a.json", "--speed-prompts=2")[1]
    lines = sets[0].read_text()
    sets[0].write_text(f"{lines}\n{lines}")
    twice = bench(flags, sets[:1], tmp_path / "b.json", "--speed-prompts=2")[1]
    figures = [[prompt["replays"] for prompt in record["prompts"]] for record in (once, twice)]
    assert len(figures[0]) == 3 and figures[1] == figures[0] * 2
    for name in ("ar", "dart", "eagle3"):
        assert twice["engines"][name]["tau"] == once["engines"][name]["tau"]
        assert set(twice["engines"][name]["equality"]) == {"equal"}
    assert twice["sets"]["letters"]["prompts"] == 6


def test_without_timing_and_without_heads(flags, sets, tmp_path):
    _, record = bench(flags, sets[:1], tmp_path / "out.json", "--speed-prompts=0", "--limit=1")
    assert {e["tokens_per_second"] for e in record["engines"].values()} == {None}
    assert set(record["ratios"].values()) == {None}
    assert record["engines"]["dart"]["tau"] >= 1
    assert record["engines"]["dart"]["tau_interval"] is None  # one prompt tells no spread
    _, record = bench(flags, sets[:1], tmp_path / "out.json", "--engines=ar", "--limit=1")
    assert list(record["engines"]) == ["ar"] and record["variants"] == []
    assert record["engines"]["ar"]["tokens_per_second"] > 0


def test_ablation_and_another_head(flags, models, sets, tmp_path, capsys):
    extra = ("--ablate", f"--other-dart-head={models / 'another'}", "--turns=1", "--limit=2")
    code, record = bench(flags, sets, tmp_path / "out.json", "--speed-prompts=0", *extra)
    assert code == 0
    found = {variant["name"]: variant for variant in record["variants"]}
    assert {variant["engine"] for variant in found.values()} == {"dart", "eagle3", "dart another"}
    slots = [variant["mask_slots"] for variant in found.values() if variant["mask_slots"]]
    assert slots == [1, 2, 3, 4]
    assert found["dart, no n-gram, plain scores"]["plain_scores"]
    assert found["eagle3, depth 3"]["difference_to"] == "eagle3"
    assert found["eagle3"]["difference_to"] == "dart, full n-gram"
    assert found["dart another, full n-gram"]["difference_to"] == "dart, full n-gram"
    assert found["dart, full n-gram"]["difference_to"] is None
    for variant in found.values():
        against = variant["difference_to"]
        if against:
            at, base = variant["budgets"]["30"], found[against]["budgets"]["30"]
            assert at["difference"]["value"] == pytest.approx(at["tau"] - base["tau"])
    assert all(p["new_tokens"] == 16 for p in record["prompts"])  # one turn each
    assert "Ablations" in capsys.readouterr().out


def test_sampled_texts_are_the_same_for_all(flags, sets, tmp_path):
    extra = ("--temperature=1", "--seed=3", "--limit=2")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 0
    assert record["settings"]["sampling"] == {
        "temperature": 1.0, "top_k": 0, "top_p": 0.0, "seed": 3,
    }  # fmt: skip
    for name in ("dart", "eagle3"):
        assert set(record["engines"][name]["equality"]) == {"equal"}
        variant = record["engines"][name]["variant"]
        replayed = [prompt["replays"][variant]["30"] for prompt in record["prompts"]]
        tokens, steps = map(sum, zip(*replayed, strict=True))
        assert tokens / steps == record["engines"][name]["runs"]["tau"]


def test_a_different_text_is_told(flags, sets, tmp_path, monkeypatch, capsys):
    def judge(self, prompt_ids, plain_steps, steps, sampling):
        same = steps is plain_steps
        return Verdict("equal") if same else Verdict("DIFFERENT", 0, 1, 2, reason="planted")

    monkeypatch.setattr(Engine, "judge", judge)
    code, record = bench(flags, sets[:1], tmp_path / "out.json", "--limit=2")
    assert code == 1
    assert record["engines"]["dart"]["equality"] == {"DIFFERENT": 3}
    assert record["engines"]["ar"]["equality"] == {"equal": 3}
    assert "planted" in capsys.readouterr().err


# What is refused before anything is loaded


@pytest.mark.parametrize(
    ("extra", "code", "says"),
    [
        (("--limit=0",), 1, "--limit 0: expected 1 or more"),
        (("--speed-prompts=-1",), 1, "--speed-prompts -1: expected 0 or more"),
        (("--tree-budgets=16,0",), 1, "--tree-budgets 0: expected a number from 1 to 4096"),
        (("--tree-budget=0",), 1, "--tree-budget 0: expected a number from 1 to 4096"),
        (("--tree-budgets=some",), 2, "'some': expected numbers like 16,60"),
        (("--engines=ar,medusa",), 2, "unknown engine 'medusa'"),
        (("--prompt-file", "nowhere.jsonl"), 1, "prompt file nowhere.jsonl: No such file"),
    ],
)
def test_wrong_values(flags, sets, tmp_path, monkeypatch, capsys, extra, code, says):
    # Calling it would be an error of another kind:
    monkeypatch.setattr(cli_bench_acceptance, "load", None)
    assert bench(flags, sets, tmp_path / "out.json", *extra)[0] == code
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_broken_prompt_file(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli_bench_acceptance, "load", None)
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": "hi"}\n{"prompt": \n')
    assert bench(flags, [path], tmp_path / "out.json")[0] == 1
    assert "broken.jsonl, line 2: not JSON" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_the_project_s_own_prompts(monkeypatch, tmp_path):
    files = cli_bench.prompt_files(None)
    assert list(files) == ["chat", "code", "maths", "translation", "extraction"]
    assert all(path.is_file() for path in files.values())
    monkeypatch.setattr(cli_bench, "PROMPTS", tmp_path)  # an installed package has none
    with pytest.raises(ArenaError, match="give --prompt-file"):
        cli_bench.prompt_files(None)
    assert list(cli_bench.prompt_files(["a/x.jsonl", "b/x.jsonl"])) == ["x", "x-2"]


# Kept texts


def kept(folder, engine, settings=GREEDY, *, limit=1 << 30, said=None) -> TextCache:
    taps = drafted_taps(drafters(engine).values())
    log = (said if said is not None else []).append
    return TextCache(folder, engine, settings, taps, limit_bytes=limit, log=log)


def test_kept_texts_serve_another_head(flags, models, sets, tmp_path, monkeypatch):
    cache = f"--cache={tmp_path / 'cache'}"
    _, first = bench(flags, sets, tmp_path / "a.json", cache, "--speed-prompts=0")
    monkeypatch.setattr(TextWriter, "write", None)  # the target is not asked again
    _, again = bench(flags, sets, tmp_path / "b.json", cache, "--speed-prompts=0")
    assert again["variants"] == first["variants"]
    other = [*flags, f"--dart-model-name-or-path={models / 'another'}"]
    _, third = bench(other, sets, tmp_path / "c.json", cache, "--speed-prompts=0")
    assert third["prompts"][0]["new_tokens"] == first["prompts"][0]["new_tokens"]
    assert third["engines"]["eagle3"] == first["engines"]["eagle3"]
    assert third["engines"]["dart"]["tau"] != first["engines"]["dart"]["tau"]


def test_kept_texts_are_found_by_what_made_them(engine, tmp_path):
    prompt = [3, 1, 4]
    passage = passage_of(engine, prompt, GREEDY)
    kept(tmp_path, engine).put(passage)
    found = kept(tmp_path, engine).get(prompt)
    assert torch.equal(found.tokens, passage.tokens) and torch.equal(found.hidden, passage.hidden)
    assert kept(tmp_path, engine).get([3, 1]) is None
    assert kept(tmp_path, engine, SAMPLED).get(prompt) is None
    assert kept(tmp_path, engine, replace(GREEDY, max_new_tokens=29)).get(prompt) is None
    drafted = replace(GREEDY, draft=DraftSettings(tree_budget=3))
    assert kept(tmp_path, engine, drafted).get(prompt) is not None  # drafting changes no text
    model = tiny_model(vocab_size=engine.target.vocab_size, max_position_embeddings=4096, seed=1)
    other = Engine(Target(model), engine.tokenizer, drafters(engine))
    assert kept(tmp_path, other).get(prompt) is None
    tapped = TextCache(tmp_path, engine, GREEDY, (1, 2, 3), limit_bytes=1 << 30, log=print)
    assert tapped.get(prompt) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_damaged_texts_are_written_anew(engine, tmp_path, damage):
    prompt, said = [3, 1, 4], []
    cache = kept(tmp_path, engine, said=said)
    passage = passage_of(engine, prompt, GREEDY)
    cache.put(passage)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-5] ^= 1
    path.write_bytes({"cut": data[:-9], "empty": b"", "foreign": b"hello" * 99}.get(damage, data))
    assert cache.get(prompt) is None
    assert len(said) == 1 and "damaged" in said[0]
    cache.put(passage)
    assert torch.equal(cache.get(prompt).hidden, passage.hidden)


def test_kept_texts_stay_within_their_limit(engine, tmp_path):
    passages = [passage_of(engine, [t, t + 1], GREEDY) for t in range(4)]
    (tmp_path / "mine.safetensors").write_bytes(b"x" * 100_000)
    kept(tmp_path, engine).put(passages[0])
    (one,) = tmp_path.glob("text-*")
    cache = kept(tmp_path, engine, limit=int(2.5 * one.stat().st_size))
    cache.put(passages[1])
    os.utime(one, ns=(2, 2))
    assert cache.get([0, 1]) is not None  # used again: the other one is the oldest now
    cache.put(passages[2])
    assert [cache.get([t, t + 1]) is not None for t in range(4)] == [True, False, True, False]
    whole = kept(tmp_path, engine, limit=one.stat().st_size - 1)
    whole.put(passages[3])  # larger than all there may be: no other goes for it
    assert [cache.get([t, t + 1]) is not None for t in range(4)] == [True, False, True, False]
    assert (tmp_path / "mine.safetensors").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_cache_that_cannot_be(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArenaError, match="--cache"):
        kept(tmp_path / "file" / "x", engine)


# Interruption


@pytest.mark.parametrize("phase", ["_replay_turn", "_time_prompt"])
def test_an_interrupted_bench_keeps_what_is_done(flags, sets, tmp_path, monkeypatch, capsys, phase):
    real, calls = getattr(Bench, phase), []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Bench, phase, interrupted)
    code, record = bench(flags, sets, tmp_path / "out.json")
    assert code == 130
    assert record["interrupted"] is True
    done = 2 if phase == "_replay_turn" else 6  # two prompts of two turns each came first
    assert len(record["prompts"]) == done
    assert sum(bool(prompt["timed"]) for prompt in record["prompts"]) == (done == 6) * 4
    assert (record["ratios"]["dart_vs_ar"] is None) == (done == 2)
    assert record["engines"]["dart"]["tau"] >= 1
    assert "INTERRUPTED" in capsys.readouterr().out


def test_a_prompt_that_fails_keeps_the_others(flags, sets, tmp_path, capsys):
    with sets[1].open("a") as file:
        file.write("\n" + json.dumps({"prompt": "x" * 4000}))
    code, record = bench(flags, sets, tmp_path / "out.json")
    assert code == 1
    assert len(record["prompts"]) == 6 and "words:4" in record["error"]
    assert "words:4" in capsys.readouterr().err


# Figures


def test_every_engine_is_first_and_last_alike():
    orders = [in_rotation(("ar", "dart", "eagle3"), turn) for turn in range(6)]
    assert all(sorted(order) == ["ar", "dart", "eagle3"] for order in orders)
    for place in range(3):
        assert set(Counter(order[place] for order in orders).values()) == {2}
    assert len({tuple(order) for order in orders}) == 6


def test_means_and_intervals():
    sets = [[(4, 2), (9, 3), (2, 2)], [(8, 2), (8, 2)]]
    tau = ratio(sets)
    assert tau.value == pytest.approx((15 / 7 + 4) / 2)
    assert tau.interval == ratio(sets).interval  # seeded
    low, high = tau.interval
    assert low == pytest.approx((1 + 4) / 2) and high == pytest.approx((3 + 4) / 2)
    assert ratio(sets).minus(ratio(sets)).interval == [0, 0]  # the same prompts were drawn
    more = [[(tokens + steps, steps) for tokens, steps in pairs] for pairs in sets]
    np.testing.assert_allclose(ratio(more).minus(tau).interval, [1, 1])
    steps = np.random.default_rng(0).integers(1, 9, 40)
    resampled = ratio([[(int(number), 1) for number in steps]]).resampled
    assert resampled.std() == pytest.approx(steps.std() / 40**0.5, rel=0.1)
    assert ratio([[(4, 2)], [(8, 2), (6, 2)]]).interval is None
    assert ratio([[(0, 0)], []]) is None
    assert geometric([[2.0, 8.0, None], [9.0, 9.0]]).value == pytest.approx(6.0)
