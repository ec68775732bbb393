"""The charts in a real Chromium: the test pushes the values."""

from __future__ import annotations

from itertools import pairwise

import pytest
from browsing import expect
from panels import served_panel

from app.panels import charts_panel
from app.view import IDLE_CHARTS

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b><img src='https://example.com/x.png' onerror='window.pwned = 1'> %{y} &amp; {{v}}"
WARM_UP = [10.0, "plain decoding at warm-up"]
# By engine: draft tokens accepted by each verify step, and the own clock from the prefill on.
ACCEPTED = {"dart": [2, 0, 3, 1, 2], "eagle3": [1, 1, 0, 4], "ar": [0, 0, 0]}
CLOCKS = {
    "dart": [0.1, 0.3, 0.5, 0.7, 0.9, 1.1],
    "eagle3": [0.1, 0.35, 0.6, 0.85, 1.1],
    "ar": [0.1, 0.2, 0.3, 0.4],
}


def joined(numbers) -> str:
    return ",".join(map(str, numbers))


def lane(engine: str, steps: int, label: str = "") -> dict:
    """The lane after its prefill and so many verify steps; -1: before its prefill."""
    accepted = ACCEPTED[engine][: max(0, steps)]
    moves = steps + 1
    return {
        "engine": engine,
        "label": label or engine.upper(),
        "accepted": joined(accepted),
        "drafted": joined([4 * count + 1 for count in accepted]),
        "emitted": joined([1, *(count + 1 for count in accepted)][:moves]),
        "clocks": joined(CLOCKS[engine][:moves]),
        "stages": [3.0, 1.0, 12.0, 4.0] if engine != "ar" else [0.0, 0.0, 7.5, 0.5],
    }


def value(*lanes: dict, run: str = "r1", baseline=WARM_UP) -> dict:
    return {"run": run, "baseline": baseline, "lanes": list(lanes)}


def racing(dart: int, eagle3: int, **options) -> dict:
    return value(lane("dart", dart), lane("eagle3", eagle3), **options)


class Charts:
    """What a tab's charts hold."""

    def __init__(self, tab):
        self.tab = tab

    def traces(self, name: str) -> list[tuple[list, list]]:
        found = self.tab.page.evaluate(
            "id => document.getElementById(id).data.map(trace => [trace.x, trace.y])",
            f"chart-{name}",
        )
        return [(x, y) for x, y in found]

    def wait_for(self, name: str, *lengths: int) -> None:
        """Until the traces of a chart have so many points."""
        self.tab.wait(
            "([id, lengths]) => JSON.stringify(document.getElementById(id).data?.map("
            "trace => trace.x.length)) === JSON.stringify(lengths)",
            [f"chart-{name}", list(lengths)],
        )

    def watch_builds(self) -> None:
        """Once all stand, count what builds figures anew, and mark those that stand."""
        # A value that comes while another is drawn changes the order, so no one chart is the last.
        self.tab.wait("[...document.querySelectorAll('.plot')].every(plot => plot.data?.length)")
        self.tab.page.evaluate(
            """() => {
                window.built = [];
                for (const name of ["react", "newPlot"]) {
                    const own = Plotly[name];
                    Plotly[name] = (...given) => { built.push(name); return own(...given); };
                }
                document.querySelectorAll(".plot .main-svg").forEach((n) => { n.marked = true; });
            }"""
        )

    def builds(self) -> list[str]:
        return self.tab.page.evaluate("window.built")

    def kept(self) -> bool:
        return self.tab.page.evaluate(
            "[...document.querySelectorAll('.plot .main-svg')].every((node) => node.marked)"
        )


@pytest.fixture(scope="module")
def page():
    with served_panel(lambda: charts_panel(IDLE_CHARTS, elem_id="panel"), ".stage-rows") as page:
        yield page


@pytest.fixture
def charts(page, browser):
    with page.tab(browser) as tab:
        yield Charts(tab)


def test_an_idle_page_has_sentences_and_no_axes(charts):
    tab = charts.tab
    expect(tab.locate(".chart-empty")).to_have_count(6)
    expect(tab.locate(".plot:visible")).to_have_count(0)
    for sentence in tab.locate(".chart-empty").all():
        expect(sentence).to_have_text("Nothing yet: this fills in during a run.")
        expect(sentence).to_be_visible()
    assert tab.locate(".main-svg").count() == 0
    headings = tab.locate(".chart h2").all_inner_texts()
    assert headings == [
        "The race",
        "Accepted per step",
        "Drafts verified per step",
        "τ and speedup as they run",
        "Acceptance by draft position",
        "Where a step's time goes",
    ]
    assert all(tab.locate(".chart .hint:not(.baseline)").all_inner_texts())
    tab.push(racing(2, 2))
    charts.wait_for("race", 2, 3, 3)
    tab.push(IDLE_CHARTS)  # cleared
    expect(tab.locate(".main-svg")).to_have_count(0)
    expect(tab.locate(".chart-empty:visible")).to_have_count(6)


def test_a_page_that_opens_late_draws_its_first_value(browser):
    first = racing(5, 4)
    with (
        served_panel(lambda: charts_panel(first, elem_id="panel"), ".stage-rows") as page,
        page.tab(browser) as tab,
    ):
        charts = Charts(tab)
        charts.wait_for("race", 2, 6, 5)
        charts.wait_for("accepted", 5, 4, 5, 4)


def test_series_grow_jump_shrink_and_change_without_a_rebuild(charts):
    tab = charts.tab
    tab.push(racing(-1, -1))
    charts.wait_for("race", 0, 0, 0)
    charts.wait_for("positions", 0, 0)
    expect(tab.locate(".chart-empty:visible").first).to_have_text("Waiting for the first step.")
    charts.watch_builds()
    tab.push(racing(0, -1), racing(0, 0), racing(1, 0), racing(1, 1))
    charts.wait_for("accepted", 1, 1, 1, 1)
    tab.push(racing(5, 4))  # a gap: the values between were lost
    charts.wait_for("race", 2, 6, 5)
    charts.wait_for("accepted", 5, 4, 5, 4)
    charts.wait_for("tau", 5, 5, 4, 4)
    plain, dart, eagle3 = charts.traces("race")
    assert dart == (CLOCKS["dart"], [1, 4, 5, 9, 11, 14])
    assert eagle3 == (CLOCKS["eagle3"], [1, 3, 5, 6, 11])
    assert plain == ([0.1, 1.1], [1, pytest.approx(11)])
    raw, _, mean, _ = charts.traces("accepted")
    assert raw == ([1, 2, 3, 4, 5], ACCEPTED["dart"])
    assert mean[1] == pytest.approx([2, 1, 5 / 3, 1.5, 1.6])
    expect(tab.locate(".chart-empty:visible")).to_have_count(0)
    expect(tab.locate(".plot:visible")).to_have_count(5)
    assert charts.builds() == []
    assert charts.kept()

    tab.push(racing(2, 1))  # an older value came late: what is drawn is never ahead of it
    charts.wait_for("race", 2, 3, 2)
    charts.wait_for("tau", 2, 2, 1, 1)
    assert charts.traces("race")[1] == ([0.1, 0.3, 0.5], [1, 4, 5])
    tab.push(value(lane("eagle3", 4), run="r2"))
    charts.wait_for("race", 2, 5)
    charts.wait_for("positions", 4)
    assert charts.traces("race")[1] == (CLOCKS["eagle3"], [1, 3, 5, 6, 11])


def test_the_size_of_every_steps_tree(charts):
    charts.tab.push(value(lane("dart", 5), lane("ar", 3)))
    charts.wait_for("sizes", 5)
    assert charts.traces("sizes") == [([1, 2, 3, 4, 5], [9, 1, 13, 5, 9])]
    expect(charts.tab.locate("#chart-sizes")).to_have_attribute(
        "aria-label",
        "Drafts verified per step. DART: 7.4 drafts verified a step on average, 1 to 13.",
    )


def test_the_mean_is_over_the_last_24_steps(charts):
    counts = [6] * 24 + [0] * 24
    long = {
        **lane("dart", 0),
        "accepted": joined(counts),
        "drafted": joined(counts),
        "emitted": joined([1, *(count + 1 for count in counts)]),
        "clocks": joined(round(0.1 * place, 1) for place in range(49)),
    }
    charts.tab.push(value(long))
    charts.wait_for("accepted", 48, 48)
    mean = charts.traces("accepted")[1][1]
    assert mean[:24] == [6] * 24
    assert mean[24:] == pytest.approx([6 - place / 4 for place in range(1, 25)])


def test_accepted_over_steps_or_own_clocks(charts):
    tab = charts.tab
    by_step, by_clock = tab.locate(".chart-switch button").all()
    assert by_step.inner_text() == "by step"
    assert by_clock.inner_text() == "by own clock"
    expect(by_step).to_have_attribute("aria-pressed", "true")
    tab.push(racing(3, 2))
    charts.wait_for("accepted", 3, 2, 3, 2)
    charts.wait_for("positions", 3, 3)
    charts.watch_builds()
    by_clock.click()
    expect(by_clock).to_have_attribute("aria-pressed", "true")
    expect(by_step).to_have_attribute("aria-pressed", "false")
    expect(tab.locate("#chart-accepted .xtitle")).to_have_text("seconds of own clock")
    clocks = [CLOCKS["dart"][1:4], CLOCKS["eagle3"][1:3]]
    assert [x for x, _ in charts.traces("accepted")] == clocks * 2
    tab.push(racing(5, 4))
    charts.wait_for("accepted", 5, 4, 5, 4)
    assert [x for x, _ in charts.traces("accepted")] == [
        CLOCKS["dart"][1:], CLOCKS["eagle3"][1:]
    ] * 2  # fmt: skip
    assert charts.traces("accepted")[0][1] == ACCEPTED["dart"]
    assert charts.builds() == []
    tab.push(racing(4, 1, run="r2"))  # the choice outlives the run
    charts.wait_for("accepted", 4, 1, 4, 1)
    expect(tab.locate("#chart-accepted .xtitle")).to_have_text("seconds of own clock")
    by_step.click()
    expect(tab.locate("#chart-accepted .xtitle")).to_have_text("verify step")
    assert charts.traces("accepted")[0][0] == [1, 2, 3, 4]


def test_running_tau_and_speedup(charts):
    tab = charts.tab
    hint = tab.locate(".chart:has(#chart-tau) .hint")
    tab.push(racing(5, 4, baseline=None))
    charts.wait_for("tau", 5, 0, 4, 0)
    expect(hint).to_contain_text("No speedup is drawn")
    tau = charts.traces("tau")[0]
    assert tau == ([1, 2, 3, 4, 5], pytest.approx([3, 2, 8 / 3, 2.5, 2.6]))
    charts.watch_builds()
    tab.push(racing(5, 4))
    charts.wait_for("tau", 5, 5, 4, 4)
    expect(hint).to_contain_text("the gap between the two lines of one colour is what drafting")
    # Tokens per second so far, without the prefill, over the 10 of plain decoding.
    speedup = charts.traces("tau")[1]
    assert speedup == ([1, 2, 3, 4, 5], pytest.approx([1.5, 1, 4 / 3, 1.25, 1.3]))
    assert charts.traces("tau")[3][1] == pytest.approx([0.8, 0.8, 5 / 7.5, 1])
    # Plain decoding takes part: its rate of this run replaces the other, for all points.
    tab.push(racing(5, 4, baseline=[20.0, "plain decoding in this run"]))
    tab.wait("Math.abs(document.getElementById('chart-tau').data[1].y[0] - 0.75) < 1e-6")
    assert charts.traces("tau")[1][1] == pytest.approx([0.75, 0.5, 2 / 3, 0.625, 0.65])
    assert charts.builds() == []
    dashes = tab.page.evaluate(
        "document.getElementById('chart-tau').data.map((trace) => trace.line.dash)"
    )
    assert dashes == ["solid", "dash"] * 2


def test_acceptance_by_draft_position(charts):
    tab = charts.tab
    tab.push(racing(5, 4))
    charts.wait_for("positions", 4, 4)
    dart, eagle3 = charts.traces("positions")
    assert dart == ([1, 2, 3, 4], pytest.approx([4 / 5, 3 / 5, 1 / 5, 0]))
    assert eagle3 == ([1, 2, 3, 4], pytest.approx([3 / 4, 1 / 4, 1 / 4, 1 / 4]))
    kinds = tab.page.evaluate(
        "document.getElementById('chart-positions').data.map((trace) => trace.type)"
    )
    assert kinds == ["bar", "bar"]
    expect(tab.locate("#chart-positions .bars path")).to_have_count(8)
    label = tab.locate("#chart-positions")
    expect(label).to_have_attribute(
        "aria-label",
        "Acceptance by draft position. "
        "DART: position 1 80 %, position 2 60 %, position 3 20 %, position 4 0 %. "
        "EAGLE3: position 1 75 %, position 2 25 %, position 3 25 %, position 4 25 %.",
    )


def test_plain_decoding_among_the_lanes(charts):
    tab = charts.tab
    own = [10.0, "plain decoding in this run"]
    tab.push(value(lane("dart", 5), lane("ar", 3), baseline=own))
    charts.wait_for("race", 0, 6, 4)  # its own line stands for the dotted one
    charts.wait_for("accepted", 5, 5)
    charts.wait_for("positions", 3)
    expect(tab.locate(".stage-name")).to_have_text(["DART", "AR"])
    expect(tab.locate(".stage-total")).to_have_text(["20.0 ms", "8.0 ms"])
    parts = tab.locate(".stage-row").first.locator("li")
    expect(parts).to_have_text(["draft 3.00", "search 1.00", "verify 12.0", "rest 4.00"])
    widths = (
        tab.locate(".stage-row")
        .last.locator(".stage-bar .stage")
        .evaluate_all("nodes => nodes.map((node) => parseFloat(node.style.width))")
    )
    assert widths == pytest.approx([0, 0, 37.5, 2.5])
    expect(tab.locate(".baseline")).to_have_text(
        "Speedup refers to plain decoding in this run: 10.0 tokens / s."
    )
    tab.push(value(lane("ar", 3), run="r2", baseline=own))
    charts.wait_for("race", 0, 4)
    for name in ("accepted", "tau", "positions"):
        box = tab.locate(f".chart:has(#chart-{name})")
        expect(box.locator(".chart-empty")).to_have_text("No engine of this run drafts.")
        expect(box.locator(".main-svg")).to_have_count(0)


def test_texts_stand_for_the_charts(charts):
    tab = charts.tab
    for name in ("race", "accepted", "tau", "positions"):
        expect(tab.locate(f"#chart-{name}")).to_have_attribute("role", "img")
    tab.push(racing(5, 4))
    expect(tab.locate("#chart-race")).to_have_attribute(
        "aria-label",
        "The race. DART: 14 tokens in 1.10 seconds of own clock. "
        "EAGLE3: 11 tokens in 1.10 seconds of own clock.",
    )
    expect(tab.locate("#chart-accepted")).to_have_attribute(
        "aria-label",
        "Accepted per step. DART: 5 steps, 1.60 accepted on average, 3 at most. "
        "EAGLE3: 4 steps, 1.50 accepted on average, 4 at most.",
    )
    expect(tab.locate("#chart-tau")).to_have_attribute(
        "aria-label",
        "τ and speedup as they run. DART: τ 2.60, speedup 1.30. EAGLE3: τ 2.50, speedup 1.00.",
    )
    expect(tab.locate(".chart:has(#chart-tau) .chart-key li")).to_have_text(
        ["DART τ", "speedup", "EAGLE3 τ", "speedup"]
    )


def test_another_theme_or_size_repaints_without_a_rebuild(charts):
    tab = charts.tab
    tab.open("?__theme=light")
    tab.push(racing(5, 4))
    charts.wait_for("positions", 4, 4)
    charts.watch_builds()
    inked = """dark => {
        const wanted = dark ? "#8ab6ff" : "#1d4ed8";
        const [race] = document.getElementById("chart-race").data.slice(1);
        const [bars] = document.getElementById("chart-positions").data;
        return race.line.color === wanted && bars.marker.color === wanted;
    }"""
    tab.wait(inked, False)
    tab.page.evaluate("document.body.classList.add('dark')")
    tab.wait(inked, True)
    tab.page.evaluate(
        "document.body.style.setProperty('--scale', '1.5');document.body.classList.add('presenter')"
    )
    tab.wait("document.getElementById('chart-race').layout.font.size === 18")
    tab.wait("document.querySelector('#chart-race .main-svg').getAttribute('height') === '375'")
    assert charts.traces("race")[1] == (CLOCKS["dart"], [1, 4, 5, 9, 11, 14])
    assert charts.builds() == []


def test_markup_in_a_label_stays_text(charts):
    tab = charts.tab
    tab.push(value(lane("dart", 5, MARKUP), baseline=[10.0, MARKUP]))
    charts.wait_for("race", 2, 6)
    charts.wait_for("positions", 3)
    expect(tab.locate(".chart-key li").nth(1)).to_have_text(MARKUP)
    expect(tab.locate(".stage-name")).to_have_text(MARKUP)
    expect(tab.locate(".baseline")).to_contain_text(MARKUP)
    tab.page.evaluate("Plotly.Fx.hover('chart-race', [{curveNumber: 1, pointNumber: 3}])")
    shown = tab.locate("#chart-race .hoverlayer text")
    expect(shown).to_have_text(f"{MARKUP}: 9")
    assert tab.locate("#panel img, #panel b").count() == 0
    assert tab.page.evaluate("window.pwned") is None


def test_a_phone_shows_one_chart_under_the_other(page, browser):
    with page.tab(browser, viewport={"width": 390, "height": 844}) as tab:
        charts = Charts(tab)
        tab.push(racing(5, 4))
        charts.wait_for("positions", 4, 4)
        boxes = [box.bounding_box() for box in tab.locate(".chart").all()]
        for upper, lower in pairwise(boxes):
            assert lower["y"] >= upper["y"] + upper["height"]
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_are_accessible(charts, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = charts.tab
    tab.open(f"?__theme={theme}")
    tab.push(racing(5, 4))
    charts.wait_for("positions", 4, 4)
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    found = axe.run(tab.page, context="#panel", options=options).response["violations"]
    assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
