"""Pages: links have a target, and the commands and tests that they name exist."""

import os
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/adr/README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
OPERATORS = ["README.md", "docs/operations.md", "docs/alerts.md", "docs/tuning.md", "docs/from-emqx.md"]


def anchor(heading):
    """Anchor of a heading: lower case, spaces to hyphens, everything else but letters and digits left out."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def links_have_targets():
    """Every relative link of every page has a file as its target, and its anchor a heading."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"`[^`\n]*`", "", without_code((ROOT / page).read_text()))
        for path, mark in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
            if re.match(r"[a-z]+:", path):
                continue
            target = (ROOT / page).parent / path if path else ROOT / page
            if not target.exists():
                wrong.append(f"{page}: {path}")
            elif mark and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", without_code(target.read_text()), re.MULTILINE)
                if mark not in map(anchor, headings):
                    wrong.append(f"{page}: {path}#{mark}")
    assert not wrong, "\n".join(wrong)


def shown_commands():
    """(page, arguments) of each `meridian ...` in fenced blocks and code spans."""
    for page in OPERATORS:
        text = (ROOT / page).read_text()
        fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        spans = re.findall(r"`(meridian [^`\n]+)`", without_code(text))
        lines = re.findall(r"^(?:\$ |.*docker exec (?:-\w+ )*meridian |sudo -u meridian )?(?:target/release/)?(meridian .*)$", fenced, re.MULTILINE)
        for line in [*lines, *spans]:
            line = re.split(r" # |  +| \| | ; |\.\.\.", line)[0].removesuffix(" &")
            arguments = shlex.split(line)[1:]
            if arguments and re.fullmatch(r"[a-z]+|--?[a-z-]+", arguments[0]) and arguments[0] != "--version":
                yield page, arguments


def shown_commands_exist(binary):
    """Each command that a page for operators shows exists in the binary, with its flags."""
    seen, wrong = set(), []
    for page, arguments in shown_commands():
        if tuple(arguments) in seen:
            continue
        seen.add(tuple(arguments))
        # With --help the binary checks the arguments before it and runs nothing.
        command = [binary, *(part for part in arguments if part not in ("--help", "-h")), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL, env=os.environ)
        if done.returncode != 0:
            wrong.append(f"{page}: meridian {' '.join(arguments)}: {done.stderr.splitlines()[0]}")
    assert len(seen) >= 10, seen
    assert not wrong, "\n".join(wrong)


def named_tests_exist():
    """Each test that docs/threat-model.md and docs/promises.md name, as in `a/b.rs`: `one`, `two`, exists."""
    seen, wrong = 0, []
    for page in ["docs/threat-model.md", "docs/promises.md"]:
        for path, names in re.findall(r"`((?:crates|tests)/[^`\n ]+)`((?:: `\w+`)?(?:, `\w+`)*)", (ROOT / page).read_text()):
            seen += 1
            if not (ROOT / path).exists():
                wrong.append(f"{page}: {path}")
                continue
            for name in re.findall(r"`(\w+)`", names):
                if not re.search(rf"\b(?:fn|def) {name}\(", (ROOT / path).read_text()):
                    wrong.append(f"{page}: {path}: {name}")
    assert seen >= 20, seen
    assert not wrong, "\n".join(wrong)


CHECKS = [links_have_targets, shown_commands_exist, named_tests_exist]
