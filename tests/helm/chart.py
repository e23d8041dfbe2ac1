"""Renders the chart, and reads what a pod of it would run."""

import os
import pathlib
import re
import subprocess

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "packaging/helm/meridian"
KUBERNETES = "1.34.0"
RELEASE, NAMESPACE = "mq", "iot"
# What the chart makes at random.
RANDOM = re.compile(r"^(  (?:cluster\.secret|token)): \S+$", re.MULTILINE)
# Rules of the project, which have a check of their own.
RULES = re.compile(r"^(    - name: meridian-(?!additional)\S+)\n(?:      .*\n)+", re.MULTILINE)


class Refused(Exception):
    """What Helm says about values that it refuses."""


def render(helm, *options, kubernetes=KUBERNETES):
    """Text of all objects."""
    command = [helm, "template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", kubernetes, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KUBECONFIG": "/nonexistent"})
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def values_files():
    return sorted((HERE / "values").glob("*.yaml"))


def objects(text):
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def named(documents, kind, name):
    [found] = [document for document in of_kind(documents, kind) if document["metadata"]["name"] == name]
    return found


def statefulset(documents, role):
    return named(documents, "StatefulSet", next(document["metadata"]["name"] for document in of_kind(documents, "StatefulSet") if document["metadata"]["labels"]["app.kubernetes.io/component"] == role))


class PodPlan:
    """Commands and environment of a pod, with directories of this machine instead of those of the pod."""

    def __init__(self, documents, role, pod, volume, files):
        self.pod, self.volume, self.files = pod, str(volume), str(files)
        spec = statefulset(documents, role)["spec"]["template"]["spec"]
        self.spec = spec
        [self.node] = [container for container in spec["containers"] if container["name"] == "meridian"]
        [self.init] = [container for container in spec["initContainers"] if container["name"] == "api-key"]

    def here(self, text):
        text = text.replace("/etc/meridian/config", f"{self.files}/config-{self.role()}").replace("/etc/meridian", self.files)
        return re.sub(r"(?<![\w.-])/data\b", self.volume, text.replace("$(POD_NAME)", self.pod))

    def role(self):
        return next(entry["value"] for entry in self.node["env"] if entry["name"] == "MERIDIAN__CLUSTER__ROLE")

    def environment(self, token):
        given = {"POD_NAME": self.pod, "MERIDIAN_TOKEN": token}
        for entry in self.node["env"]:
            given.setdefault(entry["name"], self.here(str(entry.get("value", ""))))
        return {"PATH": os.environ["PATH"]} | given

    def arguments(self):
        return [self.here(argument) for argument in self.node["args"]]

    def init_arguments(self):
        return [self.here(argument) for argument in self.init["args"]]


def write_files(documents, directory, token, secret="0123456789abcdef0123456789abcdef"):
    """The files of Secrets and ConfigMaps, as pods of all roles see them."""
    for config in of_kind(documents, "ConfigMap"):
        role = config["metadata"]["labels"]["app.kubernetes.io/component"]
        target = directory / f"config-{role}"
        target.mkdir(parents=True, exist_ok=True)
        for name, text in config["data"].items():
            text = text.replace("/etc/meridian/config", str(target)).replace("/etc/meridian", str(directory))
            (target / name).write_text(text)
    for path, text in {"cluster/cluster.secret": secret, "api-key/token": token}.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
        (directory / path).chmod(0o600)
