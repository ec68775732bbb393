"""ZeroGPU's ``spaces``, as far as a page can tell: what is decorated runs in a forked process,
which serves several calls; what goes in and out is pickled; Gradio's context says whose call it is.

A request with the header ``x-ip-token: poor`` has no quota left. $FAKE_SPACES_LOG gets a line of
JSON for every call.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import threading
from functools import wraps

import gradio as gr
from gradio.context import LocalContext

fork = multiprocessing.get_context("fork")
QUOTA = "You have exceeded your free ZeroGPU quota (54s requested vs. 20s left). Try again in 3:00."


class Worker:
    def __init__(self, task):
        self.task, self.calls, self.answers = task, fork.SimpleQueue(), fork.SimpleQueue()
        self.stop = fork.Event()
        self.process = fork.Process(target=self.serve, daemon=True)
        self.process.start()
        # Like the real one: a worker that dies is noticed by whoever waits for its answers.
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        self.process.join()
        self.answers.put(("aborted", "GPU task aborted"))

    def serve(self) -> None:
        while True:
            arguments = self.calls.get()
            thread = threading.Thread(target=self.iterate, args=(arguments,))
            thread.start()
            thread.join()

    def iterate(self, arguments: tuple) -> None:
        stream = self.task(*arguments)
        try:
            for value in stream:
                if self.stop.is_set():
                    stream.close()
                    break
                self.answers.put(("value", value))
        except Exception as error:
            self.answers.put(("failed", type(error).__name__))
        else:
            self.answers.put(("end", None))


def GPU(task=None, *, duration=60):
    if task is None:
        return lambda task: GPU(task, duration=duration)
    assert inspect.isgeneratorfunction(task)
    idle: list[Worker] = []

    @wraps(task)
    def handler(*arguments):
        request = LocalContext.request.get(None)
        token = request.headers.get("x-ip-token") if request is not None else None
        seconds = duration(*arguments) if callable(duration) else duration
        if token == "poor":
            raise gr.Error(QUOTA, title="ZeroGPU quota exceeded", print_exception=False)
        worker = idle.pop() if idle else Worker(task)
        if path := os.environ.get("FAKE_SPACES_LOG"):
            call = {"token": token, "seconds": seconds, "worker": worker.process.pid}
            with open(path, "a", encoding="utf-8") as log:
                log.write(json.dumps(call) + "\n")
        worker.stop.clear()
        worker.calls.put(arguments)
        kind = "value"
        try:
            while True:
                kind, value = worker.answers.get()
                if kind != "value":
                    break
                yield value
        finally:
            worker.stop.set()
            while kind == "value":  # the page's side waits until the step under way is done
                kind, value = worker.answers.get()
            if kind == "end":
                idle.append(worker)
        if kind != "end":
            raise gr.Error(value, title="ZeroGPU worker error", print_exception=False)

    return handler
