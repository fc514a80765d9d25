// Which files of a folder hold a model's weights: one safetensors file, several by their index, or, where there are none,
// a graph of an exporter. What is chosen among several graphs is said; what cannot be chosen is refused with their names.

import { join, posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { INDEX_FILE, WEIGHTS_FILE, placesIn } from '../graph/named-tensors.ts';
import type { SourceFolder } from './source-folder.ts';
import { VOCABULARY } from './vocabulary-file.ts';

/** As exporters call it; beside it may lie others, in fewer bits. */
const USUAL_GRAPHS = ['onnx/model.onnx', 'model.onnx'];

/**
 * Paths of the weights, the index first where there is one; none where there is neither. The index may not be a Git LFS
 * pointer.
 */
export async function weightFiles(source: SourceFolder, encoder: string): Promise<readonly string[]> {
  const [single, index] = [WEIGHTS_FILE, INDEX_FILE].map((name) => posix.join(encoder, name));
  if (await source.has(single!)) return [single!];
  if (!(await source.has(index!))) return [];
  await source.refusePointers([index!]);
  const places = placesIn(await source.readJson(index!));
  return [index!, ...[...new Set(places.values())].sort().map((name) => posix.join(encoder, name))];
}

/** The graph of a folder without weights, and a note; undefined where there is none, or more than one and none usual. */
export async function usualGraph(
  source: SourceFolder,
  encoder: string,
): Promise<{ readonly path: string; readonly note: string } | undefined> {
  if ((await weightFiles(source, encoder)).length > 0) return undefined;
  const graphs = await graphsIn(source, encoder);
  const usual = USUAL_GRAPHS.map((name) => posix.join(encoder, name)).find((path) => graphs.includes(path));
  const path = usual ?? (graphs.length === 1 ? graphs[0] : undefined);
  if (path === undefined) return undefined;
  const others = graphs.filter((other) => other !== path);
  const more =
    others.length === 0
      ? ''
      : `. There ${others.length === 1 ? 'is' : 'are'} ${others.join(', ')} as well: name the file to import that one`;
  return { path, note: `no ${WEIGHTS_FILE}: the graph ${path} is taken${more}` };
}

/** MODEL_CORRUPT with what is there instead of these. */
export async function missingFiles(
  source: SourceFolder,
  encoder: string,
  missing: readonly string[],
): Promise<ShoalError> {
  const other: string[] = [];
  for (const name of ['pytorch_model.bin', 'tf_model.h5', VOCABULARY])
    if (await source.has(posix.join(encoder, name))) other.push(posix.join(encoder, name));
  const graphs = await graphsIn(source, encoder);
  const hints: string[] = [];
  if (missing.some((path) => path.endsWith(WEIGHTS_FILE)) && graphs.length > 0)
    hints.push(
      `There ${graphs.length === 1 ? 'is' : 'are'} ${graphs.join(', ')}: name the graph to import, shoal model ` +
        `import ${join(source.path, graphs[0]!)}`,
    );
  if (other.length > 0)
    hints.push(
      `There is ${other.join(' and ')}: save the model as one safetensors file with a tokenizer.json ` +
        `(in Python: SentenceTransformer(${JSON.stringify(source.path)}).save("NEW-FOLDER"))`,
    );
  return new ShoalError('MODEL_CORRUPT', [`${source.path} has no ${missing.join(', no ')}`, ...hints].join('. '), {
    folder: source.path,
    missing,
  });
}

async function graphsIn(source: SourceFolder, encoder: string): Promise<readonly string[]> {
  const graphs: string[] = [];
  for (const folder of [encoder, posix.join(encoder, 'onnx')])
    for (const name of await source.list(folder)) if (name.endsWith('.onnx')) graphs.push(posix.join(folder, name));
  return graphs;
}
