"""What the processes of test_context run. Imported by name, here and in the processes."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

STATE = "as imported"


def leave(code):
    sys.exit(code)


def answer(questions, answers, ended, lock, board):
    question = questions.get()
    with lock:
        board[1] = 7
        answers.put(question * 2)
        ended.set()
    questions.get()  # a tensor is fetched from the process that sent it


def fail():
    raise KeyError("width")


def describe(answers):
    current, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    assert parent.is_alive()
    answers.put(
        {
            "state": STATE,
            "word": os.environ.get("COUNTERPOISE_TEST_WORD"),
            "parent": parent.pid,
            "daemon": current.daemon,
            "folder": str(Path.cwd()),
            "authkey": bytes(current.authkey),
        }
    )


def ignore_signals(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.put("deaf")
    while True:
        signal.pause()
