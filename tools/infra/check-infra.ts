// Whether what lies in infra/ agrees with the program and with itself: settings that there are, images, ports, paths and
// users that are named twice, times to stop that leave room for a drain. Reads files and starts nothing; what a cluster,
// a container engine or systemd says of them is tested at night (images.test.ts, chart.test.ts, units.test.ts).

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseAllDocuments, parse } from 'yaml';
import { z } from 'zod';
import { environmentName } from '../../libs/core/src/settings/config.ts';
import { settingsSchema } from '../../libs/core/src/settings/schema.ts';

/** Path in the repository to content, of all that is looked at. A test changes one and sees what is said. */
export type InfraFiles = ReadonlyMap<string, string>;

const OTHERS = ['docs/security.md', 'docs/operations.md', 'package.json', '.dockerignore'];
/** Variables of ours that are no settings. */
const NO_SETTINGS = new Set(['SHOAL_HTTP_MASTER_KEY', 'SHOAL_FORCE_CPU']);
/** Where each of these stands, and what else there must be where it does: a name that is two names by mistake. */
const ONE = {
  'the image of valkey': /docker\.io\/valkey\/valkey:[\w.-]+/g,
  'the port of metrics': /(?:SHOAL_METRICS_PORT=|metricsPort" |name: metrics, (?:port|containerPort): )(\d+)/g,
  'the port of HTTP': /(?:SHOAL_HTTP_PORT=|httpPort" |name: http, containerPort: (?=87\d7)|:8787\}:)(\d+)/g,
  'the user of the images': /(?:--uid|runAsUser:|USER) (10\d+)/g,
} as const;

export function readInfra(root: string): InfraFiles {
  const listed = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', 'infra'], {
    cwd: root,
    encoding: 'utf8',
  });
  const paths = [...new Set(listed.split('\n').filter((path) => path !== '')), ...OTHERS];
  return new Map(paths.map((path) => [path, readFileSync(join(root, path), 'utf8')]));
}

/** Every problem as "path: what is wrong"; empty when all agrees. */
export function checkInfra(files: InfraFiles): readonly string[] {
  const unreadable = yamlProblems(files);
  if (unreadable.length > 0) return unreadable;
  return [
    ...valueProblems(files),
    ...settingProblems(files),
    ...twoNames(files),
    ...dockerProblems(files),
    ...userProblems(files),
    ...serverProblems(files),
    ...stopProblems(files),
  ];
}

function textOf(files: InfraFiles, path: string): string {
  const text = files.get(path);
  if (text === undefined) throw new Error(`${path} is missing`);
  return text;
}

const infraOf = (files: InfraFiles): readonly (readonly [string, string])[] =>
  [...files].filter(([path]) => path.startsWith('infra/'));

/** What was found in a text, so that a test that changes one file parses one. */
const parsedBefore = new Map<string, readonly string[]>();

function yamlProblems(files: InfraFiles): string[] {
  return infraOf(files)
    .filter(([path]) => /\.ya?ml$/.test(path) && !path.includes('/templates/'))
    .flatMap(([path, text]) => {
      const found = parsedBefore.get(text) ?? faultsOf(text);
      parsedBefore.set(text, found);
      return found.map((message) => `${path}: ${message}`);
    });
}

function faultsOf(text: string): readonly string[] {
  const documents = parseAllDocuments(text, { uniqueKeys: true, merge: true });
  return [...documents].flatMap(({ errors }) => errors.map(({ message }) => message));
}

function valueProblems(files: InfraFiles): string[] {
  const schema = z.fromJSONSchema(
    JSON.parse(textOf(files, 'infra/helm/shoal/values.schema.json')) as Parameters<typeof z.fromJSONSchema>[0],
  );
  return ['infra/helm/shoal/values.yaml', 'infra/kustomize/values.yaml'].flatMap((path) => {
    const parsed = schema.safeParse(parse(textOf(files, path)));
    return (parsed.error?.issues ?? []).map((issue) => `${path}: ${issue.path.join('.')}: ${issue.message}`);
  });
}

function settingProblems(files: InfraFiles): string[] {
  const known = new Set(Object.keys(settingsSchema.shape).map((key) => environmentName(key)));
  return infraOf(files).flatMap(([path, text]) =>
    [...new Set(text.match(/\bSHOAL_[A-Z0-9_]*[A-Z0-9]\b(?!=tcp)/g))]
      .filter((name) => !known.has(name) && !NO_SETTINGS.has(name))
      .map((name) => `${path}: there is no setting ${name}`),
  );
}

function twoNames(files: InfraFiles): string[] {
  return Object.entries(ONE).flatMap(([what, pattern]) => {
    const found = infraOf(files)
      .filter(([path]) => !path.startsWith('infra/kustomize/shoal'))
      .flatMap(([path, text]) => [...text.matchAll(pattern)].map((match) => [match[1] ?? match[0], path] as const));
    const [first, ...others] = new Map(found);
    return others.map(([name, path]) => `${path}: ${what} is ${name} here and ${first![0]} in ${first![1]}`);
  });
}

function dockerProblems(files: InfraFiles): string[] {
  const path = 'infra/docker/Dockerfile';
  const text = textOf(files, path);
  const { devDependencies } = JSON.parse(textOf(files, 'package.json')) as {
    readonly devDependencies: Readonly<Record<string, string>>;
  };
  const node = /NODE_IMAGE=\S*node:([\d.]+)/.exec(text)?.[1];
  const problems =
    node === devDependencies['node'] ? [] : [`${path}: Node ${node}, and tests run on ${devDependencies['node']}`];
  const allowed = textOf(files, '.dockerignore')
    .split('\n')
    .flatMap((line) => (line.startsWith('!') ? line.slice(1) : []));
  for (const [, source] of text.matchAll(/^COPY (?!--from)(\S+)/gm))
    if (!allowed.includes(source!)) problems.push(`.dockerignore: ${path} copies ${source}, which it keeps out`);
  for (const stage of ['http', 'cpu', 'cuda']) {
    const body = text.split(/^FROM /m).find((part) => new RegExp(`^\\S+ AS ${stage}\\n`).test(part)) ?? '';
    if (!/^USER 10001:10001$/m.test(body)) problems.push(`${path}: the target ${stage} does not end as user 10001`);
  }
  return problems;
}

/** Users of the ACL file are those that others log in as, have a password for, and that the page tells of. */
function userProblems(files: InfraFiles): string[] {
  const acl = textOf(files, 'infra/valkey/users.acl.in');
  const users = new Set([...acl.matchAll(/^user (\w+) reset on/gm)].map((match) => match[1]!));
  const problems: string[] = [];
  const named = [/redis:\/\/(\w+)@/g, /\/(\w+)\.password\b/g, /\busers: \{ worker: (\w+)/g, /--user (\w+)/g];
  for (const [path, text] of infraOf(files)) {
    for (const [, user] of named.flatMap((pattern) => [...text.matchAll(pattern)]))
      if (!users.has(user!) && user !== 'user') problems.push(`${path}: there is no user ${user} in users.acl.in`);
  }
  const page = textOf(files, 'docs/security.md');
  for (const line of acl.split('\n').filter((each) => /^user \w+ reset on/.test(each))) {
    const [, user, rights] = /^user (\w+) reset on #@\w+@ (.*)$/.exec(line) ?? [];
    if (!page.includes(`| \`${user}\` | \`${rights!.replaceAll('|', '\\|')}\` |`))
      problems.push(`docs/security.md: the user ${user} of users.acl.in, with just these rights, is not on the page`);
  }
  return problems;
}

/** Whoever starts the queue server with our file. */
const SERVERS = ['compose/compose.yaml', 'helm/shoal/templates/valkey.yaml', 'systemd/shoal-valkey.service'];

/**
 * What docs/operations.md tells people to set is set, but for what depends on the machine: the folder of the data, which
 * a server enters while it reads its file and before it reads what beats it, is given by whoever starts it.
 */
function serverProblems(files: InfraFiles): string[] {
  const path = 'infra/valkey/valkey.conf';
  const folders = SERVERS.map((name) => `infra/${name}`)
    .filter((each) => !/valkey\.conf\b.*--dir\b/.test(textOf(files, each)))
    .map((each) => `${each}: the queue server is given no --dir`);
  const lines = textOf(files, path).split('\n');
  const block = /## Settings of the server\n+```\n([^`]*)```/.exec(textOf(files, 'docs/operations.md'))?.[1] ?? '';
  const settings = block
    .split('\n')
    .map((line) => line.replace(/#.*/, '').trim())
    .filter((line) => line !== '' && !/^(maxmemory|io-threads) /.test(line))
    .filter((line) => !lines.includes(line) && !lines.includes(`# ${line}`))
    .map((line) => `${path}: docs/operations.md has "${line}"`);
  const ofTheFile = lines.some((line) => line.startsWith('dir ')) ? [`${path}: a dir has to exist everywhere`] : [];
  return [...folders, ...ofTheFile, ...settings];
}

/** Whoever stops a process waits for its drain, or for its open requests, and a little longer. */
function stopProblems(files: InfraFiles): string[] {
  const { drainTimeoutMs, requestTimeoutMs } = settingsSchema.parse({});
  const least = { worker: drainTimeoutMs / 1_000 + 10, http: requestTimeoutMs / 1_000 + 10 };
  const compose = parse(textOf(files, 'infra/compose/compose.yaml'), { merge: true }) as {
    readonly services: Readonly<Record<string, { readonly stop_grace_period?: string }>>;
  };
  return (['worker', 'http'] as const).flatMap((name) => {
    const unit = `infra/systemd/shoal-${name}${name === 'worker' ? '@' : ''}.service`;
    const inUnit = Number(/^TimeoutStopSec=(\d+)$/m.exec(textOf(files, unit))?.[1] ?? 0);
    const inCompose = Number.parseInt(compose.services[name]?.stop_grace_period ?? '0', 10);
    return [
      [unit, inUnit],
      ['infra/compose/compose.yaml', inCompose],
    ].flatMap(([path, seconds]) =>
      Number(seconds) >= least[name] ? [] : [`${path}: ${name} has ${seconds} s to stop and needs ${least[name]} s`],
    );
  });
}
