"""Writes ``docs/configuration.md`` from the tree: ``python -m pipeline.config.document > docs/configuration.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.config import schema, variables, yaml_text
from pipeline.config.load import presets
from pipeline.config.tree import Config

_HEAD = """# Configuration

<!-- Generated from pipeline/config/tree.py: python -m pipeline.config.document > docs/configuration.md -->

One YAML file holds the settings of a whole run, in sections. Only `environment.id` must be set. A key that is not in
these tables, a value of another type or out of bounds, and an impossible combination are errors (exit code 2) that name
the key, the value, the reason and where the value came from. Names that stable-baselines3, CleanRL, RLlib, Sample
Factory, SEED RL, Acme and TorchBeast have for a setting (`gamma`, `ent_coef`, `num_envs`) are no keys either: the error
says what they are called here, under the algorithm that is set.

## Sources

Later ones win:

1. the defaults below;
2. the YAML file: a path, or the bare name of a preset ({presets});
3. environment variables: `SEEDMQ_SECTION__KEY`, in any case, with two underscores between the names;
4. `--set section.key=value`, as often as needed; the value is YAML.

A run that goes on (`--resume`) takes its own configuration in place of 1 and 2, and what was edited in the file since
([operations](operations.md#start)).

`seedmq config show CONFIG` prints the merged result with the origin of each value. `seedmq config check CONFIG`
refuses what a run would refuse (it makes one environment, and builds the network on the CPU), says which settings have
no effect under the others, and what it cannot tell on this machine. A run directory's `config.yaml` is such a result
and can be given as CONFIG again.

```yaml
environment:
  id: CartPole-v1
training:
  batch_size: 32
  optimizer:
    learning_rate: 1.0e-3
```

```sh
SEEDMQ_TRAINING__BATCH_SIZE=64 seedmq run my.yaml --set vtrace.lambda=0.9 --set 'network.hidden=[64, 64]'
```

### Variables

| variable | sets |
| --- | --- |
{short_names}
| `SEEDMQ_SECTION__KEY` | `section.key`, for instance `{example}` |

A `SEEDMQ_` name with two underscores in a row must name a setting. One without is refused when it is within two typing
errors of a short name, and else ignored, since Kubernetes puts names such as `SEEDMQ_BROKER_PORT` into every container.
An empty variable counts as not set. Two variables for one key are refused.

### YAML

Plain types of YAML 1.2: `true` and `false`, integers (`1_000` too), floats (`1e-3` is one), strings, `null`, lists and
mappings. Where only an integer can stand, `1e6` and `64.0` are integers. A list of one is written `[64]`. Where only
text can stand, `123` is text in a variable or `--set`, and must be quoted in a file. Refused are duplicate keys,
anchors, aliases, tags and files above {kibibytes} KiB.

Below `environment.kwargs` and `network.kwargs` any keys may stand. Sources are merged key by key there (names in
variables are lower case), and an empty mapping clears those of the sources before.

### Live settings

`seedmq adjust RUN_DIR section.key=value` changes a setting while the run goes on: {live}.
The value is checked as everywhere else, written to `live.yaml` in the run directory, and taken by the learner at its
next log interval; it logs the old and the new value. The command returns when `summary.json` shows the new one under
`live`, and exits 4 when it does not within five log intervals (5 s at least).

What stands in `live.yaml` wins over every other source, also after `--resume` and in a learner that was restarted;
without the file, or the key in it, the configuration's value is taken again. A damaged file is a warning, and the
values stay. A run that has ended is adjusted too: the next `--resume` takes it.
"""


def document() -> str:
    """The whole text."""
    example = variables.variable_name(("run", "max_seconds"))
    short = "\n".join(f"| `{name}` | `{'.'.join(path)}` |" for name, path in variables.SHORT_NAMES.items())
    names = ", ".join(f"`{name}`" for name in presets())
    live = ", ".join(f"`{key}`" for key in schema.live_keys())
    kibibytes = yaml_text.MAX_BYTES // 1024
    head = _HEAD.format(presets=names, short_names=short, example=example, live=live, kibibytes=kibibytes)
    return "\n".join([head, *_sections(Config, ())])


def _sections(model: type[BaseModel], prefix: schema.Path) -> Iterator[str]:
    for name, field in schema.fields(model):
        section = schema.section_of(field)
        if section is not None:
            yield _section((*prefix, name), field, section)
            yield from _sections(section, (*prefix, name))


def _section(path: schema.Path, field: FieldInfo, model: type[BaseModel]) -> str:
    rows = [_row(name, setting) for name, setting in schema.fields(model) if schema.section_of(setting) is None]
    table = "\n".join(["| key | type | default | bounds | meaning |", "| --- | --- | --- | --- | --- |", *rows])
    return f"{'#' * (len(path) + 1)} {'.'.join(path)}\n\n{field.description}\n\n{table}\n"


def _row(name: str, field: FieldInfo) -> str:
    meaning = " ".join((field.description or "").split())
    cells = (f"`{name}`", _type(field.annotation), _default(field), _bounds(field.metadata), meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join("`null`" if part is type(None) else _type(part) for part in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if origin is Annotated:
        bounds = _bounds(arguments[1].metadata)
        return f"{_type(arguments[0])}{f' ({bounds})' if bounds else ''}"
    return {int: "integer", float: "number", str: "text", bool: "`true` or `false`"}[annotation]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return "required" if value is PydanticUndefined else f"`{yaml_text.scalar(value)}`"


def _bounds(metadata: list[Any]) -> str:
    """The bounds in the order of the declaration: ``>= 0, < 2147483648``."""
    return ", ".join(text for constraint in metadata if (text := _bound(constraint)))


def _bound(constraint: Any) -> str:
    match constraint:
        case Gt(gt=limit):
            return f"> {limit}"
        case Ge(ge=limit):
            return f">= {limit}"
        case Lt(lt=limit):
            return f"< {limit}"
        case Le(le=limit):
            return f"<= {limit}"
        case MinLen(min_length=limit):
            return "not empty" if limit == 1 else f"at least {limit} long"
        case MaxLen(max_length=limit):
            return f"at most {limit} long"
    pattern = getattr(constraint, "pattern", None)
    return f"matches `{pattern}`" if pattern else ""


if __name__ == "__main__":
    sys.stdout.write(document())
