"""Pods of the chart as processes in network namespaces."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SECONDS_MAX = 400


def pods_come_and_go(helm, binary, ip):
    """Cores and replicants of the chart: a new cluster, a rolling restart under load, a restart of all with new addresses, scaling."""
    del ip
    command = [sys.executable, HERE / "semantics.py", binary, helm]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            _, said = running.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # It removes its namespaces.
            running.terminate()
            _, said = running.communicate()
    assert running.returncode == 0, said[-12_000:]


CHECKS = [pods_come_and_go]
