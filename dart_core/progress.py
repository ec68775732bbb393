"""How far a long job is: a bar that is drawn over itself on a terminal, else a line each while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

WIDTH = 24  # of the bar


class ProgressBar:
    """Shows a fraction and a text on stderr, or hands whole lines to ``log`` (None: print them).

    On a terminal the line is redrawn up to five times a second. Elsewhere, in a file say, a line
    is written every ``seconds``, and one at the end.
    """

    def __init__(self, what: str, *, log: Callable[[str], None] | None = None, seconds: float = 15):
        self.what, self.log = what, log
        self.drawn = log is None and sys.stderr is not None and sys.stderr.isatty()
        self.seconds = 0.2 if self.drawn else seconds
        self.started = time.monotonic()
        self.shown = self.started - (self.seconds if self.drawn else 0)
        self.last = ""

    def show(self, fraction: float, text: str, *, now: bool = False) -> None:
        """``fraction`` 0 to 1 is done, ``text`` says more. Most calls show nothing, but ``now``."""
        self.last = f"{self.what} {100 * min(1.0, fraction):.0f} %, {text}"
        if not now and time.monotonic() - self.shown < self.seconds:
            return
        self.shown = time.monotonic()
        if self.drawn:
            filled = round(WIDTH * min(1.0, fraction))
            sys.stderr.write(f"\r\x1b[K[{'#' * filled}{'.' * (WIDTH - filled)}] {self.last}")
            sys.stderr.flush()
        else:
            self._line()

    def close(self) -> None:
        """Leave the last state standing as a line of its own."""
        if self.drawn:
            sys.stderr.write("\r\x1b[K")
        if self.last:
            self._line()

    def _line(self) -> None:
        line, self.last = self.last, ""
        if line:
            (self.log or (lambda text: print(text, file=sys.stderr, flush=True)))(line)

    def left(self, done: float, total: float) -> float:
        """Seconds left, if the rest of ``total`` takes as long as the ``done`` part did."""
        return (time.monotonic() - self.started) * (total - done) / max(done, 1e-9)


def duration(seconds: float) -> str:
    """Seconds as people say them: "45 s", "3 min 20 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: float) -> str:
    """Bytes as people say them: "12.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
