"""What can be wrong in a decoding command's flags, found before torch is imported: that takes
seconds. Values that torch must judge are ``cli_run.prepare``'s.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from dart_core.cli import at_least, model_references
from dart_core.errors import ArenaError
from dart_core.prompts import Prompt, read_prompt_file
from dart_core.report import check_destination
from dart_core.templates import TEMPLATE_REGISTRY
from dart_core.trio import Trio, choose_trio


def note(line: str) -> None:
    """Progress, for people: never on stdout."""
    print(line, file=sys.stderr, flush=True)


def check_flags(args: Namespace) -> list[Prompt]:
    """The prompts of generate, compare or check. Raises ArenaError for flags that cannot be."""
    at_least(args, {"max_new_tokens": 1, "max_length": 2, "limit": 1})
    check_destination(args.json, apart_from={"the file of --prompt-file": args.prompt_file})
    trio = check_models(args)
    if args.command == "check":
        if args.engines == ["ar"]:
            raise ArenaError(
                "--engines ar: that is plain decoding, which check holds the others against: name "
                "dart or eagle3, or leave it out"
            )
        if trio.dart is None and trio.eagle3 is None:
            raise ArenaError("nothing to check against plain decoding: give a head or a preset")
    return _prompts(args)


def check_models(args: Namespace) -> Trio:
    """What the flags ask for. Raises ArenaError for models, presets and templates that do not
    exist, and for flags that exclude each other.
    """
    given = model_references(args)
    if args.preset is None and not given:
        raise ArenaError("no models: give --preset, demo say, or --base-model-name-or-path")
    trio = choose_trio(args.preset, source=args.source, **given)
    if args.template_name != "auto":
        TEMPLATE_REGISTRY.get(args.template_name)
    if args.device != "auto" and args.device_map is not None:
        raise ArenaError(
            f"--device {args.device} and --device-map {args.device_map}: give one of them"
        )
    return trio


def _prompts(args: Namespace) -> list[Prompt]:
    if args.prompt_file:
        return [p for path in args.prompt_file for p in read_prompt_file(path, args.limit)]
    if args.prompt_ids is not None:
        return [Prompt("prompt", ids=args.prompt_ids)]
    if args.prompt is None:
        raise ArenaError("no prompt: give --prompt, --prompt-file or --prompt-ids")
    prompt = _stdin() if args.prompt == "-" else args.prompt
    if not prompt:
        raise ArenaError("the prompt is empty: give --prompt some text")
    return [Prompt("prompt", turns=(prompt,))]


def _stdin() -> str:
    if sys.stdin is None:
        raise ArenaError("--prompt -: there is no standard input; give the text itself")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ArenaError(
            f"--prompt -: standard input is no {error.encoding} text: {error}"
        ) from None
