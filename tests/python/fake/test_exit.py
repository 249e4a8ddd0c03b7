"""The end of the process, and fork, at bad moments."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from support.run import python

PRELUDE = """
import mlxgen, os, sys, threading, time
engine = mlxgen.Engine()
model = engine.load_model(sys.argv[1])
"""

EXITS = {
    "falls off the end with everything open": """
stream = model.generate([1, 2], max_tokens=4000)
stream.next()
cache = model.new_cache()
cache.append([1])
""",
    "sys.exit in the middle of a generation": """
stream = model.generate([1, 2], max_tokens=4000)
stream.next()
sys.exit(0)
""",
    "a thread waits for an event": """
stream = model.generate([1, 2], max_tokens=4000)
def consume():
    try:
        for event in stream:
            pass
    except mlxgen.MlxgenError:
        pass
threading.Thread(target=consume, daemon=True).start()
time.sleep(0.05)
""",
    "a wake-up is set": """
stream = model.generate([1, 2], max_tokens=4000)
stream.set_wakeup(lambda: None)
time.sleep(0.05)
""",
    "a log sink is set": """
mlxgen.set_log_sink(lambda level, text: None, mlxgen.LogLevel.TRACE)
stream = model.generate([1, 2], max_tokens=4000)
time.sleep(0.05)
""",
    "asyncio is cut off": """
import asyncio
async def main():
    async for event in model.generate([1, 2], max_tokens=4000):
        break
asyncio.run(main())
""",
    "objects in a reference cycle": """
class Holder: pass
holder = Holder(); holder.me = holder
holder.stream = model.generate([1, 2], max_tokens=4000)
holder.model = model
del model, engine
""",
    "os._exit in the middle": """
stream = model.generate([1, 2], max_tokens=4000)
stream.next()
os._exit(0)
""",
}


@pytest.mark.parametrize("how", sorted(EXITS))
def test_exit_during_a_generation(write_model: Callable[..., Path], how: str) -> None:
    """Ends with its own code, silent, soon."""
    folder = write_model(step_micros=1000)
    for _ in range(3):
        begin = time.monotonic()
        done = python(PRELUDE + EXITS[how], folder, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert time.monotonic() - begin < 10


FORK = PRELUDE + """
stream = model.generate([1, 2], max_tokens=300)
cache = model.new_cache()
cache.append([1])
cancel = mlxgen.Cancel()
stream.next()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    refused = 0
    calls = (lambda: stream.next(), lambda: cache.append([1]), lambda: model.generate([1]),
             lambda: engine.load_model(sys.argv[1]), lambda: mlxgen.Engine(), lambda: engine.memory(),
             lambda: cache.tokens, lambda: mlxgen.Cancel(), lambda: mlxgen.build_info())
    for call in calls:
        try:
            call()
        except mlxgen.WrongStateError:
            refused += 1
    for thing in (stream, cache, model, engine, cancel):
        thing.close()
    os.write(writer, f"{refused} of {len(calls)} refused".encode())
    os._exit(7)
os.close(writer)
print(os.read(reader, 100).decode())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
tokens = sum(len(event.tokens) for event in stream if isinstance(event, mlxgen.TextEvent))
cache.append([2])
print(tokens, cache.tokens)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_fork_during_a_generation(write_model: Callable[..., Path]) -> None:
    """The child gets an error from every call; the parent goes on undisturbed."""
    done = python(FORK, write_model(step_micros=500))
    assert done.stdout.splitlines() == ["9 of 9 refused", "7", "300 [1, 2]"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
