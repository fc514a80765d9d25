import { describe, expect, test } from 'vitest';
import { readRecords } from './records.ts';

async function* chunksOf(bytes: Buffer, size = 5): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function recordsOf(content: string | Buffer, size?: number) {
  const found = [];
  for await (const record of readRecords(chunksOf(Buffer.from(content), size), {
    format: 'markdown',
    name: 'docs/a.md',
    firstIndex: 3,
    textField: undefined,
    idField: undefined,
  }))
    found.push(record);
  return found;
}

const sentence = 'A lease that is not renewed runs out, and the queue gives the job to somebody else. ';

describe('records of Markdown', () => {
  test('are its passages, called by file, headings and number, embedded with their headings', async () => {
    expect(
      await recordsOf(`\uFEFFIntro, ünder no heading.\n\n# Guide\n\n## What's *new*?\n${sentence.repeat(6)}\n`),
    ).toEqual([
      { index: 3, id: 'docs/a.md#/1', text: 'Intro, ünder no heading.', file: 'docs/a.md', line: undefined },
      {
        index: 4,
        id: 'docs/a.md#guide/whats-new/1',
        text: expect.stringMatching(/^Guide › What's new\?: A lease/),
        file: 'docs/a.md',
        line: undefined,
      },
      {
        index: 5,
        id: 'docs/a.md#guide/whats-new/2',
        text: expect.stringContaining('A lease'),
        file: 'docs/a.md',
        line: undefined,
      },
    ]);
  });

  test('under headings of the same name are counted on', async () => {
    expect(
      (await recordsOf('# A\nfirst one\n# A!\nsecond one\n')).map((record) => 'id' in record && record.id),
    ).toEqual(['docs/a.md#a/1', 'docs/a.md#a/2']);
  });

  test('leave nothing out that has a letter or a digit: no licence, no short answer, no line of code', async () => {
    const code = Array.from({ length: 20 }, (_, at) => `step ${at}`).join('\n');
    const texts = (await recordsOf(`# License\nMIT\n# Size\n42\n# Code\n\`\`\`\n${code}\n\`\`\`\n# Rule\n\n---\n`)).map(
      (record) => ('text' in record ? record.text : ''),
    );
    expect(texts.slice(0, 2)).toEqual(['License: MIT', 'Size: 42']);
    expect(texts.slice(2).join('\n')).toContain('step 19');
    expect(texts.at(-1)).toBe('Rule');
  });

  test('of a document that is no UTF-8, or too long, are one bad record', async () => {
    expect(await recordsOf(Buffer.from('# T\nna\xefve', 'latin1'))).toMatchObject([
      { index: 3, problem: expect.stringContaining('docs/a.md: not valid UTF-8 at byte 6 (0xef); convert the file') },
    ]);
    expect(await recordsOf(Buffer.alloc(17 << 20, 'words '), 1 << 20)).toMatchObject([
      { index: 3, problem: expect.stringContaining('docs/a.md: the document is longer than 16 MiB') },
    ]);
  });

  test('of a paragraph that is too long for the parser are its lines', async () => {
    const records = await recordsOf('a soft broken line of one paragraph\n'.repeat(12_000), 1 << 16);
    expect(records.length).toBeGreaterThan(1_000);
  }, 30_000);
});
