"""A model's answer as HTML that is safe to show: no markup of its own, nothing fetched, every link
plain to see. The browser sanitises it once more.

Bounded: a text that is too long or too deeply nested, or whose HTML would be many times longer than
itself, is shown as it is, so that nothing of it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

LONGEST = 100_000  # characters of text
GROWTH = 20  # characters of HTML for one of text; a full page of links takes 12
ADDRESS = 2_000  # characters of a link's address: a reference can repeat it without end
NESTING = 20  # CommonMark's own figure: ten lists, one in another

_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s]+", re.IGNORECASE)
_LINK = '<a href="{}" target="_blank" rel="noopener noreferrer nofollow">'
_CONTAINERS = ("blockquote_open", "list_item_open")
_SIDES = {"text-align:right": "right", "text-align:center": "center"}
# Where thinking may begin. Code is matched first, so that tags in it stay code.
_OPENING = re.compile(
    r"""^\ {0,3}(`{3,}+|~{3,}+)[^`\n]*\n(?s:.*?)(?:^\ {0,3}\1|\Z)  # a fenced block
      | `[^`\n]+`
      | (?P<tag></?think>)""",
    re.MULTILINE | re.VERBOSE,
)
_CLOSING = re.compile(r"(?P<tag></think>)")


def render(text: str) -> str:
    """Markdown as HTML: CommonMark with tables and strikethrough, headings from h3 on.

    Links lead to http, https and mailto addresses alone, in a new tab. A picture becomes its words
    and its address. ``<think>`` … ``</think>`` becomes closed details with the class ``thinking``;
    the other classes are ``picture``, and ``right`` and ``center`` of table cells.
    """
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) > LONGEST:
        return _plain(text, "too long")
    pieces = []
    for part, thinking in _pieces(text):
        piece = _piece(part, thinking)
        if piece is None:
            return _plain(text, "too deeply nested")
        pieces.append(piece)
    html = "".join(pieces)
    return html if len(html) <= GROWTH * len(text) + 1_000 else _plain(text, "too long, rendered")


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether it is thinking. Thinking without an end goes on to the
    last character; an end without a beginning is that of thinking which the prompt had begun.
    """
    start = position = 0
    thinking = False
    while found := (_CLOSING if thinking else _OPENING).search(text, position):
        position = found.end()
        tag = found["tag"]
        if tag is None or (tag == "</think>" and not thinking and start > 0):
            continue
        yield text[start : found.start()], tag == "</think>"
        start = position
        thinking = tag == "<think>"
    yield text[start:], thinking


def _piece(text: str, thinking: bool) -> str | None:
    """None where markdown-it would leave out what lies too deep."""
    memory: dict = {}  # references, and the heading before
    tokens = _MARKDOWN.parse(text, memory)
    if any(token.level >= NESTING - 1 and token.type in _CONTAINERS for token in tokens):
        return None
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, memory)
    if not thinking or not html:
        return html
    return f'<details class="thinking"><summary>Thinking</summary>{html}</details>\n'


def _plain(text: str, why: str) -> str:
    return f"<p>Not rendered, because it is {why}:</p>\n{_code(text)}"


def _code(text: str) -> str:
    # Long lines scroll sideways, so the keyboard must be able to get there.
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>\n'


Env = MutableMapping[str, Any]  # what the renderer of one text notes for itself


class _Renderer(RendererHTML):
    """Token by token; what has no method here comes out as a bare tag, never as the text's own."""

    def heading_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env
    ) -> str:
        # Below the page's h2, and never more than a level below the heading before.
        level = min(int(tokens[idx].tag[1:]) + 2, env.get("heading", 2) + 1, 6)
        env["heading"] = level
        return f"<h{level}>"

    def heading_close(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env
    ) -> str:
        return f"</h{env['heading']}>\n"

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        return _code(tokens[idx].content)

    fence = code_block  # the language after the fence is dropped: nothing here would use it

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        address = str(tokens[idx].attrs.get("href", ""))
        return _LINK.format(escape(address)) if _harmless(address) else "<a>"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        words = self.renderInlineAsText(token.children, options, env)
        address = str(token.attrs.get("src", ""))
        return f'<span class="picture">{escape(words)} ({escape(address)})</span>'

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        side = _SIDES.get(str(token.attrs.get("style", "")))
        return f'<{token.tag} class="{side}">' if side else f"<{token.tag}>"

    td_open = th_open


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        return _harmless(url)


def _harmless(address: str) -> bool:
    return len(address) <= ADDRESS and _ADDRESS.fullmatch(address) is not None


_MARKDOWN = _Markdown(
    "commonmark",
    {"html": False, "xhtmlOut": False, "maxNesting": NESTING},
    renderer_cls=_Renderer,
).enable(["table", "strikethrough"])
