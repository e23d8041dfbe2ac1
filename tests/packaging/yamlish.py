"""Reads the part of YAML that alerts.yml is written in: block mappings and lists by indentation, plain and double-quoted
scalars, `|` blocks, comments on lines of their own. Anything else raises. The test compares it with PyYAML where that is
installed, so that the file is what Prometheus reads."""

import json
import re

KEY = re.compile(r"([A-Za-z_][\w-]*):(?: (.*))?$")


def load(text):
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(n, line.rstrip()) for n, line in lines]
    value, rest = block(lines, 0)
    if skip(rest):
        raise ValueError(f"line {rest[0][0]}: {rest[0][1]!r} belongs to nothing")
    return value


def skip(lines):
    while lines and (not lines[0][1] or lines[0][1].lstrip().startswith("#")):
        lines = lines[1:]
    return lines


def depth(line):
    return len(line) - len(line.lstrip(" "))


def block(lines, least):
    lines = skip(lines)
    if not lines or depth(lines[0][1]) < least:
        raise ValueError(f"line {lines[0][0] if lines else 'last'}: a value is missing")
    indent = depth(lines[0][1])
    found = [] if lines[0][1].lstrip().startswith("- ") else {}
    while (lines := skip(lines)) and depth(lines[0][1]) == indent:
        number, line = lines[0]
        content = line[indent:]
        if isinstance(found, list):
            if not content.startswith("- "):
                break
            if KEY.match(content[2:]):
                value, lines = block([(number, " " * (indent + 2) + content[2:]), *lines[1:]], indent + 2)
            else:
                value, lines = scalar(number, content[2:]), lines[1:]
            found.append(value)
            continue
        match = KEY.match(content)
        if not match:
            raise ValueError(f"line {number}: expected `key:`, found {content!r}")
        key, inline = match.groups()
        if key in found:
            raise ValueError(f"line {number}: {key} twice")
        if inline is None:
            found[key], lines = block(lines[1:], indent if content.startswith("- ") else indent + 1)
        elif inline == "|":
            found[key], lines = literal(lines[1:], indent + 1)
        else:
            found[key], lines = scalar(number, inline), lines[1:]
    return found, lines


def literal(lines, least):
    taken = []
    while lines and (not lines[0][1] or depth(lines[0][1]) >= least):
        taken.append(lines[0][1])
        lines = lines[1:]
    while taken and not taken[-1]:
        taken.pop()
    indent = min(depth(line) for line in taken if line)
    return "".join(line[indent:] + "\n" for line in taken), lines


def scalar(number, text):
    text = text.strip()
    if text.startswith('"'):
        return json.loads(text)
    if text[:1] in tuple("'[{&*!>|%@`#") or " #" in text or ": " in text:
        raise ValueError(f"line {number}: write {text!r} in double quotes")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return text
