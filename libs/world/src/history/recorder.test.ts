import { fork } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { problemOfEvent } from './event.ts';
import { readHistory, readHistoryFolder } from './read-history.ts';
import { HistoryWriter, MemoryHistory, Recorder } from './recorder.ts';

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'shoal-history-'));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

test('a call is written at its beginning and at its first end', () => {
  const history = new MemoryHistory();
  let nowMs = 0;
  const recorder = new Recorder('p', history, () => ++nowMs);
  const end = recorder.invoke('add', 'a', { fingerprint: 'f' });
  end('ok', { outcome: 'added' });
  end('unknown');
  recorder.observe('see', 'a', { outcome: 'completed', since: 0 });
  expect(history.events).toEqual([
    { at: 1, process: 'p', op: 'add', id: 'a', kind: 'invoke', call: 1, fingerprint: 'f' },
    { at: 2, process: 'p', op: 'add', id: 'a', kind: 'ok', call: 1, outcome: 'added' },
    { at: 3, process: 'p', op: 'see', id: 'a', kind: 'ok', outcome: 'completed', since: 0 },
  ]);
});

test('a process that is killed in the middle of writing loses no event that it had written', async () => {
  const path = join(folder(), 'p.jsonl');
  const code = `
    import { HistoryWriter, Recorder } from ${JSON.stringify(new URL('./recorder.ts', import.meta.url).href)};
    const recorder = new Recorder('p', new HistoryWriter(${JSON.stringify(path)}));
    for (let made = 1; ; made++) {
      recorder.invoke('add', 'job-' + made);
      if (made % 500 === 0) { process.send(made); await new Promise((resolve) => setImmediate(resolve)); }
    }`;
  const script = join(folder(), 'write.mts');
  writeFileSync(script, code);
  const child = fork(script, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  let told = 0;
  child.on('message', (made) => {
    told = Number(made);
    if (told >= 2_000) child.kill('SIGKILL');
  });
  await once(child, 'exit');
  const { events } = readHistory([path]);
  expect(events.length).toBeGreaterThanOrEqual(told);
  expect(events.at(-1)!.id).toBe(`job-${events.length}`);
});

test('histories of several processes are one, by time, and an unfinished last line is left out and named', () => {
  const at = folder();
  const [one, two] = ['one', 'two'].map((name) => {
    const writer = new HistoryWriter(join(at, `${name}.jsonl`));
    return { writer, write: (ms: number) => writer.write({ at: ms, process: name, op: 'rest', id: '', kind: 'ok' }) };
  }) as [{ writer: HistoryWriter; write(ms: number): void }, { writer: HistoryWriter; write(ms: number): void }];
  one.write(1);
  two.write(2);
  one.write(3);
  one.writer.close();
  appendFileSync(two.writer.path, '{"at":4,"proc');
  const { events, unfinished } = readHistoryFolder(at);
  expect(events.map((event) => [event.process, event.at])).toEqual([
    ['one', 1],
    ['two', 2],
    ['one', 3],
  ]);
  expect(unfinished).toEqual([two.writer.path]);
  expect(() => one.write(5)).toThrow('after');
  expect(() => new HistoryWriter(one.writer.path)).toThrow('EEXIST');
});

test('what is no event is refused with its file and line', () => {
  const path = join(folder(), 'p.jsonl');
  writeFileSync(path, '{"at":1,"process":"p","op":"rest","id":"","kind":"ok"}\nnonsense\n{"at":1}\n');
  expect(() => readHistory([path])).toThrow(`${path}:2: is not JSON\n${path}:3: has no process`);
});

test.each([
  [{ at: 'now' }, 'has no time'],
  [{ op: 'embrace' }, 'has the op "embrace", which there is not'],
  [{ kind: 'maybe' }, 'has the kind "maybe", which there is not'],
  [{ kind: 'invoke' }, 'begins a call that has no number'],
  [{ note: 'x' }, 'has a field "note" that no event has'],
  [{ token: 5 }, 'has token 5'],
  [{ values: { rows: 'many' } }, 'has values that are no numbers'],
])('an event with %j is none', (change, problem) => {
  expect(problemOfEvent({ at: 1, process: 'p', op: 'add', id: 'a', kind: 'ok', ...change })).toBe(problem);
});
