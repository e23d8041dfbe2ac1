"""Runs checks and prints a line for each.

A check is a function. Its docstring says what holds, and its parameters are names of values that `run_all` gets. A check that
raises `Skipped` is skipped, and so is one whose value does.
"""

import argparse
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


class Skipped(Exception):
    """Reason for which a check is skipped."""


def skip(reason):
    raise Skipped(reason)


def binary():
    """Path of the broker: MERIDIAN_BIN, or the one in target/debug, or the one in target/release."""
    if named := os.environ.get("MERIDIAN_BIN"):
        return str(pathlib.Path(named).resolve())
    for profile in ("debug", "release"):
        if (path := TARGET / profile / "meridian").is_file():
            return str(path)
    return skip("no binary: cargo build, or MERIDIAN_BIN=...")


def tool(*names, variable=""):
    """Path of the first of these programs that is installed. The environment variable comes before them."""
    found = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    return found or skip(f"not installed: {' or '.join(names)}")


def in_environment(directory, packages):
    """Starts this program again with a Python that has the packages, unless it is that one. The directory keeps them."""
    environment = directory / "venv"
    if pathlib.Path(sys.prefix) == environment:
        return
    python, mark = environment / "bin/python", environment / "packages"
    if not mark.is_file() or mark.read_text().split() != packages:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
        mark.write_text("\n".join(packages))
    os.execv(python, [str(python), *sys.argv])


def run(check, values):
    """Runs a check and prints its result. Returns whether it passed, or None when it was skipped.

    `values` has a function for each parameter. It is called for each check; `functools.cache` makes it called once."""
    text = " ".join(check.__doc__.split())
    begun = time.monotonic()
    try:
        check(*(values[name]() for name in inspect.signature(check).parameters))
    except Skipped as reason:
        print(f"SKIPPED  {text} ({reason})", flush=True)
        return None
    except Exception as error:  # pylint: disable=broad-except
        # The second entry is the line of the check.
        where = traceback.extract_tb(error.__traceback__)[:2][-1]
        print(f"FAILED   {text}\n         {where.filename}:{where.lineno}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"ok       {text} ({time.monotonic() - begun:.1f} s)", flush=True)
    return True


def arguments(page):
    """Parser of the command line of a program with this docstring."""
    parser = argparse.ArgumentParser(description=page.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="run only checks whose name contains this word")
    return parser


def finish(results):
    """Prints the sum and ends the program: with 1 when a check failed, or when there was none."""
    print(f"{results.count(True)} passed, {results.count(False)} failed", flush=True)
    sys.exit(1 if False in results or not results else 0)


def run_all(checks, values, only):
    """Runs the checks whose name contains `only`, and ends the program."""
    finish([run(check, values) for check in checks if only in check.__name__])
