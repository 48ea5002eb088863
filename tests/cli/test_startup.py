"""What the command line loads, seen from a fresh process."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "scipy", "pydantic", "rich", "pulp", "networkx", "yaml")
SAMPLE = Path(__file__).parents[1] / "plan" / "sample.json"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    code = f"""
import sys
from autoplan.cli import main
try:
    main({arguments!r})
except SystemExit:
    print("loaded", [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert python(code).splitlines()[-1] == "loaded []"


def test_the_public_names_resolve_and_the_room_plan_does_not_hide_the_function():
    code = """
import autoplan, autoplan.plan.check, autoplan.search
autoplan.search.plan = marker = lambda: None
from autoplan import InputError, NoPlanError, Plan, load_cluster, load_model
print(autoplan.plan is marker, issubclass(InputError, Exception), load_model("llama-3.1-8b").name)
print(load_cluster("dgx-h100:16").num_nodes, Plan.__name__, autoplan.__version__ == autoplan.version.__version__)
try:
    autoplan.nothing
except AttributeError as error:
    print(error)
"""
    assert python(code).splitlines() == [
        "True True llama-3.1-8b", "2 Plan True", "module 'autoplan' has no attribute 'nothing'"]


def test_a_reader_that_goes_away_is_no_error():
    code = f"from autoplan.cli import main; main(['explain', {str(SAMPLE)!r}])"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("arguments", [["models", "list"], ["explain", str(SAMPLE)], ["--help"], ["schema", "plan"]])
@pytest.mark.parametrize(("redirect", "reason"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_a_stdout_that_takes_nothing_is_one_line_and_exit_two(arguments, redirect, reason):
    if redirect == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    command = f"{shlex.join([sys.executable, '-m', 'autoplan', *arguments])} {redirect}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"error: can't write to stdout: {reason}\n")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "autoplan", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("autoplan, version ")
