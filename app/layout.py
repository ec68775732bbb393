"""The pieces of the page that stand still: title, prompt, settings, recorded runs, legend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from app.arena import Arena
from app.controls import SLOTS, Choice, Control, Switch
from app.lane import LABELS

EXAMPLES = (
    "Explain in simple words why the sky is blue.",
    "Write a Python function for the n-th Fibonacci number.",
    "Give me five tips for better sleep.",
    "Tell a short story about a whale and a lighthouse.",
)
SPEEDS = {
    "¼ ×": 0.25,
    "½ ×": 0.5,
    "1 × (true speed)": 1.0,
    "2 ×": 2.0,
    "5 ×": 5.0,
    "at once": float("inf"),
}


def masthead(arena: Arena) -> None:
    with gr.Row(elem_id="masthead"):
        for html, name, scale in (
            (_title(arena), "arena-title", 3),
            (facts_list(arena), "arena-facts", 2),
        ):
            gr.HTML(html, elem_id=name, apply_default_css=False, scale=scale, min_width=320)


def prompt_row(live: bool) -> tuple[gr.Textbox, dict[str, gr.Button]]:
    """The prompt and its buttons; of a page without engines only Stop and Clear."""
    with gr.Row(elem_id="prompt-row"):
        prompt = gr.Textbox(
            label="Prompt",
            placeholder="Ask the target model something. Shift + Enter runs it.",
            lines=3,
            max_lines=8,
            scale=5,
            min_width=280,
            visible=live,
            elem_id="prompt",
        )
        with gr.Column(scale=2, min_width=300, elem_id="run-buttons"):
            with gr.Row(visible=live):
                run = gr.Button("Run the race", variant="primary", elem_id="run", min_width=130)
                follow = gr.Button("Follow up", elem_id="follow", min_width=100)
            with gr.Row():
                stop = gr.Button("Stop", elem_id="stop", min_width=60)
                regenerate = gr.Button(
                    "Regenerate", elem_id="regenerate", min_width=60, visible=live
                )
                clear = gr.Button("Clear", elem_id="clear", min_width=60)
    buttons = {"run": run, "follow": follow, "regenerate": regenerate}
    return prompt, {**buttons, "stop": stop, "clear": clear}


def settings(table: Sequence[Control]) -> list[gr.components.Component]:
    """One component for every control, in the table's order: who runs stands open, the rest is
    folded away.
    """
    made: dict[str, gr.components.Component] = {}
    who = [control for control in table if control.name in SLOTS]
    with gr.Row(elem_id="who", visible=bool(who)):
        made.update((control.name, _component(control)) for control in who)
    rest = gr.Accordion("Settings", open=False, elem_id="settings", visible=bool(table))
    with rest, gr.Row(elem_id="knobs"):
        made.update((c.name, _component(c)) for c in table if c.name not in SLOTS)
    return [made[control.name] for control in table]


def _component(control: Control) -> gr.components.Component:
    common: dict[str, Any] = {
        "label": control.label,
        "info": control.info,
        "elem_id": f"knob-{control.name.replace('_', '-')}",
        "min_width": 200,
    }
    if isinstance(control, Switch):
        return gr.Checkbox(control.default, **common)
    if isinstance(control, Choice):
        options = list(control.options)
        if control.name in SLOTS:
            common.pop("info")
            return gr.Dropdown(options, value=control.default, filterable=False, **common)
        return gr.Radio(options, value=control.default, **common)
    if control.optional:  # Gradio turns an empty number into 0
        return gr.Textbox("", placeholder="empty: drawn", **common)
    if control.whole:  # a plain number: what is out of range is refused in place, not clamped
        return gr.Number(control.default, precision=None, **common)
    return gr.Slider(
        control.minimum, control.maximum, value=control.default, step=control.step, **common
    )


def replay_row(
    library: list[tuple[str, Path]], *, open: bool
) -> tuple[gr.Dropdown, gr.Dropdown, gr.Button, gr.UploadButton]:
    """The recorded runs: a list, the speed, and a file of the visitor's own."""
    with gr.Accordion("Recorded runs", open=open, elem_id="replays"), gr.Row():
        choices = [(label, path.name) for label, path in library]
        listed = gr.Dropdown(
            choices,
            value=choices[0][1] if choices else None,
            label="Recorded run",
            filterable=False,
            scale=4,
            min_width=280,
            elem_id="recorded",
            visible=bool(choices),
        )
        speed = gr.Dropdown(
            list(SPEEDS),
            value="1 × (true speed)",
            label="Speed",
            filterable=False,
            scale=1,
            min_width=140,
            elem_id="speed",
        )
        with gr.Column(scale=1, min_width=200):
            play = gr.Button(
                "Replay",
                variant="primary" if open else "secondary",
                elem_id="replay",
                visible=bool(choices),
            )
            upload = gr.UploadButton(
                "Load a run …", file_types=[".json", ".gz"], type="filepath", elem_id="load-run"
            )
    return listed, speed, play, upload


def _title(arena: Arena) -> str:
    racers = [engine for engine in arena.engines if engine != "ar"] or ["dart", "eagle3"]
    names = " <span>against</span> ".join(
        f'<span class="versus-{engine}">{LABELS[engine]}</span>' for engine in racers
    )
    return (
        f"<h1>DART Arena: {names}</h1>"
        "<p>Both guess ahead for one shared target model, which checks every guess: "
        "the text is exactly its own, whoever drafts. What differs is how fast it comes.</p>"
    )


def facts_list(arena: Arena) -> str:
    """What is loaded, where and in what precision, as HTML."""
    if arena.engine is None:
        return f"<ul><li>recorded runs <b>{escape(arena.absence)}</b></li></ul>"
    facts = arena.facts
    versions = facts.get("versions") or {}
    entries = [
        ("target", facts.get("target")),
        ("device", facts.get("device")),
        ("dtype", facts.get("dtype")),
        ("not applied", facts.get("not_applied")),
        ("DART head", facts.get("dart")),
        ("n-gram", facts.get("ngram")),
        ("EAGLE3 head", facts.get("eagle3")),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    if arena.baseline:
        rate = f"{arena.baseline.tokens_per_second:.1f} tokens / s"
        entries.append(("plain decoding at warm-up", rate))
    items = [
        f"<li>{escape(name)} <b>{escape(str(value))}</b></li>" for name, value in entries if value
    ]
    return f"<ul>{''.join(items)}</ul>"


def legend() -> str:
    return (
        '<p><span><span class="drafted">tinted</span> '
        '<span class="drafted other">underlined</span> '
        "= drafted, and accepted by the target</span>"
        '<span><span class="own">plain</span> = the target\'s own token, one per step</span>'
        "<span>Click a token to see its draft tree.</span></p>"
    )
