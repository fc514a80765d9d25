// What `shoal doctor` finds out about the model that the settings name: whether it runs where it should, which only a
// run can tell.

import { availableParallelism } from 'node:os';
import type { Logger, Precision } from '@shoal/core';
import { openTokenizer, type StoredModel } from '@shoal/models';
import { openDevice } from '../device/open-device.ts';
import type { Finding } from './finding.ts';

export interface ExamineModelOptions {
  readonly model: StoredModel;
  readonly device: string;
  readonly precision: 'auto' | Precision;
  readonly cacheDir: string;
  readonly environment: Record<string, string | undefined>;
}

/** Opens the model where a worker would and lets it run: what it says on the way is found, too. */
export async function examineModel({ model, ...options }: ExamineModelOptions): Promise<Finding> {
  const about = `${model.name} on ${options.device}`;
  const notes: string[] = [];
  const note = (fields: object, message: string): void =>
    void notes.push(
      message +
        (Reflect.has(fields, 'leastCosine')
          ? ` (least cosine ${Number(Reflect.get(fields, 'leastCosine')).toFixed(6)})`
          : '') +
        (Reflect.has(fields, 'tried') ? `: ${Object.values(Reflect.get(fields, 'tried') as object).join('; ')}` : ''),
    );
  const warnings: string[] = [];
  const log: Logger = {
    debug: () => undefined,
    info: note,
    warn: (fields, message) => void (note(fields, message), warnings.push(message)),
    error: note,
  };
  try {
    const tokenizer = await openTokenizer(model);
    const backend = await openDevice({
      ...options,
      model,
      tokenizer,
      threads: availableParallelism(),
      log,
      slots: {
        dims: model.dims,
        hidden: model.hidden,
        slotRows: 16,
        slotTokens: Math.max(8192, tokenizer.maxTokens + 8),
      },
    });
    await backend.stop();
    const found = [`runs on ${backend.device} in ${backend.precision}`, ...notes].join('; ');
    return warnings.length === 0
      ? { about, state: 'ok', found }
      : { about, state: 'warning', found, cure: 'the lines above say what keeps the GPU from being used' };
  } catch (error) {
    return {
      about,
      state: 'broken',
      found: error instanceof Error ? error.message : String(error),
      cure: 'the lines above say what to put right; --device cpu works meanwhile',
    };
  }
}
