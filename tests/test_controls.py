"""The page's controls: what is accepted, what is refused and how, and what a link may set."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from app.controls import (
    MAX_ANSWER,
    MAX_PROMPT,
    Choice,
    Knob,
    Switch,
    check_prompt,
    checked,
    controls,
    read_link,
)
from dart_core.errors import ArenaError

TABLE = controls(
    ["dart", "eagle3", "ar"],
    max_new_tokens=512,
    max_length=1024,
    ngrams=["full", "small"],
    thinks=True,
)
DEFAULTS = {control.name: control.default for control in TABLE}


def control(name: str):
    return next(control for control in TABLE if control.name == name)


def test_defaults_are_accepted_and_whole_numbers_become_ints():
    values = checked(TABLE, DEFAULTS)
    assert values["tree_budget"] == 60
    assert values["auto_budget"] is True  # the number is then the most
    assert values["seed"] is None
    assert isinstance(values["max_new_tokens"], int)
    assert isinstance(values["temperature"], float)


def test_no_answer_is_longer_than_a_recording_holds():
    table = controls(["dart"], max_new_tokens=10**6, max_length=2**17)
    knob = next(control for control in table if control.name == "max_new_tokens")
    assert (knob.maximum, knob.default) == (MAX_ANSWER, MAX_ANSWER)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tree_budget", 0, "outside 1 to 256"),
        ("tree_budget", 257, "outside 1 to 256"),
        ("tree_budget", 2.5, "not a whole number"),
        ("tree_budget", None, "a number is needed"),
        ("tree_budget", True, "not a number"),
        ("temperature", float("nan"), "not a number"),
        ("temperature", "<b>1</b>", "not a number"),
        ("max_new_tokens", 1024, "outside 1 to 1023"),
        ("seed", -1, "outside"),
        ("seed", "9" * 6000, "not a number"),
        ("top_p", 1.01, "outside 0 to 1"),
        ("ngram", "huge", "none of full, small, off"),
        ("mode", None, "none of at-once, in-turn"),
        ("thinking", "yes", "not on or off"),
        ("auto_budget", None, "not on or off"),
        ("first", "", "none of dart, eagle3, ar"),
        ("second", "<b>", "none of dart, eagle3, ar"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value, said):
    assert said in control(name).problem(value)
    with pytest.raises(ArenaError, match=control(name).label):
        checked(TABLE, DEFAULTS | {name: value})


@pytest.mark.parametrize("prompt", ["", "  \n", None, 5, "x" * 20_001, "cut \ud83c"])
def test_prompts_nobody_can_answer_are_refused(prompt):
    assert check_prompt(prompt)
    assert check_prompt("Why?") == ""


def test_every_control_says_what_it_does_and_accepts_its_default():
    for one in TABLE:
        assert one.info.endswith("."), one.name
        assert one.problem(one.default) == "", one.name
        assert isinstance(one, Knob | Choice | Switch)


def test_panels_start_with_the_drafters_and_hold_no_engine_twice():
    assert [DEFAULTS[slot] for slot in ("first", "second", "third")] == ["dart", "eagle3", ""]
    alone = {one.name: one.default for one in controls(["dart", "ar"])}
    assert [alone[slot] for slot in ("first", "second", "third")] == ["dart", "ar", ""]
    with pytest.raises(ArenaError, match="DART is in two panels"):
        checked(TABLE, DEFAULTS | {"third": "dart"})
    assert checked(TABLE, DEFAULTS | {"second": "", "third": "ar"})["third"] == "ar"


def test_controls_without_a_choice_are_left_out():
    names = {one.name for one in controls(["dart", "eagle3", "ar"])}
    assert not names & {"ngram", "ngram_weight", "thinking"}


def test_a_link_sets_prompt_and_settings():
    settings = {
        "temperature": 0.7, "seed": 7, "tree_budget": 16, "ngram": "off", "third": "ar",
        "mode": "in-turn", "thinking": "true", "auto_budget": "false",
    }  # fmt: skip
    said = "a & b = <c> #5\nhéllo 🎉"
    prompt, values, refused = read_link(TABLE, "#" + urlencode({"prompt": said, **settings}))
    assert prompt == said
    assert refused == []
    assert checked(TABLE, DEFAULTS | values) == checked(
        TABLE, DEFAULTS | settings | {"seed": "7", "thinking": True, "auto_budget": False}
    )
    assert read_link(TABLE, "") == (None, {}, [])
    assert read_link(TABLE, "#presenter=1") == (None, {}, [])


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("#temperature=9", "Temperature: 9 is outside"),
        ("#temperature=nan", "Temperature: nan is not a number"),
        ("#temperature=", "Temperature: '' is not a number"),
        ("#tree_budget=1e999", "is not a number"),
        ("#tree_budget=" + "9" * 6000, "Tree budget"),
        ("#tree_budget=2.5", "not a whole number"),
        ("#first=<script>", "First panel: '<script>' is none of"),
        ("#thinking=1", "not on or off"),
        ("#sudo=1", "'sudo' is no setting"),
        ("#" + "&".join(f"x{n}=1" for n in range(100)), "more settings than the page knows"),
    ],
)
def test_what_a_link_may_not_set_is_refused_in_words(fragment, said):
    prompt, values, refused = read_link(TABLE, fragment)
    assert prompt is None and values == {}
    assert said in " ".join(refused)
    assert len(" ".join(refused)) < 300


def test_a_links_prompt_is_cut_at_the_pages_limit():
    assert len(read_link(TABLE, "#prompt=" + "x" * (2 * MAX_PROMPT))[0]) == MAX_PROMPT
