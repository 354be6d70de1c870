"""Shell completion: a script made from the commands' own parsers, so that it knows what ``--help`` knows.

bash's form serves zsh too, through its bashcompinit (https://zsh.sourceforge.io/Doc/Release/Completion-System.html).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from eks_ray_train.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
PROG = "eks-ray-train"

_BASH = """\
# {prog}: completion for {shell}. Load it with: {load}
{prelude}_eks_ray_train() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at= words= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${{COMP_WORDS[i]}}" in
      *" --") return ;;
      {paths}) at="$at ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$at $prev" in
{values}
    *)
      case "$at" in
{words}
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _eks_ray_train {prog}
"""


def script(shell: str) -> str:
    """The script for one shell. Raises UsageError for a shell that is not known."""
    if shell not in SHELLS:
        raise UsageError(f"--completion must be one of {', '.join(SHELLS)}, got {shell!r}; for example --completion bash")
    parsers = list(_parsers())
    return _fish(parsers) if shell == "fish" else _bash(shell, parsers)


Parsers = list[tuple[tuple[str, ...], argparse.ArgumentParser]]


def _parsers() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """(words that lead to it, parser) of the program, its commands and what they nest."""
    from .__main__ import available_commands, build_parser

    yield (), build_parser()[0]
    for command in available_commands():
        top = build_parser(command)[0]
        parser = next(choices[command] for choices in _nested(top))
        yield (command,), parser
        for choices in _nested(parser):
            for name, child in choices.items():
                yield (command, name), child


def _nested(parser: argparse.ArgumentParser) -> Iterator[dict[str, argparse.ArgumentParser]]:
    return (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def _choices(action: argparse.Action) -> list[str]:
    """Values that can be offered for a flag."""
    if "--instance-type" in action.option_strings:
        from eks_ray_train.instances import CATALOGUE

        return list(CATALOGUE)
    return [str(choice) for choice in action.choices or ()]


def _names(parser: argparse.ArgumentParser) -> list[str]:
    return [name for choices in _nested(parser) for name in choices]


def _bash(shell: str, parsers: Parsers) -> str:
    values, words = [], []
    for path, parser in parsers:
        at = "".join(f" {word}" for word in path)
        # Where a flag takes a value that is no choice, nothing is offered and the shell completes files.
        with_value = [action for action in _options(parser) if action.nargs != 0]
        for action in with_value:
            pattern = "|".join(f'"{at} {flag}"' for flag in action.option_strings)
            values.append(f'    {pattern}) words="{" ".join(_choices(action))}" ;;')
        offered = _names(parser) + [flag for action in _options(parser) for flag in action.option_strings]
        words.append(f'        "{at}") words="{" ".join(offered)}" ;;')
    load = f'eval "$({PROG} --completion {shell})"'
    return _BASH.format(
        prog=PROG,
        shell=shell,
        load=load,
        prelude="autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" if shell == "zsh" else "",
        paths="|".join(f'" {" ".join(path)}"' for path, _ in parsers if path),
        values="\n".join(values),
        words="\n".join(words),
    )


def _fish(parsers: Parsers) -> str:
    lines = [f"# {PROG}: completion for fish. Load it with: {PROG} --completion fish | source"]
    for path, parser in parsers:
        seen = [f"__fish_seen_subcommand_from {word}" for word in path]
        condition = "; and ".join(seen) or "__fish_use_subcommand"
        for name in _names(parser):
            inner = condition if not path else f"{condition}; and not __fish_seen_subcommand_from {' '.join(_names(parser))}"
            lines.append(f"complete -c {PROG} -f -n '{inner}' -a {name}")
        for action in _options(parser):
            flags = " ".join(("-l " if f.startswith("--") else "-s ") + f.lstrip("-") for f in action.option_strings)
            choices = _choices(action)
            value = "" if action.nargs == 0 else f" -x -a '{' '.join(choices)}'" if choices else " -r"
            lines.append(f"complete -c {PROG} -n '{condition}' {flags}{value}")
    return "\n".join(lines) + "\n"
