"""The whole page over scripted engines, and what its visitors do there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from browsing import WAIT, Tab, expect, free_port
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app.arena import Arena
from app.page import build_page
from app.serve import close, launch
from dart_core.check import Verdict
from dart_core.errors import ArenaError

STORY = (
    "The sky looks blue because of how sunlight meets the air.\n\n"
    "    for wave in light:\n        scatter(wave)  # the short ones most\n\nThat is all."
)
MARKUP = (
    "<b>x</b><script>window.pwned = 1</script> a<b && c>d "
    "<img src='https://example.com/x.png' onerror='window.pwned = 2'> ${window.pwned=3} {{value}} `"
)
MARKDOWN = (
    "# Plan\n\n- **one**\n- two\n\n```python\nfor x in y:\n    pass\n```\n\n"
    "![i](https://example.com/i.png) [l](javascript:alert(1)) <img src=x onerror=alert(1)>\n"
)
SPLIT = "ok 🎉é漢 🎉 done"
WORDS = re.findall(r" ?\w+|<[^>]*>|\W", STORY + MARKUP)


class Script:
    """What the scripted engines do, told by the prompt."""

    def __init__(self):
        self.tokenizer = ScriptedTokenizer(WORDS)
        self.bytes = ScriptedTokenizer()  # has the same ids for single bytes

    def steps(self, engine: str, prompt: str):
        backend = {"dart": "native", "eagle3": "torch", "ar": "none"}[engine]
        options = {
            "seconds": {"dart": 0.05, "eagle3": 0.06, "ar": 0.04}[engine],
            "backend": backend,
        }
        sizes = {"dart": [3, 1, 4], "eagle3": [2, 2, 1], "ar": [1]}[engine]
        ids = self.tokenizer.encode(STORY)
        if engine != "ar":
            options["extra"] = [self.tokenizer.encode(" sunlight meets"), ids[:1]]
        if "markup" in prompt:
            ids = self.tokenizer.encode(MARKUP)
            if engine != "ar":
                options["extra"] = [self.tokenizer.encode("<script>")]
                sizes = [12] if engine == "dart" else [1]
        elif "split" in prompt:
            ids = self.bytes.encode(SPLIT)
        elif "long" in prompt:
            ids = self.tokenizer.encode(STORY * (20_000 // len(STORY) + 1))
            options.pop("extra", None)
        elif "endless" in prompt:
            ids = ids * 40
        elif "part" in prompt and engine == "eagle3":
            ids = [*ids[:9], *self.tokenizer.encode(" waves"), *ids[10:]]
        elif "markdown" in prompt:
            ids = self.tokenizer.encode(MARKDOWN)
        steps = steps_of(ids, sizes, **options)
        if found := re.search(r"fail (\d)", prompt):
            if engine == "eagle3":
                steps[int(found[1])] = RuntimeError("cannot read /srv/secret/head.bin")
        elif "refuse" in prompt and engine == "eagle3":
            return [ArenaError(f"the prompt is too long: {MARKUP}")]
        return steps

    @staticmethod
    def pace(prompt: str) -> float:
        return 2.0 if "endless" in prompt else 0.0 if "long" in prompt else 0.05

    def engine(self) -> ScriptedEngine:
        def script(name):
            return lambda prompt: self.steps(name, prompt)

        scripts = {name: script(name) for name in ("ar", "dart", "eagle3")}
        verdict = Verdict("tie", 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
        return ScriptedEngine(
            scripts,
            self.tokenizer,
            pace=self.pace,
            ngrams=("full", "small"),
            thinks=True,
            verdict=verdict,
        )


@contextmanager
def served(engine, max_new_tokens=512, root_path="", recordings=None, **options):
    """(arena, url) of a page over ``engine``, None for one of recordings alone."""
    arena = Arena(engine, **options)
    if engine:
        arena.warm_up()
    page = build_page(arena, max_new_tokens=max_new_tokens, recordings=recordings)
    port = free_port()
    launch(page, host="127.0.0.1", port=port, root_path=root_path)
    try:
        yield arena, f"http://127.0.0.1:{port}/"
    finally:
        close(page)
        arena.close()


@contextmanager
def scripted_site():
    """(arena, url) of the page that a file of tests shares: its runs may be long."""
    with served(Script().engine(), max_new_tokens=20_000, max_length=30_000) as site:
        yield site


class Visitor(Tab):
    """A tab on the page, and what visitors do there."""

    def __init__(self, browser, url: str, **context):
        super().__init__(browser, url, ready=".lane[data-engine] .lane-title", **context)

    def lane(self, engine: str, inside: str = ""):
        return self.page.locator(f".lane[data-engine={engine}] {inside}".strip())

    def run(self, prompt: str, button: str = "#run", settle: bool = True) -> None:
        if settle:
            self.settle()
        self.page.locator("#prompt textarea").fill(prompt)
        self.page.locator(button).click()

    def expect_state(self, engine: str, state: str) -> None:
        expect(self.lane(engine)).to_have_attribute("data-state", state)

    def finish(self, prompt: str, *engines: str, button: str = "#run") -> None:
        """Run a prompt and wait for its end."""
        before = self.page.locator(".arena-save").get_attribute("data-run")
        self.run(prompt, button)
        self.page.wait_for_function(
            "before => !['', null, before].includes("
            "document.querySelector('.arena-save').dataset.run)",
            arg=before,
            timeout=WAIT,
        )
        for engine in engines or ("dart", "eagle3"):
            self.expect_state(engine, "done")
        expect(self.page.locator("body")).not_to_have_class(re.compile("arena-running"))

    def running(self, prompt: str, tokens: int = 4, settle: bool = True) -> None:
        """Start a prompt and wait for its first tokens."""
        self.run(prompt, settle=settle)
        self.wait(f"document.querySelectorAll('.lane[data-engine=dart] .tok').length >= {tokens}")

    def expect_text(self, engine: str, text: str) -> None:
        self.wait(
            "([engine, text]) => document.querySelector("
            "`.lane[data-engine=${engine}] .flow`)?.textContent === text",
            [engine, text],
        )

    def text(self, engine: str) -> str:
        return self.lane(engine, ".flow").evaluate("node => node.textContent")

    def settings(self) -> None:
        self.page.locator("#settings button").first.click()
        expect(self.page.locator("#knob-temperature")).to_be_visible()
        # Gradio sets every field once more just after it shows them, unknown to the page.
        self.page.evaluate(
            "async () => { for (let frame = 0; frame < 20; frame += 1) "
            "await new Promise(requestAnimationFrame); }"
        )

    def load(self, path: Path) -> None:
        """Give the page a recorded run."""
        self.page.locator("#replays input[type=file]").set_input_files(path)

    def choose(self, slot: str, label: str) -> None:
        self.page.locator(f"#knob-{slot} input").click()
        options = self.page.locator(f"#knob-{slot}").get_by_role("option", name=label, exact=True)
        options.click()


@contextmanager
def visitors(browser, url: str) -> Iterator[Callable[..., Visitor]]:
    """Opens tabs; at the end none may have seen an error or an external request."""
    tabs: list[Visitor] = []

    def opened(url: str = url, **context) -> Visitor:
        tabs.append(Visitor(browser, url, **context))
        return tabs[-1]

    try:
        yield opened
        troubles = [trouble for tab in tabs for trouble in tab.troubles]
    finally:
        for tab in tabs:
            tab.close()
    assert not troubles
