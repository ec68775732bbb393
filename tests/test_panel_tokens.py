"""The token panel in a real Chromium: turns, tokens as they come, and the answer as a document."""

from __future__ import annotations

import pytest
from browsing import expect
from panels import served_panel

from app.markdown import render
from app.panels import token_panel
from app.view import idle_panel

pytestmark = pytest.mark.browser

PWN = "window.pwned = 1"
HOSTILE = (
    f"<script>{PWN}</script> <img src=https://example.com/x.png onerror='{PWN}'> "
    f"`${{{PWN}}}` {{{{v}}}}"
)
DOCUMENT = """<think>Hm.</think>
# Title

Some **bold** `code`.

```py
if a:
    b()
```

| a |
|--:|
| 1 |
"""
# What a broken server could hand out: the browser's own sanitiser stands against it.
RAW = f"""<!-- c -->
<p onclick="{PWN}" style="background:url(https://example.com/a.png)" class="lane">kept
<img src="https://example.com/b.png" onerror="{PWN}"><script>{PWN}</script>
<a href="javascript:{PWN}">bad</a> <a href=" java&#10;script:{PWN}">worse</a>
<a href="data:text/html,x">data</a> <a href="//example.com">bare</a>
<a href="https://example.com/good" onclick="{PWN}" ping="https://example.com/ping">good</a></p>
<iframe src="https://example.com"></iframe>
<iframe srcdoc="<script>parent.pwned = 1</script>"></iframe>
<svg onload="{PWN}"><a href="javascript:{PWN}">s</a>
<style>@import "https://example.com/c.css"</style></svg>
<math><mtext><style><img src=x onerror="{PWN}"></style></mtext></math>
<form action="https://example.com"><input name=attributes autofocus onfocus="{PWN}">
<button>go</button></form>
<link rel=stylesheet href="https://example.com/d.css">
<meta http-equiv=refresh content="0;url=https://example.com"><base href="https://example.com/">
<object data="https://example.com/e"></object><video src="https://example.com/f"></video>
<details ontoggle="{PWN}" open><summary>sum</summary>x</details>
<template><img src=x onerror="{PWN}"></template>
<noscript><img src="https://example.com/g.png"></noscript>
<ol start="1e9"><li>one</li></ol><ol start="3" reversed><li>three</li></ol>"""


def value_of(text: str, *, marks: str = "", **more) -> dict:
    return {
        **idle_panel("dart"),
        "run": "one",
        "state": "done",
        "text": text,
        "marks": marks or f"p{len(text)}",
        "turns": [],
        "prompt": "why?",
        **more,
    }


def rendered_of(run: str, engine: str) -> str:
    """What the panel's server answers in these tests, by run."""
    if run == "broken":
        raise RuntimeError("told to fail")
    return {"raw": RAW, "lost": "", "doc": render(DOCUMENT), "hostile": render(HOSTILE)}[run]


FIRST = value_of("shown at once", turns=[["before", "long ago"]], prompt="now?")


@pytest.fixture(scope="module")
def site():
    def build():
        return token_panel(FIRST, rendered_of=rendered_of, elem_id="panel")

    with served_panel(build, ready="#panel .lane-title") as page:
        yield page


@pytest.fixture
def tab(site, browser):
    with site.tab(browser) as tab:
        yield tab


def shown(tab, text: str) -> None:
    """``.flow`` holds exactly the present answer."""
    tab.wait("text => document.querySelector('#panel .flow').textContent === text", text)


def test_the_first_value_is_shown_without_an_update(tab):
    expect(tab.locate(".lane-title")).to_have_text("DART")
    shown(tab, "shown at once")
    expect(tab.locate(".turn .words")).to_have_text("before")
    expect(tab.locate(".turn .answer")).to_have_text("long ago")
    expect(tab.locate(".lane-text > .said .words")).to_have_text("now?")
    expect(tab.locate(".lane")).to_have_attribute("data-engine", "dart")


def test_earlier_turns_keep_their_layout_and_are_built_once(tab):
    code = "def f():\n    return 1\n\n    # end"
    turns = [["one?", code], ["two?", HOSTILE]]
    tab.push(value_of("a", run="x", turns=turns, state="running"))
    expect(tab.locate(".turn")).to_have_count(2)
    assert tab.locate(".turn .answer").first.evaluate("node => node.textContent") == code
    assert tab.locate(".turn .answer").nth(1).evaluate("node => node.textContent") == HOSTILE
    assert tab.locate(".turn .answer").first.evaluate("n => getComputedStyle(n).whiteSpace") == (
        "pre-wrap"
    )
    expect(tab.locate(".said .who").first).to_have_text("You")
    tab.page.evaluate("document.querySelector('.turn').dataset.old = '1'")
    grown = {"marks": "p1|t1", "run": "x", "turns": turns, "state": "running"}
    tab.push(value_of("ab", **grown))
    shown(tab, "ab")
    expect(tab.locate(".turn[data-old]")).to_have_count(1)
    turns = [*turns, ["three?", "3"]]
    tab.push(value_of("c", run="y", turns=turns, prompt=HOSTILE))
    expect(tab.locate(".turn")).to_have_count(3)
    expect(tab.locate(".lane-text > .said .words")).to_have_text(HOSTILE)
    tab.push({**idle_panel("dart"), "turns": [], "prompt": ""})
    expect(tab.locate(".turn")).to_have_count(0)
    expect(tab.locate(".lane-text > .said")).to_be_hidden()
    assert tab.page.evaluate("window.pwned") is None


def test_tokens_are_added_and_never_built_again(tab):
    steps = [
        ("The", "p3"),
        ("The sky is", "p3|d4:87,t3"),
        ("The sky is\n\n  blue", "p3|d4:87,t3|d2:9,t6"),
        ("The sky is\n\n  blue.", "p3|d4:87,t3|d2:9,t6,+1"),
    ]
    values = [value_of(text, marks=marks, state="running", run="g") for text, marks in steps]
    tab.push(values[0])
    shown(tab, "The")
    tab.page.evaluate("document.querySelector('.flow .tok').dataset.old = '1'")
    tab.push(*values[1:], pause=0.05)
    shown(tab, steps[-1][0])
    expect(tab.locate(".flow .tok")).to_have_count(5)
    expect(tab.locate(".flow .tok[data-old]")).to_have_count(1)
    expect(tab.locate(".flow .tok.d")).to_have_count(2)
    assert tab.locate(".flow .tok.d").all_inner_texts() == [" sky", "\n\n"]
    expect(tab.locate(".lane-views")).to_be_hidden()


def test_an_update_that_was_missed_or_taken_back_leaves_no_trace(tab):
    tab.push(value_of("one two three", marks="p3|d4:1,t6", run="r"))
    shown(tab, "one two three")
    tab.push(value_of("one", marks="p3", run="r"))
    shown(tab, "one")
    expect(tab.locate(".flow .tok")).to_have_count(1)
    tab.push(value_of("uno dos", marks="p3|t4", run="r", state="running"))
    shown(tab, "uno dos")
    tab.push(value_of("other", run="r", engine="eagle3"))
    shown(tab, "other")
    tab.push({**idle_panel("dart"), "turns": [], "prompt": ""})
    shown(tab, "")
    expect(tab.locate(".lane-empty").last).to_have_text("Press Run.")


def test_markup_in_the_answer_stays_text(tab):
    tab.push(value_of(HOSTILE, prompt=HOSTILE, note=HOSTILE, run="h"))
    shown(tab, HOSTILE)
    expect(tab.locate(".lane-note")).to_have_text(HOSTILE)
    expect(tab.locate("#panel :is(script, img, iframe)")).to_have_count(0)
    assert tab.page.evaluate("window.pwned") is None


def test_markup_in_the_document_stays_text(tab):
    tab.push(value_of(HOSTILE, run="hostile"))
    tab.locate(".lane-views button").last.click()
    expect(tab.locate(".rendered p")).to_contain_text(f"<script>{PWN}</script>")
    expect(tab.locate("#panel :is(script, img, iframe)")).to_have_count(0)
    assert tab.page.evaluate("window.pwned") is None


def test_where_the_texts_part_is_marked_with_a_sign_and_a_title(tab):
    marks = "p3|d4:87,t3|t3"
    tab.push(value_of("The sky is up", marks=marks, cut=7, run="c", note="Differs."))
    mark = tab.locate(".flow .tok.cut")
    expect(mark).to_have_text(" is")
    assert mark.evaluate("node => getComputedStyle(node, '::before').content") == '"≠"'
    assert "The texts part here" in mark.get_attribute("title")
    expect(tab.locate(".lane-note")).to_have_text("Differs.")
    shown(tab, "The sky is up")  # the sign is no text
    tab.push(value_of("The sky is up", marks=marks, cut=3, run="c"))
    expect(tab.locate(".flow .tok.cut")).to_have_text(" sky")
    expect(tab.locate(".flow .tok[title]")).to_have_count(1)
    tab.push(value_of("The sky is up", marks=marks, cut=-1, run="c"))
    expect(tab.locate(".flow .tok.cut")).to_have_count(0)
    # The place is known before its token is here.
    tab.push(value_of("The", marks="p3", cut=3, run="d"))
    expect(tab.locate(".flow .tok.cut")).to_have_count(0)
    tab.push(value_of("The sky", marks="p3|t4", cut=3, run="d"))
    expect(tab.locate(".flow .tok.cut")).to_have_text(" sky")


def test_a_token_tells_about_itself_to_mouse_and_keyboard(tab):
    tab.page.evaluate(
        "document.addEventListener('arena:step', (e) => { window.step = e.detail.step; })"
    )
    tab.push(value_of("The sky is up", marks="p3|d4:87,t3|t3", run="k"))
    told = tab.locate(".lane-here")
    expect(told).to_be_hidden()
    tab.locate(".tok.d").hover()
    expect(tab.locate(".tok.d")).to_have_attribute(
        "title", "accepted draft, 87 % by its drafter · step 1, token 1 of it"
    )
    body = tab.locate(".lane-text")
    body.focus()
    body.press("ArrowRight")
    expect(told).to_have_text("“The” the target's own, from the prefill · step 0, token 1 of it")
    body.press("ArrowRight")
    expect(told).to_have_text("“·sky” accepted draft, 87 % by its drafter · step 1, token 1 of it")
    expect(tab.locate(".tok.here")).to_have_text(" sky")
    body.press("Enter")
    tab.wait("window.step === 1")
    expect(tab.locate(".tok.picked")).to_have_count(2)
    body.press("ArrowLeft")
    body.press("ArrowLeft")
    expect(tab.locate(".tok.here")).to_have_text("The")
    assert told.get_attribute("aria-live") is None and body.get_attribute("aria-live") is None
    body.evaluate("node => node.blur()")
    expect(told).to_be_hidden()
    tab.locate(".tok").last.click()
    tab.wait("window.step === 2")
    expect(tab.locate(".tok.picked")).to_have_text(" up")


def test_the_answer_as_a_document(tab):
    views = tab.locate(".lane-views")
    tab.push(value_of(DOCUMENT, run="doc", state="running"))
    shown(tab, DOCUMENT)
    expect(views).to_be_hidden()
    tab.push(value_of(DOCUMENT, run="doc"))
    expect(views).to_be_visible()
    tokens, rendered = views.get_by_role("button").all()
    expect(tokens).to_have_attribute("aria-pressed", "true")
    rendered.click()
    expect(tab.locate(".rendered h3")).to_have_text("Title")
    expect(rendered).to_have_attribute("aria-pressed", "true")
    expect(tokens).to_have_attribute("aria-pressed", "false")
    expect(tab.locate(".flow")).to_be_hidden()
    expect(tab.locate(".lane-text > .said")).to_be_visible()
    assert tab.locate(".rendered pre").evaluate("n => n.textContent") == "if a:\n    b()\n"
    assert tab.locate(".rendered pre code").evaluate("n => getComputedStyle(n).whiteSpace") == "pre"
    expect(tab.locate(".rendered td.right")).to_have_text("1")
    expect(tab.locate(".rendered details p")).to_be_hidden()
    tab.locate(".rendered summary").click()
    expect(tab.locate(".rendered details p")).to_have_text("Hm.")
    shown(tab, DOCUMENT)
    tokens.click()
    expect(tab.locate(".flow")).to_be_visible()
    expect(tab.locate(".rendered")).to_be_hidden()
    rendered.click()  # kept: what the visitor had opened is still open
    expect(tab.locate(".rendered details p")).to_be_visible()
    tab.push(value_of(DOCUMENT, run="doc", state="error"))  # no switch, so no way back either
    expect(views).to_be_hidden()
    expect(tab.locate(".flow")).to_be_visible()
    tab.push(value_of(DOCUMENT, run="doc"))
    rendered.click()
    expect(tab.locate(".rendered")).to_be_visible()
    tab.push(value_of("new", run="next", state="running"))
    expect(tab.locate(".flow")).to_be_visible()
    expect(views).to_be_hidden()
    shown(tab, "new")
    tab.push(value_of("new", run="next", state="stopped"))
    expect(tokens).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize(
    ("run", "sentence"),
    [("lost", "no longer keeps this run"), ("broken", "did not answer")],
)
def test_a_document_that_does_not_come_is_told_and_asked_for_again(tab, run, sentence):
    tab.push(value_of("text", run=run))
    tokens, rendered = tab.locate(".lane-views button").all()
    for _ in range(2):
        rendered.click()
        expect(tab.locate(".rendered")).to_contain_text(sentence)
        tokens.click()
        expect(tab.locate(".flow")).to_be_visible()


def test_the_browser_trusts_no_html_of_the_server(tab):
    tab.push(value_of("text", run="raw"))
    tab.locate(".lane-views button").last.click()
    expect(tab.locate(".rendered p").first).to_contain_text("kept")
    names = tab.page.evaluate(
        """() => [...document.querySelectorAll('.rendered *')].map(node =>
            [node.tagName, ...[...node.attributes].map(a => `${a.name}=${a.value}`)].join(' '))"""
    )
    link = "A href=https://example.com/good target=_blank rel=noopener noreferrer nofollow"
    assert [name for name in names if name.startswith("A ")] == [link]
    assert {name for name in names if not name.startswith("A ")} == {
        "P", "A", "DETAILS", "SUMMARY", "OL", "OL start=3", "LI",
    }  # fmt: skip
    tab.locate(".rendered a").first.click()  # "bad"
    tab.locate(".rendered summary").click()
    assert tab.page.evaluate("window.pwned") is None
    assert len(tab.context.pages) == 1


def test_the_view_follows_the_end_until_its_visitor_scrolls_up(tab):
    lines = [f"line {n}\n" for n in range(200)]

    def upto(count: int, run: str = "s") -> dict:
        marks = "|".join(f"t{len(line)}" for line in lines[:count])
        return value_of("".join(lines[:count]), marks=f"|{marks}", state="running", run=run)

    body = "document.querySelector('.lane-text')"
    at_end = f"{body}.scrollHeight - {body}.scrollTop - {body}.clientHeight < 5"
    tab.push(upto(100))
    tab.wait(f"{body}.scrollTop > 500 && {at_end}")
    scrolled = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    tab.page.evaluate(f"{body}.scrollTop = 0; {scrolled}")  # and heard of
    tab.push(upto(200))
    shown(tab, "".join(lines))
    tab.page.evaluate(scrolled)
    assert tab.page.evaluate(f"{body}.scrollTop") == 0
    tab.push(upto(150, run="anew"))
    tab.wait(f"{body}.scrollTop > 500 && {at_end}")


def test_twenty_thousand_characters(tab):
    pieces = [f" word{n}" + ("\n" if n % 12 == 11 else "") for n in range(2_700)]
    text = "".join(pieces)
    assert len(text) > 20_000
    marks = "|" + "|".join(f"d{len(piece)}:50" for piece in pieces)
    values = []
    for count in range(300, 2_701, 300):
        part = "".join(pieces[:count])
        values.append(value_of(part, marks="|".join(marks.split("|")[: count + 1]), run="long"))
    tab.push(*values)
    shown(tab, text)
    expect(tab.locate(".flow .tok")).to_have_count(2_700)


def test_every_line_runs_the_way_of_its_letters(tab):
    arabic = "مرحبا بالعالم"
    turns = [[arabic, arabic]]
    tab.push(
        value_of(f"{arabic}\nHello you", marks="p5p8p1p5p4", turns=turns, prompt=arabic, run="doc")
    )
    shown(tab, f"{arabic}\nHello you")
    first, second, _, third, fourth = [tok.bounding_box()["x"] for tok in tab.locate(".tok").all()]
    assert first > second and third < fourth
    starts = "n => { const r = document.createRange(); r.selectNodeContents(n); const box = "
    starts += "n.getBoundingClientRect(); return box.right - r.getClientRects()[0].right < 2; }"
    for place in (".turn .answer", ".line:first-child"):
        assert tab.locate(place).first.evaluate(starts), place
    ways = "n => [getComputedStyle(n).unicodeBidi, getComputedStyle(n).display]"
    assert tab.locate(".said .words").first.evaluate(ways) == ["plaintext", "block"]
    tab.locate(".lane-views button").nth(1).click()
    expect(tab.locate(".rendered p").first).to_have_css("unicode-bidi", "plaintext")
