"""verl's balancing functions, called in a process whose interpreter has verl.

This file is both sides. `VerlProcess` starts it as a script, with verl's interpreter; requests and
answers are lines of JSON on the pipes. The script imports the standard library, torch and verl.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


class PeerError(ValueError):
    """A function of a peer raised: the text is its error."""


class VerlProcess:
    """A process that calls verl's functions; use it in a with statement.

    Raises ValueError where the interpreter has no verl.
    """

    def __init__(self, python: str) -> None:
        # one thread, as ours has; and what it says of missing accelerators is no output of a bench
        self._process = subprocess.Popen(
            [python, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            self.version: str = self._ask(call="find_version")["version"]
        except (PeerError, EOFError) as error:
            self.close()
            raise ValueError(f"{python} cannot import verl ({error}); install it there") from error

    def partition(self, work: list[int], ranks: int, equal: bool) -> tuple[list[list[int]], float]:
        """Return get_seqlen_balanced_partitions' lists, and its CPU seconds; else PeerError."""
        answer = self._ask(call="partition", work=work, ranks=ranks, equal=equal)
        return answer["parts"], answer["cpu_s"]

    def rearrange(
        self, tokens: list[list[int]], budget: int
    ) -> tuple[list[list[list[int]]], list[int], float]:
        """Return rearrange_micro_batches' lists of all ranks, as many for each; else PeerError.

        And the smallest and the largest number that ranks choose alone, and the CPU seconds of a
        rank (the mean), without the slicing of tensors.
        """
        answer = self._ask(call="rearrange", tokens=tokens, budget=budget)
        return answer["parts"], answer["alone"], answer["cpu_s"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "VerlProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **request: object) -> Any:
        pipes = self._process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        try:
            pipes.stdin.write(json.dumps(request) + "\n")
            pipes.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError("its process ended") from error
        line = pipes.stdout.readline()
        if not line:
            raise EOFError("its process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer


# --- the script


def find_version() -> dict[str, object]:
    """Return verl's version."""
    import verl.utils.seqlen_balancing  # noqa: F401

    return {"version": version("verl")}


def partition(work: list[int], ranks: int, equal: bool) -> dict[str, object]:
    """Call get_seqlen_balanced_partitions on a list, which takes a twentieth of a tensor's time."""
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    begin = time.process_time()
    parts = get_seqlen_balanced_partitions(work, ranks, equal)
    return {"parts": parts, "cpu_s": time.process_time() - begin}


def rearrange(tokens: list[list[int]], budget: int) -> dict[str, object]:
    """Call rearrange_micro_batches for each rank, until all have as many microbatches.

    Their all_reduce comes to the same number: the least with which no rank exceeds the budget.
    """
    import torch
    from verl.utils import seqlen_balancing

    # what is compared is the choice of rows, so no row is copied
    seqlen_balancing.tu.index_select_tensor_dict = lambda *_: None
    batches = []
    for lengths in tokens:
        rows = [torch.zeros(length, dtype=torch.int8) for length in lengths]
        batches.append({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)})
    alone: list[int] = []
    least = None
    while True:
        begin = time.process_time()
        parts = [
            seqlen_balancing.rearrange_micro_batches(batch, budget, min_num_micro_batch=least)[1]
            for batch in batches
        ]
        cpu_s = (time.process_time() - begin) / len(batches)
        numbers = [len(rows) for rows in parts]
        alone = alone or [min(numbers), max(numbers)]
        if min(numbers) == max(numbers):
            return {"parts": parts, "alone": alone, "cpu_s": cpu_s}
        least = max(numbers)


CALLS: dict[str, Callable[..., dict[str, object]]] = {
    "find_version": find_version, "partition": partition, "rearrange": rearrange
}  # fmt: skip


def answer_requests() -> None:
    """Answer the requests of standard input until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # what verl prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = CALLS[request.pop("call")](**request)
        except Exception as error:  # an assertion of theirs, or that verl is not there
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    answer_requests()
