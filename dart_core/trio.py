"""Which target, heads and n-gram are run together: what is given, and what belongs to it.

A draft head fits the one target it was trained for. So any published id names its partners, and
partners that do not belong together are an error that names the right one, before anything large
is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dart_core.errors import ArenaError
from dart_core.names import model_name
from dart_core.presets import DEFAULT_PRESET, PRESETS, Preset, Sizes, get_preset
from dart_core.references import HUB, MODELSCOPE, from_source, local_path, parse_remote, same_id

NGRAM_OFF = "off"  # as dart_core.drafters has it, which needs torch
FLAGS = {
    "target": "--base-model-name-or-path",
    "dart": "--dart-model-name-or-path",
    "eagle3": "--eagle3-model-name-or-path",
    "ngram": "--ngram-model-name-or-path",
}
WORDS = {
    "target": "target",
    "dart": "DART head",
    "eagle3": "EAGLE3 head",
    "ngram": "n-gram",
}


@dataclass(frozen=True, slots=True)
class Trio:
    """References of what runs together; None for a part that nobody named. ngram may be "off".

    preset: which published trio it is, wholly or in part; None for one of the user's own.
    """

    target: str | None
    dart: str | None
    eagle3: str | None
    ngram: str | None
    preset: Preset | None


def choose_trio(
    preset: str | Preset | None = None,
    *,
    target: str | None = None,
    dart: str | None = None,
    eagle3: str | None = None,
    ngram: str | None = None,
    source: str = HUB,
) -> Trio:
    """Complete what is given: references win over the preset's, and a published one brings its
    partners. source: where ids come from, "hub" or "modelscope".

    Raises ArenaError for parts that do not belong together, and for an unknown preset or source.
    """
    base = get_preset(preset) if isinstance(preset, str) else preset
    named = {"target": target, "dart": dart, "eagle3": eagle3, "ngram": ngram}
    given = {role: str(value) for role, value in named.items() if value is not None}
    chosen = _named(given) or base
    if chosen is None and "target" not in given and "ngram" in given and _owners(given, "ngram"):
        chosen = get_preset(DEFAULT_PRESET)
    if chosen is not None:
        _require_ngram(given, chosen)
    parts = {}
    for role in FLAGS:
        reference = given.get(role) or (getattr(chosen, role) if chosen else None)
        if reference not in (None, NGRAM_OFF):
            reference = from_source(_spelled(reference, chosen, role, source), source)
        parts[role] = reference
    return Trio(**parts, preset=chosen)


def preset_by_sizes(config: Mapping[str, Any]) -> Preset | None:
    """The published trio whose target has the sizes of a ``config.json``."""
    sizes = tuple(config.get(name) for name in Sizes._fields)
    return next((preset for preset in PRESETS.values() if preset.sizes == sizes), None)


def require_partner(
    role: str, reference: str, head: Mapping[str, Any], target: str, config: Mapping[str, Any]
) -> str | None:
    """Hold a head's ``config.json`` against its target's, both as mappings.

    Raises ArenaError, naming the right partner where it is a published one, if the head cannot
    read this target's states. Returns a warning where it can, but looks made for another target.
    """
    nested = config.get("text_config")
    config = nested if isinstance(nested, Mapping) else config
    wrong = [
        f"{what} {expected}, the target's is {config.get(name)}"
        for what, name, expected in (
            ("hidden size", "hidden_size", head.get("target_hidden_size") or head["hidden_size"]),
            ("vocabulary", "vocab_size", head.get("vocab_size")),
        )
        if None not in (expected, config.get(name)) and expected != config[name]
    ]
    own = preset_by_sizes(config)
    if wrong:
        raise ArenaError(
            f"{WORDS[role]} {reference!r} was made for another target than {target!r} (it expects "
            f"{'; '.join(wrong)}): {_remedy(role, own)}"
        )
    width = head.get("intermediate_size")
    sizes = own.sizes if own else None
    if sizes is None or width is None or width == sizes.intermediate_size:
        return None
    alike = [
        preset
        for preset in PRESETS.values()
        if preset.sizes
        and preset.sizes.hidden_size == sizes.hidden_size
        and preset.sizes.intermediate_size == width
    ]
    if not alike:
        return None
    return (
        f"{WORDS[role]} {model_name(reference)!r} looks made for {alike[0].target}, not for "
        f"{model_name(target)!r}; acceptance may be low: {_remedy(role, own)}"
    )


def partner_hint(role: str, config: Mapping[str, Any]) -> str:
    """Which head to give for the target of a ``config.json``, role "dart" or "eagle3"."""
    return _remedy(role, preset_by_sizes(config))


def _remedy(role: str, own: Preset | None) -> str:
    if own is None:
        return f"give the head that was trained for this target, {FLAGS[role]}"
    return f"give {FLAGS[role]} {getattr(own, role)}"


def _named(given: Mapping[str, str]) -> Preset | None:
    """The one published trio that target and heads name."""
    found: dict[str, Preset] = {}
    for role in ("target", "dart", "eagle3"):
        if role not in given:
            continue
        owners = _owners(given, role)
        if owners:
            found[role] = owners[0]
        else:
            _require_role(role, given[role])
    if not found:
        return None
    anchor = next(iter(found))
    for role, preset in found.items():
        right = found[anchor]
        if preset is not right:
            raise ArenaError(
                f"{WORDS[role]} {given[role]!r} belongs to target {preset.target}, not to "
                f"{WORDS[anchor]} {given[anchor]!r}: give {FLAGS[role]} {getattr(right, role)}, or "
                f"{FLAGS[anchor]} {getattr(preset, anchor)}"
            )
    return found[anchor]


def _owners(given: Mapping[str, str], role: str) -> list[Preset]:
    return [preset for preset in PRESETS.values() if _is(given[role], preset, role)]


def _is(reference: str, preset: Preset, role: str) -> bool:
    spellings = [getattr(preset, role)]
    if role == "dart" and preset.modelscope_dart:
        spellings.append(preset.modelscope_dart)
    return any(same_id(reference, spelling) for spelling in spellings)


def _require_role(role: str, reference: str) -> None:
    """Raises ArenaError where a published id stands in the place of another part."""
    for preset in PRESETS.values():
        for other in FLAGS:
            if other != role and _is(reference, preset, other):
                article = "an" if role in ("eagle3", "ngram") else "a"
                raise ArenaError(
                    f"{reference!r} is the {WORDS[other]} of {preset.target}, not {article} "
                    f"{WORDS[role]}: give {FLAGS[role]} {getattr(preset, role)}"
                )


def _require_ngram(given: Mapping[str, str], chosen: Preset) -> None:
    if "ngram" not in given or given["ngram"] == NGRAM_OFF:
        return
    owners = _owners(given, "ngram")
    if owners and chosen not in owners:
        raise ArenaError(
            f"n-gram {given['ngram']!r} counts the tokens of {owners[0].target}, not of "
            f"{given.get('target', chosen.target)}: give {FLAGS['ngram']} {chosen.ngram}, or "
            "--ngram off"
        )
    if not owners:
        _require_role("ngram", given["ngram"])


def _spelled(reference: str, chosen: Preset | None, role: str, source: str) -> str:
    """A published DART head under the name it has where it comes from."""
    if role != "dart" or chosen is None or not chosen.modelscope_dart:
        return reference
    if local_path(reference) or not _is(reference, chosen, role):
        return reference
    remote = parse_remote(reference)
    if remote is None:
        return reference
    at = remote.source if ":" in reference else source
    spelling = chosen.modelscope_dart if at == MODELSCOPE else chosen.dart
    prefix = f"{remote.source}:" if ":" in reference else ""
    return prefix + spelling + (f"@{remote.revision}" if remote.revision else "")
