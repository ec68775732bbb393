"""What ran and how, in words for visitors: models by their public names, machine, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def facts_of(header: Mapping[str, Any], *, replayed: bool = False) -> list[tuple[str, str]]:
    """What ran and how, as (name, value) pairs, from a run's header."""
    facts, settings = header.get("facts", {}), header.get("settings", {})
    versions = facts.get("versions") or {}
    engines = header.get("engines", ())
    pairs = [
        ("recorded", header.get("created") if replayed else None),
        ("target", facts.get("target")),
        ("device", facts.get("device_name") or facts.get("device")),
        ("dtype", facts.get("dtype")),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    if "dart" in engines:
        ngram, weight = settings.get("ngram"), settings.get("ngram_weight")
        listens = f", n-gram {ngram} × {weight:g}" if ngram not in (None, "off") else ", no n-gram"
        pairs += [("DART head", facts.get("dart")), ("DART", _tree(settings, ("beam",)) + listens)]
    if "eagle3" in engines:
        knobs = ("eagle3_depth", "eagle3_top_k")
        pairs += [("EAGLE3 head", facts.get("eagle3")), ("EAGLE3", _tree(settings, knobs))]
    if settings.get("temperature"):
        names = ("temperature", "top_p", "top_k", "seed")
        sampling = ", ".join(f"{name.replace('_', '-')} {settings[name]}" for name in names)
    else:
        sampling = "greedy"
    pairs.append(("sampling", sampling))
    pairs.append(("not applied", facts.get("not_applied")))
    pairs.append(("thinking", "on" if settings.get("thinking") else None))
    pairs.append(("steps", "at once" if header.get("at_once") else "one engine after the other"))
    return [(name, str(value)) for name, value in pairs if value]


def _tree(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = {"eagle3_depth": "depth", "eagle3_top_k": "top-k"}
    knobs = [f"{shown.get(name, name)} {settings.get(name)}" for name in names]
    if lookup := settings.get("prompt_lookup"):
        knobs.append(f"prompt lookup {lookup}")
    budget = settings.get("tree_budget")
    if settings.get("auto_budget"):
        budget = f"auto, at most {budget}"
    return ", ".join([f"tree budget {budget}", *knobs])
