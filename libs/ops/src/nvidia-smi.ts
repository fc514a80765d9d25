// What the driver says of NVIDIA GPUs, asked through nvidia-smi. The only importer of execa, which is loaded when a tool
// is run. Nothing here throws because of what the tool does: a machine without it, without a driver, with a GPU that
// tells nothing or a tool that hangs are ordinary, and come back as values with the tool's own words. Memory is the
// driver's view: what an arena keeps counts as used.

import type { ChildProcess } from 'node:child_process';
import type { MemoryProbe } from '@shoal/core';

/** A field that the driver does not tell ("[N/A]", "[Not Supported]", "[Insufficient Permissions]", …) is undefined. */
export interface DeviceReading {
  /** The driver's number; CUDA counts in this order with CUDA_DEVICE_ORDER=PCI_BUS_ID. */
  readonly index: number;
  readonly uuid: string | undefined;
  readonly name: string | undefined;
  readonly driverVersion: string | undefined;
  /** "9.0"; undefined on old drivers too. */
  readonly computeCapability: string | undefined;
  /** "Enabled" or "Disabled"; with it enabled the memory of the whole GPU is not what a slice may use. */
  readonly migMode: string | undefined;
  readonly totalBytes: number | undefined;
  readonly usedBytes: number | undefined;
  readonly freeBytes: number | undefined;
  /** 0 to 1. */
  readonly utilization: number | undefined;
  readonly temperatureCelsius: number | undefined;
  readonly powerWatts: number | undefined;
}

export type DevicesRead =
  | { readonly ok: true; readonly devices: readonly DeviceReading[] }
  /** `message` is what to tell a person. */
  | {
      readonly ok: false;
      readonly reason: 'no-tool' | 'no-device' | 'no-answer' | 'failed' | 'not-understood';
      readonly message: string;
    };

export interface ReadDevicesOptions {
  /** Index, UUID or PCI bus id of one device; without it all of them. */
  readonly device?: string | undefined;
  /** Names or paths to try, first one first. */
  readonly programs?: readonly string[];
  readonly timeoutMs?: number;
}

/** The second is where WSL 2 keeps it, off the PATH of many shells. */
const PROGRAMS = ['nvidia-smi', '/usr/lib/wsl/lib/nvidia-smi'];
/**
 * Far above what it takes: 0.02 s for this query (one H200 in persistence mode, 2026-11). Without that mode the driver
 * is loaded first.
 */
const TIMEOUT_MS = 5_000;
/** "infoROM is corrupted" of one GPU: the table is there, and so is all that it says of that GPU. */
const CORRUPTED_INFOROM = 14;

/** Fields in the order of the columns. The name comes last: it is the only one that could have a comma in it. */
const FIELDS = [
  'index',
  'uuid',
  'driver_version',
  'memory.total',
  'memory.used',
  'memory.free',
  'utilization.gpu',
  'temperature.gpu',
  'power.draw',
  'mig.mode.current',
  'compute_cap',
  'name',
] as const;
/** What every driver knows; asked again when one refuses the others. */
const OLD_FIELDS = [
  'index',
  'uuid',
  'driver_version',
  'memory.total',
  'memory.used',
  'memory.free',
  'utilization.gpu',
  'temperature.gpu',
  'power.draw',
  'name',
] as const;

type Field = (typeof FIELDS)[number];

export async function readDevices(options: ReadDevicesOptions = {}): Promise<DevicesRead> {
  const answer = await ask(FIELDS, options);
  if (answer.ok || !/not a valid field/i.test(answer.message)) return answer;
  return ask(OLD_FIELDS, options);
}

/** A MemoryProbe of one device. Readings younger than `maxAgeMs` are given again: the tool takes a while. */
export function nvidiaMemoryProbe({
  maxAgeMs = 0,
  ...options
}: ReadDevicesOptions & { readonly device: string; readonly maxAgeMs?: number }): MemoryProbe {
  const read = cachedReader(options, maxAgeMs);
  return {
    async read() {
      const answer = await read();
      const [device] = answer.ok ? answer.devices : [];
      const { freeBytes, totalBytes } = device ?? {};
      return freeBytes === undefined || totalBytes === undefined ? undefined : { freeBytes, totalBytes };
    },
  };
}

/** `readDevices` for those who ask often: one run of the tool at a time, its answer kept for `maxAgeMs`. */
export function cachedReader(options: ReadDevicesOptions, maxAgeMs: number): () => Promise<DevicesRead> {
  return keptFor(maxAgeMs, () => readDevices(options));
}

/** Reads when it is asked and `maxAgeMs` have passed since the last time; else its answer is the one of then. */
export function keptFor<Answer>(maxAgeMs: number, read: () => Promise<Answer>): () => Promise<Answer> {
  let last: { readonly answer: Promise<Answer>; readonly askedMs: number } | undefined;
  return () => {
    if (last === undefined || performance.now() - last.askedMs > maxAgeMs)
      last = { answer: read(), askedMs: performance.now() };
    return last.answer;
  };
}

/** A little less than how often the fleet is told of a card: scrapes in between find that reading. */
const CARD_MAX_AGE_MS = 9_000;
const cardReaders = new Map<string, () => Promise<DevicesRead>>();

/** One reader of a card for the whole process, whoever asks: the tool runs once in nine seconds at most. */
export function cardReader(card: string): () => Promise<DevicesRead> {
  const known = cardReaders.get(card) ?? cachedReader({ device: card }, CARD_MAX_AGE_MS);
  cardReaders.set(card, known);
  return known;
}

// ---- the tool -----------------------------------------------------------------------------------------------------

async function ask(fields: readonly Field[], options: ReadDevicesOptions): Promise<DevicesRead> {
  const { device } = options;
  const args = [
    `--query-gpu=${fields.join(',')}`,
    '--format=csv,noheader,nounits',
    ...(device === undefined ? [] : [`--id=${device}`]),
  ];
  const answer = await askTool(args, options);
  return answer.ok ? understand(fields, answer.ended, device) : answer;
}

type Ended = Extract<ToolEnd, { kind: 'ended' }>;
type ToolAnswer = { readonly ok: true; readonly ended: Ended } | Extract<DevicesRead, { ok: false }>;

/** What the first of the programs that exists says to these arguments, whatever its exit code. */
export async function askTool(
  args: readonly string[],
  { programs = PROGRAMS, timeoutMs = TIMEOUT_MS }: ReadDevicesOptions,
): Promise<ToolAnswer> {
  for (const program of programs) {
    const ended = await runTool(program, args, timeoutMs);
    if (ended.kind === 'absent') continue;
    if (ended.kind === 'hung')
      return {
        ok: false,
        reason: 'no-answer',
        message: `${program} did not answer within ${timeoutMs} ms; the driver may hang (see dmesg)`,
      };
    return { ok: true, ended };
  }
  return {
    ok: false,
    reason: 'no-tool',
    message: 'there is no nvidia-smi on this machine: no NVIDIA driver is installed, or it is not on PATH',
  };
}

type ToolEnd =
  | { readonly kind: 'absent' }
  | { readonly kind: 'hung' }
  | { readonly kind: 'ended'; readonly exitCode: number | undefined; readonly output: string; readonly words: string };

/**
 * Does not wait for the end of a tool that was killed: stuck in the driver it cannot die, and what it forked may hold
 * its output open.
 */
async function runTool(program: string, args: readonly string[], timeoutMs: number): Promise<ToolEnd> {
  const { execa } = await import('execa');
  const child = execa(program, args, {
    reject: false,
    stdin: 'ignore',
    env: { LC_ALL: 'C' },
    maxBuffer: 1_000_000,
    killSignal: 'SIGKILL',
  });
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, timeoutMs, undefined)));
  const result = await Promise.race([child, late]);
  clearTimeout(timer);
  if (result === undefined) {
    child.kill();
    letGo(child.nodeChildProcess);
    return { kind: 'hung' };
  }
  if (result.code === 'ENOENT' || result.code === 'EACCES' || result.code === 'ENOTDIR') return { kind: 'absent' };
  return {
    kind: 'ended',
    exitCode: result.exitCode,
    output: withoutWarnings(result.stdout),
    words: `${result.stdout}\n${result.stderr}`.trim(),
  };
}

/** They come between the lines of a table. */
function withoutWarnings(output: string): string {
  return output.replaceAll(/^WARNING:.*$/gm, '');
}

/** Whether what it printed is what was asked for, as far as its exit code tells. */
export function hasAnswered({ exitCode }: Ended): boolean {
  return exitCode === 0 || exitCode === CORRUPTED_INFOROM;
}

/** So that a child that cannot die does not keep this process alive. */
function letGo(child: ChildProcess): void {
  child.unref();
  child.stdout?.destroy();
  child.stderr?.destroy();
}

function understand(fields: readonly Field[], ended: Ended, device: string | undefined): DevicesRead {
  const { exitCode, output, words } = ended;
  if (/^No devices were found/m.test(words)) {
    return device === undefined
      ? { ok: true, devices: [] }
      : { ok: false, reason: 'no-device', message: `the driver knows no device ${device}` };
  }
  if (!hasAnswered(ended))
    return {
      ok: false,
      reason: 'failed',
      message:
        `nvidia-smi ended with ${exitCode === undefined ? 'a signal' : `exit code ${exitCode}`}: ` +
        `${excerpt(words)}`,
    };
  const devices = parseDevices(output, fields);
  if (devices === undefined)
    return {
      ok: false,
      reason: 'not-understood',
      message: `nvidia-smi answered something else than the table that was asked for: ${excerpt(words)}`,
    };
  return { ok: true, devices };
}

function excerpt(words: string): string {
  return words === '' ? 'it said nothing' : words.replaceAll(/\s+/g, ' ').slice(0, 300);
}

// ---- its words ----------------------------------------------------------------------------------------------------

/**
 * One reading per line of `--format=csv,noheader,nounits` with these columns; undefined when that is not what it is.
 */
export function parseDevices(output: string, fields: readonly Field[] = FIELDS): readonly DeviceReading[] | undefined {
  const lines = output.split(/\r?\n/).filter((line) => line.trim() !== '');
  const devices = lines.map((line) => parseLine(line, fields));
  return devices.length > 0 && devices.every((device) => device !== undefined) ? devices : undefined;
}

function parseLine(line: string, fields: readonly Field[]): DeviceReading | undefined {
  const parts = line.split(',').map((part) => part.trim());
  if (parts.length < fields.length) return undefined;
  const last = fields.length - 1;
  const cells = new Map<Field, string>(
    fields.map((field, column) => [field, column === last ? parts.slice(last).join(', ') : parts[column]!]),
  );
  const index = numberIn(cells.get('index'));
  if (index === undefined || !Number.isInteger(index) || index < 0) return undefined;
  const utilization = numberIn(cells.get('utilization.gpu'));
  return {
    index,
    uuid: textIn(cells.get('uuid')),
    name: textIn(cells.get('name')),
    driverVersion: textIn(cells.get('driver_version')),
    computeCapability: textIn(cells.get('compute_cap')),
    migMode: textIn(cells.get('mig.mode.current')),
    totalBytes: mebibytesIn(cells.get('memory.total')),
    usedBytes: mebibytesIn(cells.get('memory.used')),
    freeBytes: mebibytesIn(cells.get('memory.free')),
    utilization: utilization === undefined ? undefined : utilization / 100,
    temperatureCelsius: numberIn(cells.get('temperature.gpu')),
    powerWatts: numberIn(cells.get('power.draw')),
  };
}

/** "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "": the driver does not tell. */
export function textIn(cell: string | undefined): string | undefined {
  return cell === undefined || cell === '' || cell === 'N/A' || /^\[.*\]$/.test(cell) ? undefined : cell;
}

/** "nounits" is not honoured for every field by every driver. */
export function numberIn(cell: string | undefined): number | undefined {
  const number = /^(\d+(?:\.\d+)?)(?: (?:MiB|%|W|C))?$/.exec(textIn(cell) ?? '')?.[1];
  return number === undefined ? undefined : Number(number);
}

function mebibytesIn(cell: string | undefined): number | undefined {
  const mebibytes = numberIn(cell);
  return mebibytes === undefined ? undefined : mebibytes * 1_048_576;
}
