"""The page: its layout and its wiring, nothing else."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app import layout, replays
from app.arena import Arena, Ask, Visit
from app.controls import SLOTS, check_panels, check_prompt, checked, controls, read_link
from app.kept import KeptTexts
from app.markdown import render
from app.panels import charts_panel, status_line, token_panel, toolbar, totals_table, tree_view
from app.race import in_words
from app.steps_csv import steps_csv
from app.view import IDLE_CHARTS, IDLE_STATUS, IDLE_TOTALS, IDLE_TREES, idle_panel
from dart_core.errors import ArenaError

log = logging.getLogger(__name__)

WAIT = 10.0  # seconds, for what a tab shows to come to its end
PACE = 1 / 12  # seconds between updates: more often, and a browser only falls behind
REPLAYED = ("dart", "eagle3", "")  # whose panels a page without engines starts with
SPOKEN = 1.0  # seconds between updates of the status line, which screen readers read out
KEPT_TEXT = 2**24  # bytes of files and rendered answers: asked for again, they are not made again
KEEP_UPLOADS = (600, 1800)  # seconds between looks for uploaded files, and until one is deleted
CONFIRM_CLEAR = (
    "() => { if (confirm('Clear the prompt, the conversation and all panels?')) "
    "document.getElementById('sure').click(); }"
)
HASH = "() => window.location.hash"
# Only a link is asked about: Gradio may undo what a visitor types while an answer arrives.
FOLLOW_LINK = (
    "() => { if (window.location.hash.length > 1) document.getElementById('link-opened').click(); }"
)
COPY_LINK = (Path(__file__).parent / "copy_link.js").read_text(encoding="utf-8")


def build_page(
    arena: Arena,
    *,
    max_new_tokens: int = 512,
    tree_budget: int = 60,
    auto_budget: bool = True,
    recordings: Path | None = None,
    prompts: Sequence[str] = layout.EXAMPLES,
) -> gr.Blocks:
    """The page over an arena, not launched: see ``serve``.

    recordings: a folder of recorded runs to offer. prompts: the examples below the prompt box.
    """
    live = arena.engine is not None
    table = controls(
        arena.engines,
        max_new_tokens=max_new_tokens,
        max_length=arena.max_length,
        tree_budget=tree_budget,
        auto_budget=auto_budget,
        ngrams=arena.ngrams,
        thinks=arena.thinks,
    ) if live else ()  # fmt: skip
    library = replays.find(recordings) if recordings else []
    paths = {path.name: path for _, path in library}

    with gr.Blocks(
        title="DART Arena", analytics_enabled=False, fill_width=True, delete_cache=KEEP_UPLOADS
    ) as page:
        layout.masthead(arena)
        conversation = gr.State(())  # Gradio drops it when many others have come
        shown = gr.Textbox(visible=False, elem_id="shown")  # the run, as the browser knows it
        prompt, buttons = layout.prompt_row(live)
        gr.Examples(
            [[example] for example in prompts], [prompt], label="", elem_id="examples", visible=live
        )
        inputs = layout.settings(table)
        listed, speed, again, upload = layout.replay_row(library, open=not live)
        with gr.Row(elem_id="tools"):
            toolbar(elem_id="toolbar", min_width=280)
            link = gr.Button(
                "Copy link", size="sm", scale=0, min_width=110, visible=live, elem_id="link"
            )

        kept = KeptTexts(KEPT_TEXT)

        def record(run: str, kind: str) -> str:
            def made() -> str:
                recording = arena.recording(run)
                if recording is None:
                    return ""
                return steps_csv(recording) if kind == "csv" else recording.to_text()

            return kept.text((run, kind), made) if arena.finished(run) else ""

        def rendered(run: str, engine: str) -> str:
            def made() -> str:
                return render(arena.text(run, engine))

            return kept.text((run, engine), made) if arena.finished(run) else ""

        status = status_line(IDLE_STATUS, record_of=record, elem_id="status")
        own = [str(control.default) for control in table if control.name in SLOTS]
        chosen = own or REPLAYED
        panels: list[gr.HTML] = []
        with gr.Row(elem_id="panels", equal_height=True):
            for number, engine in enumerate(chosen, 1):
                with gr.Column(min_width=320, elem_id=f"column-{number}"):
                    panel = token_panel(
                        idle_panel(engine), rendered_of=rendered, elem_id=f"panel-{number}"
                    )
                panels.append(panel)
        gr.HTML(layout.legend(), elem_id="legend", apply_default_css=False)
        charts = charts_panel(IDLE_CHARTS, elem_id="charts")
        tree = tree_view(IDLE_TREES, tree_of=arena.tree, elem_id="tree")
        totals = totals_table(IDLE_TOTALS, elem_id="totals")
        outputs = [status, *panels, charts, totals, tree, conversation, shown]

        def show(visit: Visit, status: dict | None = None) -> list[Any]:
            # Whole values, never gr.skip(): that makes Gradio build the component anew each time.
            view = visit.view
            engines = [*view.lanes, "", "", ""][: len(panels)]
            return [
                status or view.status(),
                *(view.panel(engine) if engine else idle_panel("") for engine in engines),
                view.charts(),
                view.totals(),
                view.trees(),
                visit.conversation,
                view.run,
            ]

        def session_of(request: gr.Request) -> str:
            """Whose tab it is; requests without one are all the same visitor's."""
            return request.session_hash or ""

        def told(request: gr.Request, note: str) -> list[Any]:
            """Only the sentence of the status line changes: what the panels show can still be
            downloaded.
            """
            visit = arena.latest(session_of(request))
            status = visit.view.status() if visit and not visit.left else IDLE_STATUS
            return [{**status, "text": note}, *(gr.skip() for _ in outputs[1:])]

        def watch(request: gr.Request, begin: Callable[[], Visit]) -> Iterator[list[Any]]:
            """Show a run from its beginning to its end, whatever ends it."""
            visit, before = None, arena.latest(session_of(request))
            try:
                visit = begin()
                if before:  # its last values are on the page before this run's first
                    before.settle(WAIT)
                spoken_at, status = time.monotonic(), visit.view.status()
                yield show(visit, status)
                for _ in visit.paced(PACE):
                    if visit.left:
                        return
                    if time.monotonic() - spoken_at >= SPOKEN:
                        spoken_at, status = time.monotonic(), visit.view.status()
                    yield show(visit, status)
                if visit.left:
                    return
                if visit.failed:
                    raise visit.failed
                yield show(visit)
            except ArenaError as error:
                yield told(request, str(error))
            except Exception as error:
                log.exception("a run could not begin or be shown")
                yield told(request, in_words(error))
            finally:
                if visit:  # also when the tab is closed: the device is free after its present step
                    visit.stop()

        def way_of(event: gr.EventData) -> str:
            """Which button, or the prompt's own Enter, asked for a run."""
            return getattr(event.target, "elem_id", "")

        def compare(
            event: gr.EventData,
            request: gr.Request,
            prompt: str,
            turns: tuple,
            run: str,
            *values: Any,
        ) -> Iterator[list[Any]]:
            def begin() -> Visit:
                named = dict(zip((c.name for c in table), values, strict=True))
                settings = checked(table, named)
                way = way_of(event)
                before = turns
                if way in ("follow", "regenerate") and run and not turns:
                    before = arena.conversation(run)
                if way == "regenerate":
                    if not before:
                        raise ArenaError("There is nothing to regenerate yet: press Run first.")
                    ask = Ask(before[-1][0], settings, before[:-1])
                else:
                    ask = Ask(prompt, settings, before if way == "follow" else ())
                return arena.begin(session_of(request), ask)

            yield from watch(request, begin)

        def refuse(
            event: gr.EventData, prompt: str, turns: tuple, run: str, *values: Any
        ) -> list[dict]:
            wrong = [c.problem(value) for c, value in zip(table, values, strict=True)]
            named = dict(zip((control.name for control in table), values, strict=True))
            twice = "" if any(wrong) else check_panels(named)
            empty = "" if way_of(event) == "regenerate" else check_prompt(prompt)
            # Said at the prompt too: the settings may be folded away.
            problems = [empty or " ".join(filter(None, [*wrong, twice])), "", "", *wrong]
            return [gr.validate(not problem, problem) for problem in problems]

        def play(path: str | Path | None, speed: str, request: gr.Request) -> Iterator[list[Any]]:
            def begin() -> Visit:
                if path is None:
                    raise ArenaError("There is no run to replay: choose one, or load a file.")
                recording = replays.read(path)
                return arena.begin_replay(
                    session_of(request), recording, layout.SPEEDS.get(speed, 1.0)
                )

            yield from watch(request, begin)

        def play_listed(name: str, speed: str, request: gr.Request) -> Iterator[list[Any]]:
            yield from play(paths.get(name), speed, request)

        def halt(request: gr.Request) -> None:
            if visit := arena.latest(session_of(request)):
                visit.stop()

        def conclude(request: gr.Request) -> list[Any]:
            """What a cancelled run came to: nobody watches it any more. Asked once Gradio has
            cancelled it, for only then it is sure whether it had begun.
            """
            visit = arena.latest(session_of(request))
            if visit is None or visit.left or visit.watched:
                return told(request, "Ended before it began.")
            visit.stop()
            visit.settle()
            return [gr.skip() for _ in outputs] if visit.left else show(visit)

        def wipe(request: gr.Request, *slots: str) -> list[Any]:
            visit = arena.latest(session_of(request))
            if visit:
                visit.leave()
                visit.settle()
            idle = [idle_panel(engine) for engine in slots or chosen]
            return ["", IDLE_STATUS, *idle, IDLE_CHARTS, IDLE_TOTALS, IDLE_TREES, (), ""]

        def restore(fragment: str) -> list[Any]:
            prompt, values, refused = read_link(table, str(fragment))
            note = f"Not taken from the link: {' '.join(refused)}" if refused else ""
            return [
                gr.skip() if prompt is None else prompt,
                {**IDLE_STATUS, "text": note} if note else gr.skip(),
                *(values.get(control.name, gr.skip()) for control in table),
            ]

        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "queue": False,
            "api_visibility": "private",
        }
        running: dict[str, Any] = {
            "show_progress": "minimal",
            "show_progress_on": status,
            "trigger_mode": "once",
            "api_visibility": "private",
        }
        runs = []
        if live:
            # One listener for all, so that a tab has one run under way or in the queue.
            runs.append(
                gr.on(
                    [buttons["run"].click, prompt.submit, buttons["follow"].click,
                     buttons["regenerate"].click],
                    compare,
                    [prompt, conversation, shown, *inputs],
                    outputs,
                    validator=refuse,
                    concurrency_id="gpu",
                    concurrency_limit=1,
                    **running,
                )
            )  # fmt: skip
            for slot, panel in zip(inputs[: len(SLOTS)], panels, strict=True):
                # Gradio gives its components their listeners when they are made.
                slot.change(idle_panel, slot, panel, **quiet)  # type: ignore[attr-defined]
            defaults = json.dumps([[control.name, control.default] for control in table])
            link.click(None, [prompt, *inputs], None, js=COPY_LINK.replace("DEFAULTS", defaults))
            fragment = gr.Textbox(visible=False)
            opened = gr.Button("Opened", visible="hidden", elem_id="link-opened")
            opened.click(restore, fragment, [prompt, status, *inputs], js=HASH, **quiet)
            page.load(None, js=FOLLOW_LINK)
        for trigger, handler, source in (
            (again.click, play_listed, listed),
            (upload.upload, play, upload),
        ):
            runs.append(
                trigger(
                    handler,
                    [source, speed],
                    outputs,
                    concurrency_id="replay",
                    concurrency_limit=8,
                    **running,
                )
            )
        buttons["stop"].click(halt, cancels=runs, **quiet)
        for run in runs:
            run.failure(conclude, None, outputs, **quiet)
        sure = gr.Button("Clear", visible="hidden", elem_id="sure")  # pressed by the answer
        buttons["clear"].click(None, js=CONFIRM_CLEAR)
        sure.click(wipe, inputs[: len(SLOTS)], [prompt, *outputs], cancels=runs, **quiet)
    page.queue(max_size=16)
    return page
