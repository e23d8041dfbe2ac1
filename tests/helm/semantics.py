#!/usr/bin/env python3
"""Runs what the chart renders as pods in network namespaces: semantics.py BINARY HELM. checks_pods.py starts it. Needs root.

The story: three cores and two replicants begin a cluster. All pods are restarted, one after the other, while clients publish. All
pods are restarted at the same time, with new addresses. A core loses its volume. The cores are scaled to five and back, the replicants to six and back.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time

import chart
import pods

VALUES = ["--set", "replicants.replicas=2", "--set", "auth.open=true", "--set", "drainSeconds=3"]
# Small machines: less disk, and logs that say more.
VALUES += ["--set", "config.storage.segment_size=4MiB", "--set", "config.storage.reserve=8MiB", "--set", "config.log.format=text"]
# The load is the Job of the chart, with a host that `pods.Service` has.
LOAD = "--publishers,4,--subscribers,3,-q,1,-R,200,--drain,20,--duration,45,--quiet"
VALUES += ["--set", "bench.enabled=true,bench.command=ha,bench.host=127.0.0.1,bench.json=false", "--set", f"bench.args={{{LOAD}}}"]

begun = time.monotonic()


def say(text):
    print(f"         {time.monotonic() - begun:5.1f} s  {text}", flush=True)


def members(pod):
    """Names and states of the members, as a pod knows them."""
    return {member["node"]: member["state"] for member in pod.get("/cluster")["membership"]["members"]}


def founded(lab):
    """The identifiers of the clusters that pods belong to: one, for ever."""
    return {pod.get("/cluster")["membership"]["cluster_uid"] for pod in lab.all()}


def wait_members(lab, expected):
    """All pods know exactly these members, and all of them live."""

    def agree():
        found = [members(pod) for pod in lab.all()]
        return all(set(known) == expected and set(known.values()) == {"alive"} for known in found)

    pods.eventually(lambda: f"members {sorted(expected)}: {[members(pod) for pod in lab.all()]}", agree, 30)


def names(lab):
    return {pod.name for pod in lab.all()}


def client(lab, pod, *arguments, **options):
    """A command of `meridian` as a client of this pod."""
    command = [lab.binary, arguments[0], "-h", pod.address, *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, **options).stdout


def subscribe_durably(lab, pod, identifier):
    client(lab, pod, "sub", "-i", identifier, "-c", "-t", "kept/#", "-q", "1", "-E")


def check_kept(lab, publisher, identifiers, text):
    """Each durable session gets what was published while its client was away, on any node."""
    client(lab, publisher, "pub", "-t", "kept/message", "-m", text, "-q", "1")
    for number, identifier in enumerate(identifiers):
        at = lab.all()[number % len(lab.all())]
        got = client(lab, at, "sub", "-i", identifier, "-c", "-t", "kept/#", "-q", "1", "-C", "1", "-W", "20")
        assert got.strip() == text, f"{identifier} on {at.name}: {got!r}"


def wait_shards(lab):
    """Each shard has as many replicas as it should, on cores that are there, and nothing moves."""
    cores = {pod.name for pod in lab.pods["core"]}

    def complete():
        shards = lab.pods["core"][0].get("/cluster")["shards"]["items"]
        return shards and all(is_complete(shard, cores) for shard in shards)

    pods.eventually(lambda: f"complete shards: {lab.pods['core'][0].ctl('cluster', 'shards')}", complete, 60)


def is_complete(shard, cores):
    replicas = set(shard["replicas"])
    moves = shard["joining"] or shard["leaving"]
    return shard["leader"] in replicas <= cores and len(replicas) == min(3, len(cores)) and not moves


def remove_core(lab):
    """One core away, as docs/kubernetes.md describes it."""
    [gone] = lab.scale("core", len(lab.pods["core"]) - 1)
    first = lab.pods["core"][0]
    pods.eventually(f"{gone.name} is dead", lambda: members(first).get(gone.name) == "dead", 30)
    first.ctl("cluster", "remove", gone.name, "--yes")
    wait_members(lab, names(lab))
    wait_shards(lab)


def story(lab):
    lab.scale("core", 3)
    lab.scale("replicant", 2)
    lab.wait_ready()
    wait_members(lab, names(lab))
    [cluster] = founded(lab)
    say("three cores and two replicants are ready")

    sessions = [f"reader-{number}" for number in range(8)]
    for number, identifier in enumerate(sessions):
        subscribe_durably(lab, lab.all()[number % 5], identifier)

    with pods.Service(lab), tempfile.TemporaryFile("w+") as report:
        [job] = chart.of_kind(lab.documents, "Job")
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        load = subprocess.Popen([lab.binary, *arguments], stdout=report, stderr=subprocess.STDOUT)
        try:
            time.sleep(2)
            lab.roll("core")
            lab.roll("replicant")
            say("all pods were restarted one after the other")
            code = load.wait(120)
        finally:
            load.kill()
        report.seek(0)
        text = report.read()
        assert code == 0, f"the load ended with {code}:\n{text}"
        say("load: " + " | ".join(line.strip() for line in text.splitlines() if line.startswith(("acknowledged", "LOST", "silence"))))
    assert founded(lab) == {cluster}
    wait_members(lab, names(lab))
    check_kept(lab, lab.all()[4], sessions, "after a rolling restart")

    before = {pod.name: pod.address for pod in lab.all()}
    lab.replace(lab.all())
    lab.wait_ready()
    assert all(before[pod.name] != pod.address for pod in lab.all())
    assert founded(lab) == {cluster}, "another cluster has begun"
    wait_members(lab, names(lab))
    check_kept(lab, lab.all()[3], sessions, "after a restart of all")
    say("all pods were restarted at once, with other addresses")

    lost = lab.pods["core"][1]
    lost.stop()
    shutil.rmtree(lost.volume)
    lost.start()
    lab.wait_ready()
    wait_members(lab, names(lab))
    wait_shards(lab)
    assert founded(lab) == {cluster}, "another cluster has begun"
    say("a core that has lost its volume is back")

    lab.scale("core", 5)
    lab.wait_ready()
    wait_members(lab, names(lab))
    wait_shards(lab)
    say("five cores")
    remove_core(lab)
    remove_core(lab)
    lab.wait_ready()
    check_kept(lab, lab.all()[0], sessions, "after fewer cores")
    say("three cores again")
    lab.scale("core", 4)
    lab.wait_ready()
    wait_members(lab, names(lab))
    wait_shards(lab)
    remove_core(lab)
    check_kept(lab, lab.all()[1], sessions, "after a core that came back")
    say("a core that was removed came back with its old volume, and was removed again")

    lab.scale("replicant", 6)
    lab.wait_ready()
    wait_members(lab, names(lab))
    say("six replicants")
    gone = lab.scale("replicant", 2)
    first = lab.pods["core"][0]
    pods.eventually("four replicants are dead", lambda: all(members(first).get(pod.name) == "dead" for pod in gone), 30)
    # They stay members, and nobody waits for them.
    check_kept(lab, lab.all()[3], sessions, "with dead replicants")
    lab.scale("replicant", 3)
    lab.wait_ready()
    pods.eventually("a replicant is back", lambda: members(first)[lab.pods["replicant"][2].name] != "dead", 30)
    assert founded(lab) == {cluster}
    say("two replicants, and one that came back")


def main():
    pods.own_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    binary, helm = sys.argv[1:]
    text = chart.render(helm, *VALUES)
    with tempfile.TemporaryDirectory(prefix="meridian-helm-") as directory:
        with pods.Lab(binary, text, directory) as lab:
            try:
                story(lab)
            except BaseException:
                for pod in lab.all():
                    log = (lab.directory / f"{pod.name}.log").read_text(errors="replace").splitlines()
                    print(f"--- {pod.name}", *log[-25:], sep="\n", file=sys.stderr)
                raise


if __name__ == "__main__":
    main()
