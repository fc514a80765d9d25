// Lets people in, and tells each request who asks: by a key and the session that follows, by a proxy that is trusted, or,
// where neither is set, as anybody, who may look and change nothing. Guards whatever changes something: an operator's
// request, with the token of a form that this process made for that person, from a page of this dashboard.
//
// Why a token and the Origin both: a cookie is sent with forms of other pages of the same site too, and a page there has
// neither.

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Logger } from '@shoal/core';
import { barePage } from '../page/layout.ts';
import { html } from '../page/html.ts';
import type { DashboardKeys } from './dashboard-keys.ts';
import type { TrustedProxy } from './proxy.ts';
import { NO_COOKIE, Sessions, cookieOf } from './sessions.ts';
import { ANYBODY, type Visitor } from './visitor.ts';

export interface GateParts {
  readonly keys: DashboardKeys | undefined;
  readonly proxy: TrustedProxy | undefined;
  readonly log: Logger;
}

/** Asked for by pages before anybody has logged in. */
const OPEN_PATHS: ReadonlySet<string> = new Set(['/login', '/page.css', '/page.js', '/livez', '/readyz', '/metrics']);

const visitors = new WeakMap<FastifyRequest, Visitor>();

/** Who asks. Known in every route but those that are open to all. */
export function visitorOf(request: FastifyRequest): Visitor {
  return visitors.get(request) ?? ANYBODY;
}

export class Gate {
  private readonly parts: GateParts;
  private readonly sessions = new Sessions();

  constructor(parts: GateParts) {
    this.parts = parts;
  }

  /** Adds the hooks and the pages of logging in. */
  guard(app: FastifyInstance): void {
    app.addHook('onRequest', async (request, reply) => this.admit(request, reply));
    app.get('/login', async (request, reply) => reply.type('text/html').send(loginPage(nextOf(request.query))));
    app.post('/login', async (request, reply) => this.logIn(request, reply));
    app.post('/logout', async (request, reply) => this.logOut(request, reply));
  }

  /**
   * Whether this request may change something; answers it otherwise: 403 for a viewer, and for a form that is not of
   * this dashboard.
   */
  async mayAct(request: FastifyRequest, reply: FastifyReply): Promise<boolean> {
    const visitor = visitorOf(request);
    if (visitor.role !== 'operator') {
      await refuse(reply, 403, 'Not yours to do', 'This needs an operator; you may look.');
      return false;
    }
    const token = fieldOf(request.body, 'csrf');
    const isOurs = isSameOrigin(request) && this.sessions.isFormToken(token, this.boundTo(request));
    if (!isOurs)
      await refuse(
        reply,
        403,
        'Not from here',
        'The form is not one that this dashboard made for you; load the page again.',
      );
    return isOurs;
  }

  /** Who a request is from now; undefined for nobody that is let in. For streams that stay open, too. */
  async find(request: FastifyRequest): Promise<Visitor | undefined> {
    const { keys, proxy } = this.parts;
    if (keys === undefined && proxy === undefined) return ANYBODY;
    const told = proxy?.who(request.raw);
    if (told !== undefined) return { ...told, canLeave: false, csrf: this.sessions.formToken(`proxy ${told.who}`) };
    const session = this.sessions.find(request.headers.cookie, Date.now());
    const key = session === undefined ? undefined : await keys?.byId(session.keyId, Date.now());
    if (session === undefined || key === undefined) return undefined;
    return {
      who: `${key.name} (key ${key.keyId})`,
      role: key.role,
      canLeave: true,
      csrf: this.sessions.formToken(session.text),
    };
  }

  private async admit(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const path = request.url.split('?')[0] ?? '';
    if (OPEN_PATHS.has(path)) return;
    const visitor = await this.find(request);
    if (visitor !== undefined) return void visitors.set(request, visitor);
    const isPage = request.method === 'GET' && (request.headers.accept ?? '').includes('text/html');
    if (isPage && this.parts.keys !== undefined)
      await reply.redirect(`/login?next=${encodeURIComponent(request.url)}`, 303);
    else
      await refuse(
        reply,
        401,
        'Who are you?',
        'This dashboard asks who comes: log in with a key, or come through the proxy that it knows.',
      );
  }

  private async logIn(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const { keys, log } = this.parts;
    const next = nextOf(request.body);
    if (keys === undefined) return refuse(reply, 404, 'No keys', 'This dashboard has no keys to log in with.');
    if (!isSameOrigin(request))
      return refuse(reply, 403, 'Not from here', 'Load the page of this dashboard and log in there.');
    const key = await keys.who(fieldOf(request.body, 'key').trim(), Date.now());
    if (key === undefined) {
      log.warn({ address: request.ip }, 'somebody came to the dashboard with a key that is not good');
      await reply
        .status(401)
        .type('text/html')
        .send(loginPage(next, 'That key is not one of this dashboard, or not good any more.'));
      return;
    }
    log.info({ keyId: key.keyId, name: key.name, role: key.role }, 'logged in to the dashboard');
    const isSecure = this.parts.proxy?.isFrom(request.raw) === true && request.headers['x-forwarded-proto'] === 'https';
    await reply.header('set-cookie', cookieOf(this.sessions.open(key.keyId, Date.now()), isSecure)).redirect(next, 303);
  }

  private async logOut(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    if (!this.sessions.isFormToken(fieldOf(request.body, 'csrf'), this.boundTo(request)) || !isSameOrigin(request))
      return refuse(reply, 403, 'Not from here', 'The form is not one that this dashboard made for you.');
    await reply.header('set-cookie', NO_COOKIE).redirect('/login', 303);
  }

  /** What the tokens of this person's forms are made of. */
  private boundTo(request: FastifyRequest): string {
    const told = this.parts.proxy?.who(request.raw);
    if (told !== undefined) return `proxy ${told.who}`;
    return this.sessions.find(request.headers.cookie, Date.now())?.text ?? 'nobody';
  }
}

/** A field of a form; empty where there is none. */
export function fieldOf(body: unknown, name: string): string {
  return body instanceof URLSearchParams ? (body.get(name) ?? '') : '';
}

/** Answers with a page that says why not. */
export async function refuse(reply: FastifyReply, status: number, title: string, words: string): Promise<void> {
  await reply
    .status(status)
    .type('text/html')
    .send(
      barePage(
        title,
        html`<h1>${title}</h1>
          <p>${words}</p>
          <p><a href="/">To the fleet</a></p>`,
      ),
    );
}

/** Browsers tell with every form where the page came from. */
function isSameOrigin({ headers }: FastifyRequest): boolean {
  const { origin, host } = headers;
  if (origin === undefined) return headers['sec-fetch-site'] === 'same-origin';
  if (!URL.canParse(origin)) return false;
  const from = new URL(origin);
  return from.host === host || from.hostname === host; // a proxy may leave its port out
}

/** A path of this dashboard, whatever the address says. */
function nextOf(told: unknown): string {
  const next = told instanceof URLSearchParams ? told.get('next') : Reflect.get(Object(told), 'next');
  const isOurs = typeof next === 'string' && /^\/(?![/\\])[\x21-\x7e]*$/.test(next);
  return isOurs ? next : '/';
}

function loginPage(next: string, problem?: string): string {
  return barePage(
    'Log in',
    html`<h1>Log in to Shoal's dashboard</h1>
      ${problem !== undefined && html`<p class="notice serious" role="alert">${problem}</p>`}
      <form method="post" action="/login" class="card">
        <input type="hidden" name="next" value="${next}" />
        <label for="key">Key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" maxlength="128" required />
        <p class="soft">
          Whoever runs this fleet makes one: <code>shoal key create NAME --dashboard --scopes view</code>
        </p>
        <p><button class="go" type="submit">Log in</button></p>
      </form>`,
  );
}
