"""How Sphinx builds the site: `make docs`."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.names import homes  # noqa: E402 - found by the line above

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "msgworker"
author = "msgworker contributors"
html_show_copyright = False
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_design", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"msgworker {version}"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nitpicky = True
# Types of other libraries have no page here: the site is built without a network.
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": False}
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
default_role = "code"

WHOLE = {
    "project/changes": "CHANGELOG.md",
    "project/architecture": "ARCHITECTURE.md",
    "project/security": "SECURITY.md",
    "project/contributing": "CONTRIBUTING.md",
}
"""Pages that are files of the repository's top folder."""
_HOME = {path: page for page, path in WHOLE.items()}
_LINK = re.compile(r"(?<!!)\[([^\]\n]+(?:\n[^\]\n]+)?)\]\(([^)\s]+)\)")


def _read(app: Any, page: str, source: list[str]) -> None:
    """Links that leave the site lead to the repository, or are plain text if it has no address."""
    where = ROOT / "docs" / page
    if page in WHOLE:
        where = ROOT / WHOLE[page]
        if not where.exists():
            return
        source[0] = where.read_text(encoding="utf-8")

    if page == "project/promises":
        source[0] = re.sub(r"`(test_\w+)`", _with_file, source[0])

    def led(match: re.Match[str]) -> str:
        text, link = match.groups()
        path, mark, part = link.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = (where.parent / path).resolve()
        if not target.is_relative_to(ROOT):
            return match[0]
        name = target.relative_to(ROOT).as_posix()
        name = f"docs/{_HOME[name]}.md" if name in _HOME else name
        inside = name.startswith("docs/") and name.endswith((".md", ".json", ".svg", ".png"))
        if inside:
            ups = "../" * page.count("/")
            return f"[{text}]({ups}{name.removeprefix('docs/')}{mark}{part})"
        address = PROJECT.get("urls", {}).get("Source", "").rstrip("/")
        if not address:
            return text
        kind = "tree" if target.is_dir() else "blob"
        at = "main" if ".dev" in version else f"v{version}"
        return f"[{text}]({address}/{kind}/{at}/{name}{mark}{part})"

    source[0] = _LINK.sub(led, source[0])


def _with_file(match: re.Match[str]) -> str:
    """A test, with the file that it is in."""
    (file,) = homes()[match[1]]
    return f"`{file}::{match[1]}`"


def _docstring(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: only `code`, lists and indented examples mean anything."""
    given, lines[:] = list(lines), []
    code = False
    for number, line in enumerate(given):
        if line.startswith("    ") and (code or not given[number - 1].strip()):
            if not code:
                lines += ["::", ""]
            code = True
        elif line.strip():
            code = False
            parts = re.split(r"`([^`]*)`", line)
            parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
            parts[1::2] = [f"``{part}``" for part in parts[1::2]]
            line = re.sub(r"^( *)\\\* ", r"\1* ", "".join(parts))
        lines.append(line)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
