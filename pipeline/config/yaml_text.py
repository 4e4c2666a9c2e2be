"""YAML as seedmq reads and writes it: the plain types of YAML 1.2's core schema, and nothing else.

PyYAML follows YAML 1.1, where ``no`` is false, ``1e-3`` is a string and ``12:30`` is 750. A configuration must not
depend on that, so types are those of the core schema (``1_000`` is taken too). Tags, anchors, aliases and duplicate
keys are refused: a file says what it says, once.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
"""Larger texts are refused before they are parsed."""

_PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")
_IMPLICIT = (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema, no tags, no aliases, no duplicate keys, string keys only."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not taken", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not taken", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is not a string", problem_mark=key_node.start_mark)
            if key in result:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
            result[key] = self.construct_object(value_node, deep=True)
        return result

    def construct_plain_int(self, node: Any) -> int:
        return int(self.construct_scalar(node))


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever YAML 1.1 or the core schema would not read back as a string."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> Any:
        # Double quotes escape line ends and the like, so that a value stays on its line.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


# Tables of their own, so that PyYAML's stay as they are.
_Loader.yaml_constructors = {}
_Loader.yaml_implicit_resolvers = {}
_Dumper.yaml_implicit_resolvers = {c: list(pairs) for c, pairs in yaml.SafeDumper.yaml_implicit_resolvers.items()}
_Dumper.add_representer(str, _Dumper.represent_text)
for _name in _PLAIN_TAGS:
    _tag = f"tag:yaml.org,2002:{_name}"
    _Loader.yaml_constructors[_tag] = yaml.SafeLoader.yaml_constructors[_tag]
_Loader.yaml_constructors["tag:yaml.org,2002:int"] = _Loader.construct_plain_int
_Loader.yaml_constructors[None] = yaml.SafeLoader.construct_undefined
for _tag, _pattern, _first in _IMPLICIT:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(_pattern), [c if c != "\0" else "" for c in _first])


def parse(text: str) -> Any:
    """Parses one YAML document of plain types.

    Returns:
        None, bool, int, float, str, or lists and string-keyed dicts of these.

    Raises:
        ValueError: not such a document; the message says what and, where known, in which line.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{where}{problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def scalar(value: Any) -> str:
    """``value`` as YAML on one line, which ``parse`` reads back equal."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=2**31, sort_keys=False)
    return text.removesuffix("...\n").strip()
