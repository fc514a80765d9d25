// `shoal tune`: measures this device with one model, or with --kind similarity from which sizes on a GPU is faster at
// comparing, and keeps what it found; workers that start here afterwards use it. Prints a table of what was tried, with
// the preset beside the choice.

import { availableParallelism, loadavg } from 'node:os';
import { ShoalError } from '@shoal/contract';
import { cacheFolder, liveBytes, type MemoryLaw, type Settings } from '@shoal/core';
import { openTokenizer } from '@shoal/models';
import { createLogger } from '@shoal/ops/service';
import { isSimulated } from '@shoal/queue';
import { forgetTuned, tune as tuneDevice, tunedProfiles, type TuneReport, type TunedProfile } from '@shoal/worker';
import type { ComparingReport } from '@shoal/worker/similarity';
import { shareProgress } from '../progress.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface TuneFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
  /** Only shows what is kept. */
  readonly show?: boolean;
  /** Only forgets it. */
  readonly undo?: boolean;
}

export async function tune(terminal: Terminal, flags: TuneFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  if (flags.show === true || flags.undo === true)
    return kept(terminal, flags, cacheFolder(settings.cacheDir, terminal.environment));
  if (isSimulated(settings.device))
    throw new ShoalError(
      'CONFIG_INVALID',
      `device ${settings.device} is simulated and has nothing to measure; tune cpu or gpu:<index>`,
    );
  const isQuiet = flags.quiet === true || flags.json === true;
  const load = busyWords(loadavg()[0] ?? 0, availableParallelism());
  if (load !== undefined && flags.quiet !== true) say(terminal, load);
  if (settings.kind === 'similarity') return tuneSimilarity(terminal, flags, settings, isQuiet);
  const model = await fetchModel(terminal, settings.model, { settings, isQuiet });
  const tokenizer = await openTokenizer(
    model,
    settings.maxTokens === undefined ? {} : { maxTokens: settings.maxTokens },
  );
  const progress = shareProgress(terminal, `measuring ${model.name}`, !isQuiet);
  try {
    const report = await tuneDevice({
      model,
      tokenizer,
      device: settings.device,
      precision: settings.precision,
      encoder: settings.encoder,
      sessions: settings.deviceSessions,
      cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
      threads: settings.threads || availableParallelism(),
      maxRows: settings.maxRows,
      poolTokens: settings.poolTokens,
      log: createLogger({ level: 'error', name: 'tune' }),
      onProgress: (done) => progress.update(done, 1),
      signal: terminal.signal,
    });
    progress.stop();
    await print(terminal, flags.json === true ? `${JSON.stringify(report)}\n` : tableOf(model.name, report));
    if (!isQuiet) say(terminal, keptWords(model.name, report));
  } finally {
    progress.stop();
  }
}

/** What else runs is measured as well: said before two minutes are spent. */
export function busyWords(load: number, cores: number): string | undefined {
  if (load <= cores / 2) return undefined;
  return (
    `this machine is busy (load average ${load.toFixed(1)} on ${cores} ${cores === 1 ? 'core' : 'cores'}), and what else ` +
    'runs on it is measured as well; what noise decides is not kept'
  );
}

export function keptWords(modelName: string, { isCertain, path, presetTokens, kneeTokens }: TuneReport): string {
  if (isCertain && path !== undefined)
    return `kept in ${path}; workers of ${modelName} on this device use it from their next start (shoal tune --undo)`;
  return (
    `the preset of ${presetTokens ?? kneeTokens} padded tokens stays: nothing beat it by more than the rounds differ ` +
    'among themselves. Tune again when nothing else runs'
  );
}

/** --show and --undo. */
async function kept(terminal: Terminal, flags: TuneFlags, cacheDir: string): Promise<void> {
  const profiles = await tunedProfiles(cacheDir);
  if (flags.undo === true) for (const profile of profiles) await forgetTuned(profile);
  if (flags.json === true)
    return print(
      terminal,
      `${JSON.stringify(profiles.map(({ path, profile }) => ({ path, ...profile })))}
`,
    );
  if (profiles.length === 0) say(terminal, 'shoal tune has kept nothing here; workers begin with their presets');
  await print(terminal, profiles.map(profileLine).join(''));
  if (flags.undo === true && profiles.length > 0 && flags.quiet !== true)
    say(terminal, 'forgotten; workers begin with their presets from their next start');
}

function profileLine({ path, profile: { key, kneeTokens, lanes, measuredAt } }: TunedProfile): string {
  const beside = lanes === undefined ? '' : `, ${lanes} lanes`;
  return `${key.deviceKind}, ${key.precision}: ${kneeTokens} padded tokens${beside}, measured ${measuredAt}  ${path}
`;
}

/** From which sizes on the GPU is faster at comparing. */
async function tuneSimilarity(
  terminal: Terminal,
  flags: TuneFlags,
  settings: Settings,
  isQuiet: boolean,
): Promise<void> {
  const { tuneComparing } = await import('@shoal/worker/similarity');
  const progress = shareProgress(terminal, 'measuring CPU and GPU', !isQuiet);
  try {
    const report = await tuneComparing({
      ...settings,
      cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
      threads: settings.threads || availableParallelism(),
      log: createLogger({ level: 'error', name: 'tune' }),
      onProgress: (done) => progress.update(done, 1),
      signal: terminal.signal,
    });
    progress.stop();
    await print(terminal, flags.json === true ? `${JSON.stringify(report)}\n` : breakEvenTable(report));
    if (!isQuiet && report.path !== undefined)
      say(terminal, `kept in ${report.path}; similarity workers on this GPU use it from their next start`);
  } finally {
    progress.stop();
  }
}

/** Dimensions for which values are also told as rows. */
const USUAL_DIMS = 384;

export function breakEvenTable({ device, key, breakEvens, seconds }: ComparingReport): string {
  if (breakEvens.length === 0)
    return `comparing on ${device}: there is one device and nothing to choose, so nothing was measured\n`;
  const lines = breakEvens.map(({ kind, queries, work }) => {
    const found = work === undefined ? 'never' : Math.round(work).toLocaleString('en');
    const rows = work === undefined || kind === 'spread' ? '' : Math.ceil(work / USUAL_DIMS).toLocaleString('en');
    return [kind.padEnd(14), String(queries).padStart(7), found.padStart(16), rows.padStart(10)].join('  ').trimEnd();
  });
  return [
    `comparing on ${device} (${key}), measured in ${Math.round(seconds)} s: the GPU is sooner from so many ` +
      'values for each query on',
    '',
    `what            queries            values  rows of ${USUAL_DIMS}`,
    ...lines,
    '',
  ].join('\n');
}

export function tableOf(modelName: string, report: TuneReport): string {
  const { device, key, tried, kneeTokens, lanes: chosenLanes, presetTokens, seconds } = report;
  const best = Math.max(...tried.map(({ textsPerSecond }) => textsPerSecond));
  const lines = tried.map(({ maxPaddedTokens, lanes, textsPerSecond, spread }) => {
    const isChosen = maxPaddedTokens === kneeTokens && lanes === chosenLanes;
    const marks = [
      isChosen ? (report.isCertain ? '← chosen' : '← stays') : '',
      maxPaddedTokens === presetTokens ? '(preset)' : '',
    ]
      .filter(Boolean)
      .join(' ');
    return (
      `${laneColumn(lanes)}${String(maxPaddedTokens).padStart(13)}  ${rate(textsPerSecond).padStart(9)}  ` +
      `${`${Math.round((100 * textsPerSecond) / best)} %`.padStart(6)}  ` +
      `${(spread === undefined ? '' : `± ${Math.round(50 * spread)} %`).padStart(6)}  ${marks}`
    ).trimEnd();
  });
  return [
    `${modelName} on ${device} (${key.deviceKind}, ` +
      `${key.precision}${chosenLanes === undefined ? '' : ', native encoder'}), measured in ` +
      `${Math.round(seconds)} s`,
    '',
    `${chosenLanes === undefined ? '' : 'lanes  '}padded tokens    texts/s  of best  spread`,
    ...lines,
    '',
    ...memoryLines(report),
    '',
  ].join('\n');
}

function laneColumn(lanes: number | undefined): string {
  return lanes === undefined ? '' : `${String(lanes).padStart(5)}  `;
}

/**
 * Smallest and largest widths that a batch of the chosen budget can have; the native encoder's tokens cost the same in
 * all of them.
 */
function memoryLines({ memory, memoryReason, kneeTokens }: TuneReport): string[] {
  if (memory === undefined) return [`memory: not measured (${memoryReason ?? 'nothing tells'})`];
  const widths = memory.perToken.length === 1 ? [32] : [32, memory.perToken.at(-1)!.width];
  const peaks = widths.map(
    (width) =>
      `${megabytes(liveBytes(memory, { rows: Math.max(1, Math.floor(kneeTokens / width)), width }))} MB at ` +
      `width ${width}`,
  );
  return [
    `memory: ${megabytes(memory.loadedBytes)} MB loaded; with a batch of the chosen budget ${peaks.join(', ')}`,
    `per token: ${perToken(memory)}`,
  ];
}

function perToken({ perToken: knots }: MemoryLaw): string {
  return knots.map(({ width, bytes }) => `${(bytes / 1024).toFixed(1)} KB at width ${width}`).join(', ');
}

function rate(textsPerSecond: number): string {
  return textsPerSecond < 1000 ? textsPerSecond.toFixed(1) : Math.round(textsPerSecond).toLocaleString('en');
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(0);
}
