// Completion scripts for bash, zsh and fish, made from the commands and the settings themselves, so that they cannot go
// stale. Flags with a closed set of values offer the values; everything else completes file names, as the shell does by
// itself.

import { settingValues } from '@shoal/core';
import type { Command } from 'commander';

export type Shell = 'bash' | 'zsh' | 'fish';

export function completionScript(program: Command, shell: Shell): string {
  const commands = commandsOf(program);
  if (shell === 'fish') return fishScript(commands);
  const script = bashScript(commands);
  return shell === 'bash' ? script : `${ZSH_BEFORE}${script}`;
}

/** Without compinit, which not every .zshrc calls, nothing of bashcompinit works. */
const ZSH_BEFORE = `(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
`;

interface CompletedCommand {
  /** Words after `shoal`; empty for the program itself. */
  readonly path: readonly string[];
  readonly commands: readonly { readonly name: string; readonly meaning: string }[];
  readonly flags: readonly {
    readonly names: readonly string[];
    readonly takesValue: boolean;
    readonly values: readonly string[];
    readonly meaning: string;
  }[];
  /** Closed set of the first argument. */
  readonly argumentValues: readonly string[];
}

function commandsOf(command: Command, path: readonly string[] = []): readonly CompletedCommand[] {
  const own: CompletedCommand = {
    path,
    commands: command.commands.map((child) => ({
      name: child.name(),
      meaning: child.summary() || child.description(),
    })),
    flags: [
      ...command.options,
      ...command
        .createHelp()
        .visibleOptions(command)
        .filter((option) => option.long === '--help'),
    ].map((option) => ({
      names: [option.short, option.long].filter((name) => name !== undefined && name !== null),
      takesValue: option.required,
      values: option.argChoices ?? settingValues(option.attributeName()) ?? [],
      meaning: option.description,
    })),
    argumentValues: command.registeredArguments[0]?.argChoices ?? [],
  };
  return [own, ...command.commands.flatMap((child) => commandsOf(child, [...path, child.name()]))];
}

function bashScript(commands: readonly CompletedCommand[]): string {
  const byPath = commands.map(
    ({ path, commands: children, argumentValues, flags }) =>
      `    '${path.join(' ')}') ` +
      `words='${[...children.map((child) => child.name), ...argumentValues].join(' ')}' ` +
      `flags='${flags.flatMap((flag) => flag.names).join(' ')}' ;;`,
  );
  const valued = commands.flatMap(({ path, flags }) =>
    flags
      .filter((flag) => flag.takesValue)
      .flatMap(({ names, values }) =>
        names.map((name) => ({ place: `'${[...path, name].join(' ')}'`, values: values.join(' ') })),
      ),
  );
  const byFlag = [...Map.groupBy(valued, ({ values }) => values)].map(
    ([values, places]) => `    ${places.map(({ place }) => place).join('|')}) words='${values}' ;;`,
  );
  const folders = [
    ...new Set(commands.flatMap((command) => command.commands.map((child) => [...command.path, child.name].join(' ')))),
  ];
  return `# shoal completion: source <(shoal completion bash)
_shoal() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" command='' words='' flags='' word
  for word in "\${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
    case "\${command:+$command }$word" in
      ${folders.map((folder) => `'${folder}'`).join('|')}) command="\${command:+$command }$word" ;;
    esac
  done
  case "$command" in
${byPath.join('\n')}
  esac
  case "$current" in -*) words="$flags" ;; esac
  case "\${command:+$command }$previous" in
${byFlag.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _shoal shoal ./shoal
`;
}

function fishScript(commands: readonly CompletedCommand[]): string {
  const lines = commands.flatMap((command) => {
    const here = conditionOf(command);
    return [
      ...command.commands.map(
        (child) => `complete -c shoal -n '${here}' -f -a ${child.name} -d ${quoted(child.meaning)}`,
      ),
      ...command.argumentValues.map((value) => `complete -c shoal -n '${here}' -f -a ${value}`),
      ...command.flags.map(
        (flag) =>
          `complete -c shoal -n '${here}' ` +
          `${flag.names.map(fishName).join(' ')}${flag.takesValue ? ' -r' : ''}${
            flag.values.length > 0 ? ` -f -a '${flag.values.join(' ')}'` : ''
          } ` +
          `-d ${quoted(flag.meaning)}`,
      ),
    ];
  });
  return `# shoal completion: shoal completion fish | source\n${lines.join('\n')}\n`;
}

function conditionOf({ path, commands }: CompletedCommand): string {
  const inside = path.map((name) => `__fish_seen_subcommand_from ${name}`);
  const deeper =
    commands.length === 0 ? [] : [`not __fish_seen_subcommand_from ${commands.map((child) => child.name).join(' ')}`];
  return [...inside, ...deeper].join('; and ') || 'true';
}

function fishName(name: string): string {
  return name.startsWith('--') ? `-l ${name.slice(2)}` : `-s ${name.slice(1)}`;
}

function quoted(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
}
