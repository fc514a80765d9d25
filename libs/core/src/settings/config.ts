// The settings in force: flag beats environment beats file beats default. All problems are reported at once, before anything
// connects, each with where its value came from. Which settings there are is schema.ts.

import { resolve } from 'node:path';
import { toJSONSchema, type core, type ZodType } from 'zod';
import { ShoalError } from '@shoal/contract';
import { redactCells } from './cells.ts';
import { redactText, redactUrl } from './redact-url.ts';
import { settingsSchema, type SettingKey, type Settings } from './schema.ts';
import { isServiceLink, straysIn } from './stray-variables.ts';

/** Settings of versions before, each with what takes its place; a file that names one is refused with these words. */
const DROPPED: Readonly<Record<string, string>> = {
  runtimeBinding: 'ONNX Runtime is always called through the binding of its npm package now; remove the setting',
};

/** Variables that other software established, honoured under their own names. SHOAL_* wins over them. */
const WELL_KNOWN: Readonly<Record<string, SettingKey>> = { REDIS_URL: 'redisUrl', LOG_LEVEL: 'logLevel' };

export interface SettingSources {
  /** Values given as flags, by key. */
  readonly flags?: Readonly<Record<string, unknown>>;
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** Parsed contents of shoal.config.json in the current folder. */
  readonly file?: Readonly<Record<string, unknown>>;
  /** Parsed contents of the person's own file. */
  readonly home?: Readonly<Record<string, unknown>>;
}

/**
 * What a folder may not choose for whoever happens to stand in it: a cloned repository or an unpacked archive is a
 * folder. These are paths of what we open, load or trust.
 */
export const NOT_FROM_FOLDER: readonly SettingKey[] = [
  'cacheDir',
  'modelsDir',
  'collectionsDir',
  'cudaLibrary',
  'cells',
  'payloadServers',
  'partFolders',
  'redisCa',
  'redisCert',
  'redisKey',
  'redisPasswordFile',
  'httpKeyFile',
  'dashboardKeyFile',
  'batchDir',
  'batchS3Endpoint',
  'webhookSecret',
  'dashboardProxyHeader',
  'dashboardProxies',
  'dashboardOperators',
];

/** What a folder may choose and is said each time: where texts go, and who may reach us. */
const SAID_FROM_FOLDER: readonly SettingKey[] = [
  'redisUrl',
  'redisServerName',
  'unsafeServer',
  'httpHost',
  'httpAccess',
  'httpCors',
  'metricsHost',
  'exporterHost',
  'dashboardHost',
  'dashboardTexts',
];

/** Where the person's own file is: $XDG_CONFIG_HOME/shoal/config.json, else ~/.config/shoal/config.json. */
export const HOME_FILE = '~/.config/shoal/config.json';

/** maxPaddedTokens → SHOAL_MAX_PADDED_TOKENS */
export function environmentName(key: string): string {
  return `SHOAL_${key.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`;
}

/** maxPaddedTokens → --max-padded-tokens */
export function flagName(key: string): string {
  return `--${key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** The settings in force, or CONFIG_INVALID with every problem and where its value came from. */
export function resolveSettings(sources: SettingSources = {}): Settings {
  const { flags = {}, environment = {}, file = {}, home = {} } = sources;
  refusePathsOf(file);
  const values: Record<string, unknown> = {};
  const origins = new Map<string, string>();
  const take = (key: string, value: unknown, origin: string): void => {
    if (value === undefined || value === '') return;
    values[key] = value;
    origins.set(key, origin);
  };
  for (const [key, value] of Object.entries(home)) take(key, value, `"${key}" in ${HOME_FILE}`);
  for (const [key, value] of Object.entries(file)) take(key, value, `"${key}" in shoal.config.json`);
  for (const [name, key] of Object.entries(WELL_KNOWN)) take(key, environment[name], name);
  for (const key of Object.keys(settingsSchema.shape))
    if (!isServiceLink(environmentName(key), environment[environmentName(key)]))
      take(key, environment[environmentName(key)], environmentName(key));
  for (const [key, value] of Object.entries(flags)) take(key, value, flagName(key));
  if (environment['SHOAL_FORCE_CPU'] === '1') take('device', 'cpu', 'SHOAL_FORCE_CPU');
  if (values['model'] === undefined && typeof values['serve'] === 'string')
    take('model', servedModels(values['serve'])[0]?.model, origins.get('serve') ?? 'serve');
  return withFiles(checkSettings(values, origins));
}

/** The setting `serve`: models in the order in which they are named, each once, with its aliases. */
export function servedModels(
  serve: string,
): readonly { readonly model: string; readonly aliases: readonly string[] }[] {
  const named = serve.split(',').map((item) => item.trim().split('=', 2) as [string, string?]);
  return [...Map.groupBy(named, ([model]) => model)].map(([model, items]) => ({
    model,
    aliases: [...new Set(items.flatMap(([, alias]) => alias ?? []))],
  }));
}

/** All at once, like every other problem, but before them: nothing else in such a file is believed either. */
function refusePathsOf(file: Readonly<Record<string, unknown>>): void {
  const problems = NOT_FROM_FOLDER.filter((key) => (file[key] ?? '') !== '').map(
    (key) =>
      `"${key}" in shoal.config.json: the file of a folder may not choose what is opened and loaded; set ` +
      `${flagName(key)} or ${environmentName(key)}, or write it into ${HOME_FILE}`,
  );
  const { redisUrl } = file;
  if (typeof redisUrl === 'string' && /[?&](?:ca|cert|key|passwordFile)=/.test(redisUrl))
    problems.push(
      '"redisUrl" in shoal.config.json: its parameters ca, cert, key and passwordFile name files, which the file of a ' +
        `folder may not; set --redis-ca, --redis-cert, --redis-key and --redis-password-file or write them into ${HOME_FILE}`,
    );
  if (problems.length > 0) throw invalid(problems);
}

function invalid(problems: readonly string[]): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError(
    'CONFIG_INVALID',
    `${problems.length === 1 ? 'a setting is' : `${problems.length} settings are`} wrong:\n  ${problems.join('\n  ')}`,
    { problems },
  );
}

/** What the folder's file decided of what is to be said, as a sentence each. Empty where flags or variables did. */
export function saidOfFolder({ flags = {}, environment = {}, file = {} }: SettingSources): readonly string[] {
  const isGiven = (key: SettingKey): boolean =>
    [flags[key], environment[environmentName(key)], key === 'redisUrl' ? environment['REDIS_URL'] : undefined].some(
      (value) => (value ?? '') !== '',
    );
  return SAID_FROM_FOLDER.filter((key) => (file[key] ?? '') !== '' && !isGiven(key)).map(
    (key) =>
      `shoal.config.json of this folder chose ${key} ${shown(key, file[key])}` +
      `${key === 'redisUrl' ? ': texts and results go to that server' : ''}`,
  );
}

/** Settings of TLS by the name that they have in a URL. */
const TLS = { redisCa: 'ca', redisCert: 'cert', redisKey: 'key', redisServerName: 'serverName' } as const;
const TLS_KEYS = Object.keys(TLS) as (keyof typeof TLS)[];
const IN_URL = { ...TLS, redisPasswordFile: 'passwordFile' } as const;
const URL_KEYS = Object.keys(IN_URL) as (keyof typeof IN_URL)[];

/**
 * TLS and the file of the password travel in the URL (libs/queue, tls.ts and server-address.ts): whoever is given the
 * one has the others. What the URL says itself holds.
 */
function withFiles(settings: Settings): Settings {
  const { redisUrl } = settings;
  const missing = URL_KEYS.filter((key) => settings[key] !== undefined && !redisUrl?.includes(`${IN_URL[key]}=`));
  if (redisUrl === undefined || missing.length === 0) return settings;
  const added = missing.map((key) => {
    const value = key === 'redisServerName' ? settings[key] : resolve(settings[key]!);
    return `${IN_URL[key]}=${encodeURIComponent(value!).replaceAll('%2F', '/')}`;
  });
  return { ...settings, redisUrl: `${redisUrl}${redisUrl.includes('?') ? '&' : '?'}${added.join('&')}` };
}

function checkSettings(values: Record<string, unknown>, origins: ReadonlyMap<string, string>): Settings {
  const parsed = settingsSchema.safeParse(values, { error: ({ path = [] }) => wanted(String(path[0])) });
  const between = problemsBetween(values, origins);
  if (parsed.success && between.length === 0) return parsed.data;
  const found = (parsed.error?.issues ?? []).flatMap((issue) => {
    if (issue.code === 'unrecognized_keys')
      return issue.keys.map((key) => `${origins.get(key) ?? key}: there is no such setting${droppedWords(key)}`);
    const key = String(issue.path[0]);
    return [`${origins.get(key) ?? key} = ${shown(key, values[key])}: ${issue.message}`];
  });
  const problems = [...new Set(found), ...between];
  throw invalid(problems);
}

const HIDDEN = '***';

/** Addresses without their passwords; a value elsewhere may be one by mistake. */
function shown(key: string, given: unknown): string | undefined {
  if (key === 'webhookSecret') return HIDDEN;
  return JSON.stringify(given, (_, value: unknown) => {
    if (typeof value !== 'string') return value;
    if (key === 'payloadServers') return redactUrls(value);
    if (key === 'cells') return redactCells(value);
    return key === 'redisUrl' || /[@?]|:\//.test(value) ? redactUrl(value) : redactText(value);
  });
}

function redactUrls(list: string): string {
  return list
    .split(',')
    .map((url) => (/^\s*(?:file:|s3:\/\/[^@:?#]*$)/.test(url) ? url : redactUrl(url)))
    .join(',');
}

function droppedWords(key: string): string {
  return DROPPED[key] === undefined ? '' : ` any more: ${DROPPED[key]}`;
}

/**
 * What the environment still says of settings that are gone. A variable that is no setting is none of ours and changes
 * nothing; whoever set one of these expects that it does, and is to be told.
 */
export function droppedVariables(
  environment: Readonly<Record<string, string | undefined>>,
): readonly { readonly variable: string; readonly advice: string }[] {
  return Object.entries(DROPPED).flatMap(([key, advice]) => {
    const variable = environmentName(key);
    return (environment[variable] ?? '') === '' ? [] : [{ variable, advice }];
  });
}

/**
 * What is to be said of variables that begin as ours do and are no settings: service links of Kubernetes, once, and
 * misspelt names. They change nothing.
 */
export function strayVariables(environment: Readonly<Record<string, string | undefined>>): readonly string[] {
  const known = [...Object.keys(settingsSchema.shape), ...Object.keys(DROPPED)];
  return straysIn(environment, known.map(environmentName));
}

/** The values of a setting that has a closed set of them, for completion. */
export function settingValues(key: string): readonly string[] | undefined {
  return describe(key)?.enum?.map(String);
}

/** As JSON Schema; undefined where there is no such setting. */
function describe(key: string): core.JSONSchema.BaseSchema | undefined {
  const types: Readonly<Record<string, ZodType>> = settingsSchema.shape;
  return types[key] === undefined ? undefined : toJSONSchema(types[key]);
}

/** What may be there, in our words: zod's own are for who wrote the schema. A pattern brings its own words. */
function wanted(key: string): string | undefined {
  const described = describe(key);
  if (described === undefined) return undefined;
  const { type, enum: options, minimum, maximum, minLength, maxLength } = described;
  if (options !== undefined) return `must be one of ${options.join(', ')}`;
  if (type === 'string')
    return maxLength === undefined ? 'must be text' : `must be text of ${minLength} to ${maxLength} characters`;
  return `must be a ${type === 'integer' ? 'whole number' : 'number'} from ${minimum} to ${maximum}`;
}

/** Settings that are fine alone and make no sense together. What is no number is complained of elsewhere. */
function problemsBetween(values: Record<string, unknown>, origins: ReadonlyMap<string, string>): string[] {
  const { maxPaddedTokens, maxTokens, redisUrl, redisCert, redisKey } = values;
  const row = Math.ceil(Number(maxTokens ?? Number.NaN) / 8) * 8;
  const problems: string[] = [];
  if (Number(maxPaddedTokens ?? Number.NaN) < row)
    problems.push(
      `${origins.get('maxPaddedTokens')} = ${JSON.stringify(maxPaddedTokens)}: one row of maxTokens (${row} ` +
        'padded tokens) does not fit; raise it or lower maxTokens',
    );
  const ofTls = TLS_KEYS.filter((key) => values[key] !== undefined).map((key) => origins.get(key) ?? key);
  if (ofTls.length > 0 && !String(redisUrl).startsWith('rediss'))
    problems.push(`${ofTls.join(', ')}: without TLS nobody looks at it; redisUrl must begin with rediss`);
  if (values['redisPasswordFile'] !== undefined && redisUrl === undefined)
    problems.push(`${origins.get('redisPasswordFile')}: nobody looks at it without redisUrl; set that one as well`);
  if ((redisCert === undefined) !== (redisKey === undefined))
    problems.push(`${origins.get('redisCert') ?? origins.get('redisKey')}: redisCert and redisKey belong together`);
  return problems;
}

/** Settings as they may be logged: secrets, and passwords inside URLs, are hidden. */
export function redactSettings<
  Shown extends {
    readonly redisUrl?: string | undefined;
    readonly payloadServers?: string | undefined;
    readonly cells?: string | undefined;
    readonly webhookSecret?: string | undefined;
  },
>(settings: Shown): Shown {
  const { redisUrl, payloadServers, cells, webhookSecret } = settings;
  if ([redisUrl, payloadServers, cells, webhookSecret].every((value) => value === undefined)) return settings;
  return {
    ...settings,
    ...(redisUrl !== undefined && { redisUrl: redactUrl(redisUrl) }),
    ...(cells !== undefined && { cells: redactCells(cells) }),
    ...(payloadServers !== undefined && { payloadServers: redactUrls(payloadServers) }),
    ...(webhookSecret !== undefined && { webhookSecret: HIDDEN }),
  };
}
