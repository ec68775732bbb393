"""Scripted visitors on the real page for hours: nothing may be lost, mixed up, leaked or stuck.

    python tests/soak.py --minutes 120 --visitors 8 [--seed 0] [--json soak.json]

Starts the page over the demo's models as a process and visits it over HTTP, as tabs do: visitors
run prompts to the end, stop, reload, vanish, ask for what is refused, replay, download, upload,
follow up and clear, all at once and at random. Greedy or seeded, a prompt's text is known from a
run with nobody else there, so that a text of somebody else's, or a wrong one, is seen at once.
Prints one line per check; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from visitors import Refused, Site, Tab, Trouble, changed

from app.layout import EXAMPLES
from app.recording import Recording
from app.replays import SHIPPED

ROOT = Path(__file__).parent.parent
EVERY = 5.0  # seconds between looks at the process
REST = 20.0  # seconds after which a server that nobody visits has let go of its spare threads
FLAT = 0.03  # of the memory after warm-up
PANELS = slice(1, 4)  # of a run's outputs; the status line is the first
SPILT = ("Traceback", "site-packages", str(ROOT), sys.prefix, str(Path.home()) + "/")
BAD = (
    {"prompt": ""},
    {"prompt": "x" * 20_001},
    {"prompt": "x" * 3_000_000},
    {"prompt": None},
    {"prompt": "half \ud83d"},
    {"prompt": "a", "knob_temperature": float("nan")},
    {"prompt": "a", "knob_temperature": -1},
    {"prompt": "a", "knob_top_k": 1e300},
    {"prompt": "a", "knob_top_p": "much"},
    {"prompt": "a", "knob_seed": "9" * 400},
    {"prompt": "a", "knob_max_new_tokens": 10**9},
    {"prompt": "a", "knob_first": "nobody"},
    {"prompt": "a", "knob_second": "dart", "knob_first": "dart"},
    {"prompt": "a", "knob_mode": {"deep": [1, 2]}},
)
FILES = (b"", b"no run", b"\x1f\x8b broken", b"[" * 100_000, b'{"schema":"dart-arena/run/1"}')


class Known:
    """Every case's text, from runs with nobody else there. A case: the prompts of a conversation,
    and the settings that its text depends on.
    """

    def __init__(self, site: Site, cases: int):
        prompts = [*EXAMPLES, "Name three rivers.", "What is a prime number?", "Say hello.",
                   "Write one sentence about rain."]  # fmt: skip
        self.cases: list[dict[str, Any]] = []
        for n, prompt in enumerate(prompts):
            for tokens, temperature in ((8, 0), (20, 0), (12, 0.9)):
                case = {"prompts": [prompt], "tokens": tokens, "temperature": temperature}
                self.cases.append({**case, "seed": str(n)})
        for n in range(4):
            told = [prompts[n], prompts[-1 - n]]
            self.cases.append({"prompts": told, "tokens": 12, "temperature": 0, "seed": ""})
        self.cases = self.cases[:: max(1, len(self.cases) // cases)]
        for case in self.cases:
            tab = Tab(site)
            case["texts"] = []
            for number, prompt in enumerate(case["prompts"]):
                tab.join(
                    "follow" if number else "run", prompt=prompt, **self.settings(case, ["ar"])
                )
                *_, last = tab.stream()
                case["texts"].append(last["output"]["data"][1]["text"])
            run = last["output"]["data"][0]["run"]
            # Each of these has a thread from the first question on.
            tab.ask("status", "record", run, "csv")
            tab.ask("panel-1", "rendered", run, "ar")
            tab.ask("tree", "tree", run, "ar", 1)
            tab.close()

    @staticmethod
    def settings(case: dict[str, Any], engines: list[str]) -> dict[str, Any]:
        slots = ["knob_first", "knob_second", "knob_third"]
        return {
            **dict(zip(slots, [*engines, "", ""], strict=False)),
            "knob_max_new_tokens": case["tokens"],
            "knob_temperature": case["temperature"],
            "knob_seed": case["seed"],
        }


class Visitor:
    """One of the scripted visitors: does one thing after another until time is up."""

    def __init__(self, soak: Soak, number: int, seed: int):
        self.soak, self.site, self.known = soak, soak.site, soak.known
        self.random = random.Random(f"{seed} {number}")
        self.tab = Tab(self.site)
        self.saved: bytes | None = None  # a run of ours, as it was downloaded
        self.acts: dict[Callable[[], None], int] = {
            self.run: 6, self.stop: 3, self.vanish: 2, self.reload: 2, self.refused: 2,
            self.huge: 1, self.replay: 2, self.stop_replay: 1, self.upload: 1, self.clear: 1,
            self.hasty: 1, self.pause: 2,
        }  # fmt: skip

    def visit(self, until: float) -> None:
        while time.monotonic() < until and not self.soak.over.is_set():
            (act,) = self.random.choices(list(self.acts), list(self.acts.values()))
            try:
                act()
                self.soak.done[act.__name__] += 1
            except Exception as error:
                if isinstance(error, Refused) and error.status == 503:
                    self.soak.done["turned away: the queue was full"] += 1
                else:
                    self.soak.problem(f"{act.__name__}: {error}", traceback.format_exc())
                self.leave()
        self.tab.close()

    def leave(self) -> None:
        """Be gone, and come back as somebody else."""
        self.tab.close()
        self.tab = Tab(self.site, load=self.random.random() < 0.5)

    # What they do ---------------------------------------------------------------------------------

    def run(self) -> None:
        """A conversation to its end, and sometimes its files."""
        case = self.random.choice(self.known.cases)
        for turn, prompt in enumerate(case["prompts"]):
            engines = self.start(case, turn)
            final = self.watch(case, turn)
            for engine, panel in zip(engines, final[PANELS], strict=False):
                expect((engine, "done"), (panel["engine"], panel["state"]), "a panel's end")
                expect(case["texts"][turn], panel["text"], f"{engine}'s answer to {prompt!r}")
        if self.random.random() < 0.4:
            self.download(final[0]["run"], case, engines)

    def stop(self) -> None:
        """Stop: in the queue, at the first token or later."""
        case = self.random.choice(self.known.cases)
        self.start(case, 0)
        self.watch(case, 0, stop_at=self.random.randrange(12))

    def vanish(self) -> None:
        case = self.random.choice(self.known.cases)
        self.start(case, 0)
        self.watch(case, 0, leave_at=self.random.randrange(12))
        self.leave()
        time.sleep(self.random.random())

    def reload(self) -> None:
        """The same, but a tab that loads its page anew is back at once."""
        case = self.random.choice(self.known.cases)
        self.start(case, 0)
        self.watch(case, 0, leave_at=self.random.randrange(6))
        self.tab.close()
        self.tab = Tab(self.site)

    def hasty(self) -> None:
        """Two runs from one tab, the second before the first has begun."""
        case, other = self.random.sample(self.known.cases, 2)
        self.start(case, 0)
        first = self.tab.pending
        self.start(other, 0)
        texts = {}
        for message in self.tab.stream():
            if message["msg"] == "process_completed":
                texts[message["event_id"]] = message["output"]["data"][1]["text"]
        wanted = {first["id"]: case["texts"][0], self.tab.pending["id"]: other["texts"][0]}
        expect(wanted, texts, "the answers to two runs of one tab")

    def refused(self) -> None:
        values = self.random.choice(BAD)
        try:
            self.tab.join("run", **values)
        except Refused as refusal:
            unspilt(refusal.body)
            if refusal.status not in (400, 413, 422):
                raise
            return
        raise Trouble(f"not refused: {str(values)[:100]}")

    def huge(self) -> None:
        """As many characters as the page takes, more tokens than the context holds."""
        self.tab.join("run", prompt=self.random.choice("aé字 ") + "word " * 3_999)
        *_, last = self.tab.stream()
        panel = last["output"]["data"][1]
        unspilt(json.dumps(last))
        expect("error", panel["state"], "the end of a run with a huge prompt")
        if "1024" not in panel["note"]:
            raise Trouble(f"a huge prompt was told {panel['note']!r}")

    def replay(self) -> None:
        name = self.random.choice(list(self.soak.recorded))
        self.replayed(name, self.random.choice(["5 ×", "at once"]))

    def replayed(self, name: str, speed: str) -> None:
        self.tab.join("replay", recorded=name, speed=speed)
        *_, last = self.tab.stream()
        same_texts(self.soak.recorded[name], last["output"]["data"])

    def stop_replay(self) -> None:
        self.tab.join("replay", recorded=self.random.choice(list(self.soak.recorded)))
        for number, _ in enumerate(self.tab.stream()):
            if number == 6:
                self.tab.stop()

    def upload(self) -> None:
        """A file: a run of ours, or something broken."""
        good = self.saved and self.random.random() < 0.5
        content = self.saved if good else self.random.choice(FILES)
        file = self.tab.upload("a run.json", content)
        self.tab.join("load-run", load_run=file, speed="at once")
        *_, last = self.tab.stream()
        if not last["success"]:
            raise Trouble(f"an upload was answered {last}")
        data = last["output"]["data"]
        unspilt(json.dumps(data))
        if good:
            same_texts(Recording.from_json(json.loads(content)), data)
        elif "a run.json" not in data[0]["text"]:
            raise Trouble(f"a broken file was told {data[0]['text']!r}")

    def clear(self) -> None:
        data = self.tab.clear()
        expect(["", ""], [data[0], data[1]["text"]], "a cleared page")

    def pause(self) -> None:
        time.sleep(3 * self.random.random())

    # How they do it -------------------------------------------------------------------------------

    def start(self, case: dict[str, Any], turn: int) -> list[str]:
        """Press Run: random engines, and what may not change a text; returns the engines."""
        engines = self.random.sample(["dart", "eagle3", "ar"], self.random.randint(1, 3))
        self.tab.join(
            "follow" if turn else "run",
            prompt=case["prompts"][turn],
            **self.known.settings(case, engines),
            knob_tree_budget=self.random.choice([1, 8, 16, 60]),
            knob_auto_budget=self.random.random() < 0.5,
            knob_ngram=self.random.choice(["full", "small", "off"]),
            knob_beam=self.random.choice([1, 5, 20]),
            knob_eagle3_depth=self.random.choice([0, 3, 7]),
            knob_prompt_lookup=self.random.choice([0, 0, 8]),
            knob_mode=self.random.choice(["at-once", "in-turn"]),
            knob_candidates=self.random.random() < 0.1,
        )
        return engines

    def watch(self, case, turn: int, stop_at: int = -1, leave_at: int = -1) -> list[Any] | None:
        """Follow a run as its page does; every update has to be this visitor's own."""
        began, shown, run = time.monotonic(), None, None
        for number, message in enumerate(self.tab.stream()):
            seconds = time.monotonic() - began
            if message["msg"] == "process_starts":
                self.soak.waited.append(seconds)
            if seconds > self.soak.args.patience:
                raise Trouble(f"not answered within {self.soak.args.patience:g} s")
            if message["msg"] in ("process_generating", "process_completed"):
                if not message["success"]:
                    raise Trouble(f"answered {message}")
                if data := message["output"].get("data"):
                    if shown and message["msg"] == "process_generating":
                        data = [changed(a, b) for a, b in zip(shown, data, strict=True)]
                    shown = data
                    run = run or shown[0]["run"]
                    self.own(shown, case, turn, run)
            if number == leave_at:
                return None
            if number == stop_at:
                before = self.tab.runs - {run}
                stopped = self.tab.stop()
                latest = stopped[0]["run"]  # one before, where this one had not begun
                if "engine" in stopped[1] and latest not in before:
                    self.own(stopped, case, turn, run or latest)
        self.soak.answered.append(time.monotonic() - began)
        return shown

    @staticmethod
    def own(data: list[Any], case: dict[str, Any], turn: int, run: str) -> None:
        expect(run, data[0]["run"], "the run that is shown")
        for panel in data[PANELS]:
            if panel["engine"]:
                expect((run, case["prompts"][turn]), (panel["run"], panel["prompt"]), "a panel")
                if not case["texts"][turn].startswith(panel["text"]):
                    raise Trouble(f"{case['prompts'][turn]!r} is answered {panel['text']!r}")

    def download(self, run: str, case: dict[str, Any], engines: list[str]) -> None:
        text = self.tab.ask("status", "record", run, "json")
        unspilt(text)
        recording = Recording.from_json(json.loads(text))
        expect(case["prompts"][-1], recording.header["prompt"], "a download's prompt")
        rows = list(csv.DictReader(io.StringIO(self.tab.ask("status", "record", run, "csv"))))
        expect(sum("step" in json.dumps(e) for e in json.loads(text)["events"]
                   if e["type"] == "moved"), len(rows), "rows of a CSV")  # fmt: skip
        expect(True, bool(self.tab.ask("panel-1", "rendered", run, engines[0])), "a rendered text")
        if "dart" in engines:
            tree = json.loads(self.tab.ask("tree", "tree", run, "dart", 1))
            expect(("dart", 1), (tree["engine"], tree["step"]), "a tree")
        self.saved = text.encode()


class Soak:
    """The page's process, its visitors, and what they found."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder, self.log = args, folder, folder / "log"
        self.over = threading.Event()
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.waited: list[float] = []  # seconds in the queue
        self.answered: list[float] = []  # seconds from a click to the end
        self.series: list[dict[str, float]] = []
        self.recorded = {path.name: Recording.load(path) for path in SHIPPED.glob("*.json.gz")}

    def problem(self, line: str, details: str = "") -> None:
        self.problems.append(line)
        if len(self.problems) <= 20:
            print(f"PROBLEM after {len(self.answered)} runs: {line}\n{details}", flush=True)

    def main(self) -> int:
        """Serve, visit, report; returns the exit code."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # float32: every engine writes the same text.
        command = [sys.executable, "-m", "app", "--preset", "demo", "--compare-eagle3"]
        command += ["--dtype", "float32"]
        environment = {**os.environ, "GRADIO_TEMP_DIR": str(self.folder / "uploads")}
        with self.log.open("w") as log:
            server = subprocess.Popen(
                [*command, "--server-port", str(port)], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            while "Running on" not in self.log.read_text():
                if server.poll() is not None:
                    raise SystemExit(self.log.read_text())
                time.sleep(0.2)
            self.visit(server.pid, port)
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        return self.report(code)

    def visit(self, pid: int, port: int) -> None:
        self.site = Site(port)
        self.known = Known(self.site, self.args.cases)
        visitors = [Visitor(self, n, self.args.seed) for n in range(self.args.visitors)]
        self.warm_up(visitors)
        self.before = self.at_rest(pid)
        print(f"{len(self.known.cases)} cases are known. At rest: {self.before}", flush=True)
        for visitor in visitors:
            visitor.tab = Tab(self.site)
        until = time.monotonic() + 60 * self.args.minutes
        threads = [threading.Thread(target=v.visit, args=(until,), daemon=True) for v in visitors]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.series.append(process(pid))
            if len(self.series) % 60 == 0:
                print(f"{len(self.answered)} runs, {self.series[-1]}", flush=True)
            if time.monotonic() > until + 2 * self.args.patience:
                self.problem("a visitor is stuck")
                break
            time.sleep(EVERY)
        self.after = self.at_rest(pid)

    def warm_up(self, visitors: list[Visitor]) -> None:
        """Everybody replays every recording at the same time: reading them takes most memory, and
        what a process once took it keeps.
        """

        def all_of_them(visitor: Visitor) -> None:
            for name in self.recorded:
                visitor.replayed(name, "at once")
            visitor.tab.close()

        with ThreadPoolExecutor(len(visitors)) as pool:
            list(pool.map(all_of_them, visitors))

    def at_rest(self, pid: int) -> dict[str, Any]:
        """The process when nobody has visited for a while."""
        time.sleep(REST)
        tab = Tab(self.site)
        tab.clear()  # a thread that begins work lets those go that had none for long
        tab.close()
        time.sleep(REST / 4)
        kinds = Counter(
            os.readlink(file).split("[")[0] for file in Path(f"/proc/{pid}/fd").glob("*")
        )
        return {**process(pid), "kinds": kinds}

    def report(self, code: int) -> int:
        """Print one line per check; returns the exit code."""
        log = self.log.read_text()
        spilt = [line for line in log.splitlines() if "Traceback" in line or "ERROR" in line]
        memory = flatness([s["rss"] for s in self.series])
        waited = np.array(self.waited or [np.nan])
        answered = np.array(self.answered or [np.nan])
        checks = [
            (not self.problems, f"visitors: {sum(self.done.values())} visits ({dict(self.done)}), "
             f"{len(self.problems)} problems"),
            (not spilt, f"server log: {len(spilt)} errors"),
            (answered.max() <= self.args.patience, f"queue: {len(answered)} runs answered, median "
             f"{np.median(answered):.1f} s, longest {answered.max():.1f} s; longest wait in the "
             f"queue {waited.max():.1f} s"),
            (abs(memory["drift"]) <= FLAT and memory["peak"] <= FLAT,
             f"memory: {memory['early']:.0f} MiB after warm-up, then {memory['drift']:+.2%} by "
             f"linear fit, highest window {memory['peak']:+.2%}"),
            (self.after["threads"] <= self.before["threads"],
             f"threads at rest: {self.before['threads']} before, {self.after['threads']} after, "
             f"at most {max(s['threads'] for s in self.series)}"),
            (self.after["files"] <= self.before["files"],
             f"open files at rest: {self.before['files']} before, {self.after['files']} after, "
             f"at most {max(s['files'] for s in self.series)}"),
            (code == 128 + signal.SIGTERM, f"server: exit code {code} after SIGTERM"),
        ]  # fmt: skip
        for good, line in checks:
            print(f"{'ok    ' if good else 'FAILED'} {line}")
        for found in re.findall(r"^.*ERROR.*$|^Traceback.*\n(?:[ \t].*\n)*.*$", log, re.MULTILINE)[
            :10
        ]:
            print(found)
        if self.args.json:
            found = {
                "arguments": {k: str(v) for k, v in vars(self.args).items()},
                "checks": [{"ok": bool(good), "line": line} for good, line in checks],
                "problems": self.problems, "before": self.before, "after": self.after,
                "waited": self.waited, "answered": self.answered, "series": self.series,
            }  # fmt: skip
            self.args.json.write_text(json.dumps(found))
        return 0 if all(good for good, _ in checks) else 1


def process(pid: int) -> dict[str, float]:
    """A process now: MiB resident, of these anonymous, its threads, its open files."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "seconds": time.monotonic(),
        "rss": int(fields["VmRSS"].split()[0]) / 1024,
        "anonymous": int(fields["RssAnon"].split()[0]) / 1024,
        "threads": int(fields["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def flatness(values: list[float]) -> dict[str, float]:
    """Of a series without its first quarter, the warm-up: the level of its first tenth, and how far
    a line through it climbs and its highest tenth lies above that, as shares of it.
    """
    late = np.array(values[len(values) // 4 :])
    tenths = [np.median(part) for part in np.array_split(late, min(10, len(late)))]
    slope = np.polyfit(np.arange(len(late)), late, 1)[0] if len(late) > 1 else 0.0
    early = tenths[0]
    return {"early": early, "drift": slope * len(late) / early, "peak": max(tenths) / early - 1}


def expect(wanted: Any, seen: Any, what: str) -> None:
    if wanted != seen:
        raise Trouble(f"{what}: {str(seen)[:300]!r} instead of {str(wanted)[:300]!r}")


def unspilt(text: str) -> None:
    """Nothing of the server's inside may reach a visitor."""
    if found := [inside for inside in SPILT if inside in text]:
        raise Trouble(f"a visitor is told of {found}: {text[:300]}")


def same_texts(recording: Recording, data: list[Any]) -> None:
    for panel in data[PANELS]:
        if "engine" not in panel:  # nothing new is shown but a sentence
            raise Trouble(f"a replay ends with {data[0].get('text')!r}")
        if panel["engine"]:
            pieces = [
                piece
                for event in recording.events
                if getattr(event, "pieces", None) and event.engine == panel["engine"]
                for piece in event.pieces
            ]
            if not panel["text"].startswith("".join(pieces)):
                raise Trouble(f"{panel['engine']} is replayed as {panel['text']!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--patience", type=float, default=300, help="seconds within which a run must be answered"
    )
    parser.add_argument("--cases", type=int, default=28, help="different conversations")
    parser.add_argument("--json", type=Path, help="where to write the series")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the page ends too
    with tempfile.TemporaryDirectory() as folder:
        return Soak(args, Path(folder)).main()


if __name__ == "__main__":
    sys.exit(main())
