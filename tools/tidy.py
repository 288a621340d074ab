"""House rules that no other linter knows; each fault is one line that says what to do. Part of `make check`."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dead

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "millpond"

FILE_LINES_LONG = 600
FUNCTION_LINES_LONG = 60
ABOVE_BROKER = ("remote", "node", "client", "sim", "admin", "analysis", "testing", "console", "spark", "cli")

NOUNS = {"housekeeping.py", "pending.py", "recording.py"}
"""Files whose name ends as a participle does and is none."""

PROSE = (".py", ".pyi", ".pyx", ".pxi", ".md", ".js", ".html")

GLOSSARY = "docs/ARCHITECTURE.md"

GENERATED = (
    "tools/config_docs.py",
    "tools/api_docs.py",
    "tools/spark_docs.py",
    "tools/lesson_docs.py",
)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def main() -> int:
    for warning in long_ones():
        print(f"warning: {warning}")
    faults = [
        *modules(),
        *participles(),
        *dead.faults(),
        *loose_dice(),
        *generated(),
        *marks(),
        *vocabulary(),
        *glossary(),
    ]
    for fault in faults:
        print(fault)
    print(f"tidy: {len(faults)} faults" if faults else "tidy: all in order")
    return 1 if faults else 0


def modules() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(ROOT)
        if not ast.get_docstring(tree(path)):
            yield f"{where}: the head must say what the file is for"
        # `Later` hands every error on to whom it concerns; nothing else may take one that it does not know.
        below_node = where.parts[2] not in ABOVE_BROKER and where.name != "later.py"
        for node in ast.walk(tree(path)):
            if below_node and isinstance(node, ast.ExceptHandler) and _catches_all(node):
                yield f"{where}:{node.lineno}: below node an error is named, not caught by the bunch"


def long_ones() -> Iterator[str]:
    """Only a warning: a file is cut where the thing is two things, never because it met a limit."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        where = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES_LONG:
            yield f"{where} has {lines} lines; is it still one thing?"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_LONG:
                    yield f"{where}:{node.lineno}: {node.name} has {length} lines; is it still one thing?"


def participles() -> Iterator[str]:
    """A file is named for the thing in it."""
    for path in sorted(SOURCE.rglob("*ing.py")):
        if path.name not in NOUNS:
            yield f"{path.relative_to(ROOT)}: name the file by a noun, for what is in it"


def loose_dice() -> Iterator[str]:
    """Random tests can be played again: their dice come from tests/support/seeds.py."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "\nimport random\n" not in text:
            continue
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr=called)) if called != "Random":
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: take dice from support.seeds, not random.{called}"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


def generated() -> Iterator[str]:
    for tool in GENERATED:
        if (ROOT / tool).exists():
            run = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, capture_output=True, text=True)
            if run.returncode:
                yield f"{tool}: what it generates is out of date; run make docs ({run.stdout.strip()})"
        else:
            yield f"{tool}: missing"


def marks() -> Iterator[str]:
    """Unfinished work does not hide in a comment, and no file names the machine it was written on."""
    found = re.compile("TO" + "DO|FIX" + "ME|X" + "XX |/wo" + "rk/|/ro" + "ot/")
    for name, text in texts():
        for match in found.finditer(text):
            yield f"{name}:{_line(text, match)}: has {match[0].strip()!r}"


def vocabulary() -> Iterator[str]:
    """Words of tools/vocabulary.toml have a better one."""
    words = tomllib.loads((ROOT / "tools" / "vocabulary.toml").read_text())["words"]
    patterns = [(word.lower().split(), re.compile(_pattern(word))) for word in words]
    for name, text in texts():
        if not name.startswith(("src/", "tests/", "docs/")) or not name.endswith(PROSE):
            continue
        named = f"{name}\n{text}"
        lowered = named.lower()
        for (word, better), (parts, pattern) in zip(words.items(), patterns, strict=True):
            if all(part in lowered for part in parts):
                for match in pattern.finditer(named):
                    yield f"{name}:{max(_line(named, match) - 1, 1)}: {word!r}: say {better!r}"


def _pattern(word: str) -> str:
    """Finds `the word`, `the_words`, `the-word`, `TheWord` and `THE_WORD`, but not `lathe word` or `wordy`."""
    parts = [re.escape(part) for part in word.split()]
    gap = r"[\s_-]+"
    plain = rf"(?<![A-Za-z])(?i:{parts[0][0]}){gap.join(parts)[1:]}(?:e?s)?(?![a-z])"
    camel = "".join(part[0].upper() + part[1:] for part in parts) + "(?:e?s)?(?![a-z])"
    upper = rf"(?<![A-Za-z]){gap.join(part.upper() for part in parts)}(?:E?S)?(?![A-Za-z])"
    return f"(?:{plain}|{camel}|{upper})"


def glossary() -> Iterator[str]:
    """Every word of the glossary names something: a file, a class, a function, a field or a variable."""
    text = (ROOT / GLOSSARY).read_text()
    names = "\n".join({_snake(name) for name in _names()})
    rows = text[text.index("\n## Glossary\n") :].split("\n| ")[3:]
    for row in rows:
        for term in row.split(" | ")[0].split(", "):
            stem = _snake(term.removeprefix("to ").strip("`")).replace(" ", "_")
            if not re.search(rf"(?m)(?:^|_){re.escape(stem)}(?:_|e?s_|e?s$|$)", names):
                yield f"{GLOSSARY}: the glossary has {term!r}, and no name in src/ or tests/ does"


def _names() -> Iterator[str]:
    definition = re.compile(r"(?:class|def|self\.)\s*(\w+)|^\s*(\w+)\s*[:=]", re.M)
    for name, text in texts():
        if name.startswith(("src/", "tests/")) and name.endswith((".py", ".pyx", ".pxi")):
            yield from Path(name).with_suffix("").parts
            yield from (match[1] or match[2] for match in definition.finditer(text))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def texts() -> list[tuple[str, str]]:
    """Every text file in git, with its name."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = []
    for name in listed.splitlines():
        with contextlib.suppress(UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            files.append((name, (ROOT / name).read_text()))
    return files


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


if __name__ == "__main__":
    sys.exit(main())
