// `shoal doctor`: what works here and what does not, each failure with its cure. Exit code 1 when something is broken
// that the settings in force need: a GPU that nobody asked for may be broken, the one of --device may not.

import { access, constants, stat, statfs } from 'node:fs/promises';
import { totalmem } from 'node:os';
import { dirname, resolve } from 'node:path';
import { ShoalError, cpuLaneOf } from '@shoal/contract';
import { cacheFolder, homeCell, readCells, storeFolders, strayVariables, type Settings } from '@shoal/core';
import { isHubName, listModels, openModel, queueOfNamed } from '@shoal/models';
import { diskFailure } from '@shoal/fetch';
import {
  checkServer,
  closeConnection,
  findWrongKeys,
  isSimulated,
  openConnection,
  parkedJobs,
  queueService,
  sameCells,
  totalOf,
  untilReady,
  writeRefusal,
  type Redis,
} from '@shoal/queue';
import { attachRunningServer, findPresentProgram } from '@shoal/private-server';
import { examineGpus, examineModel, type Finding } from '@shoal/worker';
import { isHere, lookAround, type AroundServer } from '../doctor/around-server.ts';
import { auditLines, bundleFiles, writeBundle } from '../doctor/bundle.ts';
import { checkHost, type HostFacts } from '../doctor/host-checks.ts';
import { readHost } from '../doctor/host-facts.ts';
import { secretsHider } from '../doctor/secrets.ts';
import { settingsOf } from '../settings.ts';
import { hasColor, print, say, type Terminal } from '../terminal.ts';

export interface DoctorFlags {
  readonly json?: boolean;
  /** Where what was found goes as a tar. */
  readonly bundle?: string;
  /** A log whose end goes along. */
  readonly log?: string;
}

const LEAST_DISK_BYTES = 1e9;
const ANSWER_WITHIN_MS = 5_000;

export async function doctor(terminal: Terminal, flags: DoctorFlags, version: string): Promise<void> {
  if (flags.log !== undefined && flags.bundle === undefined)
    throw new ShoalError('USAGE', '--log is for what --bundle FILE writes: say where to');
  const settings = await settingsOf(terminal, flags);
  const cacheDir = cacheFolder(settings.cacheDir, terminal.environment);
  const server = await lookAtQueue(settings, cacheDir, version);
  const host = await readHost({
    settings,
    environment: terminal.environment,
    hasServer: server.redisUrl !== undefined && isHere(server.redisUrl),
    strays: strayVariables(terminal.environment),
  });
  const hide = await secretsHider(settings, terminal.environment);
  const found: Finding[] = [
    {
      about: 'versions',
      state: 'ok',
      found:
        `shoal ${version}, Node ${process.version}, ${process.platform}-${process.arch}, ` +
        `${(totalmem() / 1e9).toFixed(0)} GB of memory`,
    },
    await cacheFinding(cacheDir),
    ...(settings.device === 'cpu'
      ? []
      : await examineGpus({ cacheDir, environment: terminal.environment, cudaLibrary: settings.cudaLibrary })),
    await modelFinding(settings, cacheDir, terminal),
    ...checkHost(host),
    ...server.findings,
  ];
  const findings = found.map((one): Finding => ({ ...one, found: hide(one.found) }));
  const isBroken = findings.some((finding) => finding.state === 'broken' && isNeeded(finding, settings));
  await print(
    terminal,
    flags.json === true ? `${JSON.stringify({ ok: !isBroken, findings })}\n` : asText(findings, hasColor(terminal)),
  );
  if (flags.bundle !== undefined)
    await bundle(terminal, { ...flags, bundle: flags.bundle }, { settings, version, findings, host, server });
  if (isBroken)
    throw new ShoalError(
      'SETUP_FAILED',
      'something that these settings need does not work; the lines marked ✗ say what to do',
    );
}

/** Under `auto` a GPU that does not work is not needed: the CPU takes its place, as the model's own finding says. */
function isNeeded({ about }: Finding, { device }: Settings): boolean {
  const card = /^gpu:\d+/.exec(about)?.[0];
  if (card !== undefined) return card === device;
  const isOfGpus = ['driver', 'permission', 'CUDA provider', 'CUDA_VISIBLE_DEVICES'].includes(about);
  return !isOfGpus || device.startsWith('gpu');
}

async function cacheFinding(cacheDir: string): Promise<Finding> {
  const about = 'cache folder';
  try {
    const folder = await existingFolder(resolve(cacheDir));
    await access(folder, constants.W_OK | constants.X_OK);
    const { bavail, bsize } = await statfs(folder);
    const freeBytes = bavail * bsize;
    const found =
      `${cacheDir}${folder === resolve(cacheDir) ? '' : ' (not made yet)'}, ${(freeBytes / 1e9).toFixed(1)} GB ` +
      'free';
    return freeBytes < LEAST_DISK_BYTES
      ? { about, state: 'warning', found, cure: 'free some space, or choose another folder with cacheDir' }
      : { about, state: 'ok', found };
  } catch (error) {
    return {
      about,
      state: 'broken',
      found: diskFailure(error, cacheDir)?.message ?? (error instanceof Error ? error.message : String(error)),
      cure: 'choose a folder that you may write to with --cache-dir',
    };
  }
}

/** The folder itself, or the one above it in which the first command makes it: this command makes none. */
async function existingFolder(path: string): Promise<string> {
  const facts = await stat(path).catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT' && dirname(path) !== path)
      return undefined;
    throw error;
  });
  if (facts === undefined) return existingFolder(dirname(path));
  if (!facts.isDirectory()) throw new Error(`${path} is not a folder`);
  return path;
}

/** The model is run, but not fetched: this command changes nothing. */
async function modelFinding(settings: Settings, cacheDir: string, { environment }: Terminal): Promise<Finding> {
  const { model: name, device, precision } = settings;
  const folders = storeFolders(settings, environment);
  const repository = `${name.replace(/@.*$/s, '').toLowerCase()}@`;
  const known = (await listModels(folders)).find(
    (model) => model.name === name || model.hub?.toLowerCase().startsWith(repository) === true,
  );
  if (known === undefined && !isHubName(name))
    return {
      about: `model ${name}`,
      state: 'broken',
      found: 'no model of this name is known',
      cure: 'shoal model list shows those that are',
    };
  if (known?.isStored !== true)
    return {
      about: `model ${name}`,
      state: 'absent',
      found: 'not fetched yet; the first command that needs it fetches it',
      cure: `shoal model pull ${name}`,
    };
  if (isSimulated(device))
    return { about: `model ${name}`, state: 'ok', found: 'in the cache; a simulated device runs nothing' };
  return examineModel({
    model: await openModel(name, { ...folders, allowFetch: false }),
    device,
    precision,
    cacheDir,
    environment: { ...environment },
  });
}

interface SeenServer extends AroundServer {
  /** Undefined: none runs. */
  readonly redisUrl: string | undefined;
  /** What was done by hand, for a bundle. */
  readonly audit: string;
}

async function lookAtQueue(settings: Settings, cacheDir: string, version: string): Promise<SeenServer> {
  if (settings.cells !== undefined && settings.redisUrl !== undefined)
    return cellFindings({ ...settings, cells: settings.cells, redisUrl: settings.redisUrl }, version);
  if (settings.redisUrl !== undefined) return serverFindings(settings.redisUrl, settings, version);
  const program = await privateServerFinding(cacheDir);
  const running = await runningServerFindings(settings, cacheDir, version);
  return { ...running, findings: [program, ...running.findings] };
}

/** Each cell is looked at as a server is; what goes into a bundle besides findings is of the one at home. */
async function cellFindings(
  settings: Settings & { readonly cells: string; readonly redisUrl: string },
  version: string,
): Promise<SeenServer> {
  const cells = readCells(settings.cells);
  const home = homeCell(cells, settings.redisUrl, settings.prefix);
  const twice = sameCells(cells, settings.prefix);
  const seen = await Promise.all(
    cells.map(({ address, prefix = settings.prefix }) => serverFindings(address, { ...settings, prefix }, version)),
  );
  const closed = cells.flatMap(({ name, write }) => (write === false ? [name] : []));
  const same = (await twice).map((found): Finding => {
    const cure = 'a cell is a server, or a prefix, of its own: SDK, HTTP and commands that embed refuse such a list';
    return { about: 'cells', state: 'broken', found, cure };
  });
  const listed: Finding = {
    about: 'cells',
    state: 'ok',
    found:
      `${cells.map(({ name }) => name).join(', ')}; home is ${home.name}` +
      (closed.length === 0 ? '' : `; ${closed.join(', ')} ${closed.length === 1 ? 'takes' : 'take'} no new work`),
  };
  const findings = seen.flatMap(({ findings: own }, at) =>
    own.map((finding): Finding => ({ ...finding, about: `cell ${cells[at]!.name}: ${finding.about}` })),
  );
  return { ...seen[cells.indexOf(home)]!, findings: [listed, ...same, ...findings] };
}

function nothingOf(...findings: Finding[]): SeenServer {
  return { findings, queues: [], info: undefined, redisUrl: undefined, audit: '' };
}

interface BundleFacts {
  readonly settings: Settings;
  readonly version: string;
  readonly findings: readonly Finding[];
  readonly host: HostFacts;
  readonly server: SeenServer;
}

async function bundle(
  terminal: Terminal,
  { bundle: path, log: logFile }: { readonly bundle: string; readonly log?: string },
  { server, ...facts }: BundleFacts,
): Promise<void> {
  const { queues, info, audit } = server;
  const files = await bundleFiles({ ...facts, environment: terminal.environment, queues, info, audit, logFile });
  await writeBundle(path, files, Date.now());
  say(
    terminal,
    `${path} has ${files.map(({ name }) => name.replace('shoal-doctor/', '')).join(', ')}; no texts, no secrets`,
  );
}

/** The private server, where one runs: asked what every server is asked, because its disk may be full. */
async function runningServerFindings(settings: Settings, cacheDir: string, version: string): Promise<SeenServer> {
  try {
    const server = await attachRunningServer({ cacheDir });
    if (server === undefined) return nothingOf();
    try {
      return await serverFindings(server.url, settings, version);
    } finally {
      await server.release();
    }
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error);
    return nothingOf({ about: 'queue server', state: 'broken', found, cure: 'see the line' });
  }
}

async function serverFindings(redisUrl: string, settings: Settings, version: string): Promise<SeenServer> {
  const { prefix, unsafeServer } = settings;
  const queue = await queueOfNamed(settings.model, storeFolders(settings));
  const connection = openConnection({ url: redisUrl, prefix, name: 'doctor' });
  try {
    await untilReady(connection, redisUrl, { waitMs: ANSWER_WITHIN_MS });
    const { facts, warnings } = await checkServer(connection, { isUnsafeAllowed: unsafeServer === 'warn' });
    const refusal = await writeRefusal(connection, prefix);
    const what = `${facts.product} ${facts.version}`;
    const isPrivate = facts.isPrivate;
    const around = await lookAround({ redisUrl, connection, settings, version, isPrivate });
    const findings: Finding[] = [
      refusal === undefined
        ? {
            about: 'queue server',
            state: 'ok',
            found: `${what}${facts.appendFsync === undefined ? '' : `, appendfsync ${facts.appendFsync}`}, takes writes`,
          }
        : {
            about: 'queue server',
            state: 'broken',
            found: `${what} takes no writes: ${refusal}`,
            cure: 'free space on its disk and memory, or let it write there; work goes on by itself then',
          },
      ...warnings.map(warningOf),
      ...(await coverageFindings(connection, redisUrl, settings)),
      ...(await keyFindings(connection, prefix, queue)),
      ...(await trialFindings(connection, prefix, queue)),
      ...(await parkedFindings(connection, prefix, queue)),
      ...around.findings,
    ];
    const audit = await auditLines(redisUrl, prefix).catch(() => '');
    return { ...around, findings, redisUrl, audit };
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error);
    const cure = 'see the line; REDIS_URL names the server';
    return { ...nothingOf({ about: 'queue server', state: 'broken', found, cure }), redisUrl };
  } finally {
    await closeConnection(connection);
  }
}

/** A node that is down is to take its own cells away and no other. */
async function coverageFindings(
  connection: Redis,
  redisUrl: string,
  { cells }: Pick<Settings, 'cells'>,
): Promise<Finding[]> {
  if (cells === undefined || !/^rediss?\+cluster:/.test(redisUrl)) return [];
  const told: unknown = await connection.config('GET', 'cluster-require-full-coverage').catch(() => undefined);
  if (!Array.isArray(told) || String(told[1]) !== 'yes') return [];
  return [
    {
      about: 'queue server',
      state: 'warning',
      found:
        'a node of the cluster that is down and has no replica stops every other node as well, and all cells with them ' +
        '(cluster-require-full-coverage is yes)',
      cure: 'CONFIG SET cluster-require-full-coverage no on every node, and in their files',
    },
  ];
}

/** Each has its cure behind what was found. */
function warningOf(warning: string): Finding {
  const [, found = warning, cure = 'see the line'] =
    /^(.+?)(?:\. |: (?=free )|; (?=make sure))(.+)$/s.exec(warning) ?? [];
  return { about: 'queue server', state: 'warning', found, cure };
}

/** A key of another type than it should be stops a queue for everybody. */
async function keyFindings(connection: Redis, prefix: string, queue: string): Promise<Finding[]> {
  const lanes = await Promise.all(
    [queue, cpuLaneOf(queue)].map((lane) => findWrongKeys(connection, { prefix, queue: lane })),
  );
  return lanes.flat().map(({ key, expected, found }) => ({
    about: 'queue',
    state: 'broken',
    found: `${key} is a ${found} and should be ${expected === 'none' ? 'nothing' : `a ${expected}`}; jobs cannot pass`,
    cure: 'shoal queue repair moves it aside, loses nothing and lets the queue go on',
  }));
}

/** Jobs that no worker here can read wait for one that can. */
async function parkedFindings(connection: Redis, prefix: string, queue: string): Promise<Finding[]> {
  const lanes = [queue, cpuLaneOf(queue)];
  const parked = await Promise.all(lanes.map((lane) => parkedJobs(connection, { prefix, queue: lane })));
  return parked.flatMap((jobs, at) =>
    totalOf(jobs) === 0
      ? []
      : [
          {
            about: 'queue',
            state: 'warning' as const,
            found: `${totalOf(jobs)} jobs of ${lanes[at]} are parked: no worker knew version ${Object.keys(jobs).join(', ')}`,
            cure: 'update the workers (docs/upgrade.md: workers first, then producers); they take these jobs at once',
          },
        ],
  );
}

/** Vectors of a trial do not show where they came from. */
async function trialFindings(connection: Redis, prefix: string, queue: string): Promise<Finding[]> {
  if ((await queueService(connection, { prefix, queue })) !== 'simulation') return [];
  return [
    {
      about: 'queue',
      state: 'warning',
      found: `${queue} under ${prefix} is for a trial (simServes): its vectors are not those of the model`,
      cure: 'another prefix for work, SHOAL_PREFIX or --prefix; docs/operations.md says how a trial ends',
    },
  ];
}

async function privateServerFinding(cacheDir: string): Promise<Finding> {
  const about = 'queue server';
  try {
    const passedOver: string[] = [];
    const program = await findPresentProgram({ cacheDir, onProgress: (reason) => passedOver.push(reason) });
    if (program === undefined)
      return {
        about,
        state: 'absent',
        found: [
          'no REDIS_URL: a private server is used, not fetched yet; the first command that needs it fetches it',
          ...passedOver,
        ].join('; '),
      };
    const { name, version, path, warning } = program;
    const found = `no REDIS_URL: a private server is used, ${name} ${version} (${path})`;
    return warning === undefined
      ? { about, state: 'ok', found }
      : { about, state: 'warning', found: `${found}; ${warning}` };
  } catch (error) {
    return {
      about,
      state: 'broken',
      found: error instanceof Error ? error.message : String(error),
      cure: 'install valkey, or set REDIS_URL to a server that runs',
    };
  }
}

const MARKS = { ok: ['✓', 32], warning: ['!', 33], broken: ['✗', 31], absent: ['–', 90] } as const;

function asText(findings: readonly Finding[], isColored: boolean): string {
  const width = Math.max(...findings.map(({ about }) => about.length));
  return findings
    .map(({ about, state, found, cure }) => {
      const [mark, color] = MARKS[state];
      const shown = isColored ? `\u001b[${color}m${mark}\u001b[0m` : mark;
      return (
        `${shown} ${about.padEnd(width)}  ` +
        `${found}\n${cure === undefined ? '' : `${' '.repeat(width + 4)}→ ${cure}\n`}`
      );
    })
    .join('');
}
