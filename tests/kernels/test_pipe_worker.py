"""A worker in a new process: its results, its errors, and its end in every way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from echo_pkg import Echo

from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels import pipe_worker
from privrl_bench.kernels.pipe_worker import PipeWorker, WorkerDied

PATHS = os.pathsep.join(map(str, Path(__file__).parents[1:3]))  # for `echo_pkg`


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(one + two)


@pytest.fixture
def worker(tmp_path):
    made = PipeWorker(Echo, str(tmp_path / "closed"))
    yield made
    made.close()
    assert not made.process.is_alive()


def did(worker, *task):
    worker.begin(task)
    return worker.result()


def gone(pid):
    """Whether a process ends within seconds; one that nobody waits for is a zombie."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_results_told_values_and_errors_come_in_order(worker, tmp_path, capfd):
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3).t()
    (found,) = did(worker, "echo", x)
    assert torch.equal(found, x)
    assert did(worker, "tell", 1, 2) == 1
    assert worker.result() == 2
    with pytest.raises(EnvironmentFailure, match=r"^the pump is stuck$") as failure:
        did(worker, "raise", EnvironmentFailure("the pump is stuck"))
    assert "Echo" not in "".join(map(str, failure.traceback))
    for error in (SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(RuntimeError, match=type(error).__name__):
            did(worker, "raise", error)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        did(worker, "signal", number)  # left to the parent
    assert did(worker, "echo", 4) == (4,)
    assert not did(worker, "group")
    worker.close()
    assert (tmp_path / "closed").read_text() == "closed"
    assert worker.process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_errors_keep_their_words_and_lose_their_traceback():
    def answered(error):
        def fails(_):
            raise error

        with pytest.raises(Exception, match=r".") as found:
            pipe_worker.unpacked(pipe_worker.answer(fails, pipe_worker.packed(None)))
        return found.value

    failure = answered(EnvironmentFailure("the pump is stuck"))
    assert (type(failure), str(failure)) == (EnvironmentFailure, "the pump is stuck")
    assert failure.__cause__ is None
    assert str(answered(Odd("a", "b"))) == "Odd: ab"
    assert str(answered(SystemExit(3))) == "SystemExit: 3"


def test_tensors_with_gradients_and_of_all_types_are_sent():
    for x in (torch.ones(3, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)):
        found = pipe_worker.unpacked(pipe_worker.packed((x, None)))
        assert torch.equal(found, x)
        assert (found.dtype, found.requires_grad) == (x.dtype, x.requires_grad)


def test_an_object_that_cannot_be_made_is_an_error_of_its_first_task():
    failing = PipeWorker(Echo, None, "no such simulator")
    with pytest.raises(EnvironmentFailure, match="no such simulator"):
        did(failing, "echo")
    failing.close()


@pytest.mark.parametrize("when", ["within", "before"])
def test_a_death_is_noticed(worker, when):
    if when == "before":
        did(worker, "pid")
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join()
    worker.begin(("die",))
    with pytest.raises(WorkerDied):
        worker.result()
    worker.process.join()
    assert worker.process.exitcode == (7 if when == "within" else -signal.SIGKILL)


def test_an_unfinished_task_is_killed_and_a_finished_one_is_not_waited_for(worker, tmp_path):
    worker.begin(("sleep",))
    start = time.monotonic()
    worker.close()
    worker.close()
    assert time.monotonic() - start < 4.0
    assert worker.process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "closed").exists()


def test_a_process_imports_what_its_object_needs(worker):
    heavy = ["torch", "numba", "scipy", "numpy", "gymnasium", "hydra"]
    assert did(worker, "loaded", *heavy, "sys") == ["sys"]


def script(program):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from echo_pkg import Echo
from privrl_bench.kernels.pipe_worker import PipeWorker
worker = PipeWorker(Echo, own_group={own})
worker.begin(("pid",))
print(worker.result(), flush=True)
worker.begin(("{task}",))
{then}
"""


@pytest.mark.fast_every(3)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("end", ["exit", "kill -9", "Ctrl-C"])
def test_a_worker_ends_with_its_parent(own, end):
    """At an exit without `close`, and when the parent is killed; Ctrl-C goes to all of a terminal's group."""
    then = "sys.exit()" if end == "exit" else "worker.result()"
    process = script(PROGRAM.format(own=own, task="sleep", then=then))
    pid = int(process.stdout.readline())
    if end == "kill -9":
        process.kill()
    elif end == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    text = process.communicate(timeout=30)[0]
    assert gone(pid)
    assert "SpawnProcess" not in text
    assert text == "" or (end == "Ctrl-C" and text.count("Traceback") == 1)


def test_a_worker_with_a_group_of_its_own_ends_by_a_signal():
    own = PipeWorker(Echo, own_group=True)
    assert did(own, "group")
    own.begin(("sleep",))
    own.close()
    assert own.process.exitcode == 128 + signal.SIGTERM
