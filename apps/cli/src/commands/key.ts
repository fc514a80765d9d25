// `shoal key`: API keys of the HTTP interface, and with --dashboard keys of the dashboard. A key is shown once, on
// standard output, when it is made; what is kept is its digest, on the queue server that runs or in the file of the
// setting httpKeyFile, of the dashboard in that of dashboardKeyFile. Servers look every two seconds.

import { ShoalError } from '@shoal/contract';
import { DASHBOARD_SCOPES, SCOPES, makeApiKey, type ApiKey, type KeyLimits, type Scope } from '@shoal/core';
import { AccessLink, FileApiKeys, type ApiKeyStore } from '@shoal/queue';
import { audited, type AuditPlace } from '../processes/audited.ts';
import { withRunningServer } from '../processes/running-queue.ts';
import { settingsOf } from '../settings.ts';
import { table } from '../table.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface KeyFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
  /** Those of the dashboard. */
  readonly dashboard?: boolean;
}

export interface CreateFlags extends KeyFlags {
  readonly tenant?: string;
  /** Separated by commas. */
  readonly scopes?: string;
  readonly requestsPerMinute?: number;
  readonly textsPerMinute?: number;
  readonly tokensPerMinute?: number;
  /** Milliseconds from now. */
  readonly expires?: number;
}

export async function create(terminal: Terminal, name: string, flags: CreateFlags): Promise<void> {
  const scopes = scopesOf(flags);
  await withKeys(terminal, flags, async (store, place) => {
    const isFirst = (await store.list()).length === 0;
    const now = Date.now();
    const { text, kept } = makeApiKey(
      {
        name,
        tenant: flags.tenant,
        scopes,
        limits: limitsOf(flags),
        expiresMs: flags.expires === undefined ? undefined : now + flags.expires,
      },
      now,
    );
    await store.add(kept);
    const details = { name, tenant: kept.tenant, scopes: kept.scopes.join(',') };
    await noteKeys(terminal, place, { what: 'key create', ids: [kept.id], details });
    if (flags.json === true) return print(terminal, `${JSON.stringify({ key: text, ...shownAs(kept, now) })}\n`);
    await print(terminal, `${text}\n`);
    note(
      terminal,
      flags,
      `this is shown once; kept in ${store.place} is its digest. Key ${kept.id} of tenant ${kept.tenant}: ` +
        `${kept.scopes.join(', ')}. ` +
        (flags.dashboard === true
          ? 'It is typed into the page /login'
          : 'Callers send it as "authorization: Bearer KEY"'),
    );
    if (isFirst && flags.dashboard !== true)
      note(terminal, flags, 'it is the first one: HTTP answers nobody without a key from now on');
  });
}

export async function list(terminal: Terminal, flags: KeyFlags): Promise<void> {
  await withKeys(terminal, flags, async (store) => {
    const now = Date.now();
    const keys = (await store.list()).map((key) => shownAs(key, now));
    if (flags.json === true) return print(terminal, `${JSON.stringify(keys)}\n`);
    if (keys.length === 0) return note(terminal, flags, `there are no keys in ${store.place}`);
    await print(terminal, tableOf(keys));
  });
}

export async function revoke(terminal: Terminal, ids: readonly string[], flags: KeyFlags): Promise<void> {
  await withKeys(terminal, flags, async (store, place) => {
    const now = Date.now();
    const found: { readonly id: string; readonly key: ApiKey | undefined }[] = [];
    for (const id of ids) found.push({ id, key: await store.revoke(id, now) });
    const known = found.flatMap(({ key }) => (key === undefined ? [] : [shownAs(key, now)]));
    if (known.length > 0) await noteKeys(terminal, place, { what: 'key revoke', ids: known.map(({ id }) => id) });
    if (flags.json === true) await print(terminal, `${JSON.stringify(known)}\n`);
    for (const { id, name } of known)
      note(terminal, flags, `key ${id} (${name}) is revoked: servers refuse it within seconds`);
    const unknown = found.filter(({ key }) => key === undefined).map(({ id }) => id);
    if (unknown.length > 0)
      throw new ShoalError(
        'USAGE',
        `there is no key ${unknown.join(', ')} in ${store.place}; shoal key list shows those that there are, by the id ` +
          'that stands within a key after "shoal_"',
        { unknown },
      );
  });
}

/** Where the settings say that keys are kept. Throws QUEUE_UNREACHABLE where no queue server runs. */
async function withKeys(
  terminal: Terminal,
  flags: KeyFlags,
  use: (store: ApiKeyStore, place: AuditPlace | undefined) => Promise<void>,
): Promise<void> {
  const { httpKeyFile, dashboardKeyFile } = await settingsOf(terminal, flags);
  if (flags.dashboard === true) {
    if (dashboardKeyFile !== undefined) return use(new FileApiKeys(dashboardKeyFile), undefined);
    throw new ShoalError(
      'USAGE',
      'keys of the dashboard are kept in a file: name it with --dashboard-key-file FILE or SHOAL_DASHBOARD_KEY_FILE, ' +
        'for the dashboard too',
    );
  }
  if (httpKeyFile !== undefined) return use(new FileApiKeys(httpKeyFile), undefined);
  await withRunningServer(terminal, flags, async (place) => {
    const link = await AccessLink.connect(place);
    try {
      await use(link.keys, place);
    } finally {
      await link.close();
    }
  });
}

/** Keys in a file have no server to note it on: there the file's own time and owner tell. */
async function noteKeys(
  terminal: Terminal,
  place: AuditPlace | undefined,
  entry: Parameters<typeof audited>[2],
): Promise<void> {
  if (place !== undefined) await audited(terminal, place, entry);
}

/** Undefined: those that HTTP's keys have when nothing else is said. A key is for HTTP or for the dashboard. */
function scopesOf({ scopes: text, dashboard }: CreateFlags): readonly Scope[] | undefined {
  if (text === undefined) return dashboard === true ? ['view'] : undefined;
  const scopes = scopesIn(text);
  const strange = scopes.find((scope) => isOfDashboard(scope) !== (dashboard === true));
  if (strange === undefined) return scopes;
  throw new ShoalError(
    'USAGE',
    dashboard === true
      ? `"${strange}" is a scope of HTTP's keys; those of the dashboard have ${DASHBOARD_SCOPES.join(' or ')}`
      : `"${strange}" is a scope of the dashboard's keys: say --dashboard`,
  );
}

function isOfDashboard(scope: Scope): boolean {
  return DASHBOARD_SCOPES.some((known) => known === scope);
}

function scopesIn(text: string): readonly Scope[] {
  return text.split(',').map((word) => {
    const scope = SCOPES.find((known) => known === word.trim());
    if (scope === undefined)
      throw new ShoalError('USAGE', `there is no scope "${word.trim()}"; there are ${SCOPES.join(', ')}`);
    return scope;
  });
}

function limitsOf({ requestsPerMinute, textsPerMinute, tokensPerMinute }: CreateFlags): KeyLimits {
  return {
    ...(requestsPerMinute !== undefined && { requests: requestsPerMinute }),
    ...(textsPerMinute !== undefined && { texts: textsPerMinute }),
    ...(tokensPerMinute !== undefined && { tokens: tokensPerMinute }),
  };
}

interface ShownKey {
  readonly id: string;
  readonly name: string;
  readonly tenant: string;
  readonly scopes: readonly Scope[];
  readonly limits: KeyLimits;
  readonly state: 'good' | 'revoked' | 'expired';
  readonly created: string;
  readonly expires?: string;
  readonly revoked?: string;
}

function shownAs(
  { id, name, tenant, scopes, limits, createdMs, expiresMs, revokedMs }: ApiKey,
  nowMs: number,
): ShownKey {
  const state =
    revokedMs !== undefined ? 'revoked' : expiresMs !== undefined && expiresMs <= nowMs ? 'expired' : 'good';
  return {
    id,
    name,
    tenant,
    scopes,
    limits,
    state,
    created: new Date(createdMs).toISOString(),
    ...(expiresMs !== undefined && { expires: new Date(expiresMs).toISOString() }),
    ...(revokedMs !== undefined && { revoked: new Date(revokedMs).toISOString() }),
  };
}

function tableOf(keys: readonly ShownKey[]): string {
  const head = ['id', 'name', 'tenant', 'scopes', 'a minute', 'created', 'state'];
  const rows = keys.map((key) => [
    key.id,
    key.name,
    key.tenant,
    key.scopes.join(','),
    Object.entries(key.limits)
      .map(([kind, limit]) => `${limit} ${kind}`)
      .join(', ') || '-',
    key.created.slice(0, 10),
    key.expires !== undefined && key.state === 'good' ? `good until ${key.expires.slice(0, 10)}` : key.state,
  ]);
  return table(head, rows);
}

function note(terminal: Terminal, flags: KeyFlags, message: string): void {
  if (flags.quiet !== true && flags.json !== true) say(terminal, message);
}
