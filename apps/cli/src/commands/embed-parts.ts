// `shoal embed FILES -o FOLDER/`: a run of parts (docs/decisions/parts.md). Workers read the files and write the objects;
// this command cuts, asks, follows and tells. The story is `embedParts`: check what can be checked without a server, cut,
// look at who would do it and where it would go, ask, follow to the end. It may leave at any time: the same command
// finds the run again.

import { ShoalError, manifestName, partId, partName, partsQueue, queueOf } from '@shoal/contract';
import { noLog, type Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import { Canceller, JobProducer, checkServer, queueService } from '@shoal/queue';
import { PartLedger } from '@shoal/queue/payload';
import {
  refuseDimensions,
  refuseMissingPrompt,
  refuseOwnLengths,
  wantsUnit,
  withLong,
  type EmbedFlags,
} from '../embed/flags.ts';
import { refuseFieldsWithoutEffect, withInputs, type Input } from '../input/files.ts';
import { checkWorkers } from '../parts/check-workers.ts';
import { PartsRun } from '../parts/parts-run.ts';
import { PART_ROWS, STEM, filesIn, namesOf, planParts, refuseOwnObjects, type Plan } from '../parts/plan-parts.ts';
import {
  checkRoom,
  readManifest,
  refuseOtherRun,
  verifyObjects,
  writeManifest,
  type Manifest,
} from '../parts/run-folder.ts';
import { openRunPlace, type RunPlace } from '../parts/run-place.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { withConnection } from '../processes/queue-connection.ts';
import { duration, rowProgress, shareProgress } from '../progress.ts';
import { settingsOf } from '../settings.ts';
import { print, say, sayAway, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';

export async function embedParts(terminal: Terminal, sources: readonly string[], given: EmbedFlags): Promise<void> {
  const flags = withLong(given);
  refuseFlagsOfRows(flags);
  const settings = await settingsOf(terminal, flags);
  if (sources.length === 0 || sources.includes('-'))
    throw new ShoalError('USAGE', 'workers cannot read standard input: name files, or folders with files in them');
  const files = await filesIn(sources, terminal.signal);
  await refuseOwnObjects(sources, files, flags.output!);
  await withInputs(files, flags.format, async (inputs) => {
    refuseFieldsWithoutEffect(inputs, flags);
    const terms = { signal: terminal.signal, onAway: sayAway(terminal) };
    const runPlace = await openRunPlace(flags.output!, terms);
    try {
      await embedFiles(terminal, settings, inputs, flags, runPlace);
    } finally {
      runPlace.close();
    }
  });
}

function refuseFlagsOfRows(flags: EmbedFlags): void {
  const other = {
    '--to': flags.to !== undefined,
    '--output-format': flags.outputFormat !== undefined && flags.outputFormat !== 'parquet',
    '--shard-rows': flags.shardRows !== undefined,
    '--long chunk': flags.long === 'chunk',
    '--resume': flags.resume === true,
    '--fresh': flags.fresh === true,
    '--class interactive': flags.class === 'interactive',
    '--max-tokens': flags.maxTokens !== undefined,
  };
  const [flag] = Object.entries(other).find(([, isGiven]) => isGiven) ?? [];
  if (flag !== undefined)
    throw new ShoalError(
      'USAGE',
      `${flag} has no place in a run of parts, in which workers write a .parquet for each (-o FOLDER/); with -o FILE this ` +
        'command writes by itself. The same command goes on with a run by itself, and another folder begins one',
    );
  const modes = [flags.cancel, flags.verify, flags.workersOnly].filter((one) => one === true);
  if (modes.length > 1) throw new ShoalError('USAGE', 'give one of --workers-only, --cancel and --verify');
}

interface Request {
  readonly settings: Settings;
  readonly flags: EmbedFlags;
  readonly inputs: readonly Input[];
  readonly model: StoredModel;
  readonly runPlace: RunPlace;
}

async function embedFiles(
  terminal: Terminal,
  settings: Settings,
  inputs: readonly Input[],
  flags: EmbedFlags,
  runPlace: RunPlace,
): Promise<void> {
  const isQuiet = flags.quiet === true;
  const options = { settings, isQuiet, waitLimitMs: flags.waitLimit };
  const model = expectEmbedder(await fetchModel(terminal, settings.model, options));
  refuseDimensions(model, flags.dimensions);
  refuseMissingPrompt(model, flags.prompt);
  refuseOwnLengths(model, flags.normalize);
  const request = { settings, flags, inputs, model, runPlace };
  const { withServer } = await import('../processes/session.ts');
  await withServer(terminal, options, async ({ redisUrl, lost }) => {
    const { prefix } = settings;
    const signal = AbortSignal.any([terminal.signal, lost]);
    const isTrial = await withConnection({ redisUrl, prefix, signal }, async (connection) => {
      const isUnsafeAllowed = settings.unsafeServer === 'warn';
      for (const warning of (await checkServer(connection, { isUnsafeAllowed })).warnings)
        if (!isQuiet) say(terminal, warning);
      return (await queueService(connection, { prefix, queue: queueOf(model) })) === 'simulation';
    });
    if (isTrial)
      say(terminal, 'warning: these workers are for a trial (simServes): the vectors are not those of the model');
    const queue = partsQueue(model.name);
    const place = { redisUrl, prefix, queue };
    const producer = await JobProducer.connect({ ...place, limits: settings });
    try {
      const ledger = await PartLedger.connect({ ...place, log: noLog });
      try {
        await embedRun(terminal, {
          ...request,
          plan: await cut(terminal, request, isTrial),
          producer,
          ledger,
          signal,
          place,
        });
      } finally {
        await ledger.stop();
      }
    } finally {
      await producer.close();
    }
  });
}

async function cut(terminal: Terminal, { flags, inputs, model, runPlace }: Request, isTrial: boolean): Promise<Plan> {
  const { textField, idField, onError, vectorField, prompt, dimensions, truncate } = flags;
  const all = inputs.reduce((sum, { bytes, parquet }) => sum + (parquet === undefined ? (bytes ?? 0) : 0), 0);
  const bar = shareProgress(terminal, 'counting lines', flags.quiet !== true && all > 0);
  let read = 0;
  try {
    return await planParts(inputs, {
      place: runPlace,
      partRows: flags.partRows ?? PART_ROWS,
      textField,
      idField,
      onError,
      vectorField,
      dtype: flags.dtype ?? 'f32',
      withText: flags.withText === true,
      isTrial,
      model: {
        name: `${model.name}@${model.revision}`,
        truncate,
        ...(prompt !== undefined && { prompt }),
        ...(dimensions !== undefined && { dimensions }),
        ...(wantsUnit(flags, model) && { normalize: true }),
      },
      signal: terminal.signal,
      onAway: sayAway(terminal),
      onBytes: (bytes) => bar.update((read += bytes) / all, 1),
    });
  } finally {
    bar.stop();
  }
}

interface OpenRun extends Request {
  readonly plan: Plan;
  readonly producer: JobProducer;
  readonly ledger: PartLedger;
  readonly signal: AbortSignal;
  readonly place: { readonly redisUrl: string; readonly prefix: string; readonly queue: string };
}

async function embedRun(terminal: Terminal, open: OpenRun): Promise<void> {
  const { flags, runPlace, plan, producer, ledger, signal } = open;
  const isQuiet = flags.quiet === true;
  if (flags.cancel === true) return cancelRun(terminal, open);
  await runPlace.make();
  const manifest = await readManifest(runPlace);
  const listed = await ledger.entries(plan.run);
  await refuseOtherRun(runPlace, plan, manifest, async (part) => {
    const isListed = listed[part.number] !== undefined || manifest?.list[part.number] !== undefined;
    return isListed || (await ledger.pointer(partId(part))) !== undefined;
  });
  const bar = rowProgress(terminal, !isQuiet);
  const run = new PartsRun({
    plan,
    place: runPlace,
    tenant: flags.tenant,
    producer,
    ledger,
    signal,
    waitLimitMs: flags.waitLimit,
    onProgress: (rows) => bar.update(rows, plan.rows),
    onNotice: (message) => say(terminal, message),
  });
  try {
    await run.begin(manifest);
    if (flags.verify === true) return await verifyRun(terminal, open, run, manifest);
    await checkBefore(terminal, open, run);
    if (run.done > 0 && run.done < plan.parts.length && !isQuiet)
      say(
        terminal,
        `goes on with run ${plan.run} in ${runPlace.name}/: ${run.done} of ${plan.parts.length} parts are done`,
      );
    if (flags.workersOnly === true) return await leaveToWorkers(terminal, open, run);
    await followRun(terminal, open, run, bar);
  } finally {
    bar.stop();
  }
}

/** What would make the run fail is looked for before anything is added. */
async function checkBefore(
  terminal: Terminal,
  { flags, model, runPlace, plan, producer }: OpenRun,
  run: PartsRun,
): Promise<void> {
  if (run.done === plan.parts.length) return;
  await checkWorkers(producer, model.name, plan, (message) => say(terminal, message));
  const share = run.leftRows / plan.rows;
  const dims = flags.dimensions ?? model.dims;
  await checkRoom(runPlace, { rows: run.leftRows, dims, bytes: plan.bytes * share, output: plan.parts[0]!.output });
}

async function followRun(terminal: Terminal, open: OpenRun, run: PartsRun, bar: { stop(): void }): Promise<void> {
  const { runPlace, flags, plan } = open;
  const [startedMs, before] = [performance.now(), plan.rows - run.leftRows];
  let text: string;
  try {
    text = await run.follow();
  } catch (error) {
    bar.stop();
    await tellLeft(terminal, open, run);
    throw error;
  }
  bar.stop();
  await writeManifest(runPlace, plan.parts[0]!, text);
  const seconds = (performance.now() - startedMs) / 1_000;
  await tellDone(terminal, open, JSON.parse(text) as Manifest, { seconds, fresh: plan.rows - before });
  if (flags.quiet === true || flags.json === true || before === 0) return;
  if (before < plan.rows) say(terminal, `${before.toLocaleString('en')} of the rows were there before`);
}

async function tellDone(
  terminal: Terminal,
  { flags, runPlace, plan }: OpenRun,
  { rows, truncated, tokens, refused: skipped, bytes }: Manifest,
  { seconds, fresh }: { readonly seconds: number; readonly fresh: number },
): Promise<void> {
  const manifest = `${runPlace.name}/${manifestName({ stem: STEM })}`;
  const parts = plan.parts.length;
  if (flags.json === true) {
    const report = {
      isDone: true,
      run: plan.run,
      parts,
      rows,
      truncated,
      tokens,
      skipped,
      bytes,
      output: `${runPlace.name}/`,
      manifest,
    };
    return print(terminal, `${JSON.stringify(report)}\n`);
  }
  if (flags.quiet === true) return;
  const pace = fresh < 256 ? '' : ` (${Math.round(fresh / seconds).toLocaleString('en')} texts/s)`;
  const [first, last] = [plan.parts[0]!, plan.parts.at(-1)!].map(partName);
  const said = [
    `${rows.toLocaleString('en')} ${rows === 1 ? 'row' : 'rows'} → ${flags.output!}${first}${parts === 1 ? '' : ` to ${last}`} in ` +
      `${duration(seconds)}${pace}`,
    `listed with their checksums in ${flags.output!}${manifestName({ stem: STEM })}`,
    ...(truncated > 0 ? [`${truncated.toLocaleString('en')} truncated at the model’s length`] : []),
    ...(skipped > 0 ? [`${skipped.toLocaleString('en')} skipped, listed there`] : []),
  ];
  say(terminal, said.join('; '));
}

/** Nothing of a run is lost when its command ends. */
async function tellLeft(terminal: Terminal, { flags, plan }: OpenRun, run: PartsRun): Promise<void> {
  const [done, of] = [run.done, plan.parts.length];
  if (flags.quiet !== true)
    say(
      terminal,
      `${done} of ${of} parts of run ${plan.run} are done${run.open > 0 ? `; ${run.open} that were asked for go on without this command` : ''}. ` +
        `The same command goes on: ${again(terminal)}\nwith --cancel it takes back what is not done`,
    );
  // print waits for a signal that may have come already
  if (flags.json === true)
    terminal.stdout.write(`${JSON.stringify({ isDone: false, run: plan.run, parts: of, done, open: run.open })}\n`);
}

async function leaveToWorkers(terminal: Terminal, { flags, plan, producer }: OpenRun, run: PartsRun): Promise<void> {
  const added = await run.addAll();
  await producer.durable();
  const [done, of] = [run.done, plan.parts.length];
  if (flags.json === true)
    return print(terminal, `${JSON.stringify({ isDone: false, run: plan.run, parts: of, done, open: added })}\n`);
  if (flags.quiet !== true)
    say(
      terminal,
      `run ${plan.run} is with the workers: ${added} of ${of} parts asked for, ${done} done before; whoever does the last one ` +
        `writes the manifest. The command without --workers-only follows it: ${again(terminal)}`,
    );
}

function again(terminal: Terminal): string {
  return commandOf(terminal, ['--workers-only', '--cancel', '--verify']);
}

async function cancelRun(terminal: Terminal, { flags, plan, place, ledger }: OpenRun): Promise<void> {
  const listed = await ledger.entries(plan.run);
  const canceller = await Canceller.connect({ ...place, log: noLog });
  try {
    const left = plan.parts.filter(({ number }) => listed[number] === undefined).map(partId);
    const counts = { cancelled: 0, asked: 0, finished: 0, unknown: 0 };
    for (let at = 0; at < left.length; at += 500)
      for (const { outcome } of await canceller.cancel(left.slice(at, at + 500))) counts[outcome]++;
    const done = plan.parts.length - left.length;
    if (flags.json === true) return await print(terminal, `${JSON.stringify({ run: plan.run, done, ...counts })}\n`);
    say(
      terminal,
      `run ${plan.run}: ${counts.cancelled} waiting parts taken back, ${counts.asked} that run are told to stop, ` +
        `${done} are done and stay. The same command without --cancel goes on with it`,
    );
  } finally {
    await canceller.close();
  }
}

async function verifyRun(
  terminal: Terminal,
  { flags, inputs, runPlace, plan, signal }: OpenRun,
  run: PartsRun,
  manifest: Manifest | undefined,
): Promise<void> {
  if (manifest === undefined)
    throw new ShoalError(
      'USAGE',
      `${runPlace.name}/ has no manifest yet: ${run.done} of ${plan.parts.length} parts of ${namesOf(inputs)} are done, and it is ` +
        'written with the last one',
    );
  const bar = shareProgress(terminal, 'reading', flags.quiet !== true);
  let read = 0;
  try {
    await verifyObjects(runPlace, manifest.list, {
      signal,
      onBytes: (bytes) => bar.update((read += bytes) / Math.max(1, manifest.bytes), 1),
    });
  } finally {
    bar.stop();
  }
  await tellVerified(terminal, flags, manifest, runPlace.name);
}

async function tellVerified(terminal: Terminal, flags: EmbedFlags, manifest: Manifest, place: string): Promise<void> {
  const { run, rows, bytes, list } = manifest;
  if (flags.json === true)
    return print(
      terminal,
      `${JSON.stringify({ isDone: true, isVerified: true, run, parts: list.length, rows, bytes })}\n`,
    );
  if (flags.quiet !== true)
    say(
      terminal,
      `all ${list.length} objects in ${place}/ are what the manifest says: ${rows.toLocaleString('en')} rows, ` +
        `${(bytes / 1e6).toFixed(1)} MB`,
    );
}
