// HTTP as a part of the stage of the matrix: its process, which somebody starts again at the same port when it is gone,
// and callers that ask for the same texts all the time and compare each vector with that of a quiet moment.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@shoal/core/testing';
import { isSame } from './same-vectors.ts';

const CALLERS = 3;
const TEXTS = 24;
const ANSWER_WITHIN_MS = 60_000;
const RESTART_MS = 200;
/** What a caller may be told while something is wrong: come back later. */
const LATER = [429, 503, 504];
const NO_ROOM = 507;
const FILE_BYTES = 200_000;

export interface HttpReport {
  /** Requests with the right vectors. */
  readonly answered: number;
  /** Told to come back. */
  readonly refused: number;
  /** Whose connection ended, or that nobody answered within a minute. */
  readonly lost: number;
  /** Other vectors or bytes, or another status. */
  readonly wrong: number;
  /** Files that were stored and read again. */
  readonly files: number;
  /** Files that there was no room for, or that were not whole by then. */
  readonly files_refused: number;
}

export class HttpLoad {
  private readonly settings: Readonly<Record<string, string>>;
  private readonly model: string;
  private child: ChildProcess | undefined;
  private url = '';
  private expected: readonly (readonly number[])[] = [];
  private isStopping = false;
  private callers: Promise<unknown> = Promise.resolve();
  private readonly tally = { answered: 0, refused: 0, lost: 0, wrong: 0, files: 0, files_refused: 0 };

  /** `settings`: environment of its process. */
  constructor(model: string, settings: Readonly<Record<string, string>>) {
    this.model = model;
    this.settings = settings;
  }

  /** Resolves when callers are at work. Workers must be there. */
  async start(): Promise<void> {
    await this.launch('0');
    const vectors = await this.ask(texts());
    if (vectors === undefined) throw new Error('HTTP did not answer at a quiet moment');
    this.expected = vectors;
    this.callers = Promise.all([this.store(), ...Array.from({ length: CALLERS }, (_, index) => this.call(index))]);
  }

  get pid(): number | undefined {
    return this.child?.pid;
  }

  kill(): void {
    this.child?.kill('SIGKILL');
  }

  report(): HttpReport {
    return { ...this.tally };
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    await this.callers;
    const child = this.child;
    if (child === undefined) return;
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    await gone;
  }

  private async launch(port: string): Promise<void> {
    const child = fork(programOf('producer').main, [], {
      env: { ...process.env, ...this.settings, SHOAL_HTTP_PORT: port },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    this.child = child;
    child.once('exit', () => {
      this.child = undefined;
      if (this.isStopping) return;
      setTimeout(() => void this.launch(new URL(this.url).port), RESTART_MS);
    });
    const [said]: unknown[] = await Promise.race([once(child, 'message'), once(child, 'exit').then(() => [undefined])]);
    if (typeof said === 'object' && said !== null && 'url' in said) this.url = String(said.url);
    else if (port === '0') throw new Error('HTTP did not start');
  }

  private async call(index: number): Promise<void> {
    const all = texts();
    for (let turn = index; !this.isStopping; turn++) {
      const from = (turn * 5) % (TEXTS - 4);
      const vectors = await this.ask(all.slice(from, from + 4)).catch(() => {
        this.tally.lost++;
        return undefined;
      });
      if (vectors === undefined) await sleep(200);
      else if (vectors.length === 4 && vectors.every((vector, at) => isSame(vector, this.expected[from + at]!)))
        this.tally.answered++;
      else this.tally.wrong++;
    }
  }

  private async store(): Promise<void> {
    const bytes = Buffer.alloc(FILE_BYTES, '{"custom_id": "a"}\n');
    for (; !this.isStopping; await sleep(200)) {
      const id = await this.upload(bytes).catch(() => undefined);
      if (id === undefined) {
        this.tally.files_refused++;
        continue;
      }
      const path = `${this.url}/v1/files/${id}`;
      const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
      const read = await fetch(`${path}/content`, { signal })
        .then(async (answer) => ({ status: answer.status, body: Buffer.from(await answer.arrayBuffer()) }))
        .catch(() => undefined);
      await fetch(path, { method: 'DELETE', signal }).then(
        (answer) => answer.arrayBuffer(),
        () => undefined,
      );
      if (read?.status === 200 && read.body.equals(bytes)) this.tally.files++;
      else if (read === undefined || LATER.includes(read.status)) this.tally.files_refused++;
      else this.unexpected(read.status, String(read.body));
    }
  }

  /** The name of a file that was stored; undefined where it was refused. */
  private async upload(bytes: Buffer): Promise<string | undefined> {
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new Blob([Uint8Array.from(bytes)]), 'a.jsonl');
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    const answer = await fetch(`${this.url}/v1/files`, { method: 'POST', body: form, signal });
    const text = await answer.text();
    if (answer.status === 200) return (JSON.parse(text) as { readonly id: string }).id;
    if (![NO_ROOM, ...LATER].includes(answer.status)) this.unexpected(answer.status, text);
    return undefined;
  }

  private unexpected(status: number, text: string): void {
    this.tally.wrong++;
    process.stderr.write(`http: ${status} ${text.slice(0, 300)}\n`);
  }

  /** Vectors, or undefined where it was told to come back or answered otherwise. Rejects when nobody answers. */
  private async ask(input: readonly string[]): Promise<readonly (readonly number[])[] | undefined> {
    const response = await fetch(`${this.url}/v1/embeddings`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: this.model, input }),
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
    });
    const body = (await response.json()) as { readonly data?: readonly { readonly embedding: readonly number[] }[] };
    if (response.status === 200) return body.data!.map(({ embedding }) => embedding);
    if (LATER.includes(response.status)) this.tally.refused++;
    else this.unexpected(response.status, JSON.stringify(body));
    return undefined;
  }
}

function texts(): string[] {
  return Array.from({ length: TEXTS }, (_, i) => `the cat and the dog ${'in the house '.repeat(i % 7)}${i}`);
}
