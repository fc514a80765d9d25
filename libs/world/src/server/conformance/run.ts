// Holds the model against a real server: the same hour and state on both, the same call, and then replies and everything
// that is stored. A case is named by seed, script and number, and is the same again with those.
//
// Many cases travel together, and the model runs the next ones while the real server is at work.

import { NotModelled } from '../../lua/index.ts';
import type { Flavour } from '../command.ts';
import type { ServerSession } from '../interface.ts';
import { ModelServer } from '../model-server.ts';
import { Failure, OK, type Reply } from '../replies.ts';
import { sha1Of } from '../scripts.ts';
import { commandSequence } from './commands.ts';
import { difference, shown, stateDifference } from './compare.ts';
import { mutated, type RecordedCall } from './mutate.ts';
import { Random } from './random.ts';
import { clockCommand, type RealServer } from './real-server.ts';
import type { NamedScript } from './scripts.ts';
import { commandsFor, TELL_AND_EMPTY, tellAndEmpty, type State } from './state.ts';

export interface Wanted {
  /** A script by its name, or PLAIN. */
  readonly script: string;
  readonly seed: number;
  /** The number of the first case, and how many are drawn. */
  readonly from: number;
  readonly calls: number;
  /** After so many differences no more are looked for. */
  readonly mostDifferences: number;
}

export interface Report {
  readonly drawn: number;
  /** Of those drawn: what is compared, without what the model says that it does not have. */
  readonly calls: number;
  /** Calls that ended in an error, on both. */
  readonly errors: number;
  readonly differences: readonly string[];
  /** How many were left out, by what the model says that it does not have. */
  readonly notModelled: Readonly<Record<string, number>>;
}

/** The plain commands, which have no script. */
export const PLAIN = 'commands';

/** The names of what was recorded at least once, and PLAIN. */
export function comparedScripts(scripts: ReadonlyMap<string, NamedScript>, corpus: readonly RecordedCall[]): string[] {
  const recorded = new Set(corpus.map(({ script }) => script));
  return [...[...scripts.keys()].filter((name) => recorded.has(name)).toSorted(), PLAIN];
}

interface Case {
  readonly index: number;
  readonly state: State;
  readonly now: number;
  readonly commands: readonly (readonly string[])[];
}

/** A case that the model has answered. */
interface Answered {
  readonly index: number;
  readonly requests: readonly (readonly string[])[];
  /** One for each request; the last tells the state. */
  readonly replies: readonly Reply[];
}

const BATCH = 25;
const TELL_SHA = sha1Of(TELL_AND_EMPTY);

export class Conformance {
  readonly #real: RealServer;
  readonly #flavour: Flavour;
  readonly #scripts: ReadonlyMap<string, NamedScript>;
  readonly #corpus: readonly RecordedCall[];
  readonly #model: ModelServer;
  readonly #session: ServerSession;
  #now = 0;

  constructor(
    real: RealServer,
    flavour: Flavour,
    { scripts, corpus }: { scripts: ReadonlyMap<string, NamedScript>; corpus: readonly RecordedCall[] },
  ) {
    this.#real = real;
    this.#flavour = flavour;
    this.#scripts = scripts;
    this.#corpus = corpus;
    this.#model = new ModelServer({ now: () => this.#now, random: () => 0.5, flavour, keptMs: 0 });
    this.#session = this.#model.connect(() => undefined);
  }

  /** Throws where the script was never recorded. */
  async run(wanted: Wanted): Promise<Report> {
    const script = this.#scripts.get(wanted.script);
    const recorded = this.#corpus.filter((call) => call.script === wanted.script);
    if (wanted.script !== PLAIN && (script === undefined || recorded.length === 0))
      throw new Error(`no call of ${wanted.script} was recorded: there is nothing to draw from`);
    const loads = [TELL_AND_EMPTY, ...(script === undefined ? [] : [script.text])].map((text) => [
      'SCRIPT',
      'LOAD',
      text,
    ]);
    await this.#real.ask([['FLUSHALL'], ...loads]);
    for (const load of loads) this.#model.execute(this.#session, load);

    const draw = (index: number): Case =>
      script === undefined ? plainCase(wanted.seed, index) : scriptCase(script, recorded, wanted.seed, index);
    const label = (index: number): string =>
      `--flavour ${this.#flavour} --script ${wanted.script} --seed ${wanted.seed} --from ${index} --calls 1`;
    const usesPairs = script?.usesPairs === true;
    const [differences, notModelled]: [string[], Record<string, number>] = [[], {}];
    let [drawn, calls, errors] = [0, 0, 0];
    const isOver = (): boolean => drawn >= wanted.calls || differences.length >= wanted.mostDifferences;
    const prepare = (): Answered[] => {
      const cases = Array.from({ length: Math.min(BATCH, wanted.calls - drawn) }, (_, at) =>
        draw(wanted.from + drawn + at),
      );
      drawn += cases.length;
      return cases.flatMap((one) => {
        try {
          return [this.#answered(one)];
        } catch (error) {
          if (error instanceof NotModelled) notModelled[error.message] = (notModelled[error.message] ?? 0) + 1;
          else differences.push(`${label(one.index)}\nthe model breaks: ${(error as Error).stack}`);
          return [];
        }
      });
    };

    for (let next = prepare(), isLast = false; !isLast;) {
      const [batch, asked] = [next, this.#real.ask(next.flatMap(({ requests }) => requests))];
      isLast = isOver();
      if (!isLast) next = prepare();
      const replies = await asked;
      let at = 0;
      for (const one of batch) {
        const theirs = replies.slice(at, at + one.requests.length);
        at += one.requests.length;
        calls++;
        if (one.replies.at(-2) instanceof Failure) errors++;
        const found = differenceOf(one, theirs, usesPairs);
        if (found !== undefined) differences.push(`${label(one.index)}\n${found}`);
      }
    }
    return { drawn, calls, errors, differences, notModelled };
  }

  /** Throws NotModelled where the model says that it does not have what is needed. */
  #answered({ index, state, now, commands }: Case): Answered {
    this.#now = now;
    this.#model.keys.clear();
    const requests = [...commandsFor(state, now), ...commands];
    const replies = requests.map((one) => this.#model.execute(this.#session, one));
    return {
      index,
      requests: [clockCommand(now), ...requests, ['EVALSHA', TELL_SHA, '0']],
      replies: [OK, ...replies, tellAndEmpty(this.#model.keys, this.#flavour)],
    };
  }
}

function scriptCase(script: NamedScript, recorded: readonly RecordedCall[], seed: number, index: number): Case {
  const random = new Random(seed, script.name, index);
  const isPlain = index < recorded.length;
  const { state, now, keys, args } = mutated(isPlain ? recorded[index]! : random.of(recorded), random, isPlain);
  return { index, state, now, commands: [['EVALSHA', sha1Of(script.text), String(keys.length), ...keys, ...args]] };
}

function plainCase(seed: number, index: number): Case {
  return { index, state: {}, now: PLAIN_MS, commands: commandSequence(new Random(seed, PLAIN, index)) };
}

const PLAIN_MS = 1_795_000_000_000;

/** `usesPairs`: how far a script came before an error is an order of hashes. */
function differenceOf({ requests, replies }: Answered, real: readonly Reply[], usesPairs: boolean): string | undefined {
  const last = requests.length - 1;
  for (let at = 0; at < last; at++) {
    const found = difference(replies[at]!, real[at]!, UNORDERED.has(requests[at]![0]!));
    if (found !== undefined) return `${shown(requests[at]!)}\n${found}`;
  }
  if (usesPairs && replies[last - 1] instanceof Failure) return undefined;
  return stateDifference(replies[last]!, real[last]!);
}

const UNORDERED = new Set(['KEYS', 'SMEMBERS', 'HGETALL', 'HKEYS', 'HVALS', 'SCAN', 'SSCAN', 'HSCAN']);
