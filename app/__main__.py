"""``python -m app``: flags → engine → page → port.

Exit codes: 0 after Ctrl-C, 143 after SIGTERM, 1 for what the user can mend, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from app.access import VARIABLE, accounts, exposure
from app.replays import SHIPPED, find
from app.waiting import Waiting
from dart_core.cli import AUTO, MOST_AUTO, add_model_arguments, model_references, tree_budget
from dart_core.cli_checks import check_models
from dart_core.errors import ArenaError, in_words
from dart_core.names import without_folders
from dart_core.presets import DEFAULT_PRESET
from dart_core.prompts import read_prompt_file
from dart_core.trio import choose_trio

if TYPE_CHECKING:
    from dart_core.engine import Engine


class Ended(SystemExit):
    """A signal that ends the program, wherever it is."""

    code: int


def build_parser() -> argparse.ArgumentParser:
    """The flags: names and defaults of the published app, and a few of our own."""
    parser = argparse.ArgumentParser(
        prog="python -m app",
        usage="python -m app [--preset NAME] [options]",
        description="The page: DART and EAGLE3 race over one shared target model.",
    )
    add_model_arguments(parser)
    page = parser.add_argument_group("page")
    page.add_argument(
        "--compare-eagle3",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="race EAGLE3 against DART (launch/*.sh do); without it DART races plain decoding",
    )
    page.add_argument(
        "--max-new-tokens", type=int, default=512, metavar="N", help="of an answer; default: 512"
    )
    page.add_argument(
        "--max-length",
        type=int,
        default=1024,
        metavar="N",
        help="tokens of prompt and answer together; default: 1024",
    )
    page.add_argument(
        "--tree-budget",
        type=tree_budget,
        metavar="N|auto",
        help="draft tokens per step that the page starts with, 1 to 256, or auto: each step "
        f"chooses, up to {MOST_AUTO}; default: auto",
    )
    page.add_argument(
        "--max-seconds",
        type=float,
        default=600,
        metavar="S",
        help="longest run of one visitor; default: 600",
    )
    page.add_argument(
        "--no-warmup",
        action="store_true",
        help="skip the warm-up: the first visitor waits, speedups need plain decoding in the run",
    )
    page.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSONL of prompts to offer below the prompt box; default: four of our own",
    )
    page.add_argument(
        "--replay",
        type=Path,
        nargs="?",
        const=SHIPPED,
        metavar="FOLDER",
        help="no models: a page that replays the recorded runs of a folder (default: ours)",
    )
    server = parser.add_argument_group("server")
    server.add_argument(
        "--api",
        action="store_true",
        help="no page: an OpenAI-compatible server, one model id per engine",
    )
    server.add_argument(
        "--server-port",
        type=int,
        default=os.environ.get("GRADIO_SERVER_PORT") or 30000,
        metavar="PORT",
        help="default: $GRADIO_SERVER_PORT or 30000",
    )
    server.add_argument(
        "--listen",
        action="store_true",
        help="serve every network interface, not this machine alone (or set GRADIO_SERVER_NAME)",
    )
    server.add_argument(
        "--auth",
        action="append",
        default=[],
        metavar="USER:PASSWORD",
        help="ask everybody for this password; for more accounts once each. Default: the lines of "
        f"${VARIABLE}, which no list of processes shows",
    )
    server.add_argument(
        "--api-key",
        metavar="KEY",
        help="with --api: requests must bring it as Authorization: Bearer KEY; default: "
        "$DART_ARENA_API_KEY",
    )
    server.add_argument(
        "--share",
        action="store_true",
        default=os.environ.get("GRADIO_SHARE", "").lower() == "true",
        help="a public link through Gradio's servers",
    )
    server.add_argument(
        "--root-path",
        default=os.environ.get("GRADIO_ROOT_PATH") or "",
        metavar="PATH",
        help="the path prefix under which a proxy serves the page",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until a signal ends it; returns the exit code."""
    args = build_parser().parse_args(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in dart_core/__main__.py
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _end)  # also where a shell's `&` has switched SIGINT off
    try:
        if args.api:
            serve_api(args)
        else:
            serve(args)
    except (ArenaError, OSError) as error:
        print(f"error: {' '.join(in_words(error).split())}", file=sys.stderr)
        return 1
    except Ended as end:
        return end.code
    return 0


def serve(args: argparse.Namespace) -> None:
    """Load, warm up, serve. Ends by an exception: ArenaError, or Ended on a signal."""
    if args.api_key is not None:
        raise ArenaError("--api-key is the API's: leave it out, or --api in; the page has --auth")
    host = "0.0.0.0" if args.listen else os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    auth = accounts(args.auth)
    _complete(args)
    waiting = Waiting(host, args.server_port)  # says how far loading is, from the first second

    for line in exposure(host, args.server_port, args.share, bool(auth)):
        print(line, file=sys.stderr, flush=True)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if not auth:  # nobody has given a password yet
            waiting.say(without_folders(line))

    arena = page = None
    try:
        # Gradio and torch take seconds to import: after the flags and the port.
        from app.arena import Arena
        from app.layout import EXAMPLES
        from app.page import build_page
        from app.serve import close, launch

        prompts = [p.turns[0] for p in read_prompt_file(args.prompts)] if args.prompts else EXAMPLES
        engine = _engine(args, say) if args.replay is None else None
        arena = Arena(engine, max_length=args.max_length, max_seconds=args.max_seconds)
        if engine and not args.no_warmup:
            started = time.monotonic()
            arena.warm_up(say)
            say(f"warm-up took {time.monotonic() - started:.1f} s")
        auto = args.tree_budget in (None, AUTO)
        page = build_page(
            arena,
            max_new_tokens=args.max_new_tokens,
            tree_budget=MOST_AUTO if auto else args.tree_budget,
            auto_budget=auto,
            recordings=args.replay or SHIPPED,
            prompts=prompts,
        )
        local, shared = launch(
            page,
            host=host,
            port=args.server_port,
            share=args.share,
            root_path=args.root_path,
            auth=auth,
            waiting=waiting,
        )
        print(f"Running on {local}", flush=True)
        if shared:
            print(f"Public link: {shared}", flush=True)
        threading.Event().wait()
    finally:
        waiting.close()
        if page:
            close(page)
        if arena:
            arena.close()


def serve_api(args: argparse.Namespace) -> None:
    """The same models behind the command api's server, with its defaults for a request's settings.
    Ends as ``serve`` does.
    """
    from dart_core.cli import build_parser as build_core_parser

    for flag, given in (
        ("--share", args.share),
        ("--replay", args.replay is not None),
        ("--auth", args.auth),
    ):
        if given:
            remedy = "; the API has --api-key" if flag == "--auth" else ""
            raise ArenaError(f"{flag} is the page's: leave it or --api out{remedy}")
    host = os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    if not args.listen and host not in ("0.0.0.0", "127.0.0.1", "localhost"):
        raise ArenaError(
            f"GRADIO_SERVER_NAME={host}: with --api expected 0.0.0.0, as --listen, or 127.0.0.1"
        )
    _complete(args)
    names = [name for name in _engines(args) if name != "ar"]
    served = build_core_parser("api").parse_args(["api", "--engines", ",".join(names)])
    shared = vars(args).keys() & vars(served).keys()
    if args.tree_budget is None:
        shared.discard("tree_budget")  # the page's own default
    for name in shared - {"engines", "run", "command"}:
        setattr(served, name, getattr(args, name))
    served.listen = args.listen or host == "0.0.0.0"
    served.run(served)


def _engines(args: argparse.Namespace) -> list[str]:
    return ["ar", "dart", *(["eagle3"] if args.compare_eagle3 else [])]


def _engine(args: argparse.Namespace, say: Callable[[str], None]) -> Engine:
    """The models the flags ask for."""
    from dart_core.cli_run import check_devices, load

    check_devices(args)
    return load(args, _engines(args), say)


def _complete(args: argparse.Namespace) -> None:
    """Fill in what the flags leave open. Raises ArenaError for values that cannot be served."""
    if not 1 <= args.server_port <= 65535:
        raise ArenaError(f"--server-port {args.server_port}: expected a number from 1 to 65535")
    if args.max_length < 2:
        raise ArenaError(f"--max-length {args.max_length}: expected 2 or more, prompt included")
    if args.max_new_tokens < 1:
        raise ArenaError(f"--max-new-tokens {args.max_new_tokens}: expected 1 or more")
    if not args.max_seconds > 0:  # NaN is not, either
        raise ArenaError(f"--max-seconds {args.max_seconds:g}: expected a number above 0")
    if args.tree_budget not in (None, AUTO) and not 1 <= args.tree_budget <= 256:
        raise ArenaError(
            f"--tree-budget {args.tree_budget}: expected a number from 1 to 256, or auto"
        )
    if args.replay is not None and not args.replay.is_dir():
        raise ArenaError(f"--replay {args.replay}: expected a folder of recorded runs")
    if args.replay is not None and not find(args.replay):
        raise ArenaError(
            f"--replay {args.replay}: no recorded run lies there; expected files that the page has "
            "saved, .json or .json.gz"
        )
    if args.replay is None and args.preset is None:
        named = choose_trio(source=args.source, **model_references(args))
        args.preset = DEFAULT_PRESET if named.target is None else None
    if args.replay is None:
        check_models(args)


def _end(signum: int, frame: object) -> NoReturn:
    signal.signal(signum, signal.SIG_DFL)  # a second one ends the program at once
    interrupted = signum == signal.SIGINT
    print(f"\n{'Interrupted' if interrupted else 'Terminated'}: closing the page.", flush=True)
    raise Ended(0 if interrupted else 128 + signum)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # all is closed; unwinding the libraries' threads would take seconds more
