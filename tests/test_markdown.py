"""Model output as a document: what it becomes, and that nothing in it can run, load or run away."""

from __future__ import annotations

import re
import sys
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from app.markdown import ADDRESS, GROWTH, LONGEST, render

ATTRIBUTES = {
    "a": {"href", "target", "rel"},
    "ol": {"start"},
    "pre": {"tabindex"},
    "details": {"class"},
    "span": {"class"},
    "th": {"class"},
    "td": {"class"},
}
BARE = {
    *("p", "h3", "h4", "h5", "h6", "ul", "li", "blockquote", "code", "em", "strong", "s"),
    *("hr", "br", "table", "thead", "tbody", "tr", "summary"),
}
CLASSES = {"thinking", "picture", "right", "center"}


class Page(HTMLParser):
    """Reads HTML strictly: every element and attribute is one we know, and all are closed."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ATTRIBUTES or tag in BARE
        assert {name for name, _ in attrs} <= ATTRIBUTES.get(tag, set())
        found = dict(attrs)
        assert found.get("class") in {None, *CLASSES}
        assert found.get("start") is None or found["start"].isdigit()
        if "href" in found:
            assert re.match(r"(https?://|mailto:)\S+$", found["href"], re.IGNORECASE)
            assert found["rel"] == "noopener noreferrer nofollow"
            assert found["target"] == "_blank"
        self.elements.append((tag, found))
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment

    @property
    def text(self) -> str:
        return "".join(self.words)

    def links(self) -> list[str]:
        return [found["href"] for _, found in self.elements if "href" in found]


# What it becomes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("", ""),
        ("plain & <b>", "<p>plain &amp; &lt;b&gt;</p>\n"),
        ("*a* **b** ~~c~~", "<p><em>a</em> <strong>b</strong> <s>c</s></p>\n"),
        ("`d<` ``e`f``", "<p><code>d&lt;</code> <code>e`f</code></p>\n"),
        ("# a", "<h3>a</h3>\n"),
        ("# a\n## b\n#### c", "<h3>a</h3>\n<h4>b</h4>\n<h5>c</h5>\n"),
        ("### a\n##### b\n## c", "<h3>a</h3>\n<h4>b</h4>\n<h4>c</h4>\n"),
        (
            "# a\n## b\n### c\n#### d\n##### e",
            "<h3>a</h3>\n<h4>b</h4>\n<h5>c</h5>\n<h6>d</h6>\n<h6>e</h6>\n",
        ),
        ("a\n=\n\nb\n-", "<h3>a</h3>\n<h4>b</h4>\n"),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n"),
        ("3. a", '<ol start="3">\n<li>a</li>\n</ol>\n'),
        ("> a", "<blockquote>\n<p>a</p>\n</blockquote>\n"),
        ("a  \nb\n\n---", "<p>a<br>\nb</p>\n<hr>\n"),
        ("&amp; &lt;b&gt; &#60;", "<p>&amp; &lt;b&gt; &lt;</p>\n"),
        ("http://bare.example www.bare.example", "<p>http://bare.example www.bare.example</p>\n"),
        ("é漢🎉 \ud83c", "<p>é漢🎉 \ufffd</p>\n"),
    ],
)  # fmt: skip
def test_markdown_becomes_html(text, html):
    assert render(text) == html
    Page(html)


def test_code_keeps_its_layout():
    code = "if a:\n\n\tb()  # <b>\n    c()\n"
    for text in (f"```py title='x'\n{code}```", f"~~~\n{code}"):
        assert render(text) == f'<pre tabindex="0"><code>{code}</code></pre>\n'.replace(
            "<b>", "&lt;b&gt;"
        )
    assert render("    a\n      b") == '<pre tabindex="0"><code>a\n  b\n</code></pre>\n'


def test_tables_with_sides():
    page = Page(render("| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | <i>3 |"))
    cells = [(tag, found.get("class")) for tag, found in page.elements if tag in ("th", "td")]
    assert cells == [(tag, side) for tag in ("th", "td") for side in (None, "center", "right")]
    assert page.text.split() == ["a", "b", "c", "1", "2", "<i>3"]


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("<think>hm</think>so", ["hm"], "so"),
        ("<think>\nhm\n\nhm\n</think>\n\nso", ["hm\nhm"], "so"),
        ("<think>no end *yet*", ["no end yet"], ""),
        ("it began in the prompt</think>\nso", ["it began in the prompt"], "so"),
        ("<think>\n\n</think>\n\nnone", [], "none"),
        ("a <think>b</think> c <think>d</think>", ["b", "d"], "a\nc"),
        ("<think>a <think> b</think>c</think>d", ["a <think> b"], "c</think>d"),
        ("<think>open `code\n```\nfence</think>so", ["open `code\nfence"], "so"),
        ("`<think>` is a tag", [], "<think> is a tag"),
        ("```\n<think>\n```\nso", [], "<think>\nso"),
        ("<THINK>a</THINK>", [], "<THINK>a</THINK>"),
    ],
)
def test_thinking_is_folded_away(text, thoughts, answer):
    html = render(text)
    folded = r'<details class="thinking"><summary>Thinking</summary>(.*?)</details>\n'

    def words(part: str) -> str:
        return re.sub(r"\n+", "\n", Page(part).text).strip()

    assert [words(part) for part in re.findall(folded, html, re.DOTALL)] == thoughts
    assert words(re.sub(folded, "", html, flags=re.DOTALL)) == answer


def test_links_lead_to_the_web_and_to_mail_alone():
    text = (
        "[a](https://a.example/?q=1&r=\"2\" 'title') <http://b.example> <c@d.example> "
        "[e][ref] [ref] [f](MAILTO:g@h.example)\n\n[ref]: http://i.example/ 'title'"
    )
    page = Page(render(text))
    assert page.links() == [
        "https://a.example/?q=1&r=%222%22",
        "http://b.example",
        "mailto:c@d.example",
        "http://i.example/",
        "http://i.example/",
        "MAILTO:g@h.example",
    ]
    assert page.text == "a http://b.example c@d.example e ref f\n"


def test_a_picture_is_its_words_and_its_address():
    text = (
        '![a *cat* <b>](https://x.example/c.png "t") [![in](http://y.example/)](http://z.example/)'
    )
    page = Page(render(text))
    assert page.text == "a cat <b> (https://x.example/c.png) in (http://y.example/)\n"
    assert page.links() == ["http://z.example/"]
    for text in ("![x](data:image/png;base64,AAAA)", "![x](javascript:a)", "![x](c.png)", "![]()"):
        page = Page(render(text))
        assert page.links() == []
        assert page.text.strip() in (text, "()")


# Nothing runs, nothing loads ----------------------------------------------------------------------

SCHEMES = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\tscript:alert(1)",
    "java&#10;script:alert(1)",
    "java&NewLine;script:alert(1)",
    "&#106;avascript:alert(1)",
    "&#x6A&#x61vascript:alert(1)",
    "javascript&colon;alert(1)",
    "\x01javascript:alert(1)",
    "javascript://x.example/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "data:text/html;base64,PHNjcmlwdD4=",
    "data:image/png;base64,AAAA",
    "vbscript:msgbox(1)",
    "file:///etc/passwd",
    "blob:https://x.example/1",
    "ftp://x.example",
    "//x.example",
    "/gradio_api/x",
    "x.html",
    "#here",
    "http:x",
    "https:",
    "http://",
    "view-source:http://x",
    "jav\\ascript:alert(1)",
]
PLACES = [
    "[a]({})",
    "[a](<{}>)",
    "[a]({} 'title')",
    "<{}>",
    "![a]({})",
    "[![a]({0})]({0})",
    "[a]\n\n[a]: {}",
    "[a][b]\n\n[b]: <{}>",
    "![a][b]\n\n[b]: {} 'title'",
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_link_leads_elsewhere(scheme):
    for place in PLACES:
        assert Page(render(place.format(scheme))).links() == []


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        "<svg><script>alert(1)</script></svg>",
        "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
        "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
        "<a href='javascript:alert(1)'>x</a>",
        "<base href='https://x.example'><meta http-equiv=refresh content='0;url=//x.example'>",
        "<link rel=stylesheet href=//x.example><style>@import '//x.example';</style>",
        "<form action=//x.example><input autofocus onfocus=alert(1)>",
        "<details ontoggle=alert(1) open>",
        "</details><script>alert(1)</script>",
        "<think><script>alert(1)</script></think><script>",
        "<think></details></div><img src=x>",
        "<!-- --><script>alert(1)</script><!--",
        "<!--><img src=x onerror=alert(1)>-->",
        "<![CDATA[<script>alert(1)</script>]]>",
        "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY y 'z'>]>",
        "</p></div></section><script>alert(1)</script>",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&#60;script&#62; &#x3c;img src=x&#x3e; &#0; &#xD800; &#x110000;",
        "`<script>alert(1)</script>` ``<img src=x>``",
        "```<script>\n</code></pre><script>alert(1)</script>\n```",
        "```\"><script>alert(1)</script>\nx\n```",
        "~~~x' onclick='alert(1)\nx\n~~~",
        '# <b onclick="alert(1)">x</b>',
        "| <script> | x |\n|---|---|\n| <img src=x onerror=alert(1)> | &lt;b&gt; |",
        '[x](https://x.example/"onmouseover="alert(1))',
        "[x](https://x.example/'onmouseover='alert(1))",
        "[x](<https://x.example/\" onmouseover=alert(1) x=\">)",
        "[x](https://x.example \"t' onmouseover=alert(1)\")",
        '![x" onerror="alert(1)](https://x.example/y.png)',
        '![x](https://x.example/"onerror="alert(1))',
        "![<script>alert(1)</script>](https://x.example)",
        "[<img src=x onerror=alert(1)>](https://x.example)",
        '<https://x.example/"onclick="alert(1)>',
        "[x]: https://x.example/\"onclick=alert(1) 'y\" onclick=alert(1)'\n\n[x]",
        "[a](javascript:alert(1)//https://x.example)",
        "1e9. x\n\n1234567890. y\n\n007. z",
        "${alert(1)} {{alert(1)}} <%= x %> {%x%}",
        "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
        "\u2028<script>\u2029alert(1)\x00</scr\x00ipt>",
        "<\x00script>alert(1)</script> \ufeff<script>",
        "<scr<script>ipt>alert(1)</scr</script>ipt>",
    ],
)  # fmt: skip
def test_markup_stays_text(text):
    Page(render(text))
    Page(render(f"> - {text}"))


def test_any_text_gives_html_that_a_strict_reader_accepts():
    parts = [
        *"<>[]()!*_~`#-+|:\\&\"'= \t\n\n\n",
        "    ", "```", "~~~", "<think>", "</think>", "http://x", "javascript:", "](", "![", "1. ",
        "- ", "> ", "a", "&lt;", "&#0;", "<!--", "<a href=", "|-|-|\n", "\x00", "é", "🎉", "\ud800",
    ]  # fmt: skip
    draw = np.random.default_rng(3)
    for _ in range(400):
        text = "".join(parts[n] for n in draw.integers(len(parts), size=draw.integers(1, 120)))
        html = render(text)
        Page(html)
        html.encode()  # no half characters are left


# Bounds -------------------------------------------------------------------------------------------

N = 20_000


def filled(unit: str) -> str:
    return unit * (N // len(unit))


@pytest.mark.parametrize(
    "unit",
    [
        *'><[]()*_~`!#&|-=\\"\n',
        *["> ", "- ", "1. ", "* - > ", "[a](", "![", "[a][", "[[a]]", "](", "*[", "*a **a ", "**_"],
        *["a**b", "~~a ", "`a``", "<a", "<http://", "<![CDATA[", "<!--", "> a\n", "- a\n", "#\n"],
        *["```\n", "a\n=\n", "[a]: x\n", "|a\n|-\n", "<think>", "</think>", "<think>a</think>"],
        *["[a](http://x) ", "a\n", "\\[", "``` ", "&lt;"],
    ],
)
def test_hostile_repetition_stays_small_and_shallow(unit):
    text = filled(unit)
    html = render(text)
    assert len(html) <= GROWTH * len(text) + 1_000
    depth = deepest = 0
    for closing in re.findall(r"<(/?)(?!br|hr)\w", html):
        depth += -1 if closing else 1
        deepest = max(deepest, depth)
    assert deepest < 60


@pytest.mark.parametrize(
    "text",
    [
        "[" * (N // 2) + "a" + "]" * (N // 2),
        "*" * (N // 2) + "a" + "*" * (N // 2),
        "".join("e" + "`" * n for n in range(200)),
        "\n".join("  " * n + "- a" for n in range(140)),
        "> " * 15 + "a\n" + "b\n" * 9_000,
        ("> " * 99 + "a\n") * 100,
    ],
)
def test_hostile_nesting_needs_no_deep_stack(text):
    limit = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 0
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 350)
    try:
        html = render(text)
    finally:
        sys.setrecursionlimit(limit)
    Page(html)


@pytest.mark.parametrize("unit", ["> ", "- ", "1. "])
def test_no_text_is_lost_in_deep_nesting(unit):
    for depth in (1, 5, 9, 10, 18, 19, 20, 21, 500):
        page = Page(render(unit * depth + "word **two**\nthree"))
        assert {"word", "three"} <= set(page.text.split())
    assert "too deeply nested" in page.text
    assert page.elements == [("p", {}), ("pre", {"tabindex": "0"}), ("code", {})]


def test_a_reference_cannot_blow_the_page_up():
    address = "http://" + "x" * 1_900
    html = render(f"[a]: {address}\n\n" + "[a]" * 6_000)
    assert len(html) < 30_000
    assert "too long, rendered" in html
    long = "http://" + "x" * ADDRESS
    assert Page(render(f"[a]({long}) <{long}>")).links() == []


def test_a_table_cannot_blow_the_page_up():
    html = render("|a" * 140 + "\n" + "|-" * 140 + "\n" + "a\n" * 9_000)
    assert "too long, rendered" in html


def test_a_very_long_text_is_shown_as_it_is():
    text = "*a* <b>\n" * (LONGEST // 8 + 1)
    page = Page(render(text))
    assert "too long" in page.text
    assert text in page.text
    assert unescape("".join(re.findall(r"<code>(.*)</code>", render(text), re.DOTALL))) == text
