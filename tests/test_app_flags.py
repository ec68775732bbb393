"""``python -m app``: the published flags, what they load, and the server in the page's place."""

from __future__ import annotations

import pytest

from app import __main__ as app
from app.controls import controls
from dart_core.errors import ArenaError


@pytest.fixture
def api(monkeypatch):
    """What the server of --api is started with."""
    started = []

    def run(args) -> int:
        started.append(args)
        return 0

    monkeypatch.setattr("dart_core.cli_api.run_api", run)

    def api(*flags: str):
        app.serve_api(app.build_parser().parse_args(["--api", *flags]))
        return started.pop()

    return api


@pytest.mark.parametrize(
    ("flags", "engines"),
    [
        ([], ["ar", "dart"]),
        (["--compare-eagle3"], ["ar", "dart", "eagle3"]),
        (["--compare-eagle3", "--no-compare-eagle3"], ["ar", "dart"]),
    ],
)
def test_eagle3_is_loaded_only_when_it_is_to_be_compared(flags, engines, monkeypatch):
    loaded = []
    monkeypatch.setattr("dart_core.cli_run.load", lambda args, names, say: loaded.append(names))
    app._engine(app.build_parser().parse_args(["--preset", "demo", *flags]), print)
    assert loaded == [engines]


def test_without_eagle3_the_page_races_dart_against_plain_decoding():
    first, second = controls(("dart", "ar"))[:2]
    assert (first.default, second.default) == ("dart", "ar")


def test_without_flags_it_is_the_published_apps_trio():
    args = app.build_parser().parse_args([])
    app._complete(args)
    assert args.preset == "qwen3-4b"
    assert (args.max_new_tokens, args.max_length, args.server_port) == (512, 1024, 30000)
    for flag in ("--base-model-name-or-path", "--ngram-model-name-or-path"):
        args = app.build_parser().parse_args([flag, "/my/own"])
        app._complete(args)
        assert args.preset == ("qwen3-4b" if "ngram" in flag else None)
    args = app.build_parser().parse_args(["--dart-model-name-or-path", "fvliang/qwen8b-dart"])
    app._complete(args)
    assert args.preset is None  # the id says which target it is


def test_the_api_serves_what_the_page_would(api, monkeypatch):
    flags = ["--preset", "qwen3-8b", "--max-new-tokens", "77", "--max-length", "99", "--listen"]
    served = api(*flags, "--use-small-ngram", "--tree-budget", "9", "--server-port", "4321")
    assert (served.preset, served.ngram, served.engines) == ("qwen3-8b", "small", ["dart"])
    assert (served.max_new_tokens, served.max_length, served.tree_budget) == (77, 99, 9)
    assert (served.server_port, served.listen) == (4321, True)
    assert (served.temperature, served.queue) == (0.0, 16)  # the server's own defaults
    served = api("--compare-eagle3")
    assert (served.preset, served.engines, served.listen) == ("qwen3-4b", ["dart", "eagle3"], False)
    monkeypatch.setenv("GRADIO_SERVER_NAME", "0.0.0.0")
    assert api("--preset", "demo").listen


@pytest.mark.parametrize("flag", ["--share", "--replay"])
def test_what_is_the_pages_alone_is_refused_with_the_api(api, flag):
    with pytest.raises(ArenaError, match=f"{flag} is the page's"):
        api(flag)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--template-name", "vicuna"], "known templates: qwen, chatml"),
        (["--preset", "qwen3-9b"], "known presets: demo, qwen3-1.7b"),
        (["--device", "cpu", "--device-map", "auto"], "give one of them"),
        (["--device", "cpu", "--cuda-graphs"], "CUDA graphs need a CUDA GPU, and the models go to"),
        (["--dart-model-name-or-path", "Qwen/Qwen3-8B"], "not a DART head: give"),
    ],
)
def test_what_cannot_be_served_is_one_line(flags, says, capsys, monkeypatch):
    monkeypatch.setattr(app.signal, "signal", lambda *args: None)
    assert app.main(["--api", "--server-port", "4322", *flags]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_what_the_system_refuses_is_one_line(monkeypatch, capsys):
    def refused(args):
        raise OSError(30, "Read-only file system", "/cache")

    monkeypatch.setattr(app, "serve", refused)
    monkeypatch.setattr(app.signal, "signal", lambda *handler: None)
    assert app.main(["--preset", "demo"]) == 1
    assert capsys.readouterr().err == "error: [Errno 30] Read-only file system: '/cache'\n"
