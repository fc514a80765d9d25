// Holds the model against a real server: the same state on both, the same call, and then replies and everything that is
// stored. A case is named by seed, script and number, and is the same again with those.
//
// Many cases travel together, so that a round trip is not most of the time.

import type { Flavour } from '../command.ts';
import { NotModelled } from '../../lua/index.ts';
import { ModelServer } from '../model-server.ts';
import { Failure, type Reply } from '../replies.ts';
import { sha1Of } from '../scripts.ts';
import type { ServerSession } from '../interface.ts';
import { commandSequence } from './commands.ts';
import { difference, dumpDifference, shown, type Tolerance } from './compare.ts';
import { mutated, type RecordedCall } from './mutate.ts';
import { Random } from './random.ts';
import type { RealServer } from './real-server.ts';
import { TIME_KEY, type NamedScript } from './scripts.ts';
import { commandsFor, DUMP, type State } from './state.ts';

export interface ConformanceOptions {
  readonly real: RealServer;
  readonly flavour: Flavour;
  readonly scripts: ReadonlyMap<string, NamedScript>;
  readonly corpus: readonly RecordedCall[];
  readonly seed: number;
  /** So many are drawn of each script. */
  readonly calls: number;
  /** The number of the first case. */
  readonly from?: number;
  /** Only these, by name; "commands" is the plain ones. */
  readonly only?: readonly string[] | undefined;
  /** After so many differences of a script the next one comes. */
  readonly mostDifferences?: number;
  readonly until?: () => boolean;
}

export interface ScriptReport {
  readonly script: string;
  /** Compared. */
  readonly calls: number;
  /** Calls that ended in an error, on both. */
  readonly errors: number;
  readonly differences: readonly string[];
  /** How many calls were left out because the model says that it does not have what they need, by what it says. */
  readonly notModelled: ReadonlyMap<string, number>;
}

interface Case {
  readonly label: string;
  readonly state: State;
  readonly now: number;
  readonly commands: readonly (readonly string[])[];
  readonly tolerance: Omit<Tolerance, 'ms' | 'answeredAt'>;
}

const BATCH = 20;
/** What a millisecond that is rounded another way, and a server's cached hour, can make. */
const SLACK_MS = 5;
export const PLAIN = 'commands';

/** The names of what was recorded at least once, and the plain commands. */
export function comparedScripts({
  scripts,
  corpus,
  only,
}: Pick<ConformanceOptions, 'scripts' | 'corpus' | 'only'>): string[] {
  const recorded = new Set(corpus.map(({ script }) => script));
  return [...[...scripts.keys()].filter((name) => recorded.has(name)).toSorted(), PLAIN].filter(
    (name) => only === undefined || only.includes(name),
  );
}

export async function* runConformance(options: ConformanceOptions): AsyncGenerator<ScriptReport> {
  for (const name of comparedScripts(options)) {
    if (options.until?.() === true) return;
    yield await runScript(name, options);
  }
}

async function runScript(name: string, options: ConformanceOptions): Promise<ScriptReport> {
  const script = options.scripts.get(name);
  const calls = options.corpus.filter((call) => call.script === name);
  const sha = script === undefined ? '' : sha1Of(script.text);
  const load = script === undefined ? [] : [['SCRIPT', 'LOAD', script.text]];
  await options.real.ask([['FLUSHALL'], ['SCRIPT', 'LOAD', DUMP], ...load]);
  const world = new Model(options.flavour, load);
  const differences: string[] = [];
  const notModelled = new Map<string, number>();
  const from = options.from ?? 0;
  let [errors, done] = [0, 0];
  while (done < options.calls && differences.length < (options.mostDifferences ?? 3) && options.until?.() !== true) {
    const cases = Array.from({ length: Math.min(BATCH, options.calls - done) }, (_, at) =>
      script === undefined
        ? plainCase(options, from + done + at)
        : scriptCase(script, sha, calls, options, from + done + at),
    );
    const found = await compare(cases, world, options.real);
    errors += found.errors;
    differences.push(...found.differences);
    for (const what of found.notModelled) notModelled.set(what, (notModelled.get(what) ?? 0) + 1);
    done += cases.length;
  }
  const left = [...notModelled.values()].reduce((sum, count) => sum + count, 0);
  return { script: name, calls: done - left, errors, differences, notModelled };
}

function scriptCase(
  script: NamedScript,
  sha: string,
  recorded: readonly RecordedCall[],
  { seed }: ConformanceOptions,
  index: number,
): Case {
  const random = new Random(seed, script.name, index);
  const isPlain = index < recorded.length;
  const call = mutated(isPlain ? recorded[index]! : random.of(recorded), random, isPlain);
  return {
    label: `--script ${script.name} --seed ${seed} --from ${index} --calls 1`,
    state: call.state,
    now: call.now,
    commands: [['EVALSHA', sha, String(call.keys.length), ...call.keys, ...call.args]],
    tolerance: script,
  };
}

function plainCase({ seed }: ConformanceOptions, index: number): Case {
  const random = new Random(seed, PLAIN, index);
  return {
    label: `--script ${PLAIN} --seed ${seed} --from ${index} --calls 1`,
    state: {},
    now: 0,
    commands: commandSequence(random),
    tolerance: { tellsTimes: true, isUnordered: false, usesPairs: false },
  };
}

class Model {
  now = 0;
  readonly #server: ModelServer;
  readonly #session: ServerSession;

  constructor(flavour: Flavour, load: readonly (readonly string[])[]) {
    this.#server = new ModelServer({ now: () => this.now, random: () => 0.5, flavour, keptMs: 0 });
    this.#session = this.#server.connect(() => undefined);
    this.ask([['SCRIPT', 'LOAD', DUMP], ...load]);
  }

  ask(commands: readonly (readonly string[])[]): Reply[] {
    return commands.map((command) => this.#server.execute(this.#session, command));
  }
}

/** The servers get the hour of the call as a list, and what they hold is told without it. */
function requestsOf({ state, now, commands }: Case, wallMs: number): string[][] {
  const hour = ['RPUSH', TIME_KEY, String(Math.floor(now / 1_000)), String((now % 1_000) * 1_000)];
  return [
    ['FLUSHALL'],
    ...commandsFor(state, wallMs),
    hour,
    ...commands.map((command) => [...command]),
    ['DEL', TIME_KEY],
    ['EVALSHA', sha1Of(DUMP), '0'],
  ];
}

async function compare(
  cases: readonly Case[],
  model: Model,
  real: RealServer,
): Promise<{ readonly errors: number; readonly differences: string[]; readonly notModelled: string[] }> {
  const wallMs = Date.now();
  model.now = wallMs;
  const notModelled: string[] = [];
  const tried = cases.flatMap((one) => {
    const commands = requestsOf(one, wallMs);
    const mine = answersOf(model, commands, notModelled);
    return mine === undefined ? [] : [{ one, commands, mine }];
  });
  const asked = real.ask(tried.flatMap(({ commands }) => commands));
  const replies = await asked;
  const ms = Date.now() - wallMs + SLACK_MS;
  let [at, errors] = [0, 0];
  const differences: string[] = [];
  for (const { one, commands, mine } of tried) {
    const theirs = replies.slice(at, at + commands.length);
    at += commands.length;
    if (mine.at(-3) instanceof Failure) errors++;
    const found = differenceOf(one, commands, mine, theirs, ms);
    if (found !== undefined) differences.push(`${one.label}\n${found}`);
  }
  return { errors, differences, notModelled };
}

/** Undefined where the model says by name that it does not have what the call needs. */
function answersOf(model: Model, commands: readonly (readonly string[])[], notModelled: string[]): Reply[] | undefined {
  try {
    return model.ask(commands);
  } catch (error) {
    if (!(error instanceof NotModelled)) throw error;
    notModelled.push(error.message);
    return undefined;
  }
}

function differenceOf(
  { tolerance }: Case,
  commands: readonly (readonly string[])[],
  mine: readonly Reply[],
  theirs: readonly Reply[],
  ms: number,
): string | undefined {
  const full = { ...tolerance, ms, answeredAt: Date.now() + SLACK_MS };
  for (const [at, command] of commands.slice(0, -1).entries()) {
    const found = difference(mine[at]!, theirs[at]!, {
      ...full,
      isUnordered: full.isUnordered || UNORDERED.has(command[0]!),
    });
    if (found !== undefined) return `${shown([...command])}\n${found}`;
  }
  if (full.usesPairs && mine.at(-3) instanceof Failure) return undefined;
  return dumpDifference(mine.at(-1)!, theirs.at(-1)!, full);
}

const UNORDERED = new Set(['KEYS', 'SMEMBERS', 'HGETALL', 'HKEYS', 'HVALS', 'SCAN', 'SSCAN', 'HSCAN']);
