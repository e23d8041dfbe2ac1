"""Pods as processes in network namespaces: what StatefulSets, headless Services, Services and kubelet do with them.

A pod has a name and a volume for ever, and a new address after each start. Its commands, environment, probes and grace period are
those that the chart renders. Everything is in namespaces that `Lab` makes and removes.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import chart

HERE = pathlib.Path(__file__).resolve().parent
# Another run at the same time has other namespaces.
PREFIX = f"mqhelm{os.getpid()}"
DNS = "10.77.0.2"
TOKEN = "mrd_0123456789abcdef0123456789abcdef"


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options)


def eventually(what, condition, seconds):
    """Waits until the condition returns something true, and returns it."""
    until = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < until, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.1)


class Pod:
    """One name, one volume, and a process from time to time."""

    def __init__(self, lab, role, number):
        self.lab, self.role = lab, role
        spec = chart.statefulset(lab.documents, role)
        self.name = f"{spec['metadata']['name']}-{number}"
        self.service = spec["spec"]["serviceName"]
        self.is_kept = "volumeClaimTemplates" in spec["spec"]
        self.volume = lab.directory / "volumes" / self.name
        self.namespace = f"{PREFIX}-{role[0]}{number}"
        self.address = self.process = None
        self.has_started = self.is_ready = False
        self.plan = chart.PodPlan(lab.documents, role, self.name, self.volume, lab.files)
        lab.add_namespace(self.namespace)

    def start(self):
        """A pod that is scheduled: a new address, the init container, and the node. Without a claim it has an empty volume."""
        if not self.is_kept:
            shutil.rmtree(self.volume, ignore_errors=True)
        self.volume.mkdir(parents=True, exist_ok=True)
        self.address = self.lab.next_address()
        run("ip", "-n", self.namespace, "addr", "flush", "dev", "eth0")
        run("ip", "-n", self.namespace, "addr", "add", f"{self.address}/16", "dev", "eth0")
        self.has_started = self.is_ready = False
        self.lab.publish()
        environment = self.plan.environment(TOKEN)
        # A node ends with this test.
        within = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespace]
        run(*within, self.lab.binary, *self.plan.init_arguments(), env=environment)
        with open(self.lab.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen([*within, self.lab.binary, *self.plan.arguments()], env=environment, stdout=log, stderr=log)
        return self

    def terminate(self):
        self.is_ready = False
        self.lab.publish()
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """Waits as kubelet does: SIGKILL after the grace period, which no stop may need."""
        grace = self.plan.spec["terminationGracePeriodSeconds"]
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} has not ended within {grace} s after SIGTERM") from None
        assert code == 0, f"{self.name} ended with {code} after SIGTERM"
        self.address = None
        self.lab.publish()

    def stop(self):
        self.terminate()
        self.wait()

    def probe(self, kind):
        path = self.plan.node[f"{kind}Probe"]["httpGet"]["path"]
        try:
            with urllib.request.urlopen(f"http://{self.address}:18083{path}", timeout=2) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def check_ready(self):
        """Readiness counts after the startup probe has succeeded once, as in kubelet."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
        self.has_started = self.has_started or self.probe("startup")
        ready = self.has_started and self.probe("readiness")
        if ready != self.is_ready:
            self.is_ready = ready
            self.lab.publish()
        return ready

    def get(self, path):
        request = urllib.request.Request(f"http://{self.address}:18083/api/v1{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def ctl(self, *arguments):
        """A command by `kubectl exec` in this pod."""
        environment = self.plan.environment(TOKEN)
        done = subprocess.run(["ip", "netns", "exec", self.namespace, self.lab.binary, "ctl", *arguments], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"ctl {' '.join(arguments)} in {self.name}: {done.stdout}{done.stderr}"
        return done.stdout


class Lab:
    """A machine of Kubernetes: a network, names, and pods of both roles."""

    def __init__(self, binary, text, directory):
        self.binary, self.directory = binary, pathlib.Path(directory)
        self.documents = chart.objects(text)
        self.files = self.directory / "etc"
        chart.write_files(self.documents, self.files, TOKEN)
        self.zone = self.directory / "zone.json"
        self.zone.write_text("{}")
        self.namespaces = []
        self.addresses = itertools.count(10)
        self.pods = {"core": [], "replicant": []}
        self.lock = threading.Lock()
        self.close = contextlib.ExitStack()

    def __enter__(self):
        self.close.callback(self.remove)
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "link", "set", "switch", "up")
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", f"{DNS}/16", "dev", "switch")
        server = self.close.enter_context(subprocess.Popen([sys.executable, HERE / "names.py", DNS, self.zone], stdout=subprocess.PIPE))
        self.close.callback(server.kill)
        assert server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_):
        for pod in self.all():
            if pod.process and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
        self.close.close()

    def add_namespace(self, name):
        if name in self.namespaces:
            return
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        resolver = pathlib.Path("/etc/netns") / name
        resolver.mkdir(parents=True, exist_ok=True)
        # As kubelet writes it.
        search = f"{chart.NAMESPACE}.svc.cluster.local svc.cluster.local cluster.local"
        (resolver / "resolv.conf").write_text(f"search {search}\nnameserver {DNS}\noptions ndots:5\n")
        port = f"v{len(self.namespaces)}"
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", port, "master", "switch", "up")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")

    def remove(self):
        for name in self.namespaces:
            run("ip", "netns", "del", name)
            shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)

    def next_address(self):
        number = next(self.addresses)
        return f"10.77.{1 + number // 250}.{1 + number % 250}"

    def all(self):
        return [*self.pods["core"], *self.pods["replicant"]]

    def publish(self):
        """Writes what the DNS of Kubernetes knows: pods of headless Services, ready or not."""
        domain = f"{chart.NAMESPACE}.svc.cluster.local"
        names = {f"{pod.service}.{domain}": [] for pod in self.all()}
        for pod in self.all():
            if pod.address:
                names[f"{pod.service}.{domain}"].append(pod.address)
                names[f"{pod.name}.{pod.service}.{domain}"] = [pod.address]
        with self.lock:
            changed = self.zone.with_suffix(".new")
            changed.write_text(json.dumps(names))
            changed.rename(self.zone)

    def scale(self, role, count):
        """What the controller of a StatefulSet does with another number: all new pods at once, or the last pods away."""
        pods = self.pods[role]
        new = [Pod(self, role, number) for number in range(len(pods), count)]
        gone = pods[count:]
        self.pods[role] = pods[:count] + new
        for pod in new:
            pod.start()
        for pod in gone:
            pod.terminate()
        for pod in gone:
            pod.wait()
        return gone

    def wait_ready(self, seconds=60):
        eventually(lambda: f"ready: {self.waiting()}", lambda: all([pod.check_ready() for pod in self.all()]), seconds)

    def waiting(self):
        return ", ".join(f"{pod.name} (logs in {self.directory})" for pod in self.all() if not pod.is_ready)

    def replace(self, pods):
        """All of these pods are deleted at the same time, and made again with other addresses."""
        for pod in pods:
            pod.terminate()
        for pod in pods:
            pod.wait()
        for pod in pods:
            pod.start()

    def roll(self, role):
        """A rolling update: from the last pod to the first, the next one when all are ready."""
        for pod in reversed(self.pods[role]):
            self.replace([pod])
            self.wait_ready()
            time.sleep(1)


class Service:
    """A Service for clients: each connection goes to one of the pods that are ready."""

    def __init__(self, lab):
        self.lab = lab
        self.listener = socket.create_server(("127.0.0.1", 1883), backlog=64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            ready = [pod.address for pod in self.lab.all() if pod.is_ready and pod.address]
            if not ready:
                return
            try:
                pod = socket.create_connection((random.choice(ready), 1883), timeout=2)
            except OSError:
                return
            with pod:
                pod.settimeout(None)
                back = threading.Thread(target=copy, args=(pod, client), daemon=True)
                back.start()
                copy(client, pod)
                back.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def copy(source, target):
    """Until one end closes: then the connection ends in both directions."""
    try:
        while part := source.recv(65_536):
            target.sendall(part)
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def own_namespace():
    """Runs the calling program again in a network namespace of its own, where the switch is."""
    if os.environ.get("MERIDIAN_HELM_INSIDE"):
        return
    os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], os.environ | {"MERIDIAN_HELM_INSIDE": "1"})
