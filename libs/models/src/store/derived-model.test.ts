// Int8 and f16 forms of imported models: every family with random weights through calibration, graph and measurement, int8
// in both forms of the codes, and what is refused with nothing left behind. Real weights: docs/models.md has the figures, and
// graph/int8.test.ts holds minilm's.

import { mkdtemp, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { int8KindHere } from '../graph/int8-kind.ts';
import { openGraph } from '../graph/open-graph.ts';
import { findHubModel } from '../hub/find-hub-model.ts';
import { parseHubName } from '../hub/hub-name.ts';
import { madeModel, madeNames, madeTexts } from '../testing/made-models.ts';
import { GraphRunner, cosine } from '../testing/onnx-run.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { importModel } from './import-model.ts';
import { DERIVED_FORMS, type WeightDtype } from './derived-forms.ts';
import { importDerived, type DerivedOptions, type DerivedReport } from './derived-model.ts';
import { openModel, pullModel, verifyModel } from './model-store.ts';
import type { RunGraph } from './int8-calibration.ts';
import { removeModel } from './remove-model.ts';
import { showModel } from './show-model.ts';
import type { StoredModel } from './stored-model.ts';

let folder: string;
let cacheDir: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-derived-'));
  cacheDir = join(folder, 'cache');
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const runGraph: RunGraph = async function* runAlone({ path, dims }, rows) {
  const runner = await GraphRunner.open(path, { dims });
  for (const row of rows) yield (await runner.run([row]))[0]!;
  await runner.release();
};

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const texts = await madeTexts();
/** Few, because the families are many: at night every second one, by day every fourth of those that are short. */
const passages = texts.filter((text, at) => (isNightly ? at % 2 === 0 : at % 4 === 0 && text.length < 400));
const embedders = (await madeNames()).filter((name) => !/^(?:cross-encoder|splade|static)-/.test(name));
/**
 * By day: BERT's own graph, and vectors of their own length; ReLU; shared weights; buckets; positions that are counted;
 * gates; norms before, with windows; fewer key heads, last token; norms around.
 */
const BY_DAY = /^(?:bert-raw|bert-relu|albert|mpnet|xlmr-mean|nomic-bert|modernbert-mean|qwen3-last|gemma3-embedding)$/;
/** Over all passages its least cosine is 0.9819. */
const TOO_FAR = 'gte-en';
const tried = embedders.filter((name) => (isNightly ? name !== TOO_FAR : BY_DAY.test(name)));
if (!isNightly) console.log('the other families are left to SHOAL_TEST_NIGHTLY=1: all together take a minute');

async function bring(family: string, name = 'made'): Promise<StoredModel> {
  await madeModel(family, join(folder, family));
  return (await importModel(join(folder, family), { cacheDir, name })).model;
}

const derive = (base: StoredModel, dtype: WeightDtype, options: Partial<DerivedOptions> = {}): Promise<DerivedReport> =>
  importDerived(base, dtype, { cacheDir, runGraph, passages, ...options });

const quantize = (base: StoredModel, options: Partial<DerivedOptions> = {}): Promise<DerivedReport> =>
  derive(base, 'int8', options);

async function rowsOf(model: StoredModel, of: readonly string[]): Promise<number[][]> {
  const tokenizer = await openTokenizer(model);
  return of.map((text) => [...tokenizer.encode(text).ids]);
}

const refusal = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as unknown });

describe('an int8 form is near its model, alone and among others, whichever way its codes are kept', () => {
  test.each(tried)(
    '%s',
    async (family) => {
      const { model, facts } = await quantize(await bring(family));
      console.log(`${family}: mean ${facts.meanCosine}, least ${facts.leastCosine}, recall@10 ${facts.recallAt10}`);
      expect(facts.leastCosine).toBeGreaterThanOrEqual(DERIVED_FORMS.int8.leastCosine);
      expect(facts.meanCosine).toBeLessThan(1); // it is not the fp32 graph under another name
      const rows = await rowsOf(
        model,
        texts.filter((text, at) => at % 6 === 0 && text.length < 400),
      );
      const vectors = new Map<string, readonly Float32Array[]>();
      const kinds =
        (await int8KindHere()) === 'int8' ? (['int8', 'int8-unsigned'] as const) : ['int8-unsigned' as const];
      for (const kind of kinds) {
        const runner = await GraphRunner.open(await openGraph(model, { cacheDir, kind }), model);
        const together = await runner.run(rows);
        for (const [at, row] of rows.entries())
          expect(cosine((await runner.run([row]))[0]!, together[at]!)).toBeGreaterThan(0.999999);
        await runner.release();
        vectors.set(kind, together);
      }
      const [one, other = one] = [...vectors.values()];
      for (const [at, vector] of one!.entries()) expect(cosine(vector, other![at]!)).toBeGreaterThan(0.9999);
    },
    60_000,
  );
});

test.runIf(isNightly)(`${TOO_FAR} comes to lie too far away, and is refused`, async () => {
  const message = /Over 450 passages the least cosine is 0\.9\d+ .* at least 0\.99 is asked for/;
  await expect(bring(TOO_FAR).then((model) => quantize(model, { passages: undefined }))).rejects.toEqual(
    refusal('MODEL_UNAVAILABLE', message),
  );
});

/** By day: BERT's own layers, positions that are counted, a scaled table that fp16 alone could not serve. */
const HALVED_BY_DAY = /^(?:bert-raw|xlmr-mean|gemma3-embedding)$/;

describe('an f16 form is all but its model, alone and among others, in a smaller graph', () => {
  test.each(embedders.filter((name) => isNightly || HALVED_BY_DAY.test(name)))(
    '%s',
    async (family) => {
      const base = await bring(family);
      const { model, facts } = await derive(base, 'f16');
      console.log(`${family}: mean ${facts.meanCosine}, least ${facts.leastCosine}, recall@10 ${facts.recallAt10}`);
      expect(facts.leastCosine).toBeGreaterThanOrEqual(0.99999);
      const rows = await rowsOf(
        model,
        texts.filter((text, at) => at % 6 === 0 && text.length < 400),
      );
      const [graph, whole] = [await openGraph(model, { cacheDir }), await openGraph(base, { cacheDir })];
      const { wordValues } = await showModel(model.name, { cacheDir });
      expect((await stat(whole)).size - (await stat(graph)).size).toBeGreaterThan(1.8 * wordValues!);
      const [runner, fp32] = [await GraphRunner.open(graph, model), await GraphRunner.open(whole, base)];
      const [together, before] = [await runner.run(rows), await fp32.run(rows)];
      expect(together).not.toEqual(before); // it is not the fp32 graph under another name
      for (const [at, row] of rows.entries())
        expect(cosine((await runner.run([row]))[0]!, together[at]!)).toBeGreaterThan(0.999999);
      await Promise.all([runner.release(), fp32.release()]);
    },
    60_000,
  );
});

describe('the f16 form in the store', () => {
  test('is a model of its own with the same files, beside the int8 form', async () => {
    const base = await bring('nomic-bert');
    const { model, facts } = await derive(base, 'f16');
    const int8 = (await quantize(base)).model;
    expect(model).toMatchObject({ name: 'made-f16', graphKind: 'fused-fp32-words16', precision: 'fp32' });
    expect(new Set([base.revision, int8.revision, model.revision]).size).toBe(3);
    expect(await openModel('made-f16', { cacheDir })).toEqual(model);
    expect((await verifyModel('made-f16', { cacheDir })).files).toEqual(
      (await verifyModel('made', { cacheDir })).files,
    );
    const { derived, queue } = await showModel('made-f16', { cacheDir });
    expect({ derived, queue }).toEqual({ derived: facts, queue: 'embed-made-f16' });
    expect(facts).toMatchObject({ dtype: 'f16', base: 'made', baseRevision: base.revision });
    await expect(quantize(model)).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /it is the f16 form of made already/));
    await removeModel('made-f16', { cacheDir });
    expect(await openModel('made', { cacheDir })).toEqual(base);
    expect(await openModel('made-int8', { cacheDir })).toEqual(int8);
  });

  test('is written so that a Shoal which does not know it refuses it', async () => {
    const { model } = await derive(await bring('nomic-bert'), 'f16');
    const path = join(model.folder, 'import.json');
    const manifest = JSON.parse(await readFile(path, 'utf8')) as { version: number };
    expect(manifest.version).toBe(4); // those that know int8 alone read 3
    await writeFile(path, JSON.stringify({ ...manifest, version: 3 }));
    await expect(openModel('made-f16', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /another version of Shoal/),
    );
  });

  test('is not what the name of its repository on the hub means', async () => {
    await madeModel('nomic-bert', join(folder, 'nomic-bert'));
    const hub = { repository: 'org/made', commit: 'a'.repeat(40), asked: 'main', licence: 'mit', files: [] };
    const pulled = await importModel(join(folder, 'nomic-bert'), { cacheDir, name: 'other', hub });
    await derive(pulled.model, 'f16');
    expect((await findHubModel(parseHubName('org/made'), join(cacheDir, 'models')))?.name).toBe('other');
    await expect(pullModel('other-f16', { cacheDir, force: true })).rejects.toEqual(
      refusal('USAGE', /fetch that one with --dtype f16, which makes other-f16 again/),
    );
  });

  test('is refused where its table says more than halves can, and nothing is stored', async () => {
    const source = join(folder, 'bert-raw');
    await madeModel('bert-raw', source);
    const path = join(source, 'model.safetensors');
    const bytes = await readFile(path);
    const head = JSON.parse(bytes.subarray(8, 8 + Number(bytes.readBigUInt64LE())).toString()) as Record<
      string,
      { data_offsets: [number, number] }
    >;
    const table = Object.keys(head).find((name) => name.endsWith('word_embeddings.weight'))!;
    bytes.writeFloatLE(70_000, 8 + Number(bytes.readBigUInt64LE()) + head[table]!.data_offsets[0]);
    await writeFile(path, bytes);
    const { model } = await importModel(source, { cacheDir, name: 'made' });
    await expect(derive(model, 'f16')).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', new RegExp(`${table} holds 70000, which fp16 cannot say.* use fp32`)),
    );
    await expectNothing('made-f16');
    const reranker = await bring('cross-encoder-bert', 'scores');
    await expect(derive(reranker, 'f16')).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /scores has no f16 form/));
    const rows = await bring('static-embedding', 'table');
    await expect(derive(rows, 'f16')).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /table has no f16 form: .* no layers/),
    );
  });
});

describe('the int8 form in the store', () => {
  test('is a model of its own with the same files, and says how near it comes', async () => {
    const base = await bring('nomic-bert');
    const { model, facts } = await quantize(base);
    expect(model).toMatchObject({ name: 'made-int8', graphKind: 'int8', precision: 'int8', dims: base.dims });
    expect(model.revision).not.toBe(base.revision);
    const opened = await openModel('made-int8', { cacheDir });
    expect(opened).toEqual(model);
    expect((await verifyModel('made-int8', { cacheDir })).files.map(({ path }) => path)).toContain('calibration.json');
    const { derived, queue } = await showModel('made-int8', { cacheDir });
    expect({ derived, queue }).toEqual({ derived: facts, queue: 'embed-made-int8' });
    expect(facts).toMatchObject({ base: 'made', baseRevision: base.revision });
    expect(await openModel('made', { cacheDir })).toEqual(base);
    await removeModel('made', { cacheDir });
    expect(await openModel('made-int8', { cacheDir })).toEqual(model);
  });

  test('is made once, and again where its model became another one', async () => {
    const base = await bring('nomic-bert');
    const { model } = await quantize(base);
    let runs = 0;
    const counting: RunGraph = (...given) => {
      runs += 1;
      return runGraph(...given);
    };
    expect((await quantize(base, { runGraph: counting })).model).toEqual(model);
    expect(runs).toBe(0);
    await madeModel('mpnet', join(folder, 'mpnet'));
    const other = (await importModel(join(folder, 'mpnet'), { cacheDir, name: 'made', force: true })).model;
    const again = await quantize(other, { runGraph: counting });
    expect(runs).toBe(3); // calibration, model, int8 form
    expect(again.model.revision).not.toBe(model.revision);
    expect((await readdir(join(cacheDir, 'models/made-int8'))).filter((entry) => !entry.startsWith('.'))).toEqual([
      again.model.revision,
    ]);
  });

  test('is calibrated with the prompts of its model', async () => {
    const rowsSeen: string[] = [];
    const watching: RunGraph = (graph, rows) => {
      rowsSeen.push(...rows.map((row) => row.join()));
      return runGraph(graph, rows);
    };
    const base = await bring('bert-prompts');
    await quantize(base, { runGraph: watching });
    for (const prompt of ['', ...Object.values(base.prompts)]) {
      const [start] = await rowsOf(base, [prompt]);
      const beginning = start!.slice(0, -1).join();
      expect(rowsSeen.some((row) => row.startsWith(beginning))).toBe(true);
    }
  });

  test('is not what the name of its repository on the hub means', async () => {
    const base = await bring('nomic-bert');
    const hub = { repository: 'org/made', commit: 'a'.repeat(40), asked: 'main', licence: 'mit', files: [] };
    const pulled = await importModel(join(folder, 'nomic-bert'), { cacheDir, name: 'other', hub });
    await quantize(pulled.model);
    const found = await findHubModel(parseHubName('org/made'), join(cacheDir, 'models'));
    expect(found?.name).toBe('other');
    await expect(pullModel('other-int8', { cacheDir, force: true })).rejects.toEqual(
      refusal('USAGE', /other-int8 is made of other and cannot be fetched: fetch that one with --dtype int8/),
    );
    expect(base.name).toBe('made');
  });
});

async function expectNothing(name = 'made-int8'): Promise<void> {
  expect(await stat(join(cacheDir, 'models', name)).catch(() => undefined)).toBeUndefined();
  const graphs = await readdir(join(cacheDir, 'graphs')).catch(() => []);
  expect(graphs.filter((graph) => graph.startsWith(name))).toEqual([]);
}

/** An engine that computes int8 wrongly. */
const runsWrongly = (turn: (vector: Float32Array) => Float32Array): RunGraph =>
  async function* runWrongly(graph, rows) {
    for await (const vector of runGraph(graph, rows)) yield graph.precision === 'int8' ? turn(vector) : vector;
  };

describe('refused, with nothing stored', () => {
  test('vectors that come to lie too far away, with the figures', async () => {
    const base = await bring('modernbert-mean');
    await expect(
      quantize(base, { runGraph: runsWrongly((vector) => vector.with(0, vector[0]! + 0.2)) }),
    ).rejects.toEqual(
      refusal(
        'MODEL_UNAVAILABLE',
        /made-int8 is not made: .* least cosine is 0\.9\d+ \(mean 0\.9\d+\), and at least 0\.99 is/,
      ),
    );
    await expectNothing();
  });

  test('vectors that are no numbers', async () => {
    const base = await bring('modernbert-mean');
    await expect(quantize(base, { runGraph: runsWrongly((vector) => vector.fill(NaN)) })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /least cosine is -1\.0000/),
    );
    await expectNothing();
  });

  test('a name that is another model, and a model that is int8 or no import', async () => {
    const base = await bring('nomic-bert');
    await bring('mpnet', 'made-int8');
    await expect(quantize(base)).rejects.toEqual(
      refusal('USAGE', /would be called made-int8, and another model has this name \(imported from mpnet\)/),
    );
    const { model } = await quantize(base, { force: true });
    await expect(quantize(model)).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /made-int8 has no int8 form: it is the int8 form of made already/),
    );
    const tiny = await openModel('tiny-random', { cacheDir });
    await expect(quantize(tiny)).rejects.toEqual(refusal('USAGE', /made of models that were imported or pulled/));
    const reranker = await bring('cross-encoder-bert', 'scores');
    await expect(quantize(reranker)).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /scores has no int8 form: it is a reranker/),
    );
    const table = await bring('static-embedding', 'table');
    await expect(quantize(table)).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /table has no int8 form: .* no layers/));
  });

  test('one of another quantizer is not opened', async () => {
    const { model } = await quantize(await bring('nomic-bert'));
    const path = join(model.folder, 'import.json');
    const manifest = JSON.parse(await readFile(path, 'utf8')) as { int8: { quantizer: number } };
    manifest.int8.quantizer = 0;
    await writeFile(path, JSON.stringify(manifest));
    await expect(openModel('made-int8', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /version 0 of the quantizer.* shoal model pull made --dtype int8 makes it again/),
    );
  });
});
