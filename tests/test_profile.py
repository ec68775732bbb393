"""Where a run's time goes: the figures by hand, and the flag over a small model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from models import chain
from tiny_trio import make_trio, trio_flags

from dart_core.cli import main
from dart_core.engine import Generation
from dart_core.metrics import summarize
from dart_core.profiling import hints, profile_record, profile_table, profile_text
from dart_core.step import StageSeconds, Step


def run_of(name: str, *steps: tuple[int, int, StageSeconds], backend: str = "native") -> Generation:
    """A run of (tokens, accepted, seconds) per verify step, behind a prefill of one token."""
    first = (1, 0, StageSeconds(verify=1.0))
    made = [
        Step(
            index=index,
            kind="verify" if index else "prefill",
            tokens=tuple(range(tokens)),
            drafted=8 if index and name != "ar" else 0,
            accepted=accepted,
            tree=chain(0, range(8)) if index and name != "ar" else None,
            path=(),
            bonus=None,
            seconds=seconds,
            backend=backend,
            candidates=None,
            finish_reason=None,
            seed=None,
        )
        for index, (tokens, accepted, seconds) in enumerate([first, *steps])
    ]
    ids = [token for step in made for token in step.tokens]
    return Generation(name, [1], ids, "", "length", made, summarize(made))


PLAIN = run_of("ar", *[(1, 0, StageSeconds(verify=0.09, rest=0.01))] * 6)
DRAFTED = run_of(
    "dart",
    (4, 3, StageSeconds(draft=0.02, search=0.01, verify=0.16, rest=0.01)),
    (2, 1, StageSeconds(draft=0.04, search=0.03, verify=0.12, rest=0.01)),
)


def loaded(*ngrams: str) -> SimpleNamespace:
    return SimpleNamespace(ngrams=ngrams)


def test_the_share_of_the_ideal_by_hand():
    """τ 3 at 0.2 s a step, plain steps of 0.1 s: 1.5 × where 3 × would be ideal."""
    record = profile_record(DRAFTED.metrics, PLAIN.metrics)
    assert record["step_seconds"] == pytest.approx(0.2)
    assert record["plain"]["step_seconds"] == pytest.approx(0.1)
    assert record["speedup"] == {"value": pytest.approx(1.5), "baseline": "ar of this call"}
    assert record["ideal_speedup"] == 3.0
    assert record["share_of_ideal"] == pytest.approx(0.5)
    assert record["stage_seconds_per_step"] == pytest.approx(
        {"draft": 0.03, "search": 0.02, "verify": 0.14, "rest": 0.01}
    )
    share = record["share_of_step"]
    assert share == pytest.approx(
        {"plain_step": 0.5, "wider_verify": 0.2, "draft": 0.15, "search": 0.1, "rest": 0.05}
    )
    assert sum(share.values()) == pytest.approx(1.0)
    json.dumps(record, allow_nan=False)


def test_the_table_has_every_step_their_sum_and_mean():
    text = profile_text(loaded("full"), DRAFTED, PLAIN)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[0].startswith("step tokens accepted drafted draft ms")
    assert rows[1] == "prefill 1 0 0 0.00 0.00 1000.00 0.00 1000.00"
    assert rows[2] == "1 4 3 8 20.00 10.00 160.00 10.00 200.00"
    assert rows[4].startswith("sum 6 4 16 60.00 40.00 280.00 20.00 400.00 ")
    assert rows[5] == "a step 3.00 2.00 8.00 30.00 20.00 140.00 10.00 200.00"
    assert rows[6] == "share 15.0 % 10.0 % 70.0 % 5.0 % 100.0 %"
    assert "in this call: 10.00 tok/s, 100.00 ms a step" in text
    assert "speedup 1.50 × of an ideal 3.00 ×" in text and ": 50.0 % of the ideal" in text
    assert "a plain step 50.0 %, verifying more than one token 20.0 %, draft 15.0 %" in text
    assert "more than the ideal" not in text


def test_more_than_the_ideal_is_called_what_it_is():
    """Plain steps of a second beside verify passes of a seventh of one: somebody was in the way."""
    disturbed = run_of("ar", *[(1, 0, StageSeconds(verify=1.0))] * 6)
    assert "the machine was busier while plain decoding ran" in profile_text(
        loaded("full"), DRAFTED, disturbed
    )


def test_plain_decoding_has_no_ideal_and_one_token_no_steps():
    assert "ideal" not in profile_text(loaded(), PLAIN, PLAIN)
    one = run_of("dart")
    assert profile_record(one.metrics, PLAIN.metrics)["share_of_ideal"] is None
    assert profile_record(DRAFTED.metrics, run_of("ar").metrics)["speedup"] is None
    assert "sum" not in profile_text(loaded("full"), one, PLAIN)


def test_known_reasons_for_little_speed_are_named_with_their_remedy():
    long = run_of("dart", *[(4, 3, StageSeconds(verify=0.1))] * 5)
    assert hints(loaded("full"), long) == []
    assert "7 new tokens say little" in hints(loaded("full"), DRAFTED)[0]
    assert "use --ngram full" in hints(loaded("small", "full"), long)[0]
    assert "--ngram-model-name-or-path" in hints(loaded(), long)[0]
    twin = run_of("dart", *[(4, 3, StageSeconds(verify=0.1))] * 5, backend="twin")
    assert "C++ extension is not built" in hints(loaded("full"), twin)[0]
    assert hints(loaded(), run_of("eagle3", *[(4, 3, StageSeconds(verify=0.1))] * 5)) == []


@pytest.mark.parametrize("engine", ["dart", "ar"])
def test_the_flag(engine, tmp_path, capsys, monkeypatch):
    root = make_trio(tmp_path)
    monkeypatch.setenv("DART_ARENA_CACHE", str(root / "cache"))
    flags = trio_flags(root, eagle3=False)
    flags += ["--device=cpu", "--dtype=float32", "--prompt=Hello", "--max-new-tokens=30"]
    path = root / "run.json"
    command = ["generate", *flags, "--engine", engine, "--profile", "--json", str(path)]
    assert main(command) == 0
    captured = capsys.readouterr()
    run = json.loads(path.read_text())
    assert captured.out == run["text"] + "\n"  # the profile is on stderr
    assert ("of the ideal" in captured.err) == (engine == "dart")
    assert "step     tokens" in captured.err
    profile = run["profile"]
    assert profile["plain"]["new_tokens"] == len(run["output_ids"]) == 30
    if engine == "dart":
        assert profile["share_of_ideal"] * run["metrics"]["tau"] == pytest.approx(
            profile["speedup"]["value"]
        )
        assert sum(profile["share_of_step"].values()) == pytest.approx(1.0)
    assert main(["generate", *flags, "--json", str(path)]) == 0
    assert "profile" not in json.loads(path.read_text())


def test_a_bench_has_the_mean_step_of_every_timed_engine():
    engines = {
        "ar": {"runs": PLAIN.metrics},
        "dart": {"runs": DRAFTED.metrics},
        "eagle3": {"runs": None},
    }
    header, *rows = [line.split() for line in profile_table({"engines": engines}).splitlines()]
    assert header[-2:] == ["(τ)", "reached"]
    assert rows[0][0] == "ar" and rows[0][5:] == ["100.00", "–", "–", "–"]
    assert rows[1] == ["dart", "30.00", "20.00", "140.00", "10.00", "200.00", "1.50", "3.00",
                       "50.0", "%"]  # fmt: skip
    assert len(rows) == 2
    assert "no engine was timed" in profile_table({"engines": {"ar": {"runs": None}}})
