"""``bench --suite speed`` over tiny models: what is compared is the same, and ratios are right."""

from __future__ import annotations

import json
import math
from collections import Counter
from xml.dom import minidom

import numpy as np
import pytest
import torch
from models import autoregressive, head_config, random_head, tiny_model
from text_models import CHATML, byte_level

from dart_core import bench_floors, bench_micro, cli_bench_speed, pruner
from dart_core.bench_contexts import context_lengths
from dart_core.bench_floors import (
    head_bytes,
    in_rounds,
    row_flops,
    spread,
    step_bytes,
)
from dart_core.bench_micro import measure_pruner
from dart_core.bench_provenance import ROOT
from dart_core.bench_speed import (
    Contestant,
    Measured,
    Sample,
    SpeedBench,
    choose,
    contestants,
    first_difference,
)
from dart_core.bench_speed_figure import speed_figure
from dart_core.bench_speed_report import speed_record
from dart_core.bench_stock import StockTarget
from dart_core.check import Verdict
from dart_core.cli import main
from dart_core.drafters import DraftSettings
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head, save_head
from dart_core.ngram import build_ngram
from dart_core.packing import pack_linears
from dart_core.prompts import Prompt
from dart_core.target import Target

CPU = torch.device("cpu")
LOOPING = [5, 6, 7, 8] * 8  # a text that prompt lookup finds itself in


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a tiny target and two heads, and an n-gram."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_level(("Ġha", "Ġho"), chat_template=CHATML)
    model = tiny_model(vocab_size=len(tokenizer) + 3, max_position_embeddings=4096)
    model.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    target = Target(model)
    text = autoregressive(target, [3, 1, 4], max_new_tokens=200)
    build_ngram([text], 3, target.vocab_size, folder / "tiny.ngram")
    common = [token for token, _ in Counter(text).most_common(28)]
    for name, kind, length in (("dart", DartHead, 5), ("eagle3", Eagle3Head, None)):
        config = head_config(target, draft_length=length, draft_vocab_size=len(common))
        head = random_head(kind, config, seed=len(name))
        head.set_draft_vocabulary(torch.tensor(sorted(common)))
        save_head(head, folder / name)
    return folder


@pytest.fixture
def flags(models, monkeypatch):
    """A run of seconds: nothing about its timings is believed."""
    monkeypatch.setattr(bench_floors, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(bench_floors, "MATRIX_SIZE", {"cpu": 64})
    monkeypatch.setattr(bench_micro, "SYNTHETIC_TOKENS", 3000)
    monkeypatch.setattr(cli_bench_speed, "CALLS", 3)
    monkeypatch.setattr(cli_bench_speed, "ROUNDS", 2)
    return [
        f"--base-model-name-or-path={models / 'target'}",
        f"--dart-model-name-or-path={models / 'dart'}",
        f"--eagle3-model-name-or-path={models / 'eagle3'}",
        f"--ngram-model-name-or-path={models / 'tiny.ngram'}",
        *("--dtype=float32", "--device=cpu", "--max-new-tokens=16", "--repeats=2"),
        *("--tree-budget=6", "--max-context=150", "--threads=1"),
    ]


@pytest.fixture
def sets(tmp_path):
    """Two prompt files of two prompts, the first of them with two turns."""
    paths = []
    for name in ("letters", "words"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, [{"turns": ["hi", "and?"]}, {"prompt": name}])))
        paths.append(path)
    return paths


def bench(flags, sets, out, *extra: str) -> tuple[int, dict]:
    files = [argument for path in sets for argument in ("--prompt-file", str(path))]
    code = main(["bench", "--suite=speed", *flags, *files, "--json", str(out), *extra])
    return code, json.loads(out.read_text()) if out.exists() else {}


# transformers' own decoding


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("lookup", [None, 10])
def test_generate_writes_what_plain_decoding_writes(family, lookup):
    """fp32: the very same tokens, wherever the text ends."""
    target = Target(tiny_model(family))
    pack_linears(target.model)
    stock = StockTarget(tiny_model(family))
    assert stock.model.config._attn_implementation == "sdpa"
    for prompt in ([3, 1, 4], LOOPING, [9]):
        whole = autoregressive(target, prompt, max_new_tokens=24)
        for ends in (frozenset(), frozenset({whole[11], whole[17]})):
            expected = autoregressive(target, prompt, max_new_tokens=24, eos_token_ids=ends)
            run = stock.generate(prompt, max_new_tokens=24, eos_token_ids=ends, lookup=lookup)
            assert run.tokens == expected
            assert (len(expected) < 24) == bool(ends)
            if lookup is None:
                assert (run.first, run.steps) == (1, len(expected) - 1)
            assert run.seconds >= 0 and run.first_seconds > 0


def test_prompt_lookup_takes_fewer_steps_where_the_text_comes_again():
    stock = StockTarget(tiny_model(initializer_range=0.02))  # such a one repeats itself
    plain = stock.generate(LOOPING, max_new_tokens=32, eos_token_ids=frozenset())
    found = stock.generate(LOOPING, max_new_tokens=32, eos_token_ids=frozenset(), lookup=10)
    assert found.tokens == plain.tokens
    assert found.steps < plain.steps == 31


def test_the_stock_model_s_own_sampling_does_not_count():
    model = tiny_model()
    model.generation_config.update(do_sample=True, temperature=9.0, repetition_penalty=5.0)
    run = StockTarget(model).generate([3, 1], max_new_tokens=20, eos_token_ids=frozenset())
    assert run.tokens == autoregressive(Target(tiny_model()), [3, 1], max_new_tokens=20)


def test_where_texts_differ():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [4]) == 0


# Who runs, and when


def test_contestants_follow_heads_and_budgets():
    draft = DraftSettings(tree_budget=16, beam=7)
    assert list(contestants(["ar"], draft)) == ["generate", "generate-lookup", "ar"]
    found = contestants(["ar", "dart", "eagle3"], draft, (8, 16, 60))
    assert {"dart-8", "dart-60", "eagle3-8", "dart-no-ngram", "dart-lookup"} <= set(found)
    assert "dart-16" not in found  # that is dart
    assert "eagle3-lookup" in found
    assert found["dart-8"].draft == DraftSettings(tree_budget=8, beam=7)
    assert found["dart-no-ngram"].draft.ngram == "off"
    assert found["dart-lookup"].draft.prompt_lookup == 8
    auto = found["eagle3-auto"].draft
    assert auto.auto_budget and auto.tree_budget == 60 and auto.beam == 7
    assert [each.name for each in choose(found, ["dart", "generate"])] == ["generate", "ar", "dart"]
    assert [each.name for each in found.values() if each not in choose(found, None)] == [
        "dart-auto-lookup", "eagle3-lookup", "eagle3-auto-lookup",
    ]  # fmt: skip
    with pytest.raises(ArenaError, match=r"eagle3-8.*no such contestant.*dart-lookup"):
        choose(contestants(["dart"], draft, (8,)), ["eagle3-8"])


def test_the_order_changes_with_prompt_and_repeat(models, monkeypatch):
    engine = Engine.load(
        target=models / "target", dart=models / "dart", ngram="off", dtype=torch.float32
    )
    chosen = choose(contestants(["dart"], DraftSettings()), ["ar", "dart", "dart-lookup"])
    one = SpeedBench(engine, None, chosen, GenerationSettings(max_new_tokens=3), lambda line: None)
    real, ran = SpeedBench.once, []

    def once(self, contestant, prompt_ids, settings, sample=None):
        if sample is not None:  # no warm-up
            ran.append(contestant.name)
        return real(self, contestant, prompt_ids, settings, sample)

    monkeypatch.setattr(SpeedBench, "once", once)
    prompts = [Prompt(str(number), ids=(number + 1, 2)) for number in range(6)]
    one.run({"one": prompts[:3], "other": prompts[3:]}, 3)
    orders = [tuple(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert len(orders) == 18
    for place in range(3):
        assert set(Counter(order[place] for order in orders).values()) == {6}
    for prompt in range(6):
        assert len({orders[prompt + 6 * repeat] for repeat in range(3)}) == 3
    assert [result.set for result in one.results] == ["one", "other"] * 3
    assert all(len(each) == 3 for result in one.results for each in result.samples.values())


# Figures


def measured(set_: str, rates: dict[str, list[float]], steps: dict[str, int]) -> Measured:
    """A prompt of 100 tokens after the first step, by contestant and repeat at these rates."""
    result = Measured(set_, "", [[1]])
    for name, each in rates.items():
        taken = steps.get(name, 100)
        result.samples[name] = [Sample(100, taken, 100 / rate, [0.5]) for rate in each]
        result.texts[name] = Counter(equal=len(each))
    return result


@pytest.fixture
def injected() -> dict:
    steps = {"dart": 50, "eagle3": 40, "generate-lookup": 80}
    results = [
        measured(
            "one",
            {
                "generate": [10, 12, 11], "generate-lookup": [22, 22, 1], "ar": [22, 20, 99],
                "dart": [33, 33, 33], "eagle3": [44, 11, 22],
            },
            steps,
        ),
        measured(
            "one",
            {
                "generate": [20], "generate-lookup": [20], "ar": [20], "dart": [60], "eagle3": [40],
            },
            steps,
        ),
        measured(
            "two",
            {
                "generate": [5], "generate-lookup": [10], "ar": [10], "dart": [20], "eagle3": [5],
            },
            steps,
        ),
    ]  # fmt: skip
    results[2].differences["generate"] = [7]
    results[2].texts["generate"] = Counter(different=1)
    possible = contestants(["dart", "eagle3"], DraftSettings(tree_budget=16))
    chosen = {name: possible[name] for name in results[0].samples}
    return speed_record(chosen, results, {})


def test_ratios_are_of_medians_prompt_by_prompt(injected):
    ratios = injected["ratios"]
    # Medians of the first prompt: 11, 22, 22, 33, 22.
    one = {"ar_vs_generate": math.sqrt(2 * 1), "dart_vs_ar": math.sqrt(1.5 * 3)}
    two = {"ar_vs_generate": 2.0, "dart_vs_ar": 2.0}
    for name in one:
        found = ratios[name]
        assert found["sets"]["one"]["value"] == pytest.approx(one[name])
        assert found["sets"]["two"]["value"] == pytest.approx(two[name])
        assert found["value"] == pytest.approx(math.sqrt(one[name] * two[name]))
    assert ratios["dart_vs_generate"]["sets"]["two"]["value"] == pytest.approx(4)
    assert ratios["dart_vs_eagle3"]["sets"]["two"]["value"] == pytest.approx(4)
    assert ratios["dart_vs_generate-lookup"]["sets"]["two"]["value"] == pytest.approx(2)
    low, high = ratios["dart_vs_ar"]["sets"]["one"]["interval"]
    assert (low, high) == (pytest.approx(1.5), pytest.approx(3))
    assert ratios["dart_vs_ar"]["sets"]["two"]["interval"] is None  # one prompt tells no spread
    assert ratios["dart_vs_ar"]["interval"] is None


def test_speedup_per_tau(injected):
    found = injected["contestants"]
    assert found["ar"]["tau"] is None and found["ar"]["speedup_per_tau"] is None
    assert found["dart"]["tau"]["value"] == pytest.approx(2)
    assert found["dart"]["speedup_per_tau"]["sets"]["one"]["value"] == pytest.approx(
        math.sqrt(1.5 * 3) / 2
    )
    assert found["eagle3"]["speedup_per_tau"]["sets"]["two"]["value"] == pytest.approx(0.5 / 2.5)
    # transformers' own lookup is held against transformers' own plain decoding.
    lookup = found["generate-lookup"]["speedup_per_tau"]["sets"]
    assert lookup["two"]["value"] == pytest.approx(2 / 1.25)
    assert found["generate"]["texts"] == {"equal": 4, "different": 1}
    assert found["generate"]["first_differences"] == [7]
    assert found["dart"]["repeat_spread"] == 0
    assert found["eagle3"]["repeat_spread"] == pytest.approx((44 - 11) / 22)
    assert found["dart"]["times_base"]["value"] == injected["ratios"]["dart_vs_generate"]["value"]


def test_auto_is_held_against_every_fixed_budget():
    possible = contestants(["dart"], DraftSettings(tree_budget=16), (8,))
    chosen = {name: possible[name] for name in ("ar", "dart", "dart-8", "dart-auto")}
    rates = {"ar": [1], "dart": [2], "dart-8": [4], "dart-auto": [3]}
    ratios = speed_record(chosen, [measured("one", rates, {})], {})["ratios"]
    assert ratios["dart-auto_vs_dart"]["value"] == pytest.approx(1.5)
    assert ratios["dart-auto_vs_dart-8"]["value"] == pytest.approx(0.75)
    assert "dart-auto_vs_dart-auto" not in ratios


def test_the_figure_shows_every_bar(injected):
    record = {**injected, "target": "a <target>", "dtype": "float32", "device_name": "a CPU & co"}
    drawn = minidom.parseString(speed_figure(record))
    bars = [each for each in drawn.getElementsByTagName("rect") if each.childNodes]
    assert len(bars) == 5
    widths = [float(bar.getAttribute("width")) for bar in bars]
    expected = [each["times_base"]["value"] for each in record["contestants"].values()]
    np.testing.assert_allclose(np.array(widths) / widths[0], expected, rtol=0.01)
    ran = {name: {**each, "times_base": {"value": None}} for name, each in
           record["contestants"].items()}  # fmt: skip
    with pytest.raises(ArenaError, match="no prompt was run"):
        speed_figure({**record, "contestants": ran})


def test_rounds_take_turns_and_the_first_does_not_count():
    ran = []
    works = {name: (lambda name=name: ran.append(name)) for name in "abc"}
    found = in_rounds(works, CPU, 3)
    assert ran == [*"abc", *"bca", *"cab", *"abc"]
    assert set(found) == {"a", "b", "c"} and set(found["a"]) == {"median", "low", "high"}
    assert spread([5, 1, 3, 2, 4]) == {"median": 3, "low": 2, "high": 4}


@pytest.mark.parametrize("tied", [False, True])
def test_what_a_forward_reads_and_counts(tied):
    model = tiny_model(tie_word_embeddings=tied)
    target = Target(model)
    matrices = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    output, norms = 512 * 64, sum(p.numel() for p in model.parameters() if p.dim() == 1)
    assert step_bytes(target) == 4 * (matrices + output + norms)
    pack_linears(model)
    assert step_bytes(target) == 4 * (matrices + output + norms)  # packed or not
    grows = row_flops(target, 101) - row_flops(target, 1)
    assert grows == 100 * 7 * 4 * 4 * 16  # layers, heads, head size, and two products
    assert row_flops(target, 0) == 2 * (matrices + output + norms)


def test_what_a_head_reads_in_a_pass():
    target = Target(tiny_model())
    config = head_config(target, draft_length=None, draft_vocab_size=28)
    head = random_head(Eagle3Head, config, seed=0)
    size = 4 * sum(parameter.numel() for parameter in head.parameters())
    pack_linears(head)
    assert head_bytes(head) == {"first": size, "further": size - 4 * 3 * 64 * 64}


def test_lengths_of_contexts():
    assert context_lengths(4096) == [128, 512, 1024, 2048, 4096]
    assert context_lengths(1500) == [128, 512, 1024, 1500]
    assert context_lengths(32768)[-3:] == [8192, 16384, 32768]
    assert context_lengths(20) == [20]


def test_another_tree_of_the_twin_is_told(monkeypatch):
    monkeypatch.setattr(bench_micro, "SYNTHETIC_TOKENS", 3000)
    found = measure_pruner(None, calls=2, inputs=3, log=lambda line: None)
    searches = found["searches"]
    assert [each["equal_trees"] for each in searches] == [True]
    assert set(searches[0]["microseconds"]) == {"native", "twin"}
    assert searches[0]["ngram_nodes"] > 3000

    class Narrow(pruner.TwinPruner):
        def __init__(self, trie, **settings):
            super().__init__(trie, **{**settings, "beam": 1})

    monkeypatch.setattr(pruner, "TwinPruner", Narrow)
    found = measure_pruner(None, calls=2, inputs=3, log=lambda line: None)
    assert found["searches"][0]["equal_trees"] is False


# The command


@pytest.mark.slow
def test_record_and_tables(flags, sets, tmp_path, capsys):
    threads = torch.get_num_threads()
    figure = tmp_path / "speed.svg"
    extra = ("--tree-budgets=4,6", f"--figure={figure}")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    printed = capsys.readouterr()
    assert code == 0
    assert torch.get_num_threads() == threads and record["threads"] == 1
    assert record["suite"] == "speed" and record["interrupted"] is False
    assert {"command", "date", "git", "device_name", "cores", "definitions", "load_average"} <= set(
        record
    )
    found = record["contestants"]
    assert list(found) == [
        "generate", "generate-lookup", "ar", "dart", "dart-no-ngram", "dart-lookup", "dart-auto",
        "dart-4", "eagle3", "eagle3-auto", "eagle3-4",
    ]  # fmt: skip
    assert record["settings"]["tree_budgets"] == [4, 6]
    for name, each in found.items():
        assert each["tokens_per_second"]["value"] > 0
        assert each["texts"] == {"equal": 12}  # two sets, three turns each, twice
        assert set(each["tokens_per_second"]["sets"]) == {"letters", "words"}
        assert (each["tau"] is None) == (name in ("generate", "ar"))
        if each["tau"]:
            assert each["tau"]["value"] >= 1 and each["speedup_per_tau"]["value"] > 0
        if each["engine"]:
            assert each["runs"]["verify_steps"] > 0
            seconds = each["median_step_seconds"]
            assert 0 < seconds["verify"] <= seconds["total"]
        assert (each["chosen_sizes"] is not None) == ("auto" in name)
    assert found["dart-4"]["runs"]["speculative_decoding"]["num_draft_tokens"] == (
        4 * found["dart-4"]["runs"]["verify_steps"]
    )
    assert {"ar_vs_generate", "dart_vs_ar", "dart-auto_vs_dart-4"} <= set(record["ratios"])
    assert record["sets"]["letters"] == {"prompts": 2, "turns": 3}
    sample = record["prompts"][0]["samples"]["dart"]
    assert len(sample) == 2 and sample[0]["tokens"] == sample[1]["tokens"] == 30
    assert len(sample[0]["first_seconds"]) == 2  # of two turns

    rows = [row["rows"] for row in record["floors"]["verify"]]
    assert rows == [1, 2, 4, 8, 16, 32, 64]
    assert all(
        row["floor_seconds"] == max(row["reading_seconds"], row["arithmetic_seconds"])
        for row in record["floors"]["verify"]
    )
    assert record["floors"]["draft"]["dart"]["passes"] == 1
    assert record["floors"]["draft"]["eagle3"]["passes"] == 6
    assert set(record["floors"]["steps"]) == {"ar", "dart", "eagle3"}
    for each, rows in zip(record["layers"]["passes"], (1, 17), strict=True):
        assert each["rows"] == rows
        assert {"q_proj", "down_proj", "input_layernorm", "lm_head", "self_attn"} <= set(
            each["kinds"]
        )
        assert all(0 < seconds < each["seconds"] for seconds in each["kinds"].values())
    contexts = record["contexts"]
    assert [row["context"] for row in contexts["rows"]] == [128, 150]
    assert list(contexts["growth"]) == [
        "ar step", "verify 16", "dart draft", "eagle3 draft", "stock step", "stock 16",
    ]  # fmt: skip
    size = 7 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head size, float32
    head = 2 * 2 * 16 * 4
    assert contexts["kv_bytes_per_token"] == {
        "target": size, "stock": size, "dart": head, "eagle3": head,
    }  # fmt: skip
    assert set(record["startup"]["first_token"]) == {"ar", "dart", "eagle3", "generate"}
    assert record["startup"]["ngram_open"]["seconds"]["median"] > 0
    assert [each["ngram"] for each in record["pruner"]["searches"]] == [
        "the engine's n-gram", "made-up",
    ]  # fmt: skip

    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)
    assert "| dart ÷ ar |" in printed.out and "A step at best" in printed.out
    assert "dart-auto: auto: " in printed.out
    assert "| 1 node |" in printed.out and "1 nodes" not in printed.out
    assert "min left" in printed.err and "min left" not in printed.out
    assert minidom.parse(str(figure)).documentElement.tagName == "svg"


def test_parts_and_contestants_can_be_chosen(flags, sets, tmp_path, monkeypatch):
    def load_no_stock(*arguments):
        raise AssertionError("nobody asked for transformers' own decoding")

    monkeypatch.setattr(StockTarget, "of", load_no_stock)
    extra = ("--parts=prompts", "--contestants=dart-lookup", "--turns=1", "--limit=1")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 0
    assert list(record["contestants"]) == ["ar", "dart-lookup"] and record["base"] == "ar"
    assert "eagle3" not in record  # its head was not loaded
    assert not {"floors", "layers", "contexts", "startup", "pruner"} & set(record)


def test_without_heads(flags, sets, tmp_path):
    plain = [flag for flag in flags if "dart" not in flag and "eagle3" not in flag]
    plain = [flag for flag in plain if "ngram" not in flag]
    code, record = bench(plain, sets, tmp_path / "out.json", "--engines=ar", "--limit=1")
    assert code == 0
    assert list(record["contestants"]) == ["generate", "generate-lookup", "ar"]
    assert record["floors"]["draft"] == {} and record["startup"]["ngram_open"] is None
    assert list(record["contexts"]["growth"]) == [
        "ar step", "verify 16", "stock step", "stock 16",
    ]  # fmt: skip


def test_quick_says_what_it_leaves_out(flags, sets, tmp_path, capsys):
    quick = [flag for flag in flags if "max-new-tokens" not in flag and "repeats" not in flag]
    extra = ("--quick", "--parts=prompts", "--contestants=ar", "--limit=1")
    code, record = bench(quick, sets, tmp_path / "out.json", *extra)
    assert code == 0 and record["repeats"] == 2
    assert record["settings"]["max_new_tokens"] == 48
    assert record["left_out"][:2] == ["48 instead of 128 new tokens", "2 instead of 3 repeats"]
    assert not any("prompts of each set" in each for each in record["left_out"])  # --limit said so
    assert "Left out: 48 instead of 128 new tokens." in capsys.readouterr().out


def test_a_different_text_is_told(flags, sets, tmp_path, monkeypatch):
    def judge(self, prompt_ids, plain_steps, steps, sampling):
        same = steps is plain_steps
        return Verdict("equal") if same else Verdict("DIFFERENT", 0, 1, 2, reason="planted")

    monkeypatch.setattr(Engine, "judge", judge)
    extra = ("--parts=prompts", "--contestants=dart", "--limit=1")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 1
    assert record["contestants"]["dart"]["texts"] == {"DIFFERENT": 8}
    assert record["contestants"]["ar"]["texts"] == {"equal": 8}


def test_what_transformers_writes_otherwise_is_told(flags, sets, tmp_path, monkeypatch, capsys):
    real = StockTarget.of.__func__

    def other(cls, engine, progress):
        stock = real(cls, engine, progress)
        stock.model.lm_head.weight.neg_()
        return stock

    monkeypatch.setattr(StockTarget, "of", classmethod(other))
    extra = ("--parts=prompts", "--contestants=generate", "--limit=1", "--turns=1")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 0  # not ours to answer for
    found = record["contestants"]["generate"]
    assert found["texts"] == {"different": 4} and found["first_differences"] == [0] * 4
    assert "generate 4 different (first different token: 0, 0, 0, 0)" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["contexts", "prompts"])
def test_an_interruption_keeps_what_is_done(flags, sets, tmp_path, monkeypatch, capsys, where):
    real, calls, kept = SpeedBench._measure, [], []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if where == "contexts" or len(calls) == 3:
            kept.append(json.loads((tmp_path / "out.json").read_text()))
            raise KeyboardInterrupt
        return real(*arguments, **options)

    if where == "contexts":
        monkeypatch.setattr(cli_bench_speed, "measure_contexts", interrupted)
    else:
        monkeypatch.setattr(SpeedBench, "_measure", interrupted)
    code, record = bench(flags, sets, tmp_path / "out.json", "--contestants=dart,generate")
    assert code == 130
    assert record["interrupted"] is True
    assert record["floors"]["verify"] and record["startup"]["first_token"]
    assert kept[0]["floors"] == record["floors"]  # it was there before, whatever might happen
    assert kept[0]["interrupted"] and kept[0].get("prompts") == record.get("prompts")
    assert ("contexts" in record) == (where == "prompts")
    assert len(record.get("prompts", ())) == (2 if where == "prompts" else 0)
    assert "INTERRUPTED" in capsys.readouterr().out


def test_a_prompt_that_does_not_fit_is_found_first(flags, sets, tmp_path, monkeypatch, capsys):
    with sets[0].open("a") as file:
        file.write("\n" + json.dumps({"prompt": "x" * 4000}))
    monkeypatch.setattr(SpeedBench, "_measure", None)
    extra = ("--contestants=ar", "--parts=prompts")
    code, record = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 1 and record == {}
    assert "letters:3: the prompt has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("--contestants=dart,fast", "--contestants fast: there is no such contestant"),
        ("--contestants=dart-8", "--contestants dart-8: there is no such contestant"),
        ("--contestants=dart-6", "dart itself has tree budget 6, that of --tree-budget: name dart"),
        ("--contestants=eagle3-6", "eagle3 itself has tree budget 6"),
        ("--parts=prompts,colours", "--parts colours: expected some of startup,floors"),
        ("--repeats=0", "--repeats 0: expected 1 or more"),
        ("--threads=0", "--threads 0: expected 1 or more"),
        ("--threads=99999", "--threads 99999: expected 1 to "),
        ("--max-context=1", "--max-context 1: expected 16 or more"),
        ("--max-context=999999", "--max-context 999999: expected 131072 or less"),
        ("--max-new-tokens=1", "--max-new-tokens 1: expected 2 or more"),
        ("--tree-budgets=0,4", "--tree-budgets 0: expected a number from 1 to 4096"),
        ("--temperature=0.7", "--temperature 0.7: the speed suite is greedy"),
        ("--stop=end", "--stop end: the speed suite ends texts by tokens alone"),
        ("--figure=/nowhere/x.svg", "--figure /nowhere/x.svg: no folder"),
        ("--figure=-", "--figure -: a picture goes to a file"),
        ("--ablate", "--ablate is of --suite acceptance"),
        ("--speed-prompts=0", "--speed-prompts is of --suite acceptance"),
    ],
)
def test_wrong_flags_are_one_line(flags, sets, tmp_path, monkeypatch, capsys, extra, said):
    def load(*arguments, **options):
        raise AssertionError("found before anything is loaded")

    monkeypatch.setattr(cli_bench_speed, "load", load)
    code, record = bench(flags, sets, tmp_path / "out.json", extra)
    error = capsys.readouterr().err
    assert code == 1 and record == {}
    assert error.startswith("error: ") and error.count("\n") == 1
    assert said in error


@pytest.mark.parametrize("flag", ["--tree-budget=auto", "--tree-budgets=8,auto"])
def test_a_chosen_budget_is_a_contestant(flag, flags, capsys):
    for suite in ("speed", "acceptance"):
        assert main(["bench", f"--suite={suite}", *flags, flag]) == 2
        error = capsys.readouterr().err
        assert "--suite speed --contestants dart-auto,eagle3-auto" in error
        assert error.count("\n") == 1
    assert main(["bench", *flags, flag.replace("auto", "lots")]) == 2
    assert "lots" in capsys.readouterr().err


def test_flags_of_the_other_suite(flags, capsys):
    own = [flag for flag in flags if "max-context" not in flag and "threads" not in flag]
    own = [flag for flag in own if "repeats" not in flag]
    assert main(["bench", *own, "--suite=speed", "--speed-prompts=0"]) == 1
    assert "--speed-prompts is of --suite acceptance" in capsys.readouterr().err
    assert main(["bench", *own, "--quick"]) == 1
    assert "--quick is of --suite speed" in capsys.readouterr().err
    assert main(["bench", *own, "--suite=quality"]) == 2
    assert "quality" in capsys.readouterr().err


def test_figure_needs_prompts(flags, sets, tmp_path, capsys):
    extra = ("--parts=floors", f"--figure={tmp_path / 'x.svg'}")
    code, _ = bench(flags, sets, tmp_path / "out.json", *extra)
    assert code == 1 and "it shows the part prompts" in capsys.readouterr().err


def test_a_file_of_results_is_no_other_s(flags, sets, tmp_path, capsys):
    out = tmp_path / "out.json"
    code, record = bench(flags, sets, out, f"--figure={out}")
    assert code == 1 and record == {}
    assert f"--json {out} is the file of --figure itself" in capsys.readouterr().err
    code, _ = bench(flags, sets, out, f"--figure={sets[0]}")
    assert code == 1
    assert f"--figure {sets[0]} is the file of --prompt-file itself" in capsys.readouterr().err


def test_a_fresh_process_that_fails_is_told(tmp_path):
    path = tmp_path / "no.ngram"
    path.write_bytes(b"nothing")
    with pytest.raises(ArenaError, match=r"fresh process could not open the n-gram no.ngram"):
        bench_micro._open_cold(path, 1)


def test_a_contestant_that_drafts():
    assert not Contestant("generate", "").drafts and not Contestant("ar", "", "ar").drafts
    assert Contestant("generate-lookup", "", lookup=10).drafts
    assert Contestant("dart", "", "dart").drafts
