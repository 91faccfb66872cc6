"""The house rules that a machine can see: layers, class comments, leftovers, tidiness of files.

Each check takes the tree's files as {path: text} and returns findings as "path:line: what is wrong"; none is good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import faults

Files = Mapping[str, str]

CPP = (".h", ".cc")
LAYERS = "docs/architecture/layers.txt"
# Folders in which every class says in its comment what its job is and on which thread it lives.
LABELLED = ("agent", "control", "transport", "standin", "router")
THREAD_FORMS = re.compile(r"(value type|any \((immutable|synchronised by )|[\w-]+ role)\b")
# A statement that begins with a keyword, or a call or an assignment; not a sentence that happens to hold a bracket.
COMMENTED_OUT = re.compile(
    r"\s*//\s*(?:(?:return|const|auto|static|if|for|while|std::)\b.*|[\w:.]+(?:->[\w:.]+)*\s*(?:\(.*\)|[-+|&]?=.*));\s*$"
)
FILE_BYTES_MAX = 1 << 20


@dataclass
class Layers:
    """The rules of layers.txt: folder -> folders it may include, header prefix -> folders that may include it."""

    folders: dict[str, set[str]] = field(default_factory=dict)
    vendors: dict[str, set[str]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Layers:
        """Raises ValueError on a line that is neither a comment nor a rule."""
        layers = Layers()
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            match = re.fullmatch(r"(folder|vendor) ([^\s:]+):(.*)", line)
            if not match:
                raise ValueError(f"{LAYERS}: not a rule: {line}")
            table = layers.folders if match[1] == "folder" else layers.vendors
            table[match[2]] = set(match[3].split())
        return layers

    def folder_of(self, path: str) -> str | None:
        """The row of the rules that a file belongs to: the longest that matches its path without ending."""
        stem = re.sub(r"(_test)?\.\w+$", "", path)
        name = stem.removeprefix("kvpush/") if stem.startswith("kvpush/") else f"/{stem}"
        while name and name != "/":
            if name in self.folders:
                return name
            name = name.rpartition("/")[0]
        return None


def _lines(files: Files, *endings: str) -> Iterator[tuple[str, int, str]]:
    for path, text in files.items():
        if path.endswith(endings):
            for number, line in enumerate(text.splitlines(), 1):
                yield path, number, line


def layers(files: Files) -> list[str]:
    """A folder includes only what layers.txt allows."""
    rules = Layers.parse(files[LAYERS])
    found = []
    for path, number, line in _lines(files, *CPP):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if not match:
            continue
        here, header = rules.folder_of(path), match[1]
        if here is None:
            found.append(f"{path}:{number}: {LAYERS} has no rule for this folder")
            continue
        for prefix, allowed in rules.vendors.items():
            if header.startswith(prefix) and here not in allowed:
                found.append(f"{path}:{number}: <{header}> may be included only in {' '.join(sorted(allowed))}")
        if header.startswith("kvpush/"):
            there = rules.folder_of(header)
            if there != here and there not in rules.folders[here] and "*" not in rules.folders[here]:
                found.append(f"{path}:{number}: {here} may not include {there}")
    return found


def class_comments(files: Files) -> list[str]:
    """Classes in headers of the threaded folders carry `Job:` and one of the four forms of `Thread:`."""
    found = []
    for path, text in files.items():
        if not path.endswith(".h") or not path.startswith(tuple(f"kvpush/{name}/" for name in LABELLED)):
            continue
        lines = text.splitlines()
        for index, line in enumerate(lines):
            match = re.match(r"class\s+(?:\[\[\w+\]\]\s+|KVPUSH_\w+(?:\([^)]*\))?\s+)*(\w+)[^;]*$", line)
            if not match:
                continue
            top = index
            while top > 0 and lines[top - 1].startswith(("//", "template")):
                top -= 1
            labels = dict(re.findall(r"^// (Job|Thread): (.*)$", "\n".join(lines[top:index]), re.MULTILINE))
            if "Job" not in labels:
                found.append(f"{path}:{index + 1}: class {match[1]} has no `Job:` in its comment")
            if not THREAD_FORMS.match(labels.get("Thread", "")):
                found.append(f"{path}:{index + 1}: class {match[1]} has no `Thread:` of the four forms in its comment")
    return found


def leftovers(files: Files) -> list[str]:
    """No bare TODO, no FIXME, no commented-out code."""
    found = []
    for path, number, line in _lines(files, *CPP, ".py", ".cmake", "CMakeLists.txt", ".fbs"):
        comment = re.search(r"(?://|#)\s*(.*)$", line)
        if not comment:
            continue
        if re.search(r"\bTODO\b(?!\(\d+\): )", comment[1]) and "bare TODO" not in line and r"\bTODO" not in line:
            found.append(f"{path}:{number}: a TODO names its issue: TODO(12): ...")
        if re.search(r"\bFIX" + r"ME\b", comment[1]):
            found.append(f"{path}:{number}: FIX" + "ME is not used here")
        if path.endswith(CPP) and COMMENTED_OUT.match(line):
            found.append(f"{path}:{number}: commented-out code")
    return found


def tidiness(files: Files) -> list[str]:
    """Text files end in one newline, hold no tab, carriage return or blank at a line's end, and are not large."""
    found = []
    for path, text in files.items():
        if len(text.encode()) > FILE_BYTES_MAX:
            found.append(f"{path}:1: larger than {FILE_BYTES_MAX} bytes")
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            found.append(f"{path}:{text.count(chr(10))}: does not end in exactly one newline")
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip() or "\r" in line:
                found.append(f"{path}:{number}: blanks at the end of the line")
            if "\t" in line and not path.endswith("Makefile"):
                found.append(f"{path}:{number}: a tab")
    return found


def machine_paths(files: Files) -> list[str]:
    """No path of somebody's machine: such a line works in one place only."""
    # Where people and build machines keep their checkouts.
    path_of_a_home = re.compile(r"(?<![\w.<>*-])/(?:home|root|Users|work|builds|workspace)/\w")
    return [
        f"{path}:{number}: a path of one machine"
        for path, number, line in _lines(files, "")
        if path_of_a_home.search(line) and "path_of_a_home" not in line
    ]


MODEL = "docs/protocol/protocol.pml"
# The model's prefix, and the enumeration of the code that has the same states.
MODELLED = {
    "Link": ("kvpush/protocol/consumer.h", "LinkState"),
    "ConsumerSession": ("kvpush/protocol/consumer.h", "SessionState"),
    "Part": ("kvpush/protocol/consumer.h", "PartState"),
    "ProducerSession": ("kvpush/protocol/producer.h", "SessionState"),
    "Registration": ("kvpush/protocol/producer.h", "RegistrationState"),
}


def modelled_states(files: Files) -> list[str]:
    """The protocol's model and its code have the same states."""
    found = []
    for prefix, (header, enumeration) in MODELLED.items():
        model = set(re.findall(rf"\b{prefix}_(k\w+)", files[MODEL]))
        body = re.search(rf"enum class {enumeration} : [\w:]+ {{(.*?)}};", files[header], re.DOTALL)
        code = set(re.findall(r"\bk[A-Z]\w*", re.sub(r"//.*", "", body[1]))) if body else set()
        if model != code:
            differ = " ".join(sorted(model ^ code))
            found.append(f"{header}:1: {enumeration} and {prefix}_ of {MODEL} differ: {differ}")
    return found


CHECKS = {
    "layers": layers,
    "class comments": class_comments,
    "leftovers": leftovers,
    "tidiness": tidiness,
    "machine paths": machine_paths,
    "faults": faults.check,
    "modelled states": modelled_states,
}
