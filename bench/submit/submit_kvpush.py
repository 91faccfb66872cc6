"""kvpush's way to submit, in a Python process as in vLLM: calls of the engine's thread to real agents of the installed
package, and planning and posting as an agent's thread does them, both over the transport that is named."""

from __future__ import annotations

import sys

from submit_case import Case
from submit_native import LIBRARY, Submitter
from submit_worker import Parts, Submit, serve


def make(transport: str) -> Submit | str:
    if not LIBRARY.exists():
        return f"{LIBRARY} is not built"
    native = Submitter.open(transport)
    if native is None:
        return f"the transport {transport} cannot be used here"
    # Only now, since it starts threads: a fork takes along none of them, but whatever they have locked.
    from submit_engines import Engines

    engines: dict[Case, Engines] = {}

    def submit(case: Case, turn: int) -> Parts:
        parts: Parts = {}
        if case not in engines:
            engines[case] = Engines(case, transport)
        engines[case].submit(turn, parts)
        native.send(case, turn, parts)
        return parts

    return submit


if __name__ == "__main__":
    serve(lambda: make(sys.argv[1]))
