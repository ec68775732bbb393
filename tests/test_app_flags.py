"""``python -m app``: the published flags, what they load, and the server in the page's place."""

from __future__ import annotations

import pytest

from app import __main__ as app
from app.access import TRIED_IN, TRIES, Tries, accounts, exposure
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


@pytest.mark.parametrize("seconds", ["nan", "0", "-5"])
def test_a_run_ends_after_a_number_of_seconds(seconds):
    args = app.build_parser().parse_args(["--max-seconds", seconds])
    with pytest.raises(ArenaError, match=f"^--max-seconds {seconds}: expected a number above 0$"):
        app._complete(args)


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
    monkeypatch.setenv("GRADIO_SERVER_NAME", "localhost")
    assert not api("--preset", "demo").listen
    monkeypatch.setenv("GRADIO_SERVER_NAME", "192.0.2.7")
    assert api("--preset", "demo", "--listen").listen
    with pytest.raises(ArenaError, match=r"^GRADIO_SERVER_NAME=192\.0\.2\.7: with --api expected"):
        api("--preset", "demo")


@pytest.mark.parametrize("flag", ["--share", "--replay", "--auth=ada:secret"])
def test_what_is_the_pages_alone_is_refused_with_the_api(api, flag):
    with pytest.raises(ArenaError, match=f"{flag.split('=')[0]} is the page's") as refusal:
        api(flag)
    assert "secret" not in str(refusal.value)


def test_the_apis_key_is_handed_on_and_is_none_of_the_pages(api):
    assert api("--api-key", "mine").api_key == "mine"
    with pytest.raises(ArenaError, match="--api-key is the API's") as refusal:
        app.serve(app.build_parser().parse_args(["--api-key", "mine"]))
    assert "mine" not in str(refusal.value)


def test_a_folder_without_recorded_runs_is_refused_before_the_page(tmp_path):
    args = app.build_parser().parse_args(["--replay", str(tmp_path)])
    for _ in range(2):
        with pytest.raises(ArenaError, match=f"--replay {tmp_path}: no recorded run lies there"):
            app._complete(args)
        (tmp_path / "notes.json").write_text("{}")
    app._complete(app.build_parser().parse_args(["--replay"]))


# Who may come in ----------------------------------------------------------------------------------


def test_accounts_come_from_flags_or_from_the_environment(monkeypatch):
    monkeypatch.setenv("DART_ARENA_AUTH", "eve:one\n\n bob:two:three \n")
    assert accounts([]) == [("eve", "one"), ("bob", "two:three")]
    assert accounts(["ada:x y", "bob:ö"]) == [("ada", "x y"), ("bob", "ö")]
    monkeypatch.delenv("DART_ARENA_AUTH")
    assert accounts([]) == []
    args = app.build_parser().parse_args(["--auth", "ada:x", "--auth=bob:y"])
    assert args.auth == ["ada:x", "bob:y"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("s3cret", "account 1 is not spelled as expected: USER:PASSWORD"),
        (":s3cret", "account 1 is not spelled"),
        ("s3cret:", "account 1 is not spelled"),
        ("", "account 1 is not spelled"),
        ("  :s3cret", "account 1 is not spelled"),
        ("ada:s3cret", "account 2 has the name of another one"),
    ],
)
def test_what_is_no_account_is_refused_unrepeated(given, says, monkeypatch, capsys):
    """On the page's way up, before anything is loaded or served."""
    monkeypatch.setattr(app.signal, "signal", lambda *args: None)
    flags = ["--auth", given] * (2 if "2" in says else 1)
    assert app.main(flags) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: --auth: {says}") and error.count("\n") == 1
    assert "s3cret" not in error
    if given:
        monkeypatch.setenv("DART_ARENA_AUTH", f"{given}\n{given}")
        assert app.main([]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: DART_ARENA_AUTH: account ") and "s3cret" not in error


@pytest.mark.parametrize(
    ("host", "share", "says"),
    [
        ("127.0.0.1", False, []),
        ("localhost", False, []),
        ("0.0.0.0", False, ["--listen: whoever reaches port 5 of this machine"]),
        ("192.0.2.7", False, ["--listen: whoever reaches port 5 of this machine"]),
        ("127.0.0.1", True, ["--share: "]),
        ("0.0.0.0", True, ["--listen: ", "--share: "]),
    ],
)
def test_who_can_come_in_is_said_with_the_remedy(host, share, says):
    open_lines = exposure(host, 5, share, guarded=False)
    guarded = exposure(host, 5, share, guarded=True)
    assert len(open_lines) == len(guarded) == len(says)
    for open_line, guarded_line, said in zip(open_lines, guarded, says, strict=True):
        assert open_line.startswith(f"warning: {said}") and guarded_line.startswith("note: --")
        assert "--auth USER:PASSWORD (or DART_ARENA_AUTH)" in open_line
        assert "password" in guarded_line


@pytest.mark.parametrize("auth", [[], ["--auth", "ada:s3cret"]])
def test_before_the_models_are_loaded_a_password_keeps_their_names_back(auth, monkeypatch, capsys):
    """And is itself nowhere: not on the waiting page, not on the terminal."""
    pages = []

    def load(args, say):
        say("target: Secret-4B in 2 s")
        pages.append(waiting[0].page())
        raise ArenaError("enough")

    class Kept(app.Waiting):
        def __init__(self, host, port):
            super().__init__(host, 0)
            waiting.append(self)

    waiting = []
    monkeypatch.setattr(app, "Waiting", Kept)
    monkeypatch.setattr(app, "_engine", load)
    monkeypatch.setattr(app.signal, "signal", lambda *args: None)
    assert app.main(["--preset", "demo", "--listen", *auth]) == 1
    said = capsys.readouterr()
    assert ("Secret-4B" in pages[0]) == (not auth)
    assert "s3cret" not in pages[0] + said.out + said.err
    assert said.err.startswith("note: --listen" if auth else "warning: --listen")


def test_wrong_passwords_are_counted_for_a_while():
    clock = [0.0]
    tries = Tries(lambda: clock[0])
    for _ in range(TRIES):
        assert not tries.spent("a")
        tries.wrong("a")
        clock[0] += 1
    assert tries.spent("a") and not tries.spent("b") and not tries.spent(None)
    clock[0] += TRIED_IN - 2
    assert tries.spent("a")
    clock[0] += 2
    assert not tries.spent("a")
    tries.wrong("c")
    tries.right("c")
    tries.wrong("b")
    tries.right("a")
    assert not tries.spent("b") and list(tries._wrong) == ["b"]  # nobody is kept for ever


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
    assert capsys.readouterr().err == "error: /cache: Read-only file system\n"
