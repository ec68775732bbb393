"""The command api: an OpenAI-compatible server on this machine."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from dataclasses import replace
from typing import Any

from dart_core.cli import add_model_arguments, add_run_arguments, at_least, engine_list
from dart_core.cli_checks import check_models, note
from dart_core.errors import ArenaError
from dart_core.exposure import listening
from dart_core.gate import QUEUE, SHARE

KEY_VARIABLE = "DART_ARENA_API_KEY"


def add_api_parser(commands: Any) -> None:
    """Add ``api`` to the command line's sub-parsers."""
    parser = commands.add_parser(
        "api",
        help="serve an OpenAI-compatible API, one model id per engine",
        description="Serves /v1/models, /v1/chat/completions and /healthz. Generation flags are "
        "the values that a request leaves out; --max-length holds for all. Responses bring "
        "metrics.speculative_decoding in vLLM's names.",
    )
    parser.set_defaults(run=run_api)
    parser.add_argument(
        "--engines",
        type=engine_list,
        metavar="LIST",
        help="engines with commas, plain decoding always included (default: all with a head)",
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--server-port", type=int, default=30000, metavar="PORT", help="default: 30000; 0: any"
    )
    group.add_argument(
        "--listen",
        action="store_true",
        help="serve every network interface, not this machine alone: --api-key asks for a key",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="requests must bring it as Authorization: Bearer KEY; default: "
        f"${KEY_VARIABLE}, which no list of processes shows",
    )
    group.add_argument(
        "--queue",
        type=int,
        default=QUEUE,
        metavar="N",
        help=f"requests that may wait for the one that runs (default: {QUEUE}); of another "
        f"machine's, one in {SHARE}",
    )
    group.add_argument(
        "--enable-thinking",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the model think first, unless a request's chat_template_kwargs say otherwise",
    )
    add_model_arguments(parser)
    add_run_arguments(parser)


def run_api(args: Namespace) -> int:
    at_least(args, {"max_new_tokens": 1, "max_length": 2, "queue": 0})
    key = api_key(args.api_key)
    check_models(args)
    from dart_core.cli_run import load, prepare
    from dart_core.server import LOCAL_NAMES, ChatServer, bound_socket

    settings = prepare(args)
    if args.seed is None:  # a request without one draws its own
        settings = replace(settings, sampling=replace(settings.sampling, seed=None))
    sock = bound_socket("0.0.0.0" if args.listen else "127.0.0.1", args.server_port)
    with sock:
        if args.listen:
            note(
                listening(
                    sock.getsockname()[1],
                    guarded=key is not None,
                    what="the API",
                    secret="the API key",
                    ask=f"ask for a key with --api-key or {KEY_VARIABLE}",
                )
            )
        names = args.engines and list(dict.fromkeys(["ar", *args.engines]))
        engine = load(args, names)
        if settings.draft.auto_budget:
            _ = engine.verify_cost  # measured now, with nothing beside it; no request waits for it
        server = ChatServer(
            engine,
            settings,
            enable_thinking=args.enable_thinking,
            queue=args.queue,
            log=note,
        )
        port = sock.getsockname()[1]
        note(f"API on http://localhost:{port}/v1, models {', '.join(server.models)}")
        try:
            server.serve(sock, () if args.listen else LOCAL_NAMES, key)
        except KeyboardInterrupt:
            note("stopped")
    return 0


def api_key(flag: str | None) -> str | None:
    """The key that the flag or the environment asks for, None for none. Raises ArenaError, which
    does not repeat it, for one that no header can carry.
    """
    key = flag if flag is not None else os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ArenaError(
            f"--api-key (or {KEY_VARIABLE}): expected letters, digits and signs without spaces, "
            "and found something else"
        )
    return key
